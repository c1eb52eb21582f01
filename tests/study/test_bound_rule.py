"""Verdicts by the rule of the bound, and the runs that it asks for."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from support.digits_search import CENTRE, digits_search, offset_of
from support.made_sweep import changed

from ettsweep.report.reason_text import reason_text
from ettsweep.report.verdict_view import headline
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import State, Status
from ettsweep.study.bound_rule import BoundRule
from ettsweep.study.budget import NO_BUDGET, Budget
from ettsweep.study.criterion import Criterion
from ettsweep.study.posterior import Posterior, fit_posterior
from ettsweep.study.racing import Allocation, BoundQuery, next_runs, runs_needed
from ettsweep.study.round import Aim, next_round
from ettsweep.study.seeds import RACING_SEEDS, fresh_seeds, seed_order
from ettsweep.study.study import Study
from ettsweep.study.surface import WIDTH, finer_width
from ettsweep.study.verdict import Verdict
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS

Offset = tuple[int, int]
SIX: list[Offset] = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]
SEVEN: list[Offset] = [(0, 0), *SIX]
WIDE: list[Offset] = [*product(range(-2, 3), repeat=2)]
STRATEGIES = [StrategySpec(s=s) for s in (0.0, 0.25, 0.5, 1.0)]


@pytest.fixture
def search_of(tmp_path: Path) -> Callable[..., Study]:
    """Return a function that makes a search of digits that asks for the centre alone."""

    def make(seeds: Sequence[int] = (0, 1, 2), margin: str = "5%", confidence: float = 0.95, lr: str = "0, 0") -> Study:
        criterion = f"{{margin: {margin}, confidence: {confidence}}}"
        return digits_search(tmp_path, f"{{range: [{lr}]}}", "{range: [0, 0]}", seeds, criterion)

    return make


def run_at(study: Study, offset: Offset, seed: int, score: float | None, state: State = State.DONE) -> Run:
    spec = study.base.with_point(*CENTRE.moved(*offset), seed)
    state = State.DIVERGED if score is None and state is State.DONE else state
    result = {"score": score} if state.finished else None
    return Run(RunDir(Path("runs") / spec.run_id), spec, Status(state), result)


def bowl(offset: Offset, curvature: float = 0.1) -> float:
    return math.exp(curvature * (offset[0] ** 2 + offset[1] ** 2 + 0.5 * offset[0] * offset[1]))


def noisy(study: Study, offsets: Sequence[Offset], noise: float, curvature: float = 0.1, seed: int = 0) -> list[Run]:
    """Return finished runs on a bowl over the search's seeds, each with an effect of its own that all points share."""
    rng = np.random.default_rng(seed)
    shared = {s: rng.normal() * noise for s in study.seeds}
    return [
        run_at(study, o, s, bowl(o, curvature) * math.exp(shared[s] + noise * rng.normal()))
        for o in offsets
        for s in study.seeds
    ]


def judged(study: Study, runs: Sequence[Run], at: Point | None = None) -> Verdict:
    return BoundRule(study, runs).verdict(at)


def asked(specs: Sequence[RunSpec]) -> list[tuple[tuple[float, float], int]]:
    return [(offset_of(Point(spec.lr, spec.wd)), spec.seed) for spec in specs]


# --- verdicts -------------------------------------------------------------------------------------------------------


def test_little_noise_makes_an_optimum_and_much_leaves_it_open(search_of: Callable[..., Study]) -> None:
    study = search_of()
    valid = judged(study, noisy(study, SEVEN, 0.01))
    assert (valid.verdict, offset_of(valid.point)) == ("optimal", (0, 0))
    assert valid.bound is not None
    assert valid.bound.value is not None
    assert valid.bound.value == valid.bound.margin, "every neighbour is 10% or more behind; no less is stated"
    assert valid.bound.best_probability > 0.999
    assert valid.bound.noise.source == "measured"
    assert valid.bound.noise.sd == pytest.approx(0.01, rel=0.5)
    flat = judged(study, noisy(study, WIDE, 0.2, curvature=0.06))
    assert flat.verdict == "unresolved"
    assert flat.bound is not None
    assert flat.bound.value is not None
    assert flat.bound.value > 0.05
    assert flat.bound.further_runs is not None


def test_the_bound_is_that_of_the_largest_advantage(search_of: Callable[..., Study]) -> None:
    """Of one neighbour alone, that is a quantile of the advantage; of six, more than that of each."""
    study = search_of()
    runs = noisy(study, WIDE, 0.2, curvature=0.1)
    bound_rule = BoundRule(study, runs)
    posterior_result = bound_rule.posterior(CENTRE)
    assert posterior_result is not None
    local, others = (0.0, 0.0), [tuple(map(float, o)) for o in SIX]
    single = [posterior_result.bound(local, [other], 0.95) for other in others]
    assert posterior_result.bound(local, others, 0.95) > max(single)
    assert (
        posterior_result.bound(local, others, 0.99)
        > posterior_result.bound(local, others, 0.95)
        > posterior_result.bound(local, others, 0.8)
    )
    for other, difference in zip(others, posterior_result.differences(local, others), strict=True):
        truth = bowl((int(other[0]), int(other[1]))) - 1
        assert abs(difference.mean - truth) < 4 * difference.error


@pytest.mark.parametrize("curvature", [0.06, 0.3])
def test_a_bound_that_is_small_beside_the_noise_is_widened_more(
    search_of: Callable[..., Study], curvature: float
) -> None:
    """It is where the quantile of draws meets the bound that their deviations are widened for; half as much again, since
    it is above the margin."""
    study = search_of(seeds=range(6))
    posterior = BoundRule(study, noisy(study, WIDE, 0.2, curvature=curvature)).posterior(CENTRE)
    assert posterior is not None
    assert posterior.is_log
    local, others = (0.0, 0.0), [tuple(map(float, o)) for o in SIX]
    bound = -math.log1p(-posterior.bound(local, others, 0.9, margin=1e-4)) / 1.5
    means, deviations = posterior.surface.draws(
        posterior.index(local), [posterior.index(position) for position in others]
    )
    width = math.sqrt(1 + (0.18 * posterior.surface.noise_sd / bound) ** 2)
    assert np.quantile((means + width * deviations).max(1), 0.9) == pytest.approx(bound, rel=0.02)
    assert width > 1.01
    assert posterior.bound(local, others, 0.9, margin=0.999 * -math.expm1(-bound)) > -math.expm1(-1.49 * bound)
    assert posterior.bound(local, others, 0.9, margin=1.001 * -math.expm1(-bound)) == 1.001 * -math.expm1(-bound)


def test_more_runs_make_the_bound_tighter(search_of: Callable[..., Study]) -> None:
    bounds = []
    for number in (2, 16, 128):
        study = search_of(seeds=range(number))
        verdict = judged(study, noisy(study, WIDE, 0.3, 0.02), CENTRE)
        assert verdict.bound is not None
        bounds.append(verdict.bound.value)
    assert bounds[0] > bounds[1] > bounds[2]


def test_one_seed_a_point_says_nothing_of_the_noise_until_a_fit_leaves_enough(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0])
    small_set = judged(study, noisy(study, SEVEN, 0.01))
    assert small_set.verdict == "unresolved"
    text = "noise unknown: each point has one score, which may be luck; it takes at least 7 more runs: 1 more seed of "
    by_means = "by the paper's comparison of means it is optimal"
    assert reason_text(small_set) == f"{text}the candidate and its neighbours; {by_means}"
    number = judged(study, noisy(study, WIDE, 0.01))
    assert number.bound is not None
    assert number.bound.noise.source == "inferred"
    text = "it is within 5% (95% sure), but on too few seeds: 4 more runs are needed until the neighbour that decides has 3 of"
    assert reason_text(number).startswith(text)


@pytest.mark.parametrize("lost", [[], [1]], ids=["none failed", "one failed"])
def test_no_optimum_is_declared_on_two_seeds_of_the_neighbour_that_decides(
    search_of: Callable[..., Study], lost: list[int]
) -> None:
    """It is the one whose own bound is the largest: the best beside the candidate. A run that failed gets no second."""
    study, best = search_of(seeds=(0, 1)), {(0, 0): 0.94, (0, 1): 0.95}
    runs = [
        run_at(study, o, s, best.get(o, 1.2) * (1 + 0.01 * s + 0.0005 * ((5 * i + 3 * s) % 7)))
        for i, o in enumerate(SEVEN)
        for s in study.seeds
        if not (o == (0, 1) and s in lost)
    ]
    runs += [run_at(study, (0, 1), s, None, State.FAILED) for s in lost if s in study.seeds]
    while (verdict := judged(study, runs, CENTRE)).verdict == "unresolved":
        assert verdict.reason.code == "too_few_seeds"
        specs = BoundRule(study, runs).racing_specs(verdict, limit=1)
        assert len(specs) == verdict.bound.further_runs
        assert {position for position, _ in asked(specs)} <= {(0, 0), (0, 1)}
        runs += [run_at(study, offset_of(Point(x.lr, x.wd)), x.seed, 0.95 + 0.0004 * (x.seed % 3)) for x in specs]
    assert verdict.verdict == "optimal"
    seeds_of = [
        {run.spec.seed for run in runs if run.score is not None and offset_of(run.point) == offset}
        for offset in ((0, 0), (0, 1))
    ]
    assert len(seeds_of[0] & seeds_of[1]) == 3


def test_seeds_that_decide_keep_to_the_limit_and_are_waited_for(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=(0, 1))
    runs = noisy(study, SEVEN, 0.001, curvature=0.2)
    verdict = judged(study, runs)
    assert verdict.reason.code == "too_few_seeds"
    assert headline(verdict) == "unresolved: within 5% (95%), too few seeds"
    specs = BoundRule(study, runs).racing_specs(verdict, limit=2)
    assert len(specs) == 2
    assert BoundRule(study, runs).racing_specs(verdict, limit=2, max_seeds=2) == []
    under_way = [run_at(study, offset_of(Point(x.lr, x.wd)), x.seed, None, State.RUNNING) for x in specs]
    waiting = judged(study, [*runs, *under_way])
    assert waiting.bound is not None
    assert (waiting.reason.code, waiting.bound.further_runs) == ("too_few_seeds", None)
    assert "too few seeds: wait until the neighbour" in reason_text(waiting)
    again = BoundRule(study, [*runs, *under_way]).racing_specs(waiting, limit=2)
    assert sorted(asked(again)) == sorted(asked(specs))


def test_with_a_margin_of_0_a_clear_optimum_is_one(search_of: Callable[..., Study]) -> None:
    """Small bounds are not widened there: the widening grows without end."""
    study = search_of(margin="0%")
    assert headline(judged(study, noisy(study, SEVEN, 0.01, curvature=0.2))) == "optimal: no neighbour is better (95%)"


@pytest.mark.parametrize("alive", [1, 2, 4, 6])
@pytest.mark.parametrize("had", [1, 2])
def test_so_many_more_runs_as_the_reason_says_tell_the_noise(
    search_of: Callable[..., Study], alive: int, had: int
) -> None:
    """As repeated seeds tell it, where some neighbours diverged; so do all of them that come before the last seed."""

    def verdict_of(seeds: int) -> Verdict:
        study = search_of(seeds=range(seeds))
        lost = [run_at(study, o, s, None) for o in SIX[alive:] for s in study.seeds]
        return judged(study, [*noisy(study, [(0, 0), *SIX[:alive]], 0.01), *lost], CENTRE)

    reason = reason_text(verdict_of(had))
    if (had, alive) in ((2, 4), (2, 6)):
        assert "noise unknown" not in reason
        return
    search_result = re.search(r"; it takes at least (\d+) more runs: (\d+) more seeds? of", reason)
    assert search_result, reason
    runs, seeds = map(int, search_result.groups())
    assert runs == seeds * (1 + alive)
    sources = [verdict_of(had + extra).bound.noise.source for extra in (seeds - 1, seeds)]  # type: ignore[union-attr]
    assert sources == ["unknown", "measured"]


def test_scores_of_which_no_two_share_a_seed_say_nothing(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0])
    verdict = judged(study, [run_at(study, (0, 0), 0, 1.0), *(run_at(study, o, 0, None) for o in SIX)])
    text = "noise unknown: no two points have scores of the same seed, so there is no way to estimate the noise"
    assert (verdict.verdict, reason_text(verdict).partition(";")[0]) == ("unresolved", text)


def test_the_candidate_is_the_best_of_the_surface_and_not_of_a_lucky_draw(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=range(4))
    runs = noisy(study, WIDE, 0.05)
    lucky = [run_at(study, (1, 0), 3, 0.9) if (o, s) == ((1, 0), 3) else run for run in runs for o, s in [at(run)]]
    assert offset_of(judged(study, lucky).point) == (0, 0)


def at(run: Run) -> tuple[Offset, int]:
    lr, wd = offset_of(run.point)
    return (int(lr), int(wd)), run.spec.seed


def test_a_climb_goes_on_to_a_better_point_before_all_neighbours_are_known(search_of: Callable[..., Study]) -> None:
    study = search_of()
    runs = noisy(study, [(0, 0), (1, 0), (0, 1)], 0.01)
    ats = [run_at(study, (-1, 0), s, 0.7) for s in study.seeds]
    verdict = judged(study, [*runs, *ats])
    assert (verdict.verdict, offset_of(verdict.point)) == ("edge", (-1, 0))
    assert [offset_of(point) for point in verdict.path] == [(0, 0)]
    missing = asked(BoundRule(study, [*runs, *ats]).needed_specs(verdict))
    assert {seed for offset, seed in missing if offset == (-2, 0)} == {0}, "one seed, to begin with"


def test_a_better_neighbour_refutes_a_point_that_was_named(search_of: Callable[..., Study]) -> None:
    study = search_of()
    runs = noisy(study, WIDE, 0.01)
    verdict = judged(study, runs, CENTRE.moved(1, 0))
    assert verdict.verdict == "refuted"
    unsure = judged(study, noisy(study, WIDE, 0.5, 0.01), CENTRE.moved(1, 0))
    assert unsure.verdict == "unresolved"


def test_a_neighbour_that_is_better_for_sure_refutes_only_beyond_the_margin(search_of: Callable[..., Study]) -> None:
    ahead = {(0, 0): 1.0, (1, 0): 0.98}
    for margin, verdict in (("5%", "optimal"), ("1%", "refuted")):
        study = search_of(margin=margin)
        rng = np.random.default_rng(0)
        runs = [run_at(study, o, s, ahead.get(o, 1.5) + 1e-4 * rng.normal()) for o in SEVEN for s in study.seeds]
        judgement = judged(study, runs, CENTRE)
        assert judgement.verdict == verdict
        assert judgement.bound is None or judgement.bound.best_probability < 1e-3, "it is better for sure"


def test_a_point_with_a_diverged_run_loses_and_leaves_the_fit(search_of: Callable[..., Study]) -> None:
    study = search_of()
    runs = noisy(study, [o for o in SEVEN if o != (1, 0)], 0.01)
    lost = [run_at(study, (1, 0), 0, 0.5), run_at(study, (1, 0), 1, None)]
    verdict = judged(study, [*runs, *lost])
    assert (verdict.verdict, offset_of(verdict.point)) == ("optimal", (0, 0))
    assert verdict.bound is not None
    assert [d is None for d in verdict.bound.differences] == [True] + [False] * 5
    all_lost = judged(study, [run_at(study, o, s, None) for o in SEVEN for s in study.seeds])
    assert (all_lost.verdict, reason_text(all_lost)) == ("unresolved", "all diverged; try a centre with a lower lr")


def test_a_plateau_is_named_and_its_middle_recommended(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=range(6))
    flat = {o: 1.0 if o in ((0, 0), (1, 0), (2, 0)) else 1.5 for o in WIDE}
    rng = np.random.default_rng(0)
    runs = [run_at(study, o, s, flat[o] * math.exp(0.01 * rng.normal())) for o in WIDE for s in study.seeds]
    verdict = judged(study, runs, CENTRE)
    assert verdict.bound is not None
    assert {offset_of(p) for p in verdict.bound.plateau} == {(1, 0), (2, 0)}
    assert offset_of(verdict.bound.recommended) == (1, 0)


def test_a_point_that_luck_alone_may_keep_within_the_margin_is_not_on_the_plateau(
    search_of: Callable[..., Study],
) -> None:
    study = search_of(seeds=range(3))
    verdict = judged(study, noisy(study, WIDE, 0.1, curvature=0.02), CENTRE)
    assert verdict.bound is not None
    behind = [difference for difference in verdict.bound.differences if difference]
    assert any(abs(each.mean) < 0.05 and each.mean + each.error > 0.05 for each in behind), "as good, or not"
    assert verdict.bound.plateau == ()


def test_a_cliff_beside_the_candidate_is_told_and_does_not_move_the_verdict(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=range(4))
    rng = np.random.default_rng(0)
    runs = [
        run_at(study, (i, j), s, math.exp(0.03 * (i * i + j * j) + 3.0 * ((i, j) == (1, 0)) + 0.01 * rng.normal()))
        for i, j in WIDE
        for s in study.seeds
    ]
    verdict = judged(study, runs)
    assert (verdict.verdict, offset_of(verdict.point)) == ("optimal", (0, 0))
    assert verdict.bound is not None
    assert "cliff" in verdict.bound.caveat


def test_accuracies_are_bounded_in_points(search_of: Callable[..., Study], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    higher = {o: {s: 0.8 - 0.01 * (o[0] ** 2 + o[1] ** 2) + 0.001 * rng.normal() for s in range(4)} for o in SEVEN}
    scores = {tuple(map(float, o)): seeds for o, seeds in higher.items()}
    posterior = fit_posterior(scores, (0.0, 0.0), BEST_ACCURACY)
    assert posterior is not None
    assert not posterior.is_log
    (difference,) = posterior.differences((0.0, 0.0), [(1.0, 0.0)])
    assert difference.mean == pytest.approx(0.01, abs=0.003)


def test_losses_are_fitted_in_log_where_that_fits_better() -> None:
    rng = np.random.default_rng(0)

    def found(value: Callable[[Offset], float]) -> Posterior:
        scores = {(float(i), float(j)): {s: value((i, j)) for s in range(3)} for i, j in WIDE}
        posterior = fit_posterior(scores, (0.0, 0.0), LOWEST_LOSS)
        assert posterior is not None
        return posterior

    assert found(lambda o: math.exp(0.5 * (o[0] ** 2 + o[1] ** 2) + 0.1 * rng.normal())).is_log
    assert not found(lambda o: 1 + 0.5 * (o[0] ** 2 + o[1] ** 2) + 0.05 * rng.normal()).is_log


def test_fresh_seeds_never_meet_those_of_racing_and_never_move_a_verdict(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0, RACING_SEEDS[0] - 2])
    fresh = fresh_seeds(study, 5)
    assert fresh[0] == RACING_SEEDS[0] - 1
    assert not set(fresh) & {*seed_order(study)}
    runs = noisy(study, WIDE, 0.1)
    ats = [run_at(study, (0, 0), seed, 9.0) for seed in fresh]
    assert judged(study, [*runs, *ats]) == replace(judged(study, runs), fresh_scores=dict.fromkeys(fresh, 9.0))


def test_points_behind_a_cliff_leave_the_fit_once_repeats_measure_the_noise(search_of: Callable[..., Study]) -> None:
    """They would have neighbours that differ by much for likely, and a lucky score of one for merit."""

    def with_cliff(study: Study, height: float) -> list[Run]:
        return [
            changed(run, result={"score": run.score * (height if offset_of(run.point)[0] == 2 else 1.0)})
            for run in noisy(study, WIDE, 0.02, curvature=0.02)
        ]

    study = search_of(seeds=(0, 1, 2))
    low, high = (judged(study, with_cliff(study, height)).bound for height in (1.0, 20.0))
    assert low is not None
    assert high is not None
    assert low.posterior is not None
    assert high.posterior is not None
    assert max(position[0] for position in low.posterior.positions) == 2
    assert max(position[0] for position in high.posterior.positions) == 1
    assert not high.caveat
    without = judged(study, [run for run in with_cliff(study, 20.0) if offset_of(run.point)[0] < 2]).bound
    assert without is not None
    assert high.value == without.value
    single = search_of(seeds=(0,))
    bound = judged(single, with_cliff(single, 20.0)).bound
    assert bound is not None
    assert bound.posterior is not None
    assert len(bound.posterior.positions) == 25, "without repeats only a fit to all points tells the noise"


# --- racing ---------------------------------------------------------------------------------------------------------


def question_of(study: Study, runs: Sequence[Run]) -> BoundQuery:
    bound_rule = BoundRule(study, runs)
    verdict = bound_rule.verdict()
    assert verdict.candidate is not None
    posterior_result = bound_rule.posterior(verdict.candidate.point)
    assert posterior_result is not None
    return bound_rule._bound_query(
        posterior_result, verdict.candidate, bound_rule._neighbour_positions(verdict.candidate, verdict.neighbours)
    )


def test_a_race_foresees_the_covariance_that_its_runs_would_leave(search_of: Callable[..., Study]) -> None:
    """Against a layout that has these runs: the covariance does not depend on the scores."""
    study = search_of(seeds=[0, 1])
    query = question_of(study, noisy(study, SEVEN, 0.1))
    allocation = Allocation(query)
    positions, cov_PP = query.posterior.positions, allocation.cov_PP
    for option in (
        [(0, RACING_SEEDS[0]), (3, RACING_SEEDS[0])],
        [(4, RACING_SEEDS[0])],
        [(0, RACING_SEEDS[1]), (1, RACING_SEEDS[1])],
    ):
        allocation.add_runs(option)
    layout = query.posterior.surface.layout
    scored = np.hstack([layout.scored_PS, np.zeros((len(positions), 2))])
    scored[[0, 3, 4], 2] = scored[[0, 1], 3] = 1
    longer = replace(layout, scored_PS=scored, y_PS=np.zeros_like(scored))
    surface = query.posterior.surface
    # As wide as for a bound of the margin, of which deviations of log losses and shares differ by little.
    noise = (WIDTH * finer_width(allocation.margin, surface.noise_sd)) ** 2 * surface.noise_covariance(layout.x_PD)
    added = np.subtract(*(table.statistics(noise[None]).information_MPP[0] for table in (longer, layout)))
    expected = np.linalg.inv(np.linalg.inv(cov_PP) + added)
    assert allocation.cov_PP == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_the_next_run_is_the_one_that_narrows_the_bounds_most(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=range(8), margin="1%")
    rng = np.random.default_rng(0)
    means = dict.fromkeys(SIX, 2.0) | {(0, 0): 1.0, (0, 1): 1.01}
    runs = [run_at(study, o, s, means[o] * math.exp(0.1 * rng.normal())) for o in SEVEN for s in study.seeds]
    query = question_of(study, runs)
    chosen = next_runs(query, 2)
    assert len({position for position, _ in chosen} | {query.candidate, *query.others[:0]}) == 2, (
        "the neighbour that may be better"
    )
    assert {seed for _, seed in chosen} == {RACING_SEEDS[0]}


def test_runs_under_way_are_reckoned_with_and_failed_ones_passed_over(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0, 1])
    runs = noisy(study, WIDE, 0.3, 0.03)
    bound_rule = BoundRule(study, runs)
    verdict = bound_rule.verdict()
    first = bound_rule.racing_specs(verdict, 2)
    assert len(first) == 2
    under_way = [Run(RunDir(Path("r")), spec, Status(State.RUNNING)) for spec in first]
    repeated = BoundRule(study, [*runs, *under_way])
    assert set(asked(repeated.racing_specs(repeated.verdict(), 2))) == set(asked(first)), "they are waited for"
    assert set(asked(first)) < set(asked(repeated.racing_specs(repeated.verdict(), 4)))
    failed = [Run(RunDir(Path("r")), spec, Status(State.FAILED)) for spec in first]
    after = BoundRule(study, [*runs, *failed])
    assert not set(asked(after.racing_specs(after.verdict(), 4))) & set(asked(first))


def test_a_race_goes_to_points_that_were_not_run_where_they_tell_more(search_of: Callable[..., Study]) -> None:
    """On a bowl, points farther out tell more of where its bottom is; none is raced beyond one that diverged."""
    study = search_of(seeds=range(4), margin="1%")
    runs = noisy(study, SEVEN, 0.05, 0.02)
    bound_rule = BoundRule(study, runs)
    raced = {offset for offset, _ in asked(bound_rule.racing_specs(bound_rule.verdict(CENTRE), 12))}
    assert any(max(abs(lr), abs(wd)) > 1 for lr, wd in raced)
    assert max(abs(a) for offset in raced for a in offset) <= 3
    fallen = [run_at(study, (1, 0), s, None) for s in study.seeds]
    cliff = BoundRule(study, [run for run in runs if offset_of(run.point) != (1, 0)] + fallen)
    beside = {offset for offset, _ in asked(cliff.racing_specs(cliff.verdict(CENTRE), 12))}
    assert beside
    assert max(lr for lr, wd in beside if (lr, wd) not in SEVEN) <= 0


def test_what_other_sweeps_had_trained_is_none_of_a_races_budget(search_of: Callable[..., Study]) -> None:
    study = search_of(margin="2%")
    seven = replace(study, grid_points=tuple(CENTRE.moved(*offset) for offset in SEVEN))
    runs = {run.spec.run_id: run for run in noisy(study, WIDE, 0.1, curvature=0.06)}
    wide = replace(study, sweep="wide", grid_points=tuple(CENTRE.moved(*offset) for offset in WIDE))
    made = next_round([seven], RunIndex(runs, {}), aim=Aim(follows=True, other_studies=[wide]))
    plan = made.plan
    assert made.verdicts[0].verdict == "unresolved"
    assert 0 < len(plan.to_launch) <= 2
    assert made.stop_reasons == []
    assert sorted(made.spent.extra_ids[seven.key]) == sorted(p.id for p in plan.to_launch)


def test_all_runs_of_climbs_and_races_are_counted_and_none_that_a_sweep_requested(
    search_of: Callable[..., Study],
) -> None:
    study = search_of(seeds=(0, 1))
    seven = replace(study, grid_points=tuple(CENTRE.moved(*offset) for offset in SEVEN))
    wide = replace(study, sweep="wide", grid_points=tuple(CENTRE.moved(*offset) for offset in WIDE))
    requested = noisy(study, WIDE, 0.02)
    # A climb has left (4, 0) and (5, 0) behind, far from the candidate; a race ran two seeds at (0, 0) and one at (2, 2).
    climbed = [run_at(study, (4, 0), 0, bowl((4, 0))), run_at(study, (5, 0), 0, bowl((5, 0)))]
    raced = [run_at(study, (0, 0), seed, 1.0) for seed in RACING_SEEDS[:2]]
    raced.append(run_at(study, (2, 2), RACING_SEEDS[0], bowl((2, 2))))
    fresh = [run_at(study, (0, 0), 2, 1.0)]
    bound_rule = BoundRule(seven, [*requested, *climbed, *raced, *fresh])
    expected = {run.id for run in climbed + raced}
    assert {run.id for run in bound_rule.extra_runs([wide])} == expected
    elsewhere = {run.id for run in requested if offset_of(run.point) not in SEVEN}
    assert {run.id for run in bound_rule.extra_runs()} == expected | elsewhere
    # One more run that makes another point the candidate takes none of them away.
    other_scores = [changed(run, result={"score": 0.2}) if offset_of(run.point) == (1, 0) else run for run in requested]
    moved = BoundRule(seven, [*other_scores, *climbed, *raced])
    assert offset_of(moved.verdict().point) != (0, 0)
    assert {run.id for run in moved.extra_runs([wide])} >= expected


def test_racing_saves_what_equal_seeds_would_have_taken(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=(0, 1))
    seven = replace(study, grid_points=tuple(CENTRE.moved(*offset) for offset in SEVEN))
    requested = noisy(study, SEVEN, 0.02)
    without_race = BoundRule(seven, requested)
    assert without_race.runs_saved_by_racing(without_race.verdict()) == 0
    raced = [run_at(study, (0, 0), seed, 1.0) for seed in RACING_SEEDS[:3]]
    raced += [run_at(study, (1, 0), seed, bowl((1, 0))) for seed in RACING_SEEDS[:1]]
    bound_rule = BoundRule(seven, [*requested, *raced])
    verdict = bound_rule.verdict()
    assert offset_of(verdict.point) == (0, 0)
    # The candidate has 5 seeds: 7 points of 5 are 35, and 14 + 4 were run.
    assert bound_rule.runs_saved_by_racing(verdict) == 35 - 18
    far = run_at(study, (2, 2), 0, bowl((2, 2)))
    with_far = BoundRule(seven, [*requested, *raced, far])
    assert with_far.runs_saved_by_racing(with_far.verdict()) == 35 - 18 - 1, "a race may run points farther away"
    others = [replace(study, sweep="other", grid_points=(CENTRE.moved(2, 2),))]
    assert with_far.runs_saved_by_racing(with_far.verdict(), others) == 35 - 18


def test_a_round_has_no_more_runs_than_a_race_needs_or_may_have(search_of: Callable[..., Study]) -> None:
    study = search_of(margin="5%")
    wide = replace(study, grid_points=tuple(CENTRE.moved(*offset) for offset in WIDE))
    run_index = RunIndex({run.spec.run_id: run for run in noisy(study, WIDE, 0.11, curvature=0.06)}, {})

    def first_round(budget: Budget = NO_BUDGET) -> tuple[int, int]:
        made = next_round([wide], run_index, budget, aim=Aim(capacity=1000, follows=True))
        launched = len(made.plan.to_launch)
        bound = made.verdicts[0].bound
        assert bound is not None
        assert bound.further_runs is not None
        return launched, bound.further_runs

    launched, required = first_round()
    assert 32 < required < 100, "so that no allowance limits it"
    assert launched in (required, required + 1), "a new seed comes with two runs"
    assert first_round(Budget(runs=required // 2)) == (required // 2, required)
    assert first_round(Budget(runs=required // 18)) == (0, required), "that is out of reach"


def test_without_a_budget_a_study_may_have_100_extra_runs(
    search_of: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has 7 runs of each of 2 racing seeds; the noise is far too large for its margin."""
    study = replace(search_of(margin="0.1%"), grid_points=tuple(CENTRE.moved(*offset) for offset in SEVEN))
    raced = [run_at(study, o, RACING_SEEDS[k], bowl(o) * (1 + 0.05 * k)) for o in SEVEN for k in (0, 1)]
    run_index = RunIndex({run.spec.run_id: run for run in [*noisy(study, SEVEN, 0.12), *raced]}, {})

    def first_round() -> tuple[int, str, list[str]]:
        made = next_round([study], run_index, aim=Aim(follows=True, capacity=1000))
        return len(made.plan.to_launch), str(made.forecast), list(made.stop_reasons)

    assert first_round() == (86, "86 runs to come", [])
    monkeypatch.setattr("ettsweep.study.round.EXTRA_RUNS", 14)
    launched, _, (reason,) = first_round()
    assert launched == 0
    assert re.search(r"21 runs were requested, 14 more were added, and at least \d{3,4} would be needed", reason)


def test_without_a_budget_a_study_may_have_what_the_others_of_a_command_do_not_need(
    search_of: Callable[..., Study],
) -> None:
    """Two out of reach and one that has its verdict share 300 runs, of which 28 were run already."""
    studies, runs = [], {}
    for name, noise, margin in (("first", 0.12, "0.01%"), ("second", 0.12, "0.01%"), ("sure", 0.001, "2%")):
        study = replace(search_of(margin=margin), grid_points=tuple(CENTRE.moved(*offset) for offset in SEVEN))
        study = replace(study, sweep=name, base=study.base.model_copy(update={"strategy": STRATEGIES[len(studies)]}))
        studies.append(study)
        raced = [run_at(study, o, RACING_SEEDS[k], bowl(o) * (1 + 0.05 * k)) for o in SEVEN for k in (0, 1)]
        added = [*noisy(study, SEVEN, noise, curvature=0.06), *(raced if name != "sure" else [])]
        runs |= {run.spec.run_id: run for run in added}
    run_index = RunIndex(runs, {})
    for order in (studies, studies[::-1]):
        plan = next_round(order, run_index, aim=Aim(follows=True, capacity=1000)).plan
        counts = {study.sweep: sum(p.spec.family_id == study.family for p in plan.to_launch) for study in studies}
        assert counts == {"first": 136, "second": 136, "sure": 0}


def test_studies_share_a_budget_equally_in_any_order(search_of: Callable[..., Study]) -> None:
    """Three of one difficulty; the one that has its verdict needs no share."""
    studies, runs = [], {}
    for name, noise in (("first", 0.08), ("second", 0.08), ("third", 0.08), ("sure", 0.001)):
        study = replace(search_of(margin="2%"), grid_points=tuple(CENTRE.moved(*offset) for offset in WIDE))
        study = replace(study, sweep=name, base=study.base.model_copy(update={"strategy": STRATEGIES[len(studies)]}))
        studies.append(study)
        runs |= {run.spec.run_id: run for run in noisy(study, WIDE, noise, curvature=0.06)}
    run_index, counts = RunIndex(runs, {}), []
    for order in (studies, studies[::-1]):
        made = next_round(order, run_index, Budget(runs=32), aim=Aim(capacity=1000, follows=True))
        plan = made.plan
        counts.append({study.sweep: sum(p.spec.family_id == study.family for p in plan.to_launch) for study in studies})
        assert made.stop_reasons == []
    assert counts[0] == counts[1]
    assert counts[0] == {"first": 11, "second": 11, "third": 10, "sure": 0}


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize(
    ("runs", "launched"), [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 1, 0]), (8, [3, 3, 2]), (40, [9, 9, 9])]
)
def test_a_budget_smaller_than_the_number_of_studies_is_used_too(
    search_of: Callable[..., Study], follows: bool, runs: int, launched: list[int]
) -> None:
    study = replace(
        search_of(seeds=[0]), grid_points=tuple(CENTRE.moved(lr, wd) for lr, wd in product(range(3), repeat=2))
    )
    studies = [
        replace(study, sweep=str(k), base=study.base.model_copy(update={"strategy": STRATEGIES[k]})) for k in range(3)
    ]
    plan = next_round(studies, RunIndex({}, {}), Budget(runs), aim=Aim(follows=follows)).plan
    assert [sum(p.spec.family_id == study.family for p in plan.to_launch) for study in studies] == launched


def test_runs_that_one_study_does_not_need_in_a_single_round_go_to_the_others(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0])
    studies = [
        replace(
            study,
            sweep=str(points),
            base=study.base.model_copy(update={"strategy": STRATEGIES[points % 4]}),
            grid_points=tuple(CENTRE.moved(lr, 0) for lr in range(points)),
        )
        for points in (1, 30)
    ]
    other = study.base.model_copy(update={"strategy": STRATEGIES[3]})  # of the same recipe: it tells how long they take
    spec, result = other.with_point(*CENTRE, 0), {"score": 1.0, "device_s": 3600.0}
    timed = Run(RunDir(Path("runs") / spec.run_id), spec, Status(State.DONE), result)
    for budget, each in ((Budget(runs=10), [1, 9]), (Budget(hours=10.5), [1, 5])):
        plan = next_round(studies, RunIndex({timed.id: timed}, {}), budget).plan
        assert [sum(p.spec.family_id == study.family for p in plan.to_launch) for study in studies] == each


def test_where_a_budget_is_enough_for_one_of_two_it_is_the_same_one_in_any_order(
    search_of: Callable[..., Study],
) -> None:
    """Both lack their six neighbours."""
    study = replace(search_of(seeds=[0]), grid_points=(CENTRE,))
    studies = [
        replace(study, sweep=name, base=study.base.model_copy(update={"strategy": STRATEGIES[k]}))
        for k, name in enumerate(("first", "second"))
    ]
    run_index = RunIndex({(run := run_at(study, (0, 0), 0, 1.0)).spec.run_id: run for study in studies}, {})
    for order in (studies, studies[::-1]):
        made = next_round(order, run_index, Budget(8), aim=Aim(follows=True))
        assert {p.spec.family_id for p in made.plan.to_launch} == {studies[0].family}
        (reason,) = made.stop_reasons
        assert reason.startswith("second ")


def test_a_run_that_is_interrupted_counts_once(search_of: Callable[..., Study]) -> None:
    study = replace(search_of(seeds=[0]), grid_points=tuple(CENTRE.moved(lr, 0) for lr in range(9)))
    made = next_round([study], RunIndex({}, {}), Budget(9), aim=Aim(follows=True))
    first = made.plan.to_launch
    assert len(first) == 9
    ended = {p.id: Run(RunDir(Path("runs") / p.id), p.spec, Status(State.DONE), {"score": 1.0}) for p in first}
    ended |= {p.id: Run(RunDir(Path("runs") / p.id), p.spec, Status(State.INTERRUPTED), None) for p in first[:3]}
    plan = next_round([study], RunIndex(ended, {}), Budget(9), made.spent, Aim(follows=True)).plan
    assert {p.id for p in plan.to_launch} == {p.id for p in first[:3]}


def test_a_climb_that_swings_ends_at_the_point_least_behind(search_of: Callable[..., Study]) -> None:
    """Windows of scores move with the candidate, so that each of two points may have the other one ahead."""
    study, swings = search_of(), 0
    for seed in range(12):
        bound_rule = BoundRule(study, noisy(study, [*product(range(-4, 5), repeat=2)], 0.3, 0.002, seed))
        verdict = bound_rule.climb()
        assert verdict.point is not None
        if next_point_result := bound_rule._next_point(bound_rule.score_point(verdict.point)):
            swings += 1
            assert bound_rule._shortfall(verdict.point) <= bound_rule._shortfall(next_point_result.point)
            assert verdict.point not in verdict.path
    assert swings


def test_where_the_noise_is_unknown_each_point_gets_another_seed(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0])
    runs = noisy(study, SEVEN, 0.1)
    bound_rule = BoundRule(study, runs)
    further = asked(bound_rule.racing_specs(bound_rule.verdict(), 1))
    assert {offset for offset, _ in further} == {(float(i), float(j)) for i, j in SEVEN}
    assert {seed for _, seed in further} == {RACING_SEEDS[0]}


def test_the_runs_needed_grow_with_the_noise(search_of: Callable[..., Study]) -> None:
    study = search_of(margin="2%")
    collected = []
    for noise in (0.01, 0.1, 0.2):
        questions = [question_of(study, noisy(study, WIDE, noise, 0.03, seed)) for seed in range(5)]
        collected.append(median(runs_needed(query) or math.inf for query in questions))
    assert collected == sorted(collected)
    assert math.inf > collected[-1] > collected[0] == 1


def test_seeds_of_a_point_are_limited(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0, 1])
    bound_rule = BoundRule(study, noisy(study, [*product(range(-3, 4), repeat=2)], 0.3, 0.03))
    assert bound_rule.racing_specs(bound_rule.verdict(CENTRE), 4, max_seeds=2) == []
    assert len(bound_rule.racing_specs(bound_rule.verdict(CENTRE), 4, max_seeds=3)) == 4


def test_bound_and_confidence_are_those_of_the_sweep(search_of: Callable[..., Study]) -> None:
    study = search_of()
    runs = noisy(study, WIDE, 0.2, 0.06)
    verdicts: Mapping[float, Verdict] = {
        c: judged(replace(study, criterion=Criterion(confidence=c, margin=0.01)), runs) for c in (0.6, 0.99)
    }
    bounds = {c: v.bound and v.bound.value for c, v in verdicts.items()}
    assert bounds[0.6] is not None
    assert bounds[0.99] is not None
    assert bounds[0.6] < bounds[0.99]
    assert "(99%)" in headline(verdicts[0.99])
