"""A report: what there is to draw is chosen and read here, drawn in figures, and shown by html."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ettsweep.errors import CorruptError
from ettsweep.files import storage_errors, write_atomic
from ettsweep.report import html, tables
from ettsweep.report.figures import (
    Curve,
    PointCurves,
    StrategyCurves,
    curves_figure,
    save,
    seeds_figure,
    strategy_rank,
)
from ettsweep.report.maps import Cell, LatticeMap, lattice_figure
from ettsweep.runs.state import State
from ettsweep.schema import digest, identity
from ettsweep.spec import RunSpec
from ettsweep.sweep.lattice import Point
from ettsweep.sweep.ledger import Run
from ettsweep.sweep.request import Search
from ettsweep.sweep.verify import Verdict
from ettsweep.tasks.kinds import curve_unit

MAX_OTHER_POINTS = 12
"""Grey lines of a curves figure, the best first: each costs a history per seed."""


@dataclass(frozen=True)
class Family:
    """A verdict with the runs of its family, by lattice point."""

    verdict: Verdict
    points: dict[Point, list[Run]]


@dataclass(frozen=True)
class Sweep:
    """Families that differ only in strategy; they share a figure of seeds."""

    title: str
    families: tuple[Family, ...]


class Histories:
    """Evaluation curves of finished runs, each read once; what cannot be read is remembered."""

    def __init__(self) -> None:
        self.corrupt: dict[str, str] = {}
        self._curves: dict[str, Curve | None] = {}

    def curve(self, run: Run) -> Curve | None:
        """Return the curve of a run; None if it has none, or its files were changed."""
        if run.id not in self._curves:
            self._curves[run.id] = self._read(run) if run.result is not None else None
        return self._curves[run.id]

    def curves(self, runs: Iterable[Run]) -> tuple[Curve, ...]:
        """Return the curves that could be read."""
        found = (self.curve(run) for run in runs)
        return tuple(curve for curve in found if curve is not None)

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
        trained = tuple(line["step"] / unit_steps for line in lines)
        return Curve(trained, accuracy, loss, unit)


def write_report(
    results: Path,
    out: Path,
    runs: Sequence[Run],
    verdicts: Sequence[Verdict],
    tell: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Write tables, figures and report.html.

    Args:
        results: the results folder, named on the page.
        out: where to write; created if need be.
        runs: all runs of the results folder.
        verdicts: one for each family that was asked for.
        tell: takes a line for each run whose metrics cannot be used, as the page has it.

    Returns:
        The files, report.html first.

    Raises:
        StorageError: a file cannot be written.
    """
    for folder in (out, out / "tables", out / "figures"):
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    paths = tables.write_tables(out / "tables", runs, verdicts)
    histories = Histories()
    views = []
    used: set[str] = set()
    for sweep in group(runs, verdicts):
        images, files = _draw(sweep, out / "figures", histories, used)
        paths += files
        views.append(html.SweepView(sweep.title, [family.verdict for family in sweep.families], images))
    for problem in histories.corrupt.values():
        tell(problem)
    page = html.render(str(results), views, runs, histories.corrupt)
    write_atomic(out / "report.html", page)
    return [out / "report.html", *paths]


# --- what belongs together --------------------------------------------------------------------------------


def group(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> list[Sweep]:
    """Put verdicts whose families differ only in strategy together, strategies in their usual order."""
    points = tables.runs_by_point(runs, verdicts)
    recipes: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        recipes.setdefault(_recipe(verdict.search.base), []).append(verdict)
    sweeps = []
    for key, members in recipes.items():
        rivals = [others[0].search for other, others in recipes.items() if other != key]
        families = tuple(
            Family(verdict, points.get(verdict.family, {}))
            for verdict in sorted(members, key=lambda v: strategy_rank(v.strategy))
        )
        sweeps.append(Sweep(_sweep_title(families[0].verdict.search, rivals), families))
    return sorted(sweeps, key=lambda sweep: sweep.title)


def _recipe(spec: RunSpec) -> str:
    fields = identity(spec)
    return digest({name: fields[name] for name in fields if name not in ("strategy", "lr", "wd", "seed")})


def _sweep_title(search: Search, others: Sequence[Search]) -> str:
    """Return model and task, and, where several sweeps share both, the fields in which they differ."""
    title = f"{search.model} on {search.base.task.kind}"
    mine = _flat(search.base)
    different = sorted(
        {
            name
            for other in others
            if (other.model, other.base.task.kind) == (search.model, search.base.task.kind)
            for name, value in _flat(other.base).items()
            if name in mine and mine[name] != value
        }
    )
    told = [f"{name.removesuffix('.kind')} {mine[name]}" for name in different[:4]]
    return title + (f" ({', '.join(told)})" if told else "")


def _flat(spec: RunSpec) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in spec.model_dump(exclude={"strategy", "lr", "wd", "seed"}).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


# --- what is drawn ----------------------------------------------------------------------------------------


def _draw(
    sweep: Sweep, folder: Path, histories: Histories, used: set[str]
) -> tuple[dict[str, dict[str, bytes]], list[Path]]:
    """Draw a sweep; return the PNG images by family (`` for the whole sweep) and kind, and all files."""
    images: dict[str, dict[str, bytes]] = {}
    paths: list[Path] = []

    def keep(family: str, kind: str, name: str, figure: Figure) -> None:
        files = save(figure, folder, name)
        images.setdefault(family, {})[kind] = files[0].read_bytes()
        paths.extend(files)

    optima = [curves for family in sweep.families if (curves := strategy_curves(family, histories))]
    if optima:
        name = _file_name(f"{sweep.families[0].verdict.search.model}-seeds", sweep.families[0].verdict.family, used)
        keep("", "seeds", name, seeds_figure(sweep.title, sweep.families[0].verdict.search.measure.metric, optima))
    for family in sweep.families:
        verdict = family.verdict
        if not family.points:
            continue
        name = _file_name(f"{verdict.search.model}-{verdict.strategy}", verdict.family, used)
        title = f"{sweep.title}: {verdict.strategy}"
        cells = cells_of(family)
        keep(verdict.family, "map", f"{name}-map", lattice_figure(lattice_map(family, title, cells)))
        points = point_curves(family, cells, histories)
        if points:
            named = [n.point for n in verdict.neighbours] or [p.point for p in points[:6]]
            figure = curves_figure(title, verdict.strategy, verdict.search.measure, points, verdict.point, named)
            keep(verdict.family, "curves", f"{name}-curves", figure)
    return images, paths


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


def cells_of(family: Family) -> dict[Point, Cell]:
    """Return the state and score of every point over the search's seeds, and of neighbours not yet run."""
    seeds = family.verdict.search.seeds
    around = {n.point: Cell(n.point, None, None, n.state.value) for n in family.verdict.neighbours}
    cells = {point: cell for point, cell in around.items() if point not in family.points}
    for point, members in family.points.items():
        runs = [run for run in members if run.spec.seed in seeds] or members
        waiting = [run.state for run in runs if not run.state.finished]
        score, std = tables.mean_std([run.score for run in runs])
        if waiting:
            cells[point] = Cell(point, None, None, waiting[0].value)
        elif len(runs) < len(seeds):
            cells[point] = Cell(point, None, None, f"{len(runs)}/{len(seeds)}")
        elif any(run.state is State.DIVERGED for run in runs):
            cells[point] = Cell(point, None, None, "diverged")
        else:
            cells[point] = Cell(point, score, std, "done")
    return cells


def lattice_map(family: Family, title: str, cells: dict[Point, Cell]) -> LatticeMap:
    """Return what the map of a family shows; along a fixed axis, the steps are those of the free one."""
    verdict = family.verdict
    search, measure = verdict.search, verdict.search.measure
    return LatticeMap(
        title,
        verdict.strategy,
        measure.metric,
        measure.mode,
        tuple(cells.values()),
        verdict.point,
        tuple(n.point for n in verdict.neighbours),
        lr_step=(search.wd if search.lr.fixed else search.lr).step,
        wd_step=(search.lr if search.wd.fixed else search.wd).step,
    )


def point_curves(family: Family, cells: dict[Point, Cell], histories: Histories) -> list[PointCurves]:
    """Return the curves of the candidate, its neighbours and the best of the other finished points."""
    search = family.verdict.search
    finished = [cell for cell in cells.values() if cell.state in ("done", "diverged")]
    ranked = sorted(finished, key=lambda cell: search.measure.rank(cell.score))
    special = {family.verdict.point, *(n.point for n in family.verdict.neighbours)}
    others = [cell.point for cell in ranked if cell.point not in special][:MAX_OTHER_POINTS]
    drawn = []
    for cell in ranked:
        if cell.point in special or cell.point in others:
            members = family.points.get(cell.point, [])
            runs = [run for run in members if run.spec.seed in search.seeds] or members
            if curves := histories.curves(runs):
                drawn.append(PointCurves(cell.point, cell.score, curves))
    return drawn


def strategy_curves(family: Family, histories: Histories) -> StrategyCurves | None:
    """Return the optimum's curves over fresh seeds, over the search's where there are none."""
    verdict = family.verdict
    if verdict.point is None:
        return None
    members = family.points.get(verdict.point, [])
    fresh = [run for run in members if run.spec.seed in verdict.fresh]
    search = [run for run in members if run.spec.seed in verdict.search.seeds]
    curves = histories.curves(fresh or search)
    if not curves:
        return None
    return StrategyCurves(
        verdict.strategy,
        verdict.point,
        curves,
        tuple(run.score for run in search if run.score is not None),
        tuple(run.score for run in fresh if run.score is not None),
    )
