"""Copies of images with a short side of so many pixels: what a folder of them says of itself; no torch, no numpy.

The folder is a data set like any other, with a manifest beside the images; `ettsweep data images` makes it.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from ettsweep.errors import CorruptError, DataMissingError
from ettsweep.schema import Frozen, Positive, problems
from ettsweep.tasks.data import resolve

VERSION = 1
"""Of what is on disk, and of the rules by which copies are made."""

MANIFEST, PARTS = "ettsweep-copies.json", "ettsweep-copies"
"""The manifest, which is written last, and the folder for what is known of finished parts."""

AGAIN = "run the same `ettsweep data images` again"

Count = Annotated[int, Field(ge=0)]
Quality = Annotated[int, Field(ge=1, le=100)]


class Undecodable(Frozen):
    """An image of the source that cannot be decoded, and is in the copy as it is."""

    image: str
    reason: str


class SideCounts(Frozen):
    """What one side holds.

    Attributes:
        resized: images that were made smaller; all others are as they were, byte for byte.
        undecodable: of these others.
        source_bytes, bytes: of the files that hold the images, before and after.
    """

    images: Count
    resized: Count
    undecodable: Count
    source_bytes: Count
    bytes: Count


class Copies(Frozen):
    """All that is known of copies.

    Attributes:
        source: the folder of the originals.
        digest: 12 hex digits of the copies' bytes.
        source_digest: 12 hex digits of names, sizes and times of the originals, and of how they were copied.
        made_by: versions of what scales and encodes.
    """

    version: Annotated[int, Field(ge=VERSION, le=VERSION)]
    source: str
    short_side: Positive
    quality: Quality
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    source_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    made_by: tuple[str, ...]
    train: SideCounts
    val: SideCounts
    undecodable: tuple[Undecodable, ...]

    @property
    def rule(self) -> str:
        """What a run records of copies: it learns from other bytes than those of the originals."""
        return f"short side {self.short_side}, quality {self.quality}"


def copies_in(folder: Path) -> Copies | None:
    """Return what a folder of copies says of itself; None where it is any other folder.

    Raises:
        DataMissingError: the copies are not finished.
        CorruptError: what it says cannot be read.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if (folder / PARTS).is_dir():
            raise DataMissingError(f"{folder}: the copies are not finished: {AGAIN}") from None
        return None
    except OSError as error:
        raise CorruptError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return Copies.model_validate_json(data)
    except ValidationError as error:
        raise CorruptError("; ".join([*problems(error, str(path)), AGAIN])) from None


def copies_at(data: str | None) -> Copies | None:
    """Return what copies say of themselves where a data set is said to be; None where there are none."""
    return None if data is None or data.startswith("hfds/") else copies_in(Path(resolve(data)))
