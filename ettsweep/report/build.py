"""A report: what there is to draw is chosen and read here, drawn in figures, and shown by html."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ettsweep.errors import CorruptError
from ettsweep.files import storage_errors
from ettsweep.report import html, tables
from ettsweep.report.claims import Key
from ettsweep.report.course import course_figure
from ettsweep.report.edition import publish
from ettsweep.report.families import Comparison, JudgedFamily, compare, judged
from ettsweep.report.figures import Curve, PointCurves, StrategyCurves, curves_figure, seeds_figure
from ettsweep.report.maps import Cell, lattice_figure
from ettsweep.report.style import save, standard_error
from ettsweep.report.written import settle
from ettsweep.sweep.course import course
from ettsweep.sweep.ledger import Run
from ettsweep.sweep.search import Point
from ettsweep.sweep.sweeps import Searches
from ettsweep.sweep.verdict import Verdict
from ettsweep.tasks.kinds import curve_unit

MAX_OTHER_POINTS = 12
"""Grey lines of a curves figure, the best first: each costs a history per seed."""


class Histories:
    """Evaluation curves of finished runs, each read once; what cannot be read is remembered."""

    def __init__(self) -> None:
        self.corrupt: dict[str, str] = {}
        self._curves: dict[str, Curve | None] = {}

    def curves(self, runs: Sequence[Run]) -> tuple[Curve, ...]:
        """Return the curves of the runs that have one, and whose files are as they were written."""
        for run in runs:
            if run.id not in self._curves:
                self._curves[run.id] = self._read(run) if run.result is not None else None
        return tuple(curve for run in runs if (curve := self._curves[run.id]))

    def _read(self, run: Run) -> Curve | None:
        try:
            lines = [line for line in run.dir.history() if "val_loss" in line or "val_accuracy" in line]
        except CorruptError as error:
            self.corrupt[run.id] = str(error)
            return None
        if not lines:
            return None
        unit, unit_steps = curve_unit(run.spec.task, run.spec.batch_size)
        accuracy, loss = (
            tuple(math.nan if line.get(key) is None else float(line[key]) for line in lines)
            for key in ("val_accuracy", "val_loss")
        )
        return Curve(tuple(line["step"] / unit_steps for line in lines), accuracy, loss, unit)


def write_report(
    results: Path,
    out: Path,
    runs: Sequence[Run],
    verdicts: Sequence[Verdict],
    searches: Searches,
    tell: Callable[[str], None] = lambda text: None,
    looks: Sequence[Run] = (),
    notes: Mapping[str, str] | None = None,
    edition: str = "",
) -> list[Path]:
    """Write tables, figures and report.html into a folder; return the files, report.html first.

    What an earlier report wrote there and this one does not is removed.

    Verdicts are those of the families that were asked for, searches those of all sweeps by family. `tell` takes a line
    for each run whose metrics cannot be used, as the page has it. `looks` are the finished runs of first looks,
    `notes` what people wrote on sweeps, by name. A page that is still rewritten has the name of its `edition`.

    Raises:
        StorageError: a file cannot be written.
    """
    for folder in (out, out / "tables", out / "figures"):
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    paths = tables.write_tables(out / "tables", runs, verdicts, searches)
    comparisons, histories = compare(judged(runs, verdicts)), Histories()
    images: dict[tuple[Key, str], bytes] = {}
    used: set[str] = set()
    for comparison in comparisons:
        for key, kind, name, figure in _figures(comparison, histories, used):
            files = save(figure, out / "figures", name)
            images[key, kind] = files[0].read_bytes()
            paths += files
    for problem in histories.corrupt.values():
        tell(problem)
    page = html.render(results, out, comparisons, {}, runs, searches, histories.corrupt, looks, notes, edition)
    paths = [*publish(out, page, edition), *paths]
    settle(out, paths)
    return paths


# --- what is drawn ----------------------------------------------------------------------------------------


def _figures(comparison: Comparison, histories: Histories, used: set[str]) -> Iterator[tuple[Key, str, str, Figure]]:
    """Draw a comparison: yield whose, kind, file name and figure; that of seeds is the first family's.

    What has no score at all is not drawn.
    """
    if optima := [curves for family in comparison.families if (curves := strategy_curves(family, histories))]:
        first = comparison.families[0].verdict
        figure = seeds_figure(comparison.title, comparison.measure.metric, optima)
        yield first.key, "seeds", _file_name(f"{_series(first)}-seeds", first.family, used), figure
    for family in comparison.families:
        verdict, cells = family.verdict, cells_of(family)
        if all(cell.score is None for cell in cells.values()):
            continue
        name = _file_name(f"{_series(verdict)}-{verdict.strategy}", verdict.family, used)
        yield verdict.key, "map", f"{name}-map", lattice_figure(comparison.title, verdict, cells.values())
        if spent := course(family.look):
            error = cells[verdict.point].error if verdict.point else None
            yield verdict.key, "course", f"{name}-course", course_figure(comparison.title, verdict, error, spent)
        if points := point_curves(family, cells, histories):
            yield (
                verdict.key,
                "curves",
                f"{name}-curves",
                curves_figure(f"{comparison.title}: {verdict.strategy}", verdict, points),
            )


def _series(verdict: Verdict) -> str:
    return verdict.search.sweep or verdict.search.model


def _file_name(name: str, family: str, used: set[str]) -> str:
    """Return a plain file name, s=0.25 as s0p25; the family tells two of the same name apart.

    LaTeX takes what follows a dot for the kind of file, and a program on the way may do the same.
    """
    told = name.replace("=", "").replace(".", "p")
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in told)
    if plain in used:
        plain += f"-{family[:6]}"
    used.add(plain)
    return plain


def cells_of(family: JudgedFamily) -> dict[Point, Cell]:
    """Return the state of every point, of those finished the score over the seeds that count; also of points to come.

    These are proposals and neighbours.
    """
    cells, verdict = {}, family.verdict
    for point in dict.fromkeys([*family.points, *verdict.search.proposed, *(n.point for n in verdict.neighbours)]):
        scored = family.look.at(point)
        counted = [run.score for run in family.counted(family.points.get(point, ())) if run.state.finished]
        error = None if scored.score is None else standard_error(counted)
        cells[point] = Cell(point, scored.score, error, scored.runs, scored.state.value)
    return cells


def point_curves(family: JudgedFamily, cells: dict[Point, Cell], histories: Histories) -> list[PointCurves]:
    """Return the curves of the candidate, its neighbours and the best of the other finished points."""
    search = family.verdict.search
    finished = [cell for cell in cells.values() if cell.state in ("done", "diverged")]
    ranked = sorted(finished, key=lambda cell: search.measure.rank(cell.score))
    special = {one.point for one in family.verdict.compared}
    others = [cell.point for cell in ranked if cell.point not in special][:MAX_OTHER_POINTS]
    drawn = []
    for cell in ranked:
        if cell.point in special or cell.point in others:
            members = family.points.get(cell.point, [])
            if curves := histories.curves(family.counted(members) or members):
                drawn.append(PointCurves(cell.point, cell.score, curves))
    return drawn


def strategy_curves(family: JudgedFamily, histories: Histories) -> StrategyCurves | None:
    """Return the optimum's curves over fresh seeds, over those that count where there are none."""
    verdict = family.verdict
    fresh, search = [run for run in family.optimum if run.spec.seed in verdict.fresh], family.counted(family.optimum)
    curves = histories.curves(fresh or search)
    if not curves or all(run.score is None for run in (*search, *fresh)):
        return None
    assert verdict.point is not None
    return StrategyCurves(
        verdict.strategy,
        verdict.point,
        curves,
        tuple(run.score for run in search if run.score is not None),
        tuple(run.score for run in fresh if run.score is not None),
    )
