"""Make smaller copies of a set of images on all cores: `ettsweep data images`.

The images are cut into parts, which processes copy independently. A finished part is known again by what it was made of
and how, so that a command that was killed goes on where it was. The manifest, written last, makes a data set of them.
"""

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter

import numpy as np

from ettsweep.errors import DataMissingError, FailedError, StoppedError, StorageError
from ettsweep.files import chosen_by, storage_errors
from ettsweep.output import count, progress
from ettsweep.pool import Pool, open_pool
from ettsweep.processes import cores
from ettsweep.schema import digest
from ettsweep.tasks.data import Side
from ettsweep.tasks.images.copies import MANIFEST, PARTS, VERSION, Copies, SideCounts
from ettsweep.tasks.images.location import StoredSide, sides_in
from ettsweep.tasks.images.preparation.folder import (
    check_folder,
    copies_folder,
    copies_there,
    finish,
    others_in,
    remove,
)
from ettsweep.tasks.images.preparation.parts import Found, Part, PartRecord, Work, folder_parts, look, make
from ettsweep.tasks.images.preparation.request import Copied, CopyRequest, check_request, made_otherwise
from ettsweep.tasks.images.preparation.shrink import printable, shrink
from ettsweep.tasks.images.sources import FolderSource, ImageSource, TarSource, open_source
from ettsweep.tasks.preparation import in_parts

Agree = Callable[[str], None]
"""Is told what would be replaced, and why; what it raises keeps that."""


def copy_images(request: CopyRequest, agree: Agree = lambda told: None) -> Copied:
    """Make copies of a set of images, or what is missing of them.

    Raises:
        InputError: an option is not as it must be, or the folder holds something else.
        DataMissingError: there are no images, or some cannot be read.
        StorageError: the folder cannot be written, or the disk is full.
        FailedError: a process was killed, or the images changed meanwhile.
        StoppedError: Ctrl-C.
    """
    try:
        return _copy_images(request, agree)
    except KeyboardInterrupt:
        raise StoppedError("interrupted; the same command goes on from what is finished") from None


def _copy_images(request: CopyRequest, agree: Agree) -> Copied:
    places = check_request(request)
    check_folder(request.out)
    before = copies_there(request.out)
    how = made_otherwise(request, before) if before else ""
    if before and how:
        agree(f"{request.out} holds copies {before.digest}, made with {how}")
    sources = _opened(places)
    work = Work(request.source, request.out.absolute(), request.short_side, request.quality)
    parts = [part for place, source in zip(places, sources, strict=True) for part in cut(work, place, source)]
    workers = min(request.workers or cores(), len(parts))
    with (
        chosen_by("--out", request.out),
        copies_folder(work.out),
        open_pool(workers, "spawn", _prepare) as pool,
    ):
        found = _look(pool, work, parts, anew=before is None)
        missing = [one for one in found if one.record is None]
        if missing or how or before is None or before.source_digest != source_digest(found):
            _make_way(request, work, found, sources, before, agree)
        start_s = time.monotonic()
        made = _make(pool, work, found, missing)
        wall_s = time.monotonic() - start_s
        copies = _manifest(request, found, [one.record or made[one.key] for one in found])
        if copies_there(work.out) is None:
            verify(work, places, sources)
            finish(work.out, copies, {work.record(one.key).name for one in found})
    return Copied(
        copies,
        made=sum(record.counts.images for record in made.values()),
        made_parts=len(made),
        kept_parts=len(found) - len(made),
        workers=workers,
        wall_s=wall_s,
        replaced=before.digest if before and before.digest != copies.digest else None,
    )


def _opened(places: Sequence[StoredSide]) -> list[ImageSource]:
    try:
        return [open_source(place, "imagenet") for place in places]
    except ImportError as error:
        raise DataMissingError(f"{error}: pip install 'ettsweep[vision]'") from None


def _prepare() -> None:
    warnings.simplefilter("ignore")  # of odd images, which each process would print


def _look(pool: Pool, work: Work, parts: Sequence[Part], *, anew: bool) -> list[Found]:
    """Return what there is of all parts."""

    def begun() -> int:
        return len(list((work.out / PARTS).glob("[!.]*.json")))

    with progress("looking", len(parts)) as advance:
        return in_parts(pool, partial(look, work, anew), parts, lambda part: 1, advance, begun)


def _make_way(
    request: CopyRequest,
    work: Work,
    found: Sequence[Found],
    sources: Sequence[ImageSource],
    before: Copies | None,
    agree: Agree,
) -> None:
    """Make of a folder one that is not finished, without what is no copy of these images: all questions come before."""
    if before and before.source_digest != source_digest(found):
        agree(f"{request.out} holds copies {before.digest}, made of images that have changed since, or otherwise")
    if others := others_in(work.out, {file for one in found for file in one.part.files}):
        agree(f"{request.out} holds {count(len(others), 'file')} that are no copies of these images, as {others[0]}")
    check_room(request, sources, sum(one.source_bytes for one in found if one.record is None), before)
    with storage_errors(work.out):
        (work.out / MANIFEST).unlink(missing_ok=True)  # at no instant does it stand beside what is not its own
    remove(work.out, others)


def _make(pool: Pool, work: Work, found: Sequence[Found], missing: Sequence[Found]) -> dict[str, PartRecord]:
    """Return the records of the parts that were missing, by their keys."""

    def finished() -> int:
        return sum(work.record(one.key).exists() for one in found)

    with progress("copying", sum(one.source_bytes for one in missing), "bytes") as advance:
        size, task = attrgetter("source_bytes"), partial(make, work)
        records = in_parts(pool, task, missing, size, advance, finished, len(found))
    return dict(zip((one.key for one in missing), records, strict=True))


def cut(work: Work, place: StoredSide, source: ImageSource) -> Iterator[Part]:
    """Yield the parts of one side."""
    paths = [os.path.relpath(path, work.source) for path in place.paths]
    if isinstance(source, FolderSource):
        yield from folder_parts(place.side, [f"{paths[0]}/{name}" for name in source.files])
    elif isinstance(source, TarSource):
        for path, images in zip(paths, source.images_of_tars, strict=True):
            yield Part(place.side, (path,), images, tar=True)


def source_digest(found: Sequence[Found]) -> str:
    """Return what names originals, and how they are copied."""
    return digest([one.key for one in found])


def _manifest(request: CopyRequest, found: Sequence[Found], records: Sequence[PartRecord]) -> Copies:
    def counts(side: Side) -> SideCounts:
        rows = [r.counts.model_dump() for one, r in zip(found, records, strict=True) if one.part.side == side]
        return SideCounts(**{name: sum(row[name] for row in rows) for name in SideCounts.model_fields})

    return Copies(
        version=VERSION,
        source=printable(str(request.source)),
        short_side=request.short_side,
        quality=request.quality,
        digest=digest([record.sha256 for record in records]),
        source_digest=source_digest(found),
        made_by=tuple(sorted({record.made_by for record in records})),
        train=counts("train"),
        val=counts("val"),
        undecodable=tuple(one for record in records for one in record.undecodable),
    )


SAMPLED = 16
"""Images that tell how much room all copies take."""


def check_room(request: CopyRequest, sources: Sequence[ImageSource], source_bytes: int, before: Copies | None) -> None:
    """Check that the disk has room for copies, by some of them where the originals would not fit twice.

    Raises:
        StorageError: it has not.
    """
    free = shutil.disk_usage(request.out).free + (before.train.bytes + before.val.bytes if before else 0)
    if 2 * source_bytes < free:
        return
    source = max(sources, key=len)
    stored_bytes = copy_bytes = 0
    for k in range(min(SAMPLED, len(source))):
        with suppress(OSError):
            stored = source.read(k * len(source) // SAMPLED if len(source) > SAMPLED else k)
            assert isinstance(stored, bytes)
            stored_bytes += len(stored)
            copy_bytes += len(shrink(stored, request.short_side, request.quality).data)
    needed = source_bytes * copy_bytes / max(1, stored_bytes)
    if needed > free:
        raise StorageError(
            f"{request.out}: copies take some {needed / 1e9:.3g} GB more, and {free / 1e9:.3g} GB are free there; free "
            "some space, choose another --out, or a lower --quality or --short-side"
        )


def verify(work: Work, places: Sequence[StoredSide], sources: Sequence[ImageSource]) -> None:
    """Open the copies as training does, and compare classes and labels with those of the originals.

    Raises:
        FailedError: they differ.
    """
    for place, source, there in zip(places, sources, sides_in(work.out), strict=True):
        names = [os.path.relpath(path, work.source) for path in place.paths]
        copy = open_source(there, "imagenet") if there else None
        if (
            copy is None
            or there is None
            or [os.path.relpath(path, work.out) for path in there.paths] != names
            or copy.classes != source.classes
            or not np.array_equal(copy.labels, source.labels)
        ):
            raise FailedError(
                f"{work.out}: the {place.side} images are not those of {work.source} any more: did one of them change "
                "meanwhile? Run the same command again"
            )
