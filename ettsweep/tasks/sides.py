"""The two sides of the split of any data set."""

from typing import Literal

Side = Literal["train", "val"]

SIDES: tuple[Side, ...] = ("train", "val")
