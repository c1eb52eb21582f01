"""Reports whose figures are empty files: drawing takes most of a report's time, and is tested where it is done."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ettsweep.report.figure_export import paths_of


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Have reports write their figures' files, with nothing in them."""

    def export_all(figures: Sequence[tuple[str, Path]]) -> None:
        for _, stem in figures:
            for path in paths_of(stem):
                path.touch()

    patch.setattr("ettsweep.report.writer.export_all", export_all)
