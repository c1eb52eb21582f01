"""Verdicts by the rule of the bound, and the runs that it asks for."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from study.scored_runs import SIX, Offset, run_at
from support.digits_search import CENTRE, digits_search, offset_of
from support.made_sweep import changed
from support.points import moved

from ettsweep.metric import Metric
from ettsweep.report.verdict_view import headline
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import State, Status
from ettsweep.study.bound_rule import BoundRule
from ettsweep.study.budget import NO_BUDGET, Budget
from ettsweep.study.criterion import Criterion
from ettsweep.study.plan import Plan
from ettsweep.study.posterior import Posterior, fit_posterior
from ettsweep.study.racing import BoundQuery, next_runs, runs_needed
from ettsweep.study.round import Aim, next_round
from ettsweep.study.seeds import RACING_SEEDS, fresh_seeds, seed_order
from ettsweep.study.study import Study
from ettsweep.study.surface import Position
from ettsweep.study.verdict import Bound, RunsNeeded, Verdict
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS

SEVEN: list[Offset] = [(0, 0), *SIX]
WIDE: list[Offset] = [(lr, wd) for lr in range(-2, 3) for wd in range(-2, 3)]
STRATEGIES = [StrategySpec(s=s) for s in (0.0, 0.25, 0.5, 1.0)]


@pytest.fixture
def search_of(tmp_path: Path) -> Callable[..., Study]:
    """Return a function that makes a search of digits that asks for the centre alone."""

    def make(seeds: Sequence[int] = (0, 1, 2), margin: str = "5%") -> Study:
        return digits_search(tmp_path, "{range: [0, 0]}", "{range: [0, 0]}", seeds, f"{{margin: {margin}}}")

    return make


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


def bound_of(verdict: Verdict) -> Bound:
    assert verdict.bound is not None
    return verdict.bound


def value_of(verdict: Verdict) -> float:
    value = bound_of(verdict).value
    assert value is not None
    return value


def over(study: Study, offsets: Sequence[Offset], sweep: str = "", strategy: int | None = None) -> Study:
    """Return a study that asked for these points, in another sweep or of another strategy."""
    base = study.base if strategy is None else study.base.model_copy(update={"strategy": STRATEGIES[strategy]})
    return replace(study, grid_points=tuple(moved(CENTRE, *offset) for offset in offsets), sweep=sweep, base=base)


def index_of(runs: Sequence[Run]) -> RunIndex:
    return RunIndex({run.spec.run_id: run for run in runs}, {})


def launched(plan: Plan, studies: Sequence[Study]) -> list[int]:
    return [sum(p.spec.family_id == study.family for p in plan.to_launch) for study in studies]


def asked(specs: Sequence[RunSpec]) -> list[tuple[tuple[float, float], int]]:
    return [(offset_of(spec.point), spec.seed) for spec in specs]


# --- the posterior --------------------------------------------------------------------------------------------------

ORIGIN: Position = (0.0, 0.0)
OTHERS: list[Position] = [(float(lr), float(wd)) for lr, wd in SIX]


@pytest.fixture
def posterior(search_of: Callable[..., Study]) -> Posterior:
    """Return the posterior of log losses of two seeds, so noisy that bounds are far from 0."""
    study = search_of(seeds=(0, 1))
    fitted = BoundRule(study, noisy(study, SEVEN, 0.2)).posterior(CENTRE)
    assert fitted is not None
    assert fitted.is_log
    return fitted


@pytest.mark.parametrize(("confidence", "other"), [(0.6, OTHERS[0]), (0.95, OTHERS[1])])
def test_the_bound_of_one_neighbour_is_a_quantile_of_students_t(
    posterior: Posterior, confidence: float, other: Position
) -> None:
    weight_P = np.zeros(len(posterior.positions))
    weight_P[[posterior.index(ORIGIN), posterior.index(other)]] = 1.0, -1.0
    surface = posterior.surface
    scale = math.sqrt(weight_P @ surface.cov_PP @ weight_P + (0.07 * surface.noise_sd) ** 2)
    advantage = stats.t(posterior.surface.dof, weight_P @ posterior.surface.mean_P, scale)
    quantile = float(advantage.ppf(confidence))
    assert posterior.bound(ORIGIN, [other], confidence) == pytest.approx(max(0.0, 1 - math.exp(-quantile)), abs=1e-9)
    for margin in (0.01, 0.3):
        expected = max(margin, 1 - math.exp(-quantile))
        assert posterior.bound(ORIGIN, [other], confidence, margin) == pytest.approx(expected)
        (probability,) = posterior.probabilities_better(ORIGIN, [other], margin)
        assert probability == pytest.approx(float(advantage.sf(-math.log(1 - margin))))
    (difference,) = posterior.differences(ORIGIN, [other])
    ratio = math.exp(-advantage.mean())
    assert (difference.mean, difference.error) == pytest.approx((ratio - 1, ratio * advantage.std()))


def test_the_bound_of_six_is_met_by_the_product_of_their_probabilities(posterior: Posterior) -> None:
    """It is no smaller than that of each, and no smaller than what all six have together."""
    confidence = 0.95
    bound = posterior.bound(ORIGIN, OTHERS, confidence)
    assert bound >= max(posterior.bound(ORIGIN, [other], confidence) for other in OTHERS)
    assert np.prod(1 - np.array(posterior.probabilities_better(ORIGIN, OTHERS, bound))) == pytest.approx(confidence)
    rows = [posterior.index(other) for other in OTHERS]
    signs = np.eye(len(posterior.positions))[posterior.index(ORIGIN)] - np.eye(len(posterior.positions))[rows]
    together = stats.multivariate_t(
        signs @ posterior.surface.mean_P, signs @ posterior.surface.cov_PP @ signs.T, posterior.surface.dof, seed=0
    )
    assert confidence <= together.cdf(np.full(len(OTHERS), -math.log(1 - bound))) < (1 + confidence) / 2


def test_a_margin_is_a_share_of_the_candidates_score_or_points_of_it() -> None:
    scores = {ORIGIN: {0: 0.8, 1: 0.6}, (1.0, 0.0): {0: 0.7, 1: 0.6}}
    share_of_high = Metric("score", "max", "score", margin_is="share")
    for metric, f in ((LOWEST_LOSS, -math.log(0.95)), (BEST_ACCURACY, 0.05), (share_of_high, 0.05 * 0.7)):
        posterior = fit_posterior(scores, ORIGIN, metric)
        assert posterior is not None
        assert posterior.from_margin(0.05) == pytest.approx(f)
        assert posterior.to_margin(f) == pytest.approx(0.05)


# --- verdicts -------------------------------------------------------------------------------------------------------


def test_little_noise_makes_an_optimum_and_much_leaves_it_open(search_of: Callable[..., Study]) -> None:
    study = search_of()
    valid = judged(study, noisy(study, SEVEN, 0.01))
    assert (valid.verdict, offset_of(valid.point)) == ("optimal", (0, 0))
    bound = bound_of(valid)
    assert bound.value == bound.margin, "every neighbour is 10% or more behind; no less is stated"
    assert bound.best_probability > 0.999
    assert (bound.noise.source, bound.noise.sd) == ("measured", pytest.approx(0.01, rel=0.5))
    runs = noisy(study, WIDE, 0.2, curvature=0.06)
    flat = judged(study, runs)
    assert flat.verdict == "unresolved"
    assert value_of(flat) > 0.05
    assert bound_of(flat).further_runs is not None
    sure = judged(replace(study, criterion=Criterion(margin=0.05, confidence=0.99)), runs)
    assert value_of(sure) > value_of(flat)
    assert "(99%)" in headline(sure)


def test_one_seed_a_point_says_nothing_of_the_noise_until_a_fit_leaves_enough(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0])
    reason = judged(study, noisy(study, SEVEN, 0.01)).reason
    expected = {"lack": "seeds", "seeds": 1, "runs": 7, "device_s": 0.0, "paper": "optimal"}
    assert (reason.code, reason.facts) == ("noise_unknown", expected)
    wide = judged(study, noisy(study, WIDE, 0.01))
    assert bound_of(wide).noise.source == "inferred"
    assert (wide.reason.code, wide.reason.facts["runs"]) == ("too_few_seeds", 4)


def test_no_optimum_is_declared_on_two_seeds_of_the_neighbour_that_decides(search_of: Callable[..., Study]) -> None:
    """It is the one whose own bound is the largest: the best beside the candidate. A run that failed gets no second."""
    study, best = search_of(seeds=(0, 1)), {(0, 0): 0.94, (0, 1): 0.95}
    runs = [
        run_at(study, o, s, best.get(o, 1.2) * (1 + 0.01 * s + 0.0005 * ((5 * i + 3 * s) % 7)))
        for i, o in enumerate(SEVEN)
        for s in study.seeds
        if (o, s) != ((0, 1), 1)
    ]
    runs.append(run_at(study, (0, 1), 1, None, State.FAILED))
    while (verdict := judged(study, runs, CENTRE)).verdict == "unresolved":
        assert verdict.reason.code == "too_few_seeds"
        specs = BoundRule(study, runs).racing_specs(verdict, limit=1)
        assert bound_of(verdict).further_runs == RunsNeeded(len(specs), len(specs), len(specs))
        assert {position for position, _ in asked(specs)} <= {(0, 0), (0, 1)}
        runs += [run_at(study, offset_of(x.point), x.seed, 0.95 + 0.0004 * (x.seed % 3)) for x in specs]
    assert verdict.verdict == "optimal"
    seeds_of = [
        {run.spec.seed for run in runs if run.score is not None and offset_of(run.point) == offset}
        for offset in ((0, 0), (0, 1))
    ]
    assert len(seeds_of[0] & seeds_of[1]) == 3


def test_the_candidate_is_the_best_of_the_surface_and_not_of_a_lucky_draw(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=range(4))
    runs = noisy(study, WIDE, 0.05)
    lucky = run_at(study, (1, 0), 3, 0.9)
    assert offset_of(judged(study, [*(run for run in runs if run.id != lucky.id), lucky]).point) == (0, 0)


def test_a_climb_goes_on_to_a_better_point_before_all_neighbours_are_known(search_of: Callable[..., Study]) -> None:
    study = search_of()
    runs = noisy(study, [(0, 0), (1, 0), (0, 1)], 0.01)
    ats = [run_at(study, (-1, 0), s, 0.7) for s in study.seeds]
    verdict = judged(study, [*runs, *ats])
    assert (verdict.verdict, offset_of(verdict.point)) == ("edge", (-1, 0))
    assert [offset_of(point) for point in verdict.path] == [(0, 0)]
    missing = asked(BoundRule(study, [*runs, *ats]).needed_specs(verdict))
    assert {seed for offset, seed in missing if offset == (-2, 0)} == {0}, "one seed, to begin with"


def test_a_neighbour_that_is_better_for_sure_refutes_only_beyond_the_margin(search_of: Callable[..., Study]) -> None:
    ahead = {(0, 0): 1.0, (1, 0): 0.98}
    for margin, verdict in (("5%", "optimal"), ("1%", "refuted")):
        study = search_of(margin=margin)
        rng = np.random.default_rng(0)
        runs = [run_at(study, o, s, ahead.get(o, 1.5) + 1e-4 * rng.normal()) for o in SEVEN for s in study.seeds]
        judgement = judged(study, runs, CENTRE)
        assert judgement.verdict == verdict
        assert judgement.bound is None or judgement.bound.best_probability < 1e-3, "it is better for sure"
    unsure = judged(study, noisy(study, WIDE, 0.5, 0.01), moved(CENTRE, 1, 0))
    assert unsure.verdict == "unresolved", "a neighbour that may be better refutes nothing"


def test_a_point_with_a_diverged_run_loses_and_leaves_the_fit(search_of: Callable[..., Study]) -> None:
    study = search_of()
    runs = noisy(study, [o for o in SEVEN if o != (1, 0)], 0.01)
    lost = [run_at(study, (1, 0), 0, 0.5), run_at(study, (1, 0), 1, None)]
    verdict = judged(study, [*runs, *lost])
    assert (verdict.verdict, offset_of(verdict.point)) == ("optimal", (0, 0))
    assert [d is None for d in bound_of(verdict).differences] == [True] + [False] * 5
    all_lost = judged(study, [run_at(study, o, s, None) for o in SEVEN for s in study.seeds])
    assert (all_lost.verdict, all_lost.reason.code) == ("unresolved", "all_diverged")


def test_a_plateau_is_named_and_its_middle_recommended(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=range(6))
    flat = {o: 1.0 if o in ((0, 0), (1, 0), (2, 0)) else 1.5 for o in WIDE}
    rng = np.random.default_rng(0)
    runs = [run_at(study, o, s, flat[o] * math.exp(0.01 * rng.normal())) for o in WIDE for s in study.seeds]
    bound = bound_of(judged(study, runs, CENTRE))
    assert {offset_of(p) for p in bound.plateau} == {(1, 0), (2, 0)}
    assert offset_of(bound.recommended) == (1, 0)


def test_fresh_seeds_never_meet_those_of_racing_and_never_move_a_verdict(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0, RACING_SEEDS[0] - 2])
    fresh = fresh_seeds(study, 5)
    assert fresh[0] == RACING_SEEDS[0] - 1
    assert not set(fresh) & {*seed_order(study)}
    runs = noisy(study, WIDE, 0.1)
    ats = [run_at(study, (0, 0), seed, 9.0) for seed in fresh]
    assert judged(study, [*runs, *ats]) == replace(judged(study, runs), fresh_scores=dict.fromkeys(fresh, 9.0))


def test_points_behind_a_cliff_leave_the_fit(search_of: Callable[..., Study]) -> None:
    """They would have neighbours that differ by much for likely, and a lucky score of one for merit."""

    def with_cliff(study: Study, height: float) -> list[Run]:
        return [
            changed(run, result={"score": run.score * (height if offset_of(run.point)[0] == 2 else 1.0)})
            for run in noisy(study, WIDE, 0.02, curvature=0.02)
            if run.score is not None
        ]

    study = search_of(seeds=(0, 1, 2))
    verdicts = [judged(study, with_cliff(study, height)) for height in (1.0, 20.0)]
    posteriors = [bound_of(verdict).posterior for verdict in verdicts]
    assert [max(lr for lr, _ in each.positions) for each in posteriors if each] == [2, 1]
    without = judged(study, [run for run in with_cliff(study, 20.0) if offset_of(run.point)[0] < 2])
    assert value_of(verdicts[1]) == value_of(without)


# --- racing ---------------------------------------------------------------------------------------------------------


def question_of(study: Study, runs: Sequence[Run]) -> BoundQuery:
    bound_rule = BoundRule(study, runs)
    verdict = bound_rule.verdict()
    assert verdict.candidate is not None
    posterior = bound_rule.posterior(verdict.candidate.point)
    assert posterior is not None
    return bound_rule._bound_query(
        posterior, verdict.candidate, bound_rule._neighbour_positions(verdict.candidate, verdict.neighbours)
    )


@pytest.fixture
def open_query(search_of: Callable[..., Study]) -> BoundQuery:
    """Return the question about a candidate whose neighbours are about as good; one of them has two seeds less."""
    study = search_of(seeds=range(6), margin="2%")
    means = dict(zip(SEVEN, (1.0, 1.3, 1.05, 1.04, 1.2, 1.03, 1.1), strict=True))
    rng = np.random.default_rng(2)
    runs = [
        run_at(study, offset, seed, means[offset] * math.exp(0.15 * rng.normal()))
        for offset in SEVEN
        for seed in study.seeds
        if offset != (0, -1) or seed < 4
    ]
    return question_of(study, runs)


def test_the_likeliest_challengers_get_seeds_that_the_candidate_has_or_gets(open_query: BoundQuery) -> None:
    better = dict(zip(OTHERS, open_query.posterior.probabilities_better(ORIGIN, OTHERS, 0.02), strict=True))
    likeliest = sorted(OTHERS, key=lambda other: -better[other])[:3]
    assert (0.0, -1.0) in likeliest
    chosen = next_runs(open_query, 11)
    assert {position for position, _ in chosen} == {ORIGIN, *likeliest}
    assert [seed for position, seed in chosen if position == (0.0, -1.0)][:2] == [4, 5], "which the candidate has"
    seeds = {position: {seed for own, seed in chosen if own == position} for position in (ORIGIN, *likeliest)}
    assert all(seeds[other] <= seeds[ORIGIN] | set(range(6)) for other in likeliest)
    assert len(seeds[ORIGIN]) >= 2


def test_no_run_comes_twice_and_limits_are_kept(open_query: BoundQuery) -> None:
    used = [(position, seed) for position, seeds in open_query.used_seeds.items() for seed in seeds]
    for limit, max_seeds in ((0, 9), (1, 6), (30, 9)):
        chosen = next_runs(replace(open_query, max_seeds=max_seeds), limit)
        assert bool(limit) <= len(chosen) <= limit + 1, "a new seed comes with two runs"
        assert len({*used, *chosen}) == len(used) + len(chosen)
        assert max(Counter(position for position, _ in used + chosen).values()) <= max_seeds


def with_errors(query: BoundQuery, factor: float) -> BoundQuery:
    """Return a query whose errors are that many times as large."""
    surface = replace(query.posterior.surface, cov_PP=factor**2 * query.posterior.surface.cov_PP)
    return replace(query, posterior=replace(query.posterior, surface=surface))


def test_a_forecast_has_a_range_and_falls_as_errors_shrink(open_query: BoundQuery) -> None:
    forecasts = list[tuple[int, int, int]]()
    for factor in (4.0, 1.0, 0.5, 0.25):
        runs = runs_needed(with_errors(open_query, factor))
        assert runs is not None
        assert 1 <= runs.low <= runs.likely <= runs.high
        forecasts.append((runs.low, runs.likely, runs.high))
    for numbers in zip(*forecasts, strict=True):
        assert list(numbers) == sorted(numbers, reverse=True)
        assert numbers[0] > 2 * numbers[-1]
    assert runs_needed(replace(open_query, max_seeds=4)) is None, "no run is allowed"


def test_runs_under_way_are_reckoned_with_and_failed_ones_passed_over(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0, 1])
    runs = noisy(study, WIDE, 0.3, 0.03)
    bound_rule = BoundRule(study, runs)
    verdict = bound_rule.verdict()
    first = bound_rule.racing_specs(verdict, 2)
    assert len(first) == 2
    under_way, failed = (
        [Run(RunDir(Path("r")), spec, Status(state)) for spec in first] for state in (State.RUNNING, State.FAILED)
    )
    repeated = BoundRule(study, [*runs, *under_way])
    assert set(asked(repeated.racing_specs(repeated.verdict(), 2))) == set(asked(first)), "they are waited for"
    assert set(asked(first)) < set(asked(repeated.racing_specs(repeated.verdict(), 4)))
    after = BoundRule(study, [*runs, *failed])
    assert not set(asked(after.racing_specs(after.verdict(), 4))) & set(asked(first))


def test_racing_saves_what_equal_seeds_would_have_taken(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=(0, 1))
    seven, requested = over(study, SEVEN), noisy(study, SEVEN, 0.02)

    def saved(*runs: Run, others: Sequence[Study] = ()) -> int:
        bound_rule = BoundRule(seven, [*requested, *runs])
        verdict = bound_rule.verdict()
        assert offset_of(verdict.point) == (0, 0)
        return bound_rule.runs_saved_by_racing(verdict, others)

    assert saved() == 0
    raced = [run_at(study, (0, 0), seed, 1.0) for seed in RACING_SEEDS[:3]]
    raced.append(run_at(study, (1, 0), RACING_SEEDS[0], bowl((1, 0))))
    # The candidate has 5 seeds: 7 points of 5 are 35, and 14 + 4 were run.
    assert saved(*raced) == 35 - 18
    far = run_at(study, (2, 2), 0, bowl((2, 2)))
    assert saved(*raced, far) == 35 - 18 - 1, "a race around an earlier candidate"
    assert saved(*raced, far, others=[over(study, [(2, 2)], "other")]) == 35 - 18


def test_a_round_has_no_more_runs_than_a_race_needs_or_may_have(search_of: Callable[..., Study]) -> None:
    study = search_of(margin="2%")
    wide, run_index = over(study, WIDE), index_of(noisy(study, WIDE, 0.17, curvature=0.06))

    def first_round(budget: Budget = NO_BUDGET) -> tuple[int, int]:
        made = next_round([wide], run_index, budget, aim=Aim(capacity=1000, follows=True))
        further = bound_of(made.verdicts[0]).further_runs
        assert further is not None
        return len(made.plan.to_launch), further.likely

    taken, required = first_round()
    assert 32 < required < 100, "so that no allowance limits it"
    assert taken in (required, required + 1), "a new seed comes with two runs"
    assert first_round(Budget(runs=required // 2)) == (required // 2, required)
    assert first_round(Budget(runs=2)) == (2, required), "however far that is from what it takes"


def test_without_a_budget_a_study_may_have_100_extra_runs(
    search_of: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has 7 runs of each of 2 racing seeds; the noise is far too large for its margin."""
    study = over(search_of(margin="0.1%"), SEVEN)
    raced = [run_at(study, o, RACING_SEEDS[k], bowl(o) * (1 + 0.05 * k)) for o in SEVEN for k in (0, 1)]
    run_index = index_of([*noisy(study, SEVEN, 0.12), *raced])

    made = next_round([study], run_index, aim=Aim(follows=True, capacity=1000))
    assert (len(made.plan.to_launch), str(made.forecast), made.stop_reasons) == (86, "86 runs left", [])
    monkeypatch.setattr("ettsweep.study.round.EXTRA_RUNS", 14)
    made = next_round([study], run_index, aim=Aim(follows=True, capacity=1000))
    assert made.plan.to_launch == ()
    assert re.search(r"21 runs were requested, 14 more were added, and .*\d+ more are needed", made.stop_reasons[0])


def test_studies_share_a_budget_equally_in_any_order(search_of: Callable[..., Study]) -> None:
    """Three of one difficulty; the one that has its verdict needs no share."""
    studies, runs = list[Study](), list[Run]()
    for name, noise in (("first", 0.2), ("second", 0.2), ("third", 0.2), ("sure", 0.001)):
        studies.append(over(search_of(margin="2%"), WIDE, name, len(studies)))
        runs += noisy(studies[-1], WIDE, noise, curvature=0.06)
    for order in (studies, studies[::-1]):
        made = next_round(order, index_of(runs), Budget(runs=32), aim=Aim(capacity=1000, follows=True))
        assert launched(made.plan, studies) == [11, 11, 10, 0]
        assert made.stop_reasons == []


def test_where_the_noise_is_unknown_each_point_gets_another_seed(search_of: Callable[..., Study]) -> None:
    study = search_of(seeds=[0])
    runs = noisy(study, SEVEN, 0.1)
    bound_rule = BoundRule(study, runs)
    further = asked(bound_rule.racing_specs(bound_rule.verdict(), 1))
    assert {offset for offset, _ in further} == {(float(i), float(j)) for i, j in SEVEN}
    assert {seed for _, seed in further} == {RACING_SEEDS[0]}
    assert bound_rule.racing_specs(bound_rule.verdict(), 1, max_seeds=1) == []
