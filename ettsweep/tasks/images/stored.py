"""Images as they are stored: what a set of them is for whoever reads it, and how one becomes an image."""

import io
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ettsweep.errors import UndecodableError


class ImageSource(Protocol):
    """Images in a fixed order.

    Attributes:
        classes: their names; a label is a position among them.
        labels: of all images [N].
    """

    classes: list[str]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def name(self, index: int) -> str:
        """Return what a person finds the image by."""
        ...

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        """Return an image as it is stored: encoded, or as pixels [H, W, 3].

        Raises:
            OSError: it cannot be read.
        """
        ...


def decode(stored: bytes | NDArray[np.uint8], *, small: bool = False) -> Image.Image:
    """Return an image in RGB; a `small` one, where that is quicker, is good to see whether all of it is there.

    Raises:
        UndecodableError: it is truncated, or no image.
    """
    if isinstance(stored, np.ndarray):
        return Image.fromarray(stored)
    try:
        with Image.open(io.BytesIO(stored)) as image:
            if small:
                image.draft("RGB", (1, 1))
            return image.convert("RGB")
    except MemoryError:
        raise
    except UnidentifiedImageError:
        raise UndecodableError("no image of a known format" if stored else "an empty file") from None
    except Exception as error:  # decoders raise all kinds of errors on bytes that are not theirs
        raise UndecodableError(str(error) or type(error).__name__) from None
