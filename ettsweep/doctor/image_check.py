"""Whether images are what a task needs: form, classes and counts, and each image by decoding it."""

import time
from collections.abc import Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, NamedTuple

from ettsweep.console import count as counted
from ettsweep.console import progress
from ettsweep.doctor.checks import DoctorCheck
from ettsweep.errors import DataMissingError, UndecodableError
from ettsweep.process_pool import open_pool
from ettsweep.processes import cores
from ettsweep.runs.spec import ImageModel, ModelSpec
from ettsweep.trainer.tasks.images.image_data import StoredSide, locate
from ettsweep.trainer.tasks.images.image_task import ImageTask

if TYPE_CHECKING:
    from ettsweep.trainer.tasks.images.sources import ImageSource

AT_ONCE = 64
"""Images that a process is given to decode."""

TABLE_ROWS = 20
"""Unreadable images that a table names."""

UNREAD = "cannot be read"
"""The beginning of the reason where no bytes come, rather than wrong ones."""

IMAGE = "image"
"""What the rows of unreadable images are called."""


class ImageReading(NamedTuple):
    """What came of decoding images; `stopped` says why not all of them were."""

    images: int
    wall_s: float
    unreadable: list[tuple[int, str]]
    stopped: str = ""


def examine_images(task: ImageTask, model: ModelSpec | None, data: str, images: int | None) -> list[DoctorCheck]:
    """Return a row on the form of a data set, its classes, each part, all images, and each one that is unreadable.

    So many images are decoded, evenly spread; None means all.
    """
    classes = model.classes if isinstance(model, ImageModel) else task.classes
    try:
        sides = locate(task, data)
        from ettsweep.trainer.tasks.images.sources import mismatches, open_source

        train, val = (open_source(side, task.kind) for side in sides)
    except ImportError as error:
        return [DoctorCheck("form", "failed", f"{error}: pip install 'ettsweep[vision]'")]
    except DataMissingError as error:
        return [DoctorCheck("form", "failed", str(error))]
    rows = [DoctorCheck("form", "ok", _form(sides))]
    wrong = mismatches(task, classes, train, val)
    rows += [DoctorCheck("contents", "failed", line) for line in wrong]
    rows.append(DoctorCheck("classes", "ok", f"{len(train.classes)}: {_some(train.classes)}"))
    rows += [
        DoctorCheck(f"{name} images", "ok", str(len(source)))
        for name, source in (("training", train), ("validation", val))
    ]
    return rows + _readable([train, val], images)


def _form(sides: Sequence[StoredSide]) -> str:
    descriptions = []
    for side in sides:
        other_paths = f" and {len(side.paths) - 1} more" if len(side.paths) > 1 else ""
        descriptions.append(f"{side.format}, {side.paths[0]}{other_paths}")
    return "; ".join(dict.fromkeys(descriptions))


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], "..."] if len(names) > 3 else names)


def _readable(sources: "Sequence[ImageSource]", images: int | None) -> list[DoctorCheck]:
    total = sum(len(source) for source in sources)
    chosen = list(range(total)) if images is None or images >= total else [k * total // images for k in range(images)]
    reading = read_all(sources, chosen)
    rate = (
        f"; {reading.images / reading.wall_s:.0f} images/s on {counted(cores(), 'core')}"
        if reading.images > 999
        else ""
    )
    scope = "all" if len(chosen) == total else f"{len(chosen)} of {total}, evenly spread:"
    rows = []
    if reading.stopped:
        rows.append(
            DoctorCheck("decoding", "failed", f"{reading.stopped} after {reading.images} of {len(chosen)} images")
        )
    elif not reading.unreadable:
        rows.append(
            DoctorCheck("decoding", "ok", f"{scope} {'can' if scope == 'all' else 'they can'} be decoded{rate}")
        )
    if reading.unreadable:
        is_too_many = len(reading.unreadable) > max(10, reading.images // 100)
        n_unread = sum(reason.startswith(UNREAD) for _, reason in reading.unreadable)
        consequence = "left out of training, unless --launch-set corrupt_images=fail"
        if is_too_many:
            consequence = "too many to train without"
        elif n_unread:
            consequence = f"a run ends at those that cannot even be read, {n_unread} of them"
        detail = f"{len(reading.unreadable)} of {reading.images} cannot be: {consequence}{rate}"
        rows.append(DoctorCheck("unreadable", "failed" if is_too_many or n_unread else "warning", detail))
    for number, reason in sorted(reading.unreadable):
        source, index = _place(sources, number)
        rows.append(DoctorCheck(IMAGE, "warning", f"{source.name(index)}: {reason}"))
    return rows


def shorten(rows: list[DoctorCheck]) -> list[DoctorCheck]:
    """Return what a table shows: the first unreadable images, and how many more there are."""
    images = [row for row in rows if row.what == IMAGE]
    if len(images) <= TABLE_ROWS:
        return rows
    shown_rows = [row for row in rows if row.what != IMAGE] + images[:TABLE_ROWS]
    return [
        *shown_rows,
        DoctorCheck("images", "warning", f"{len(images) - TABLE_ROWS} more; --format json or csv lists all"),
    ]


# --- decoding on all cores --------------------------------------------------------------------------------------------


def read_all(sources: "Sequence[ImageSource]", chosen: Sequence[int]) -> ImageReading:
    """Decode images, counted through all sources, on all cores; Ctrl-C stops with what was found so far."""
    unreadable, images, stopped = list[tuple[int, str]](), 0, ""
    start_s = time.monotonic()
    batches = [chosen[k : k + AT_ONCE] for k in range(0, len(chosen), AT_ONCE)]
    try:
        # Forked, since names of a million images are many to send to each process.
        with open_pool(cores(), "fork", _sources.extend, sources) as pool:
            size = {pool.submit(_unreadable, batch): len(batch) for batch in batches}
            with progress("decoding", len(chosen)) as advance:
                for future in as_completed(size):
                    unreadable += future.result()
                    images += size[future]
                    advance(size[future])
    except KeyboardInterrupt:
        stopped = "stopped by Ctrl-C"
    except BrokenProcessPool:
        stopped = "a process died of an image (or for lack of memory)"
    return ImageReading(images, time.monotonic() - start_s, unreadable, stopped)


_sources: "list[ImageSource]" = []
"""What a process of the pool reads."""


def _unreadable(chosen: Sequence[int]) -> list[tuple[int, str]]:
    """Return those that cannot be decoded, with the reason."""
    from ettsweep.trainer.tasks.images.sources import decode, small

    unreadable = []
    for number in chosen:
        source, index = _place(_sources, number)
        try:
            decode(source.read(index), small)
        except UndecodableError as error:
            unreadable.append((number, f"cannot be decoded ({error})"))
        except OSError as error:
            unreadable.append((number, f"{UNREAD} ({error.strerror or error})"))
    return unreadable


def _place(sources: "Sequence[ImageSource]", number: int) -> "tuple[ImageSource, int]":
    for source in sources:
        if number < len(source):
            return source, number
        number -= len(source)
    raise IndexError(number)
