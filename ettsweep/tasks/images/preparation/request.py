"""What `ettsweep data images` is asked for, what came of it, and what is said of that."""

import shlex
from pathlib import Path
from typing import NamedTuple

from ettsweep.errors import InputError
from ettsweep.output import count
from ettsweep.tasks.data import resolve
from ettsweep.tasks.images.copies import Copies
from ettsweep.tasks.images.location import StoredSide, guess, locate_at

TAKES = (
    "copied is a folder with train/ and val/, and in them a folder of images per class or tar files; or with tar or "
    "WebDataset files called *train*.tar and *val*.tar (docs/data.md)"
)


class CopyRequest(NamedTuple):
    """What is asked for: copies of the images at `input`, in the folder `out`."""

    input: str
    out: Path
    short_side: int = 256
    quality: int = 90
    workers: int | None = None

    @property
    def source(self) -> Path:
        """The folder of the originals, so that it holds in any folder."""
        return Path(resolve(self.input))


class Copied(NamedTuple):
    """Copies, and what it took.

    Attributes:
        made: images of the parts that were made now.
        made_parts, kept_parts: parts that were made, and that were there already.
        replaced: digest of other copies that were there before.
    """

    copies: Copies
    made: int
    made_parts: int
    kept_parts: int
    workers: int
    wall_s: float
    replaced: str | None


def check_request(request: CopyRequest) -> tuple[StoredSide, StoredSide]:
    """Return where the originals are, once all options are found to go together.

    Raises:
        InputError: an option is not as it must be, or the data are of a form that is not copied.
        DataMissingError: there are no data.
    """
    wrong = []
    if request.short_side < 1:
        wrong.append(f"--short-side: a number of pixels above 0 is expected, got {request.short_side}")
    if not 1 <= request.quality <= 100:
        wrong.append(f"--quality: a number from 1 to 100 is expected, got {request.quality}")
    if wrong:
        raise InputError.of(wrong)
    where = f"--input {request.input}"
    if request.input.startswith("hfds/"):
        raise InputError(f"{where}: a data set of the hub is not copied; {TAKES}")
    places = locate_at(str(request.source), guess(str(request.source)), where, TAKES)
    for place in places:
        if place.format not in ("class folders", "tar files"):
            raise InputError(f"{where}: {place.format} are not copied; {TAKES}")
    out = request.out.resolve()
    if out == request.source or out in request.source.parents or request.source in out.parents:
        raise InputError(f"--out {request.out}: one of this and --input lies in the other; name a folder beside it")
    return places


def made_otherwise(request: CopyRequest, there: Copies) -> str:
    """Return the options that copies were made with where a request has others; nothing where none differ."""
    asked = {"input": str(request.source), "short-side": request.short_side, "quality": request.quality}
    were = {"input": there.source, "short-side": there.short_side, "quality": there.quality}
    return " ".join(f"--{name} {were[name]}" for name in asked if asked[name] != were[name])


def copy_rows(copies: Copies) -> list[dict[str, str | int]]:
    """Return a row on each side of a data set."""
    return [
        {"part": what, **counts.model_dump()}
        for what, counts in (("training", copies.train), ("validation", copies.val))
    ]


NAMED = 10
"""Images that cannot be decoded and are named on a terminal."""


def copy_summary(request: CopyRequest, outcome: Copied) -> str:
    """Return what was done, what is worth knowing of the copies, and what comes next."""
    copies = outcome.copies
    lines = ["all of it was there already"]
    if outcome.made:
        rate = f"{outcome.made:,} images in {outcome.wall_s:.1f} s: {outcome.made / outcome.wall_s:,.0f} images/s"
        lines = [f"{rate} on {outcome.workers} {'process' if outcome.workers == 1 else 'processes'}"]
        if outcome.kept_parts:
            lines.append(f"{outcome.kept_parts} of {outcome.made_parts + outcome.kept_parts} parts were there already")
    sides = copies.train, copies.val
    before, after = (sum(sizes) for sizes in zip(*((side.source_bytes, side.bytes) for side in sides), strict=True))
    images, resized = (sum(counts) for counts in zip(*((side.images, side.resized) for side in sides), strict=True))
    lines.append(f"{before / 1e6:,.1f} MB became {after / 1e6:,.1f} MB, {after / max(1, before):.0%}")
    if same := images - resized:
        lines.append(f"{same:,} of {images:,} images are as they were, byte for byte")
    lines += [f"{one.image}: cannot be decoded ({one.reason})" for one in copies.undecodable[:NAMED]]
    if more := copies.undecodable[NAMED:]:
        lines.append(f"and {len(more)} more; --format json lists all")
    if copies.undecodable:
        lines.append(f"{count(len(copies.undecodable), 'image')} that cannot be decoded: training meets the same")
    if outcome.replaced:
        lines.append(f"replaces copies {outcome.replaced}")
    lines.append(f"{request.out}: copies {copies.digest}, {copies.rule}")
    lines.append(
        f"next: `ettsweep grid --model vit-b16 --data {shlex.quote(str(request.out))} --results FOLDER`, with a folder "
        "for runs on copies alone: they learn from other pixels under the same run ids"
    )
    return "\n".join(lines)
