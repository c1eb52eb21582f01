"""Figures as files: SVG, PNG and PDF of a Vega-Lite specification. It imports little: processes of a pool load it."""

import contextlib
import hashlib
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ettsweep.files import Json, dumps, write_atomic
from ettsweep.process_pool import open_pool
from ettsweep.processes import cores
from ettsweep.report.theme import CONFIG

VEGA_LITE_VERSION = "6.4"
"""The Vega-Lite version of all specifications."""

PNG_SCALE = 2
"""PNG pixels per pixel of the figure."""

SUFFIXES = (".svg", ".png", ".pdf")

MIN_PER_PROCESS, MAX_PROCESSES = 3, 8
"""Figures that are worth another process, and the most processes: each takes some 200 MB."""


def file_spec(spec: Json, title: str, width: int) -> str:
    """Return the specification of a figure's files: titled, on white, and with a width."""
    if spec.get("width") == "container":  # a file has no container to take its width from
        spec = spec | {"width": width}
    own_title = spec.get("title")
    subtitle = own_title["text"] if isinstance(own_title, dict) else own_title or ""
    return dumps({**spec, "title": {"text": title, "subtitle": subtitle}, "background": "white", "config": CONFIG})


def digest(spec: str) -> str:
    """Return a digest of a specification and of the renderer: equal digests mean equal files."""
    drawing = f"{VEGA_LITE_VERSION} {version('vl-convert-python')} {PNG_SCALE} {spec}"
    return hashlib.sha256(drawing.encode()).hexdigest()


def paths_of(stem: Path) -> list[Path]:
    """Return the paths of a figure's files: `stem` with each of `SUFFIXES`."""
    return [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]


def export(spec: str, stem: Path) -> list[Path]:
    """Write the files of a figure; return their paths.

    Raises:
        StorageError: a file cannot be written.
    """
    import vl_convert

    # Vega runs once; PNG and PDF are made from the SVG, so all three look the same.
    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE_VERSION)
    contents: Sequence[Any] = (svg, vl_convert.svg_to_png(svg, scale=PNG_SCALE), vl_convert.svg_to_pdf(svg))
    for path, content in zip(paths_of(stem), contents, strict=True):
        write_atomic(path, content)
    return paths_of(stem)


def export_all(figures: Sequence[tuple[str, Path]]) -> None:
    """Write the files of several figures, given as specification and stem, in several processes if there are many.

    Raises:
        StorageError: a file cannot be written.
    """
    workers, left = min(cores(), MAX_PROCESSES, len(figures) // MIN_PER_PROCESS), list(figures)
    if workers > 1:
        # A killed process, say by a limit on memory, takes the pool with it: draw the rest here.
        with contextlib.suppress(BrokenProcessPool), open_pool(workers, "spawn", _nothing) as pool:
            for written in [pool.submit(export, spec, stem) for spec, stem in figures]:
                written.result()
                left.pop(0)
    for spec, stem in left:
        export(spec, stem)


def _nothing() -> None:
    pass
