"""Reports whose figures are empty files: drawing takes most of a report's time, and is tested where it is done."""

from pathlib import Path

import pytest

from ettsweep.report.figure_files import Figure


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Have reports write their figures' files, with nothing in them."""

    def save(figure: Figure, folder: Path) -> list[Path]:
        paths = [folder / f"{figure.name}.{suffix}" for suffix in ("svg", "png", "pdf")]
        for path in paths:
            path.touch()
        return paths

    patch.setattr(Figure, "save", save)
