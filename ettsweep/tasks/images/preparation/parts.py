"""Parts of the work: some images of a folder, or a tar. One that is finished is known again by its originals."""

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, ValidationError

from ettsweep.files import storage_errors, write_atomic
from ettsweep.schema import Frozen
from ettsweep.tasks.data import Side
from ettsweep.tasks.images.copies import PARTS, VERSION, Count, Quality, SideCounts, Undecodable
from ettsweep.tasks.images.preparation.shrink import made_by, printable, reading, shrink, shrink_tar

AT_ONCE = 256
"""Images of a folder that are one part: some seconds of work, which is what a kill costs at most."""


class Part(NamedTuple):
    """Files of one side, by their paths in the data set: `images` of a folder, or a tar with so many."""

    side: Side
    files: tuple[str, ...]
    images: int
    tar: bool


class PartRecord(Frozen):
    """A finished part: lengths and checksum of its copies, what was done, and by which versions."""

    sizes: tuple[Count, ...]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    counts: SideCounts
    undecodable: tuple[Undecodable, ...]
    made_by: str


class Found(NamedTuple):
    """What there is of a part: its key, bytes of the originals, and its record where its copies are there and whole."""

    part: Part
    key: str
    source_bytes: int
    record: PartRecord | None


class Work(NamedTuple):
    """What all parts have in common."""

    source: Path
    out: Path
    short_side: int
    quality: Quality

    def record(self, key: str) -> Path:
        """Return the last file of a finished part."""
        return self.out / PARTS / f"{key}.json"


def folder_parts(side: Side, files: Sequence[str]) -> Iterator[Part]:
    """Yield parts of images in folders, none of more than one folder: what is added to one leaves the others alone."""
    for _, inside in groupby(files, key=os.path.dirname):
        chosen = tuple(inside)
        for k in range(0, len(chosen), AT_ONCE):
            some = chosen[k : k + AT_ONCE]
            yield Part(side, some, len(some), tar=False)


def look(work: Work, anew: bool, part: Part) -> Found:
    """Return what there is of a part; `anew` compares copies with their checksum, and not their lengths alone.

    Raises:
        DataMissingError: an original is gone, or cannot be read.
    """
    stamps = []
    for file in part.files:
        with reading(work.source / file):
            info = (work.source / file).stat()
        stamps.append((file, info.st_size, info.st_mtime_ns))
    told = repr((VERSION, work.short_side, work.quality, part.tar, stamps))
    key = hashlib.sha256(told.encode()).hexdigest()[:24]
    return Found(part, key, sum(size for _, size, _ in stamps), _finished(work, part, key, anew))


def _finished(work: Work, part: Part, key: str, anew: bool) -> PartRecord | None:
    paths = [work.out / file for file in part.files]
    try:
        record = PartRecord.model_validate_json(work.record(key).read_bytes())
        whole = [path.stat().st_size for path in paths] == list(record.sizes)
        if whole and anew:
            checksum = hashlib.sha256()
            for path in paths:
                with path.open("rb") as file:
                    while data := file.read(2**20):
                        checksum.update(data)
            whole = checksum.hexdigest() == record.sha256
    except (OSError, ValidationError):
        return None
    return record if whole else None


class _Tally:
    """Makes copies of images, and counts."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.images = self.resized = self.source_bytes = 0
        self.undecodable: list[Undecodable] = []

    def __call__(self, name: str, stored: bytes) -> bytes:
        copy = shrink(stored, self._work.short_side, self._work.quality)
        self.images += 1
        self.resized += copy.resized
        if copy.wrong:
            self.undecodable.append(Undecodable(image=printable(name), reason=copy.wrong))
        return copy.data


def make(work: Work, found: Found) -> PartRecord:
    """Make the copies of a part, and its record.

    Copies are whole at any instant, but are not flushed one by one: a record is believed by their checksum alone until
    all are flushed together.

    Raises:
        DataMissingError: an original cannot be read.
        StorageError: a copy cannot be written.
    """
    tally, checksum, sizes = _Tally(work), hashlib.sha256(), list[int]()
    work.record(found.key).unlink(missing_ok=True)  # its copies are not what it says
    for file in found.part.files:
        source, path = work.source / file, work.out / file
        _put(work, found.key, path, partial(_write_tar if found.part.tar else _write_image, source, tally))
        with storage_errors(path), path.open("rb") as written:
            while data := written.read(2**20):
                checksum.update(data)
            sizes.append(written.tell())
    record = PartRecord(
        sizes=tuple(sizes),
        sha256=checksum.hexdigest(),
        counts=SideCounts(
            images=tally.images,
            resized=tally.resized,
            undecodable=len(tally.undecodable),
            source_bytes=found.source_bytes,
            bytes=sum(sizes),
        ),
        undecodable=tuple(tally.undecodable),
        made_by=made_by(),
    )
    write_atomic(work.record(found.key), record.model_dump_json())
    return record


def _write_image(source: Path, tally: _Tally, target: Path) -> None:
    with reading(source):
        stored = source.read_bytes()
    target.write_bytes(tally(str(source), stored))


def _write_tar(source: Path, tally: _Tally, target: Path) -> None:
    with target.open("wb") as file:
        shrink_tar(source, file, tally)


def _put(work: Work, key: str, path: Path, write: Callable[[Path], object]) -> None:
    """Write a whole file, which appears in one rename; what a kill leaves of it lies beside the records."""
    record = work.record(key)
    temporary = record.with_name(f".{record.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors(path):
        try:
            write(temporary)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
