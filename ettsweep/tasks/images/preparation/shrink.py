"""A smaller copy of one image, or of the images in a tar: decoded as training does, scaled by Pillow, saved as JPEG."""

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import PIL
from PIL import Image, features

from ettsweep.errors import DataMissingError, FailedError, UndecodableError
from ettsweep.tasks.images.location import IMAGE_SUFFIXES
from ettsweep.tasks.images.sources import decode, small

CHROMA = 0
"""4:4:4, colours at each pixel. Halved, as JPEGs mostly have them, they lose what no quality brings back: copies as
large are 1 dB worse (results/benchmarks/data.md)."""


class Shrunk(NamedTuple):
    """The bytes of a copy; those of the original where it was not `resized`, since it is small or `wrong`."""

    data: bytes
    resized: bool = False
    wrong: str = ""


def made_by() -> str:
    """Return the versions that a copy depends on."""
    return f"Pillow {PIL.__version__}, libjpeg-turbo {features.version('libjpeg_turbo') or 'unknown'}"


def shrink(stored: bytes, short_side: int, quality: int) -> Shrunk:
    """Return a JPEG whose short side has so many pixels, or an image as it is where it has no more, or is damaged.

    What training ignores is dropped: where a camera says that it was turned, and colour profiles.
    """
    try:
        image = decode(stored)
    except UndecodableError as error:
        return Shrunk(stored, wrong=str(error))
    if min(image.size) <= short_side:
        return Shrunk(stored)
    size = scaled(image.size, short_side)
    file = io.BytesIO()
    resized = image.resize(size, Image.Resampling.BICUBIC)
    resized.info.clear()
    resized.save(file, "jpeg", quality=quality, subsampling=CHROMA)
    data = file.getvalue()
    with Image.open(io.BytesIO(data)) as written:
        found = written.size
    decode(data, small)
    if found != size:
        raise FailedError(f"a copy of {size} pixels came out as {found}: Pillow is at fault ({made_by()})")
    return Shrunk(data, resized=True)


def scaled(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    """Return width and height with a short side of so many pixels, as torchvision's Resize of evaluations has them."""
    short = min(size)
    width, height = (short_side if side == short else int(short_side * side / short) for side in size)
    return width, height


# --- tars -------------------------------------------------------------------------------------------------------------

Convert = Callable[[str, bytes], bytes]
"""From the name of an image and its bytes to those of its copy."""

RECORD = 10_240
"""Bytes that the length of a tar is a multiple of."""


def shrink_tar(source: Path, target: BinaryIO, convert: Convert) -> None:
    """Write a tar with the members of another in their order; its images, those of tars in it too, are converted."""
    with reading(source):
        raw = _Original(source)
    with io.BufferedReader(raw) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        _convert(tar, target, convert, f"{source}: ")


class _Original(io.FileIO):
    """A file that is not at fault where another, to which its bytes go, cannot be written."""

    def readinto(self, buffer: Any, /) -> int | None:
        with reading(Path(str(self.name))):
            return super().readinto(buffer)


def _convert(tar: tarfile.TarFile, target: BinaryIO, convert: Convert, above: str) -> None:
    """Copy members; what is no image goes with its header as it is."""
    start, stream = target.tell(), tar.fileobj
    assert stream is not None
    while (info := tar.next()) is not None:
        after = tar.offset  # where the next header is
        tar.members = []  # type: ignore[attr-defined]  # else it keeps all of a million
        if info.isfile() and info.name.endswith(".tar"):
            with tarfile.open(fileobj=tar.extractfile(info), mode="r:") as inner:
                place = target.tell()
                target.write(_header(info, 0))
                begun = target.tell()
                _convert(inner, target, convert, f"{above}{info.name}/")
                end = target.tell()
            target.seek(place)
            target.write(_header(info, end - begun))
            target.seek(end)
        elif info.isfile() and Path(info.name).suffix.lower() in IMAGE_SUFFIXES:
            stream.seek(info.offset_data)
            stored = stream.read(info.size)
            data = convert(above + info.name, stored)
            if data is stored:
                _copy(stream, info.offset, after, target)
            else:
                target.write(_header(info, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE))
        else:
            _copy(stream, info.offset, after, target)
    target.write(bytes(2 * tarfile.BLOCKSIZE))
    target.write(bytes((start - target.tell()) % RECORD))


def _header(info: tarfile.TarInfo, size: int) -> bytes:
    """Return the header of a member with another size; in this form its length does not depend on the size."""
    header = tarfile.TarInfo(info.name)
    for name in ("mode", "uid", "gid", "uname", "gname"):
        setattr(header, name, getattr(info, name))
    header.mtime, header.size = int(info.mtime), size
    return header.tobuf(tarfile.GNU_FORMAT, tarfile.ENCODING, "surrogateescape")


def _copy(stream: Any, start: int, end: int, target: BinaryIO) -> None:
    stream.seek(start)
    while start < end and (data := stream.read(min(end - start, 2**20))):
        target.write(data)
        start += len(data)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError on an original into an error that names it: the way to it is at fault, not the image."""
    try:
        yield
    except OSError as error:
        raise DataMissingError(f"{path}: cannot be read ({error.strerror or error})") from None


def printable(name: str) -> str:
    """Return a name that may hold bytes that are no text, as text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
