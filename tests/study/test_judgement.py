import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from study.scored_runs import SIX, Offset, run_at
from support.digits_search import CENTRE, digits_search, offset_of
from support.points import moved

from ettsweep.errors import InputError
from ettsweep.report.reason_text import reason_text
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import parse_point
from ettsweep.study.study import Study
from ettsweep.study.study_state import REACH
from ettsweep.study.verdict import FINAL_VERDICTS, Verdict
from ettsweep.trainer.tasks.registry import LOWEST_LOSS


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


def runs_on(study: Study, scores: Mapping[Offset, float | None]) -> list[Run]:
    """Return finished runs with these scores, diverged ones for None."""
    return [run_at(study, offset, 0, score) for offset, score in scores.items()]


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


def test_runs_of_one_point_that_were_rounded_otherwise_are_read_as_one(search_of: Callable[..., Study]) -> None:
    study = search_of(lr="{range: [-1, 1]}", wd="fixed", seeds=[0, 1])
    pairs = itertools.product((-1, 0, 1), (0, 1))
    runs = [run_at(study, (step + 1e-7 * seed, 0), seed, 2.0 if step else 1.0) for step, seed in pairs]
    assert len({run.spec.lr for run in runs}) == 6
    verdict = verify(study, runs)
    assert (verdict.verdict, verdict.score, verdict.point) == ("optimal", 1.0, study.grid_points[1])
    assert wanted(study, runs) == []


def test_an_optimum_with_a_neighbour_never_asked_for_is_not_verified(study: Study) -> None:
    for absent in SIX:
        runs = runs_on(study, {o: s for o, s in BOWL.items() if o != absent})
        verdict = verify(study, runs)
        assert (verdict.verdict, reason_text(verdict)) == ("edge", "")
        assert [offset_of(p) for p in verdict.missing_points] == [absent]
        assert offsets(wanted(study, runs)) == {(0, 0), absent}


def with_neighbour(study: Study, state: State) -> list[Run]:
    runs = runs_on(study, {o: s for o, s in BOWL.items() if o != (1, -1)})
    return [*runs, run_at(study, (1, -1), 0, None, state)]


@pytest.mark.parametrize("state", [State.RUNNING, State.MISSING])
def test_a_neighbour_under_way_makes_the_verdict_wait(study: Study, state: State) -> None:
    runs = with_neighbour(study, state)
    verdict = verify(study, runs)
    assert (verdict.verdict, reason_text(verdict)) == ("incomplete", "unfinished: 1 neighbour")
    assert {offset_of(n.point): n.state for n in verdict.neighbours}[1, -1] == state
    assert (1, -1) in offsets(wanted(study, runs))


@pytest.mark.parametrize(("state", "advice"), [(State.FAILED, "`ettsweep retry "), (State.HELD, "`ettsweep status ")])
def test_a_neighbour_that_stands_still_is_named_with_what_to_type(study: Study, state: State, advice: str) -> None:
    runs = with_neighbour(study, state)
    verdict = verify(study, runs)
    assert verdict.verdict == "incomplete"
    told = f"unfinished: 1 neighbour; 1 run needs your decision: {runs[-1].id} {state}; {advice}"
    assert reason_text(verdict).startswith(told)


def test_points_asked_for_come_before_new_neighbours(search_of: Callable[..., Study]) -> None:
    study = search_of(lr="{range: [-1, 1]}")
    runs = [*runs_on(study, {(-1, 0): 2.0, (0, 0): 1.0}), run_at(study, (1, 0), 0, None, State.RUNNING)]
    verdict = verify(study, runs)
    assert (verdict.verdict, reason_text(verdict)) == ("incomplete", "unfinished: 1 of 3 points")
    assert offsets(wanted(study, runs)) == {(1, 0)}


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
    with pytest.raises(InputError, match="--at: wd is fixed at "):
        evaluate(study, []).resolve_point(moved(CENTRE, 0, 1))


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


def test_a_point_typed_as_a_table_prints_it_is_the_known_one(study: Study) -> None:
    state = evaluate(study, runs_on(study, BOWL))
    for point in (CENTRE, moved(CENTRE, 1, -1), moved(CENTRE, 9, -9)):
        rounded = Point.of(lr=float(f"{point['lr']:.4g}"), wd=float(f"{point['wd']:.4g}"))
        assert state.resolve_point(rounded) == point
        assert state.resolve_point(parse_point(str(point).strip("()"), "--at", study.centre, study.free)) == point
    with pytest.raises(InputError, match=r"lr 0\.007890625 is no point of vit-digits standard; the nearest is 2\^-7"):
        state.resolve_point(Point.of(lr=CENTRE["lr"] * 1.01, wd=CENTRE["wd"]))


def test_an_exactly_equal_neighbour_is_a_tie_without_a_climb(study: Study) -> None:
    runs = runs_on(study, BOWL | {(1, 0): 1.0})
    verdict = verify(study, runs, at=CENTRE)
    assert (verdict.verdict, reason_text(verdict)) == ("tie", "")
    assert evaluate(study, runs).climb(CENTRE) == verdict
    assert wanted(study, runs, at=CENTRE) == []
    of_equals = verify(study, runs_on(study, {(1, 0): 1.0, (0, 0): 1.0, (0, 1): 1.0}))
    assert offset_of(of_equals.point) == (0, 0), "of the lowest lr"


def test_one_diverged_seed_makes_a_point_diverge(search_of: Callable[..., Study]) -> None:
    study = search_of(wd="fixed", seeds=[0, 1])
    runs = [run_at(study, (i, 0), seed, 2.0 if i else 1.0) for i in (-1, 0, 1) for seed in (0, 1)]
    runs[2] = run_at(study, (0, 0), 0, None)
    verdict = verify(study, runs, at=CENTRE)
    assert (verdict.verdict, verdict.score) == ("refuted", None)


def test_a_diverged_point_loses_to_a_neighbour_that_did_not_and_ties_with_one_that_did(study: Study) -> None:
    runs = runs_on(study, dict.fromkeys(BOWL, None) | {(-1, 0): 3.0})
    assert verify(study, runs, at=CENTRE).verdict == "refuted"
    assert offset_of(evaluate(study, runs).climb(CENTRE).point) == (-1, 0)
    verdict = verify(study, runs_on(study, dict.fromkeys(BOWL, None)), at=CENTRE)
    assert (verdict.verdict, reason_text(verdict)) == ("tie", "")


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
    fresh += [run_at(study, (0, 0), seed, None, state) for seed, state in ((4, State.RUNNING), (5, State.FAILED))]
    better_elsewhere = [run_at(study, (1, 0), seed, 0.0) for seed in (1, 2, 3)]
    after = verify(study, [*fresh, *better_elsewhere, *searched])
    assert (after.verdict, after.point, after.score) == (before.verdict, before.point, before.score)
    assert list(after.fresh_scores.items()) == [(1, 7.0), (2, None), (3, 9.0)]


# --- a score of which more is better --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("shape", [(1, 1, 0), (1, 0.1, 0), (0.01, 0.02, 1)])
def test_a_climb_ends_at_the_optimum_of_a_convex_surface(search_of: Callable[..., Study], shape: Any) -> None:
    """For less than half of the runs of all 9 x 9 points; near the centre, for a fifth."""
    study = search_of(lr="{range: [-1, 1]}", wd="{range: [-1, 1]}")
    for optimum, most in (((0, 0), 16), ((1, -1), 16), ((-1, -1), 16), ((4, -4), 40), ((-4, -3), 40)):
        verdict, runs = search_for(study, valley(optimum, *shape))
        assert (verdict.verdict, offset_of(verdict.point)) == ("optimal", optimum)
        assert runs <= most


def test_a_surface_without_an_optimum_ends_the_climb(study: Study) -> None:
    verdict, runs = search_for(study, lambda offset: 2.0 ** offset[1])
    assert verdict.verdict == "edge"
    assert verdict.verdict not in FINAL_VERDICTS
    assert "a wider --range" in reason_text(verdict)
    assert runs < 6 * (REACH + 2)
