"""Check images for a task: their format, classes and counts, and that each image can be decoded."""

import time
from collections.abc import Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, NamedTuple

from ettsweep.console import format_count as counted
from ettsweep.console import progress
from ettsweep.doctor.checks import DoctorCheck
from ettsweep.errors import DataMissingError, UndecodableError
from ettsweep.extras import TRAIN
from ettsweep.process_pool import open_pool
from ettsweep.processes import cores
from ettsweep.trainer.specs import ImageModel, ModelSpec
from ettsweep.trainer.tasks.images.image_data import StoredSide, locate, mismatches
from ettsweep.trainer.tasks.images.image_task import ImageTask

if TYPE_CHECKING:
    from ettsweep.trainer.tasks.images.sources import ImageSource

IMAGES_PER_TASK = 64
"""Images per task of the process pool, for little overhead and frequent progress."""

TABLE_ROWS = 20
"""Most unreadable images in the table; JSON and CSV list all."""

IMAGE_ROW = "image"
"""Name of the rows of unreadable images."""


class Unreadable(NamedTuple):
    """An image that cannot be decoded.

    Attributes:
        number: counted through all sources.
        is_unread: whether its bytes cannot even be read.
    """

    number: int
    reason: str
    is_unread: bool = False


class ImageReading(NamedTuple):
    """The result of decoding images.

    Attributes:
        images: number of decoded and failed images.
        wall_s: duration in seconds.
        unreadable: the images that failed.
        stopped: why decoding ended early; empty if it did not.
    """

    images: int
    wall_s: float
    unreadable: list[Unreadable]
    stopped: str = ""


def examine_images(task: ImageTask, model: ModelSpec | None, data: str, images: int | None) -> list[DoctorCheck]:
    """Return checks of an image data set: format, contents, classes, sizes, decoding, and each unreadable image.

    Args:
        task: of the data.
        model: model with the number of classes; None for the task's own number.
        data: path of the data set.
        images: number of images to decode, evenly spread; None for all.
    """
    classes = model.classes if isinstance(model, ImageModel) else task.classes
    try:
        sides = locate(task, data)
        from ettsweep.trainer.tasks.images.sources import contents, open_sides

        train, val = open_sides(task, sides)
    except ImportError as error:
        return [DoctorCheck("form", "failed", f"{error}: {TRAIN}")]
    except DataMissingError as error:
        return [DoctorCheck("form", "failed", str(error))]
    rows = [DoctorCheck("form", "ok", _describe_form(sides))]
    wrong = mismatches(task, classes, contents(train), contents(val))
    rows += [DoctorCheck("contents", "failed", line) for line in wrong]
    # Mismatches with the task have rows above; classes and sizes always have one.
    rows.append(DoctorCheck("classes", "ok", f"{len(train.classes)}: {_abbreviate(train.classes)}"))
    rows += [
        DoctorCheck(f"{name} images", "ok", str(len(source)))
        for name, source in (("training", train), ("validation", val))
    ]
    return rows + _decoding_rows([train, val], images)


def _describe_form(sides: Sequence[StoredSide]) -> str:
    descriptions = []
    for side in sides:
        other_paths = f" and {len(side.paths) - 1} more" if len(side.paths) > 1 else ""
        descriptions.append(f"{side.format}, {side.paths[0]}{other_paths}")
    return "; ".join(dict.fromkeys(descriptions))


def _abbreviate(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], "..."] if len(names) > 3 else names)


def _decoding_rows(sources: "Sequence[ImageSource]", images: int | None) -> list[DoctorCheck]:
    total = sum(len(source) for source in sources)
    chosen = list(range(total)) if images is None or images >= total else [k * total // images for k in range(images)]
    reading = decode_all(sources, chosen)
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
        n_unread = sum(image.is_unread for image in reading.unreadable)
        consequence = "left out of training, unless --launch-set trainer.corrupt_images=fail"
        if is_too_many:
            consequence = "too many to train without"
        elif n_unread:
            # An unreadable file may be a fault of the disk: training must not continue without it.
            consequence = f"a run fails at the {n_unread} of them that cannot even be read"
        detail = f"{len(reading.unreadable)} of {reading.images} cannot be: {consequence}{rate}"
        rows.append(DoctorCheck("unreadable", "failed" if is_too_many or n_unread else "warning", detail))
    for number, reason, _ in sorted(reading.unreadable):
        source, index = _locate_image(sources, number)
        rows.append(DoctorCheck(IMAGE_ROW, "warning", f"{source.name(index)}: {reason}"))
    return rows


def shorten_rows(rows: list[DoctorCheck]) -> list[DoctorCheck]:
    """Return the rows of a table: only the first unreadable images, and the number of others."""
    images = [row for row in rows if row.name == IMAGE_ROW]
    if len(images) <= TABLE_ROWS:
        return rows
    shown_rows = [row for row in rows if row.name != IMAGE_ROW] + images[:TABLE_ROWS]
    return [
        *shown_rows,
        DoctorCheck("images", "warning", f"{len(images) - TABLE_ROWS} more; --format json or csv lists all"),
    ]


# --- decoding on all cores --------------------------------------------------------------------------------------------


def decode_all(sources: "Sequence[ImageSource]", chosen: Sequence[int]) -> ImageReading:
    """Decode images on all cores; after Ctrl-C, return the result so far.

    Args:
        sources: sources of images.
        chosen: numbers of the images, counted through all sources.
    """
    unreadable, images, stopped = list[Unreadable](), 0, ""
    start_s = time.monotonic()
    batches = [chosen[k : k + IMAGES_PER_TASK] for k in range(0, len(chosen), IMAGES_PER_TASK)]
    try:
        # Fork: sending a million file names to each process takes long.
        with open_pool(cores(), "fork", _sources.extend, sources) as pool:
            size = {pool.submit(_find_unreadable, batch): len(batch) for batch in batches}
            with progress("decoding", len(chosen)) as advance:
                for future in as_completed(size):
                    unreadable += future.result()
                    images += size[future]
                    advance(size[future])
    except KeyboardInterrupt:  # show the results of minutes of decoding
        stopped = "interrupted"
    except BrokenProcessPool:
        stopped = "a process died (from an image, or for lack of memory)"
    return ImageReading(images, time.monotonic() - start_s, unreadable, stopped)


_sources: "list[ImageSource]" = []
"""Sources of a process of the pool, set by its initialiser."""


def _find_unreadable(chosen: Sequence[int]) -> list[Unreadable]:
    """Return the numbers of images that cannot be decoded, with reasons; runs in a process of the pool."""
    from ettsweep.trainer.tasks.images.sources import decode, decode_reduced

    unreadable = []
    for number in chosen:
        source, index = _locate_image(_sources, number)
        try:
            decode(source.read(index), decode_reduced)
        except UndecodableError as error:
            unreadable.append(Unreadable(number, f"cannot be decoded ({error})"))
        except OSError as error:  # the file itself cannot be read
            unreadable.append(Unreadable(number, f"cannot be read ({error.strerror or error})", is_unread=True))
    return unreadable


def _locate_image(sources: "Sequence[ImageSource]", number: int) -> "tuple[ImageSource, int]":
    for source in sources:
        if number < len(source):
            return source, number
        number -= len(source)
    raise IndexError(number)
