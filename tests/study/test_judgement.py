import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.digits_search import CENTRE, digits_search, offset_of
from support.points import moved

from ettsweep.errors import InputError
from ettsweep.report.reason_text import reason_text
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.spec import MAX_SEED, RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.shipped_files import shipped
from ettsweep.study.criterion import Criterion
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import parse_point
from ettsweep.study.seeds import fresh_seeds
from ettsweep.study.study import Study
from ettsweep.study.study_state import REACH
from ettsweep.study.verdict import FINAL_VERDICTS, Verdict
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS

Offset = tuple[float, float]
"""Lattice steps (lr, wd) from the centre."""
SIX: list[Offset] = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]


@pytest.fixture
def search_of(tmp_path: Path) -> Callable[..., Study]:
    """Return a function that makes a search of digits around the centre; keywords change the grid file."""

    def make(lr: str = "{range: [0, 0]}", wd: str = "{range: [0, 0]}", seeds: Sequence[int] = (0,)) -> Study:
        return digits_search(tmp_path, lr, wd, seeds, "{rule: paper}")

    return make


@pytest.fixture
def study(search_of: Callable[..., Study]) -> Study:
    """Return a search that asks for the centre alone, with both axes free."""
    return search_of()


def run_at(study: Study, offset: Offset, seed: int = 0, score: float | None = None, state: str = "done") -> Run:
    lr, wd = moved(CENTRE, *offset)
    spec = study.base.with_point(Point.of(lr=lr, wd=wd), seed)
    result = {"score": score} if State(state).finished else None
    return Run(RunDir(Path("runs") / spec.run_id), spec, Status(State(state)), result)


def runs_on(study: Study, scores: Mapping[Offset, float | None]) -> list[Run]:
    """Return finished runs with these scores, diverged ones for None."""
    return [run_at(study, o, 0, s, "diverged" if s is None else "done") for o, s in scores.items()]


def bowl(offset: Offset) -> float:
    return 1.0 + 0.1 * (offset[0] ** 2 + offset[1] ** 2)


BOWL: dict[Offset, float | None] = {offset: bowl(offset) for offset in [(0, 0), *SIX]}


def verify(study: Study, runs: Sequence[Run], at: Point | None = None) -> Verdict:
    return evaluate(study, runs).verdict(at)


def wanted(study: Study, runs: Sequence[Run], at: Point | None = None) -> list[RunSpec]:
    study_state = evaluate(study, runs)
    return study_state.needed_specs(study_state.verdict(at))


def offsets(specs: Sequence[RunSpec]) -> set[Offset]:
    return {offset_of(spec.point) for spec in specs}


# --- optimal --------------------------------------------------------------------------------------------------------


def test_a_point_better_than_its_six_neighbours_is_optimal(study: Study) -> None:
    verdict = verify(study, runs_on(study, BOWL))
    assert (verdict.verdict, offset_of(verdict.point), verdict.score) == ("optimal", (0, 0), 1.0)
    assert verdict.study.metric == LOWEST_LOSS
    assert {offset_of(n.point): n.score for n in verdict.neighbours} == {o: bowl(o) for o in SIX}
    assert verdict.missing_points == []
    assert {offset_of(p) for p in verdict.outside} == set(SIX)
    assert wanted(study, runs_on(study, BOWL)) == []
    assert evaluate(study, runs_on(study, BOWL)).climb() == verdict
    better_diagonal = verify(study, runs_on(study, BOWL | {(1, 1): 0.5}), at=CENTRE)
    assert better_diagonal.verdict == "optimal", "the diagonals left out are no neighbours"


def test_one_free_axis_needs_two_neighbours_a_step_of_the_request_away(search_of: Callable[..., Study]) -> None:
    study = search_of(lr="{range: [0, 0], step: 0.5}", wd="fixed")
    whole_steps = runs_on(study, {(-1, 0): 2.0, (0, 0): 1.0, (1, 0): 2.0})
    assert verify(study, whole_steps).verdict == "edge"
    half_steps = verify(study, runs_on(study, {(-0.5, 0): 2.0, (0, 0): 1.0, (0.5, 0): 2.0}))
    assert half_steps.verdict == "optimal"
    assert {offset_of(n.point) for n in half_steps.neighbours} == {(-0.5, 0), (0.5, 0)}


def near(run: Run, log2_lr: float, seed: int) -> Run:
    """Return a run beside another, as a map that rounds otherwise would have made it."""
    spec = run.spec.with_point(Point.of(lr=run.spec.lr * 2**log2_lr, wd=run.spec.wd), seed)
    return Run(RunDir(Path("runs") / spec.run_id), spec, run.status, run.result)


@pytest.mark.parametrize("apart", [1e-7, -1e-7])
def test_runs_of_one_point_that_were_rounded_otherwise_are_read_as_one(
    search_of: Callable[..., Study], apart: float
) -> None:
    study = search_of(lr="{range: [-1, 1]}", wd="fixed", seeds=[0, 1])
    first = [run_at(study, (i, 0), 0, 2.0 if i else 1.0) for i in (-1, 0, 1)]
    runs = [*first, *(near(run, apart, 1) for run in first), near(first[1], apart, 2)]
    assert len({run.spec.lr for run in runs}) == 6
    for result in (runs, runs[::-1]):
        verdict = verify(study, result)
        assert (verdict.verdict, verdict.score, verdict.fresh_scores) == ("optimal", 1.0, {2: 1.0})
        assert verdict.point == study.grid_points[1], "the lattice's, whoever was first"
        assert verdict.outside == ()
        assert wanted(study, result) == []
    missing = run_at(study, (0, 0), 1, state="interrupted")
    study_state = evaluate(study, [*runs[:4], near(first[1], apart, 1), near(missing, apart, 3)])
    assert near(first[1], apart, 1).spec in study_state.specs([CENTRE]), "what is there is not trained again"


def test_nothing_to_search_is_unsearched(search_of: Callable[..., Study]) -> None:
    study = search_of(lr="fixed", wd="fixed")
    verdict = verify(study, runs_on(study, {(0, 0): 1.0, (3, 0): 0.5}))  # of another search of the family
    assert (verdict.verdict, verdict.neighbours, verdict.score) == ("unsearched", (), 1.0)
    assert verdict.verdict in FINAL_VERDICTS


# --- edge -----------------------------------------------------------------------------------------------------------


def test_an_optimum_with_a_neighbour_never_asked_for_is_not_verified(study: Study) -> None:
    for absent in SIX:
        runs = runs_on(study, {o: s for o, s in BOWL.items() if o != absent})
        verdict = verify(study, runs)
        assert (verdict.verdict, reason_text(verdict)) == ("edge", "")
        assert [offset_of(p) for p in verdict.missing_points] == [absent]
        assert offsets(wanted(study, runs)) == {(0, 0), absent}


def test_a_neighbour_with_only_some_of_the_seeds_was_not_asked_for(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0, 1])
    runs = [run_at(study, o, seed, bowl(o)) for o in BOWL for seed in (0, 1) if (o, seed) != ((1, 0), 1)]
    verdict = verify(study, runs)
    assert verdict.verdict == "edge"
    assert [offset_of(p) for p in verdict.missing_points] == [(1, 0)]
    assert {spec.seed for spec in wanted(study, runs)} == {0, 1}


# --- incomplete -----------------------------------------------------------------------------------------------------


def with_neighbour(study: Study, state: str) -> list[Run]:
    runs = runs_on(study, {o: s for o, s in BOWL.items() if o != (1, -1)})
    return [*runs, run_at(study, (1, -1), state=state)]


@pytest.mark.parametrize("state", ["running", "queued", "interrupted", "missing"])
def test_a_neighbour_under_way_makes_the_verdict_wait(study: Study, state: str) -> None:
    runs = with_neighbour(study, state)
    verdict = verify(study, runs)
    assert (verdict.verdict, reason_text(verdict)) == ("incomplete", "unfinished: 1 neighbour")
    assert {offset_of(n.point): n.state for n in verdict.neighbours}[1, -1] == state
    assert (1, -1) in offsets(wanted(study, runs))


@pytest.mark.parametrize("state", ["failed", "cancelled", "held"])
def test_a_neighbour_that_stands_still_is_named_with_what_to_type(study: Study, state: str) -> None:
    runs = with_neighbour(study, state)
    verdict = verify(study, runs)
    retry = f"`ettsweep retry {runs[-1].id}` trains it again"
    held = "`ettsweep status --sweep '' --strategy standard --state held` shows how to start the held ones"
    assert verdict.verdict == "incomplete"
    assert reason_text(verdict) == (
        f"unfinished: 1 neighbour; 1 run needs your decision: {runs[-1].id} {state}; {held if state == 'held' else retry}"
    )


def test_runs_that_stand_still_are_named_before_any_is_finished(study: Study) -> None:
    failed = run_at(study, (0, 0), state="failed")
    verdict = verify(study, [failed])
    assert (verdict.verdict, verdict.point) == ("incomplete", None)
    told = "no point has finished; unfinished: 0 of 1 points; 1 run needs your decision"
    assert reason_text(verdict).startswith(told)
    assert wanted(study, [failed]) == []


def test_a_failed_rerun_over_a_fresh_seed_does_not_stand_in_the_way(study: Study) -> None:
    verdict = verify(study, [*runs_on(study, BOWL), run_at(study, (0, 0), 5, state="failed")])
    assert (verdict.verdict, reason_text(verdict)) == ("optimal", "")


def test_points_asked_for_come_before_new_neighbours(search_of: Callable[..., Study]) -> None:
    study = search_of(lr="{range: [-1, 1]}")
    runs = [*runs_on(study, {(-1, 0): 2.0, (0, 0): 1.0}), run_at(study, (1, 0), state="running")]
    verdict = verify(study, runs)
    assert (verdict.verdict, reason_text(verdict)) == ("incomplete", "unfinished: 1 of 3 points")
    assert offsets(wanted(study, runs)) == {(1, 0)}


def test_no_finished_point_is_incomplete(study: Study) -> None:
    for runs in ([], [run_at(study, (0, 0), state="running")]):
        verdict = verify(study, runs)
        assert (verdict.verdict, verdict.point, verdict.score) == ("incomplete", None, None)
        assert offsets(wanted(study, runs)) == {(0, 0)}


def test_the_point_asked_about_must_be_finished_itself(study: Study) -> None:
    verdict = verify(study, runs_on(study, BOWL), at=moved(CENTRE, 2, 0))
    assert verdict.verdict == "incomplete"
    assert (2, 0) in offsets(wanted(study, runs_on(study, BOWL), at=moved(CENTRE, 2, 0)))


# --- refuted --------------------------------------------------------------------------------------------------------


def test_a_point_with_a_better_neighbour_is_refuted_and_climbs_to_the_best_one(study: Study) -> None:
    runs = runs_on(study, BOWL | {(0, 1): 0.9, (1, -1): 0.8})
    verdict = verify(study, runs, at=CENTRE)
    assert (verdict.verdict, reason_text(verdict)) == ("refuted", "")
    climbed = evaluate(study, runs).climb(CENTRE)
    assert (offset_of(climbed.point), climbed.path) == ((1, -1), (CENTRE,))


def test_a_run_that_the_sweep_has_not_reached_is_no_candidate(study: Study) -> None:
    """Another sweep has had it trained: that moves no verdict of this one."""
    verdict = verify(study, runs_on(study, BOWL | {(3, 3): 0.1}))
    assert (offset_of(verdict.point), verdict.verdict) == ((0, 0), "optimal")
    assert moved(CENTRE, 3, 3) not in verdict.outside


def test_a_better_neighbour_counts_whoever_had_it_trained(search_of: Callable[..., Study]) -> None:
    study = search_of(lr="{range: [0, 1]}", wd="fixed")
    verdict = verify(study, runs_on(study, {(float(i), 0.0): 2.0 + abs(i + 2) for i in range(-4, 2)}))
    assert (offset_of(verdict.point), verdict.verdict) == ((-2, 0), "optimal")
    assert [offset_of(point) for point in verdict.path] == [(0, 0), (-1, 0)]
    assert {offset_of(point) for point in verdict.outside} == {(-1, 0), (-2, 0), (-3, 0)}


def test_runs_off_the_lattice_and_off_a_fixed_axis_are_not_looked_at(search_of: Callable[..., Study]) -> None:
    study = search_of(wd="fixed")
    calm = {(-1.0, 0.0): 2.0, (0.0, 0.0): 1.0, (1.0, 0.0): 2.0}
    other = {(0.5, 0.0): 0.1, (0.0, 1.0): 0.1, (-1.0, -1.0): 0.1}
    verdict = verify(study, runs_on(study, calm | other))
    assert verdict == verify(study, runs_on(study, calm))
    assert {offset_of(run.point) for run in verdict.runs} == set(calm)
    for offset in other:
        with pytest.raises(InputError, match=r"--at: (lr|wd)"):
            evaluate(study, runs_on(study, calm | other)).resolve_point(moved(CENTRE, *offset))


def test_a_climb_takes_no_step_before_all_neighbours_are_known(study: Study) -> None:
    """Two ways lead down: whoever had the lesser one trained first, the climb takes the better."""
    lesser, improved = {(0.0, 1.0): 3.0, (0.0, 2.0): 2.9}, {(0.0, -1.0): 2.0, (0.0, -2.0): 1.0}
    others = dict.fromkeys(itertools.product(map(float, range(-4, 5)), repeat=2), 9.0)
    runs = runs_on(study, {(0.0, 0.0): 4.0, **lesser})
    verdict = verify(study, runs)
    assert (verdict.verdict, offset_of(verdict.point)) == ("refuted", (0, 0))
    assert {o for o in SIX if o != (0, 1)} <= offsets(wanted(study, runs))
    final = verify(study, runs_on(study, others | {(0.0, 0.0): 4.0} | lesser | improved))
    assert (final.verdict, offset_of(final.point)) == ("optimal", (0, -2))
    assert {offset_of(point) for point in final.outside} > set(SIX), "neighbours that were left behind count as well"


def test_a_point_typed_as_a_table_prints_it_is_the_known_one(search_of: Callable[..., Study]) -> None:
    study = search_of()
    runs = runs_on(study, BOWL)
    new = Point.of(lr=CENTRE["lr"] * 2**9, wd=CENTRE["wd"] / 2**9)
    for point in (*(moved(CENTRE, *offset) for offset in BOWL), new):
        assert (
            evaluate(study, runs).resolve_point(
                Point.of(lr=float(f"{point['lr']:.4g}"), wd=float(f"{point['wd']:.4g}"))
            )
            == point
        )
        assert (
            evaluate(study, runs).resolve_point(parse_point(str(point).strip("()"), "--at", study.centre, study.free))
            == point
        )
    with pytest.raises(
        InputError, match=r"--at: lr 0\.007890625 is no point of vit-digits standard; the nearest is 2\^-7"
    ):
        evaluate(study, runs).resolve_point(Point.of(lr=CENTRE["lr"] * 1.01, wd=CENTRE["wd"]))


def test_a_point_off_a_fixed_axis_cannot_be_judged(search_of: Callable[..., Study]) -> None:
    study = search_of(wd="fixed")
    with pytest.raises(InputError, match=r"--at: wd is fixed at 2\^-1 in vit-digits standard, got 2\^0"):
        evaluate(study, []).resolve_point(Point.of(lr=CENTRE["lr"], wd=1.0))
    zero = Point.of(lr=CENTRE["lr"], wd=0.0)
    without_decay = replace(study, base=study.base.with_point(zero, 0), grid_points=(zero,))
    assert evaluate(without_decay, []).resolve_point(zero) == zero
    with pytest.raises(InputError, match=r"--at: wd is fixed at 0 in "):
        evaluate(without_decay, []).resolve_point(CENTRE)


# --- ties and divergence --------------------------------------------------------------------------------------------


def test_an_exactly_equal_neighbour_is_a_tie_without_a_climb(study: Study) -> None:
    runs = runs_on(study, BOWL | {(1, 0): 1.0})
    verdict = verify(study, runs, at=CENTRE)
    assert (verdict.verdict, reason_text(verdict)) == ("tie", "")
    assert evaluate(study, runs).climb(CENTRE) == verdict
    assert wanted(study, runs, at=CENTRE) == []
    of_equals = verify(study, runs_on(study, {(1, 0): 1.0, (0, 0): 1.0, (0, 1): 1.0}))
    assert offset_of(of_equals.point) == (0, 0), "of the lowest lr"


def test_diverged_neighbours_are_worse_than_any_score(study: Study) -> None:
    scores = BOWL | {(1, 0): None, (1, -1): None, (0, 0): 1e30}
    scores |= {o: 1e31 for o in SIX if scores[o] is not None}
    verdict = verify(study, runs_on(study, scores))
    assert (verdict.verdict, verdict.score) == ("optimal", 1e30)
    assert {n.state for n in verdict.neighbours if n.score is None} == {"diverged"}
    assert verdict.missing_points == []


def test_one_diverged_seed_makes_a_point_diverge(search_of: Callable[..., Study]) -> None:
    study = search_of(wd="fixed", seeds=[0, 1])
    runs = [run_at(study, (i, 0), seed, 2.0 if i else 1.0) for i in (-1, 0, 1) for seed in (0, 1)]
    runs[2] = run_at(study, (0, 0), 0, None, "diverged")
    verdict = verify(study, runs, at=CENTRE)
    assert (verdict.verdict, verdict.score) == ("refuted", None)
    assert verify(study, runs).score == 2.0


def test_a_diverged_point_loses_to_a_neighbour_that_did_not_and_ties_with_one_that_did(study: Study) -> None:
    runs = runs_on(study, dict.fromkeys(BOWL, None) | {(-1, 0): 3.0})
    assert verify(study, runs, at=CENTRE).verdict == "refuted"
    assert offset_of(evaluate(study, runs).climb(CENTRE).point) == (-1, 0)
    verdict = verify(study, runs_on(study, dict.fromkeys(BOWL, None)), at=CENTRE)
    assert (verdict.verdict, reason_text(verdict)) == ("tie", "")


# --- seeds ----------------------------------------------------------------------------------------------------------


def test_the_score_is_the_mean_over_the_seeds_of_the_search(search_of: Callable[..., Study]) -> None:
    study = search_of(wd="fixed", seeds=[0, 1])
    scores = {(0, 0): (1.0, 2.0), (1, 0): (0.5, 3.0), (-1, 0): (1.9, 1.9)}
    runs = [run_at(study, o, seed, s) for o, pair in scores.items() for seed, s in enumerate(pair)]
    verdict = verify(study, runs)
    assert (verdict.verdict, offset_of(verdict.point), verdict.score) == ("optimal", (0, 0), 1.5)
    without_all_seeds = [*runs[:2], run_at(study, (1, 0), 0, 0.1)]
    assert offset_of(verify(study, without_all_seeds).point) == (0, 0)


def test_fresh_seeds_are_reported_but_never_move_the_verdict(study: Study) -> None:
    searched = runs_on(study, BOWL)
    before = verify(study, searched)
    fresh = [run_at(study, (0, 0), seed, score) for seed, score in ((3, 9.0), (1, 7.0), (2, None))]
    fresh[2] = run_at(study, (0, 0), 2, None, "diverged")
    better_elsewhere = [run_at(study, (1, 0), seed, 0.0) for seed in (1, 2, 3)]
    unfinished = [run_at(study, (0, 0), 4, state="running"), run_at(study, (0, 0), 5, state="failed")]
    afar = run_at(study, (5, 5), 1, 0.0)
    after = verify(study, [*fresh, *better_elsewhere, *unfinished, afar, *searched])
    assert (after.verdict, after.point, after.score) == (before.verdict, before.point, before.score)
    assert list(after.fresh_scores.items()) == [(1, 7.0), (2, None), (3, 9.0)]


def test_fresh_seeds_are_not_those_of_the_search_and_begin_anew_after_the_last(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0, 7, 2])
    seeds = fresh_seeds(study, 5)
    assert len({*seeds, 0, 7, 2}) == 8
    assert fresh_seeds(study, 8)[:5] == seeds, "more reruns keep those that are there"
    assert fresh_seeds(search_of(seeds=[MAX_SEED, 1]), 3) == [0, 2, 3]
    assert fresh_seeds(search_of(seeds=[MAX_SEED - 2, 0]), 4) == [MAX_SEED - 1, MAX_SEED, 1, 2]


# --- a score of which more is better --------------------------------------------------------------------------------


def test_accuracy_is_best_where_it_is_highest() -> None:
    (study,) = load_sweep_spec(shipped("grids") / "vit-b16.yaml", ["ntk"], ranges={"lr": "0:0", "wd": "0:0"}).studies()
    study = replace(study, criterion=Criterion(rule="paper"))

    def run(offset: Offset, accuracy: float) -> Run:
        spec = study.base.with_point(moved(study.centre, *offset), 0)
        return Run(RunDir(Path("runs") / spec.run_id), spec, Status(State.DONE), {"score": accuracy})

    runs = [run((0, 0), 0.78), *(run(o, 0.78 - 0.01 * i) for i, o in enumerate(SIX, 1))]
    verdict = verify(study, runs)
    assert (verdict.verdict, verdict.point) == ("optimal", Point.of(lr=20.0, wd=4e-5))
    assert verdict.study.metric == BEST_ACCURACY
    better = [*runs[:1], run(SIX[0], 0.79), *runs[2:]]
    assert verify(study, better, at=study.centre).verdict == "refuted"
    assert evaluate(study, better).climb(study.centre).point == moved(study.centre, *SIX[0])


# --- the whole climb ------------------------------------------------------------------------------------------------


def search_for(study: Study, surface: Callable[[Offset], float]) -> tuple[Verdict, int]:
    """Follow the rounds of verify-optimum on a made surface; return the last verdict and the number of runs."""
    runs: dict[str, Run] = {}

    def train(specs: Sequence[RunSpec]) -> int:
        new = [spec for spec in specs if spec.run_id not in runs]
        for spec in new:
            offset = offset_of(spec.point)
            runs[spec.run_id] = run_at(study, offset, spec.seed, surface(offset))
        return len(new)

    train(evaluate(study, []).specs(study.grid_points))
    while True:
        finished = list(runs.values())
        verdict = verify(study, finished)
        if not train(wanted(study, finished)):
            return verdict, len(runs)


def valley(optimum: Offset, a: float, b: float, c: float) -> Callable[[Offset], float]:
    """Return a convex surface, steep along lr, wd and lr * wd in any proportion."""

    def surface(offset: Offset) -> float:
        x, y = offset[0] - optimum[0], offset[1] - optimum[1]
        return 1.0 + a * x**2 + b * y**2 + c * (x + y) ** 2

    return surface


SHAPES = [(1, 1, 0), (1, 1, 1), (1, 0.1, 0), (0.1, 1, 0), (0.1, 0.1, 1), (0.01, 0.02, 1)]
NINE = range(-4, 5)


@pytest.mark.parametrize("shape", [SHAPES[0], pytest.param(SHAPES[-1], marks=pytest.mark.slow)])
def test_a_climb_ends_at_the_optimum_of_a_convex_surface(search_of: Callable[..., Study], shape: Any) -> None:
    study = search_of(lr="{range: [-1, 1]}", wd="{range: [-1, 1]}")
    for optimum in itertools.product(NINE, NINE):
        verdict, runs = search_for(study, valley(optimum, *shape))
        assert (verdict.verdict, offset_of(verdict.point)) == ("optimal", optimum)
        assert runs < len(NINE) ** 2 / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_an_optimum_near_the_centre_costs_a_fifth_of_the_factorial(search_of: Callable[..., Study], shape: Any) -> None:
    study = search_of(lr="{range: [-1, 1]}", wd="{range: [-1, 1]}")
    for optimum in itertools.product((-1, 0, 1), (-1, 0, 1)):
        verdict, runs = search_for(study, valley(optimum, *shape))
        assert (verdict.verdict, offset_of(verdict.point)) == ("optimal", optimum)
        assert runs <= len(NINE) ** 2 / 5


def test_a_surface_without_an_optimum_ends_the_climb(study: Study) -> None:
    verdict, runs = search_for(study, lambda offset: 2.0 ** offset[1])
    assert verdict.verdict == "edge"
    assert verdict.verdict not in FINAL_VERDICTS
    assert "a wider --range" in reason_text(verdict)
    assert runs < 6 * (REACH + 2)
