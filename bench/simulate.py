"""Simulate sweeps whose truth is known through the real rounds of `grid` and `verify-optimum --follow`.

What plans, judges and races is what real sweeps use; only runs and clock are made up: a run is over at once, and takes
as long as any other. `python -m bench.simulate` says what a rule would do with numbers of your own.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import CensoredData, ecdf

from bench.recorded import Recorded, Table, read_table
from bench.worlds import SURFACES, Made, Place, World
from ettsweep.config import parse_integers
from ettsweep.console import Format, Row, format_count, print_note, print_table, progress
from ettsweep.errors import EttsweepError, InputError
from ettsweep.process_pool import Pool, open_pool
from ettsweep.processes import cores
from ettsweep.quantities import PLAIN, share_text
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.point import Point
from ettsweep.runs.spec import MAX_SEED
from ettsweep.runs.state import State, Status
from ettsweep.schema import validate
from ettsweep.shipped_files import shipped
from ettsweep.study.bound_rule import seeds_to_decide
from ettsweep.study.budget import NO_BUDGET, Budget
from ettsweep.study.criterion import Criterion, CriterionOptions, Rule, resolve_criterion
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.lattice import Axis, neighbours, shifted
from ettsweep.study.plan import Plan, make_plan
from ettsweep.study.round import Aim, Spent, next_round
from ettsweep.study.samplers import SAMPLERS, make_sampler, resolve_trials
from ettsweep.study.seeds import seed_order
from ettsweep.study.study import Study
from ettsweep.study.suggesting import Search, StartPoint
from ettsweep.study.verdict import RunsNeeded, Verdict, VerdictWord

CHUNK = 4
"""Sweeps that a process gets at a time."""

GRIDS = {"best_loss": "vit-digits.yaml", "best_accuracy": "vit-b16.yaml"}
"""Grid files whose runs are simulated, by the metric that their verdicts compare."""


@dataclass(frozen=True)
class Outcome:
    """What became of a simulated sweep, as its criterion has it.

    Attributes:
        verdict: on its only family.
        runs: that it trained.
        wall: how long it took, in times of one run.
        advantage: of the best neighbour over the candidate, in truth; None without a candidate.
        margin: of its criterion.
        bound: that it stated on the advantage; None where it stated none.
        regret: of the candidate, against the best of the lattice.
        is_beside_edge: whether the verdict has an edge of stability.
        foreseen: what the race still took, as shares of the likely, the low and the high forecast of some round.
    """

    verdict: str
    runs: int
    wall: int
    advantage: float | None
    margin: float
    bound: float | None
    regret: float | None
    is_beside_edge: bool = False
    foreseen: tuple[float, ...] = ()

    @property
    def declared(self) -> bool:
        return self.verdict == "optimal"

    @property
    def right(self) -> bool:
        """Whether the candidate is an optimum within the margin."""
        return self.advantage is not None and self.advantage <= self.margin

    @property
    def holds(self) -> bool | None:
        """Whether the bound holds; None where there is none."""
        return None if self.bound is None or self.advantage is None else self.advantage <= self.bound

    @property
    def is_gross(self) -> bool:
        """Whether a neighbour is better by more than twice the bound."""
        return self.bound is not None and self.advantage is not None and self.advantage > 2 * self.bound


def centre_alone(seeds: Sequence[int], criterion: Criterion, table: Table | None = None) -> Study:
    """Return the search of a sweep that asks for the centre of a lattice and leaves the rest to racing.

    Raises:
        InputError: seeds are none, or repeat.
    """
    if len(set(seeds)) < len(seeds) or not all(0 <= seed <= MAX_SEED for seed in seeds):
        text = ", ".join(map(str, seeds))
        raise InputError(f"--seeds: different whole numbers from 0 to {MAX_SEED} are expected, got {text}")
    grid = shipped("grids") / GRIDS[table.metric if table else "best_loss"]
    base, axes = load_sweep_spec(grid, ["ntk"]).studies()[0].base, {"lr": Axis(), "wd": Axis()}
    if table:
        i, j = table.centre
        base = base.with_point(Point.of(lr=2.0 ** table.log2_lr[i], wd=2.0 ** table.log2_wd[j]), seeds[0])
        values = {"lr": table.log2_lr, "wd": table.log2_wd}
        axes = {name: Axis(step=axis[1] - axis[0]) for name, axis in values.items()}
    return Study(base, axes, tuple(seeds), (base.point,), "simulated", criterion)


WAYS = ("climb", "factorial", *SAMPLERS)
"""How a sweep may be searched before it is verified: by nothing but the climb, by all points, or by a sampler."""


@dataclass(frozen=True)
class Way:
    """How a simulated sweep is searched.

    Attributes:
        name: one of `WAYS`.
        trials: points that a sampler may suggest; None for its default.
        off: steps from the best place at which it starts; None: at the centre of its world.
        start: the place at which it starts, whatever `off` says.
    """

    name: str = "climb"
    trials: int | None = None
    off: int | None = None
    start: Place | None = None

    def begin(self, study: Study, world: Made | Recorded) -> tuple[Study, Search | None]:
        """Return the search as it begins in a world, and what proposes its points, if anything does."""

        def at(place: Place) -> Point:
            return shifted(study.centre, study.axes, dict(zip(study.axes, place, strict=True)))

        low, high = world.ends
        start = at(self.start or ((0, 0) if self.off is None else _beside(world.best, self.off, world)))
        if self.name == "climb":
            return replace(study, grid_points=(start,)), None
        if self.name == "factorial":
            box = product(range(low[0], high[0] + 1), range(low[1], high[1] + 1))
            return replace(study, grid_points=tuple(map(at, box))), None
        trials = resolve_trials(self.name, self.trials)
        starts = {study.key: StartPoint(start)}
        searching = Search(self.name, make_sampler(self.name, world.number), trials, starts)
        return replace(study, grid_points=(), box=(at(low), at(high))), searching


def _beside(best: Place, off: int, world: Made | Recorded) -> Place:
    """Return a place that is so many steps from the best one, in the direction that the number of a world says.

    Each step is along one axis. It stays on the lattice.
    """
    values = [p for p in product(range(-off, off + 1), repeat=2) if sum(map(abs, p)) == off]
    low, high = world.ends
    items = [(best[0] + lr, best[1] + wd) for lr, wd in values]
    inside = [p for p in items if all(a <= x <= b for a, x, b in zip(low, p, high, strict=True))]
    return inside[world.number % len(inside)] if inside else best


def simulate(
    study: Study,
    world: World,
    budget: Budget = NO_BUDGET,
    slots: int = 1,
    search: Search | None = None,
    confidences: Sequence[float] = (),
) -> list[Outcome]:
    """Run a sweep: what was asked for, then all rounds until its verdict stands, with some runs at a time.

    Where it is searched, a sampler has suggested its points before. Racing chooses the same runs at any confidence, so
    the rounds of a sweep are the first ones of the same sweep at a higher confidence.

    Args:
        confidences: lower ones than the study's, ascending, whose sweeps are the first rounds of this one.

    Returns:
        What became of the sweep at each of these confidences, then at the study's.
    """
    rank = {seed: number for number, seed in enumerate(seed_order(study))}
    aim = Aim(capacity=slots, follows=True, search=search)
    run_index, wall, outcomes, forecasts = RunIndex({}, {}), 0, dict[float, Outcome](), list[tuple[int, RunsNeeded]]()
    spent, studies = Spent(), [study]
    if search:
        made = next_round(studies, run_index, budget, spent, aim)
        plan, spent, studies = made.plan, made.spent, list(made.studies)
    else:
        plan = make_plan(study.specs(), run_index)
    while True:
        run_index = RunIndex(run_index.runs | dict(_train(plan, study, world, rank)), {})
        wall += math.ceil(len(plan.to_launch) / slots)
        made = next_round(studies, run_index, budget, spent, aim)
        plan, spent, studies = made.plan, made.spent, list(made.studies)
        (verdict,) = made.verdicts
        for confidence in confidences:
            if confidence not in outcomes:
                weaker = at_confidence(verdict, confidence)
                if weaker.verdict == "optimal" or not plan.to_launch:
                    outcomes[confidence] = _outcome(weaker, world, len(run_index.runs), wall)
        runs = len(run_index.runs)
        if not plan.to_launch:
            outcome = _outcome(verdict, world, runs, wall)
            if forecasts:
                before, forecast = forecasts[np.random.default_rng(len(run_index.runs)).integers(len(forecasts))]
                numbers = forecast.likely, forecast.low, forecast.high
                outcome = replace(outcome, foreseen=tuple((runs - before) / number for number in numbers))
            return [*outcomes.values(), outcome]
        if verdict.bound and verdict.bound.further_runs and verdict.reason.code != "too_few_seeds":  # that is exact
            forecasts.append((runs, verdict.bound.further_runs))


def at_confidence(verdict: Verdict, confidence: float) -> Verdict:
    """Return the verdict of the same scores at another confidence."""
    study, bound, candidate = verdict.study, verdict.bound, verdict.point
    if verdict.verdict not in ("optimal", "unresolved") or not candidate:
        return verdict
    if not bound or not bound.posterior or bound.value is None:
        return verdict
    lr, wd = _place(study, candidate)
    places = [_place(study, neighbour.point) for neighbour in verdict.neighbours if neighbour.score is not None]
    steps = [(float(place[0] - lr), float(place[1] - wd)) for place in places]
    others = [position for position in steps if position in bound.posterior.positions]  # the others were unstable
    origin = (0.0, 0.0)
    value = bound.posterior.bound(origin, others, confidence, bound.margin) if others else 0.0
    is_decided = not seeds_to_decide(bound.posterior, origin, others, bound.margin)
    word: VerdictWord = "optimal" if is_decided and value <= bound.margin else "unresolved"
    return replace(verdict, verdict=word, bound=replace(bound, value=value, confidence=confidence))


def _outcome(verdict: Verdict, world: World, runs: int, wall: int) -> Outcome:
    study, bound = verdict.study, verdict.bound
    advantage = regret = None
    if verdict.point:
        around = [_place(study, n) for n in neighbours(verdict.point, study.axes)]
        advantage = world.advantage(_place(study, verdict.point), around)
        regret = world.regret(_place(study, verdict.point))
    value, is_beside_edge = (bound.value, bound.stability is not None) if bound else (None, False)
    margin = study.criterion.margin_for(study.metric)
    return Outcome(verdict.verdict, runs, wall, advantage, margin, value, regret, is_beside_edge)


RUN_S = 3600.0
"""Seconds of a run: long enough for a round to have as many runs as train at a time, and no more."""


def _train(plan: Plan, study: Study, world: World, rank: dict[int, int]) -> Iterator[tuple[str, Run]]:
    for planned in plan.to_launch:
        spec = planned.spec
        score = world.score(_place(study, spec.point), rank[spec.seed])
        state = State.DIVERGED if score is None else State.DONE
        yield planned.id, Run(RunDir(Path(planned.id)), spec, Status(state), {"score": score, "device_s": RUN_S})


def _place(study: Study, point: Point) -> Place:
    """Return how many steps a point is from the centre."""
    lr, wd = (round(axis.distance(point[name], study.centre[name])) for name, axis in study.axes.items())
    return lr, wd


# --- many of them ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """Sweeps that differ in their worlds alone, of which each is another number of one kind."""

    study: Study
    world: Made | Recorded
    budget: Budget = NO_BUDGET
    slots: int = 1
    way: Way = Way()
    confidences: tuple[float, ...] = ()

    def outcomes(self, number: int) -> list[Outcome]:
        """Run one of them; return what became of it at each of the confidences, then at the study's."""
        world = replace(self.world, number=number)
        study, searching = self.way.begin(self.study, world)
        return simulate(study, world, self.budget, self.slots, searching, self.confidences)


def run_series(pool: Pool, series: Series, numbers: Iterable[int]) -> Iterator[list[Outcome]]:
    """Run the sweeps of a series with these numbers."""
    return iter(pool.map(series.outcomes, numbers, chunksize=CHUNK))


@contextmanager
def open_workers(number: int) -> Iterator[Pool]:
    """Give a pool of processes that keep to one thread each: their matrices are small."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with open_pool(number, "spawn", _ready) as pool:
        yield pool


def _ready() -> None:
    """Do nothing: what is needed is imported with the work."""


def summary(result: Sequence[Outcome]) -> dict[str, float | None]:
    """Return what became of sweeps, as shares of all; right ones as a share of those that were declared optimal.

    A bound is counted wherever one was stated, and is gross where a neighbour is better by more than twice of it; runs,
    wall and regret are those of all sweeps. Foreseen is the share of races, undecided ones included, that took no more
    runs than the likely forecast, and within that from the low one to the high one. Global are those whose candidate is
    within the margin of the best place of the lattice.
    """
    declared = [item for item in result if item.declared]
    holds = [item.holds for item in result if item.holds is not None]
    runs = np.array([item.runs for item in result])
    races = [item for item in result if item.foreseen]
    likely, low, high = (_share_within(races, k) if races else None for k in range(3))
    near = [item.regret is not None and item.regret <= item.margin for item in result]
    return {
        "declared": len(declared) / len(result),
        "right": sum(item.right for item in declared) / len(declared) if declared else None,
        "bound holds": sum(holds) / len(holds) if holds else None,
        "gross": sum(item.is_gross for item in result) / len(holds) if holds else None,
        "runs": float(runs.mean()),
        "median": float(np.median(runs)),
        "90%": float(np.quantile(runs, 0.9)),
        "foreseen": likely,
        "within": high - low if high is not None and low is not None else None,
        "wall": float(np.mean([item.wall for item in result])),
        "global": float(np.mean(near)),
        "regret": float(np.mean([item.regret for item in result if item.regret is not None] or [math.nan])),
    }


def _share_within(races: Sequence[Outcome], forecast: int) -> float:
    """Return the share of races that end within a forecast, given how far they got, ended or not (Kaplan and Meier)."""
    got = CensoredData(
        [item.foreseen[forecast] for item in races if item.declared],
        right=[item.foreseen[forecast] for item in races if not item.declared],
    )
    return float(ecdf(got).cdf.evaluate(1.0))


# --- the command ----------------------------------------------------------------------------------------------------


def print_simulated(options: argparse.Namespace) -> None:
    """Print a row for each rule: how often its verdicts are right, and what they cost."""
    if options.table and options.noise:
        raise InputError("--noise is that of a made surface; a table has its own")
    criterion = resolve_criterion([_stated(confidence=options.confidence, margin=options.margin)])
    seeds = parse_integers(options.seeds, "--seeds", "0,1,2")
    table = read_table(options.table) if options.table else None
    noise = _stated(margin=options.noise, called="--noise").margin or 0.06
    world = Recorded(table) if table else Made(options.surface, noise)
    rows, rules = list[Row](), list[Rule](["bound", "paper"])
    with progress("simulating", len(rules) * options.sweeps) as advance, open_workers(cores()) as pool:
        for rule in rules:
            study, result = centre_alone(seeds, criterion.model_copy(update={"rule": rule}), table), list[Outcome]()
            series = Series(study, world, Budget(options.max_runs), options.slots)
            for (outcome,) in run_series(pool, series, range(options.sweeps)):
                result.append(outcome)
                advance(1)
            rows.append({"rule": rule, **summary(result)})
    print_table(rows, Format.TABLE)
    margin = share_text(criterion.margin_for(study.metric), study.metric)
    text = f"{format_count(options.sweeps, 'sweep')} a rule; {study.metric.name}, margin {margin}"
    print_note(f"{text}, confidence {criterion.confidence:g}")


def _stated(called: str = "--margin", **options: str | None) -> CriterionOptions:
    """Read what is stated of a criterion; noise is read as margins are."""
    try:
        return validate(CriterionOptions, options, "criterion").for_runs(PLAIN, seeded=True)
    except InputError as error:
        message = str(error).removeprefix("criterion: ")
        raise InputError(f"--{message}".replace("--margin", called)) from None


def main() -> int:
    """Read the command line and simulate; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=print_simulated.__doc__)
    searched = parser.add_mutually_exclusive_group(required=True)
    searched.add_argument("--table", type=Path, help="recorded lattice: CSV with lr, wd, seed and best_loss")
    searched.add_argument("--surface", help=f"made surface: {', '.join(SURFACES)}")
    add = parser.add_argument
    add("--noise", metavar="SHARE", help="of a run on a made surface, a share of its loss: 0.06, or 6%%")
    add("--sweeps", type=int, default=100, help="of each rule")
    add("--seeds", default="0,1", help="that each sweep asks for, such as 0,1,2")
    add("--slots", type=int, default=1, help="runs that train at a time")
    add("--confidence", metavar="SHARE", help="of a bound: 0.95, or 95%%")
    add("--margin", metavar="SHARE", help="how much better a neighbour may be: 0.02, or 2%%, of a loss")
    add("--max-runs", type=int, default=300, help="race up to this many runs a sweep")
    try:
        print_simulated(parser.parse_args())
    except EttsweepError as error:
        print_note(f"simulate: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
