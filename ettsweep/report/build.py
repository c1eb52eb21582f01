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
from ettsweep.report.tables import point_key
from ettsweep.runs.state import State
from ettsweep.schema import digest, identity
from ettsweep.spec import RunSpec
from ettsweep.sweep.ledger import Run
from ettsweep.sweep.verify import Verdict
from ettsweep.tasks.kinds import curve_unit

MAX_OTHER_POINTS = 12
"""Grey lines of a curves figure, the best first: each costs a history per seed."""

Key = tuple[float, float | None]


@dataclass(frozen=True)
class Family:
    """A verdict with the runs of its family, by lattice point."""

    verdict: Verdict
    runs: tuple[Run, ...]
    points: dict[Key, list[Run]]

    @property
    def candidate(self) -> Key | None:
        """The point that the verdict judges."""
        lr, wd = self.verdict.lr, self.verdict.wd
        return None if lr is None or wd is None else point_key(lr, wd)


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
    by_family: dict[str, list[Run]] = {}
    for run in runs:
        by_family.setdefault(run.family, []).append(run)
    specs = {family: members[0].spec for family, members in by_family.items()}
    recipes: dict[str, list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda v: v.family not in specs):
        spec = specs.get(verdict.family)
        key = _recipe(spec) if spec else _recipe_of_model(verdict.model, recipes)
        recipes.setdefault(key, []).append(verdict)
    sweeps = []
    for key, members in recipes.items():
        members = sorted(members, key=lambda v: strategy_rank(v.strategy))
        families = tuple(_family(verdict, by_family.get(verdict.family, [])) for verdict in members)
        sweeps.append(Sweep(_sweep_title(key, members[0].model, recipes, specs), families))
    return sorted(sweeps, key=lambda sweep: sweep.title)


def _recipe(spec: RunSpec) -> str:
    fields = identity(spec)
    return digest({name: fields[name] for name in fields if name not in ("strategy", "lr", "wd", "seed")})


def _recipe_of_model(model: str, recipes: dict[str, list[Verdict]]) -> str:
    """Return where a family without any run belongs: to the first sweep of its model."""
    return next((key for key, members in recipes.items() if members[0].model == model), model)


def _sweep_title(key: str, model: str, recipes: dict[str, list[Verdict]], specs: dict[str, RunSpec]) -> str:
    """Return model and task, and, where several sweeps share both, the fields in which they differ."""

    def first(members: Sequence[Verdict]) -> RunSpec | None:
        return next((specs[v.family] for v in members if v.family in specs), None)

    own = first(recipes[key])
    if own is None:
        return model
    title = f"{model} on {own.task.kind}"
    rivals = [first(members) for other, members in recipes.items() if other != key and members[0].model == model]
    mine = _flat(own)
    different = sorted(
        {
            name
            for rival in rivals
            if rival is not None and rival.task.kind == own.task.kind
            for name, value in _flat(rival).items()
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


def _family(verdict: Verdict, runs: Sequence[Run]) -> Family:
    points: dict[Key, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.spec.seed):
        points.setdefault(point_key(run.spec.lr, run.spec.wd), []).append(run)
    return Family(verdict, tuple(runs), points)


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
        name = _file_name(f"{sweep.families[0].verdict.model}-seeds", sweep.families[0].verdict.family, used)
        keep("", "seeds", name, seeds_figure(sweep.title, sweep.families[0].verdict.metric, optima))
    for family in sweep.families:
        verdict = family.verdict
        if not family.points:
            continue
        name = _file_name(f"{verdict.model}-{verdict.strategy}", verdict.family, used)
        title = f"{sweep.title}: {verdict.strategy}"
        cells = cells_of(family)
        keep(verdict.family, "map", f"{name}-map", lattice_figure(lattice_map(family, title, cells)))
        points = point_curves(family, cells, histories)
        if points:
            best = None if verdict.lr is None or verdict.wd is None else (verdict.lr, verdict.wd)
            named = [(n.lr, n.wd) for n in verdict.neighbours] or [(p.lr, p.wd) for p in points[:6]]
            keep(
                verdict.family,
                "curves",
                f"{name}-curves",
                curves_figure(title, verdict.strategy, verdict.metric, verdict.mode, points, best, named),
            )
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


def cells_of(family: Family) -> dict[Key, Cell]:
    """Return the state and score of every point over the search's seeds, and of neighbours not yet run."""
    seeds = set(family.verdict.seeds)
    names = {point_key(n.lr, n.wd): (n.lr, n.wd) for n in family.verdict.neighbours}
    if family.verdict.lr is not None and family.verdict.wd is not None:
        names[point_key(family.verdict.lr, family.verdict.wd)] = (family.verdict.lr, family.verdict.wd)
    cells = {
        point_key(n.lr, n.wd): Cell(n.lr, n.wd, None, None, str(n.state))
        for n in family.verdict.neighbours
        if point_key(n.lr, n.wd) not in family.points
    }
    for key, members in family.points.items():
        lr, wd = names.get(key, (members[0].spec.lr, members[0].spec.wd))
        runs = [run for run in members if run.spec.seed in seeds] or members
        waiting = [run.state for run in runs if not run.state.finished]
        score, std = tables.mean_std([run.score for run in runs])
        if waiting:
            cells[key] = Cell(lr, wd, None, None, waiting[0].value)
        elif len(runs) < len(seeds):
            cells[key] = Cell(lr, wd, None, None, f"{len(runs)}/{len(seeds)}")
        elif any(run.state is State.DIVERGED for run in runs):
            cells[key] = Cell(lr, wd, None, None, "diverged")
        else:
            cells[key] = Cell(lr, wd, score, std, "done")
    return cells


def lattice_map(family: Family, title: str, cells: dict[Key, Cell]) -> LatticeMap:
    """Return what the map of a family shows; the steps are those to its neighbours."""
    verdict = family.verdict
    candidate = None if verdict.lr is None or verdict.wd is None else (verdict.lr, verdict.wd)
    steps = [verdict.step, verdict.step]
    for axis in (0, 1):
        if candidate is None or candidate[axis] == 0:
            continue
        ratios = [abs(math.log2((n.lr, n.wd)[axis] / candidate[axis])) for n in verdict.neighbours]
        steps[axis] = min((ratio for ratio in ratios if ratio > 1e-6), default=verdict.step)
    return LatticeMap(
        title,
        verdict.strategy,
        verdict.metric,
        verdict.mode,
        tuple(cells.values()),
        candidate,
        tuple((n.lr, n.wd) for n in verdict.neighbours),
        *steps,
    )


def point_curves(family: Family, cells: dict[Key, Cell], histories: Histories) -> list[PointCurves]:
    """Return the curves of the candidate, its neighbours and the best of the other finished points."""
    sign = 1 if family.verdict.mode == "min" else -1
    finished = {key: cell for key, cell in cells.items() if cell.state in ("done", "diverged")}
    ranked = sorted(finished, key=lambda k: (finished[k].score is None, sign * (finished[k].score or 0.0)))
    special = {point_key(n.lr, n.wd) for n in family.verdict.neighbours} | {family.candidate}
    others = [key for key in ranked if key not in special][:MAX_OTHER_POINTS]
    drawn = []
    for key in ranked:
        if key in special or key in others:
            cell = finished[key]
            members = family.points.get(key, [])
            runs = [run for run in members if run.spec.seed in family.verdict.seeds] or members
            if curves := histories.curves(runs):
                drawn.append(PointCurves(cell.lr, cell.wd, cell.score, curves))
    return drawn


def strategy_curves(family: Family, histories: Histories) -> StrategyCurves | None:
    """Return the optimum's curves over fresh seeds, over the search's where there are none."""
    verdict, key = family.verdict, family.candidate
    if verdict.lr is None or verdict.wd is None or key is None:
        return None
    members = family.points.get(key, [])
    fresh = [run for run in members if run.spec.seed in verdict.fresh_seeds]
    search = [run for run in members if run.spec.seed in verdict.seeds]
    curves = histories.curves(fresh or search)
    if not curves:
        return None
    return StrategyCurves(
        verdict.strategy,
        verdict.lr,
        verdict.wd,
        curves,
        tuple(run.score for run in search if run.score is not None),
        tuple(run.score for run in fresh if run.score is not None),
    )
