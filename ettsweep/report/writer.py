"""A report: tables, figures and the page, written into one folder."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ettsweep.extras import check_installed, is_installed, missing_text
from ettsweep.files import dumps, json_or_empty, sha256_of, storage_errors, write_atomic
from ettsweep.report import page, tables
from ettsweep.report.families import judged_families, strategy_comparisons
from ettsweep.report.figure_export import digest, export_all, paths_of
from ettsweep.report.figure_files import Figure, FigureBuilder
from ettsweep.report.run_histories import RunHistories, rows_per_run, seeds_per_point
from ettsweep.runs.index import Run
from ettsweep.study.study import StudyKey
from ettsweep.study.sweep_store import StudiesByFamily
from ettsweep.study.verdict import Verdict

MAX_DEFAULT_FIGURES = 60
"""Figures that a report also writes as files by default: some ten seconds of a core."""


def write_report(
    results: Path,
    out: Path,
    runs: Sequence[Run],
    verdicts: Sequence[Verdict],
    studies_by_family: StudiesByFamily,
    warn: Callable[[str], None] = lambda text: None,
    figure_files: bool | None = None,
) -> list[Path]:
    """Write tables, report.html and files of its figures into a folder; return the files, report.html first.

    Files of an earlier report that this one does not write are removed.

    Args:
        results: the results folder.
        out: the folder of the report; created if missing.
        runs: all runs of the report.
        verdicts: one per family that was requested.
        studies_by_family: the studies of all sweeps, by family.
        warn: called with a line for each run whose metrics cannot be read, and if figures are not written as files.
        figure_files: whether figures are written as files too; by default if there are at most `MAX_DEFAULT_FIGURES`,
            or an earlier report wrote some there.

    Raises:
        PackageMissingError: `figure_files` is true, and vl-convert is not installed.
        StorageError: a file cannot be written.
    """
    if figure_files:
        check_installed("--figures", "vl_convert")
    for folder in (out, out / "tables", out / "figures"):
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    families, table = judged_families(runs, verdicts), tables.runs_table(runs, studies_by_family)
    paths = tables.write_tables(out / "tables", table, runs, families)
    comparisons, points = strategy_comparisons(families), sum(len(family.points) for family in families)
    histories = RunHistories(rows_per_run(len(runs)), warn, seeds_per_point(len(runs), points))
    drawing, figures = FigureBuilder(histories), dict[tuple[StudyKey, str], Figure]()
    # pandas keeps texts in Arrow by default, which is slow for many small frames.
    with pd.option_context("mode.string_storage", "python"):
        for comparison in comparisons:
            figures |= {(key, figure.kind): figure for key, figure in drawing.build(comparison)}
    manifest = Manifest(out)
    if figure_files is None and (text := missing_text("more than the page and CSV", "vl_convert", "pyarrow")):
        warn(text)
    if not is_installed("vl_convert"):
        figure_files = False
    elif figure_files is None:
        figure_files = len(figures) <= MAX_DEFAULT_FIGURES or manifest.has_figures
        if not figure_files:
            warn(f"the page has {len(figures)} figures; --figures writes them as files too")
    html = page.render(results, out, comparisons, figures, runs, studies_by_family, histories.corrupt, figure_files)
    # First, since the files of figures take longest.
    write_atomic(out / "report.html", html)
    written = figures.values() if figure_files else ()
    specs = {out / "figures" / figure.name: figure.file_spec for figure in written}
    export_all([(spec, stem) for stem, spec in specs.items() if not manifest.has_figure(stem, spec)])
    paths += [path for stem in specs for path in paths_of(stem)]
    paths.insert(0, out / "report.html")
    # Last: until now, the earlier report stays complete.
    manifest.update(paths, specs)
    return paths


def write_page(path: Path, runs: Sequence[Run], verdicts: Sequence[Verdict]) -> None:
    """Write the page alone, such as that of a table.

    Raises:
        StorageError: it cannot be written.
    """
    comparisons, histories = strategy_comparisons(judged_families(runs, verdicts)), RunHistories(1)
    figures = dict[tuple[StudyKey, str], Figure]()
    with pd.option_context("mode.string_storage", "python"):
        for comparison in comparisons:
            figures |= {(key, figure.kind): figure for key, figure in FigureBuilder(histories).build(comparison)}
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page.render(path.parent, path.parent, comparisons, figures, [], StudiesByFamily(()), {}, False))


# --- the list of files ------------------------------------------------------------------------------------------------

MANIFEST_NAME = ".written.json"
"""The list, beside the page: the checksum of each file by its relative path, and the digest of each figure."""


class Manifest:
    """The list of an earlier report in a folder; empty if there was none.

    Args:
        out: the folder of the report.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        content = json_or_empty(out / MANIFEST_NAME)
        # If the list was edited, the report is rewritten.
        self._files, self._figures = (
            part if isinstance(part := content.get(name), dict) else {} for name in ("files", "figures")
        )

    @property
    def has_figures(self) -> bool:
        """`True` if the earlier report wrote figures as files."""
        return bool(self._figures)

    def has_figure(self, stem: Path, spec: str) -> bool:
        """`True` if the files of a figure are current and unchanged.

        Args:
            stem: path of the files without their suffixes.
            spec: the specification, as JSON.
        """
        return self._figures.get(stem.name) == digest(spec) and all(
            path.is_file() and self._files.get(self._name(path)) == sha256_of(path) for path in paths_of(stem)
        )

    def update(self, paths: Iterable[Path], specs: Mapping[Path, str]) -> None:
        """Remove figures and tables that only the earlier report wrote; record the files of this one.

        Files that changed since the earlier report stay: they belong to the user.

        Args:
            paths: all files of this report.
            specs: specifications of its figures, by the path of their files without suffixes.

        Raises:
            StorageError: a file cannot be removed, or the list cannot be written.
        """
        out, written = self._out, list(paths)
        with storage_errors(out):
            checksums = {self._name(path): sha256_of(path) for path in written}
            for name, checksum in self._files.items():
                path = out / name
                # The list may have been edited or copied: never delete outside of the two folders.
                is_output = path.parent in (out / "figures", out / "tables") and path.name != ".."
                if not (is_output and name not in checksums and path.is_file() and sha256_of(path) == checksum):
                    continue
                # If the file system ignores case, a renamed sweep may share the file with this report.
                if not any(path.samefile(new_path) for new_path in written):
                    path.unlink()
        figures = {stem.name: digest(spec) for stem, spec in specs.items()}
        write_atomic(out / MANIFEST_NAME, dumps({"files": checksums, "figures": figures}))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._out).as_posix()
