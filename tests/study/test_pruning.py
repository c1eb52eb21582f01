"""Which runs are hopeless: by hand, and by rungs that are counted out here."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import pytest
from support.fake import FakeRecipe

from ettsweep.errors import InputError
from ettsweep.metric import Metric
from ettsweep.runs.state import State
from ettsweep.study.pruning import PRUNERS, PrunerCurve, check_pruner, hyperband_bracket, idle_reason, prune_reason
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS

RECIPE = FakeRecipe(last_step=900, warmup=90, every=100)
STEPS = range(100, 901, 100)


def curve(run: str, *values: float, state: State = State.RUNNING) -> PrunerCurve:
    """Return a curve with these values at the first evaluations."""
    return PrunerCurve(run, state, dict(zip(STEPS, values, strict=False)))


def finished(*scores: float) -> list[PrunerCurve]:
    """Return finished runs that have had these scores from their first evaluation on."""
    return [curve(f"f{n}", *[score] * 9, state=State.DONE) for n, score in enumerate(scores)]


def reasons(
    rule: str, curves: Sequence[PrunerCurve], metric: Metric = LOWEST_LOSS, recipe: FakeRecipe = RECIPE
) -> dict[str, str]:
    """Return why each of the runs in training is hopeless that is."""
    by_run_id = {
        item.run_id: prune_reason(rule, item, curves, metric, recipe) for item in curves if item.state is State.RUNNING
    }
    return {run: reason for run, reason in by_run_id.items() if reason}


def stopped(rule: str, curves: Sequence[PrunerCurve], metric: Metric = LOWEST_LOSS) -> set[str]:
    return set(reasons(rule, curves, metric))


def random_curves(number: int, seed: int, prefix: str = "r") -> list[dict[int, float]]:
    """Return the best values so far of some runs, of losses that go up and down."""
    rng = random.Random(seed)
    collected = []
    for _ in range(number):
        level, best, values = rng.uniform(1, 2), float("inf"), {}
        for step in STEPS:
            best = min(best, level + rng.uniform(-0.5, 0.5))
            values[step] = best
        collected.append(values)
    return collected


def until(values: Mapping[int, float], step: int) -> dict[int, float]:
    return {s: v for s, v in values.items() if s <= step}


# --- median -----------------------------------------------------------------------------------------------------------


def test_a_run_beyond_the_median_of_five_finished_ones_is_hopeless() -> None:
    others = finished(1.0, 1.2, 1.92, 2.5, 3.0)
    curve_result = curve("bad", 4.0, 3.0, 2.5, 2.31)
    reasons_result = reasons("median", [*others, curve_result, curve("good", 4.0, 3.0, 2.5, 1.91)])
    assert reasons_result == {"bad": "median pruner: best_loss 2.31, the median of 5 others 1.92"}
    assert stopped("median", [*others[:4], curve_result]) == set(), "four are too few"


def test_accuracies_are_better_the_higher_they_are() -> None:
    others = finished(0.5, 0.6, 0.7, 0.8, 0.9)
    curves = [*others, curve("low", 0.1, 0.2, 0.69), curve("high", 0.1, 0.2, 0.71)]
    assert stopped("median", curves, BEST_ACCURACY) == {"low"}


@pytest.mark.parametrize("seed", range(20))
def test_random_runs_are_stopped_by_the_median_of_those_that_are_finished(seed: int) -> None:
    rng = random.Random(seed)
    random_curves_result = random_curves(rng.randrange(5, 12), seed)
    running = [until(values, rng.choice(STEPS)) for values in random_curves(12, 100 + seed)]
    curves = [PrunerCurve(f"d{n}", State.DONE, values) for n, values in enumerate(random_curves_result)]
    curves += [PrunerCurve(f"r{n}", State.RUNNING, values) for n, values in enumerate(running)]
    last = [values[max(values)] for values in running]
    best = min(values[900] for values in random_curves_result)
    expected = {
        f"r{n}"
        for n, values in enumerate(running)
        if 225 <= max(values) < 900
        and last[n] > max(best, median(other[max(values)] for other in random_curves_result))
    }
    assert stopped("median", curves) == expected


def test_a_diverged_run_is_the_worst_there_is_from_there_on() -> None:
    lost = [curve(f"x{n}", 0.1, state=State.DIVERGED) for n in range(3)]
    others = [*finished(1.0, 1.2), *lost]
    assert stopped("median", [*others, curve("bad", 4.0, 3.0, 2.5)]) == set(), "it is better than three of five"
    assert stopped("median", [*finished(1.0, 1.2, 1.4), *lost[:2], curve("bad", 4.0, 3.0, 2.5)]) == {"bad"}


# --- hyperband --------------------------------------------------------------------------------------------------------


def in_bracket(bracket: int, number: int) -> list[str]:
    """Return ids of runs that are in a bracket."""
    names = (f"{n:012x}" for n in range(10**6))
    return [name for name, _ in zip((n for n in names if hyperband_bracket(n, RECIPE) == bracket), range(number))]  # noqa: B905


def test_brackets_have_the_shares_of_the_paper_and_depend_on_the_id_alone() -> None:
    """R/r = 9 and eta = 3: brackets of ceil(3 * 9 / 3), ceil(3 * 3 / 2) and 3 runs."""
    counts = Counter(hyperband_bracket(f"{n:012x}", RECIPE) for n in range(17000))
    assert counts.keys() == {0, 1, 2}
    for bracket, size in enumerate((9, 5, 3)):
        assert counts[bracket] == pytest.approx(1000 * size, rel=0.1)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("bracket", "rungs"), [(0, (100, 300)), (1, (300,)), (2, ())])
def test_a_rung_is_passed_by_the_best_third_of_a_bracket(bracket: int, rungs: Sequence[int], seed: int) -> None:
    rng = random.Random(seed)
    ids = in_bracket(bracket, 14)
    untils = [until(values, rng.choice(STEPS[:6])) for values in random_curves(14, seed)]
    states = [rng.choice((State.RUNNING, State.RUNNING, State.PRUNED)) for _ in ids]
    curves = [PrunerCurve(run, s, v) for run, v, s in zip(ids, untils, states, strict=True)]
    expected = set()
    for run, values, state in zip(ids, untils, states, strict=True):
        if state is State.RUNNING and (step := max(values)) in rungs:
            items = sorted(other[step] for other in untils if step in other)
            passing = items[: max(1, len(items) // 3)]
            if values[step] not in passing and values[step] > 0.6:
                expected.add(run)
    strangers = [PrunerCurve(run, State.DONE, dict.fromkeys(STEPS, 0.6)) for run in in_bracket((bracket + 1) % 3, 5)]
    reasons_result = reasons("hyperband", [*curves, *strangers])
    assert reasons_result.keys() == expected, "those of other brackets play no part"
    rng.shuffle(curves)
    assert reasons("hyperband", [*strangers, *curves]) == reasons_result


def test_a_rung_says_how_many_pass_it() -> None:
    ids = in_bracket(0, 7)
    curves = [curve(run, 1.0 + n) for n, run in enumerate(ids)]
    reasons_result = reasons("hyperband", curves)
    assert reasons_result.keys() == set(ids[2:])
    assert reasons_result[ids[2]] == "hyperband pruner: best_loss 3, not among the best 2 of 7 of its bracket"


# --- what no pruner does ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pruner", PRUNERS[1:])
def test_nothing_is_stopped_that_is_the_best_or_at_its_end(pruner: str) -> None:
    ids = in_bracket(0, 9)
    others = [PrunerCurve(run, State.DONE, dict.fromkeys(STEPS, 1.0 + n)) for n, run in enumerate(ids[:8])]

    def is_stopped(*values: float) -> bool:
        return bool(stopped(pruner, [*others, curve(ids[8], *values)]))

    assert is_stopped(9.5, 9.5, 9.5)
    assert not is_stopped(*[9.5] * 9), "it has come to its end"
    assert not is_stopped(1.0, 1.0, 1.0), "none is better"
    assert not is_stopped()


def test_no_run_is_judged_while_its_learning_rate_warms_up() -> None:
    slow = RECIPE.model_copy(update={"warmup": 600})
    others = finished(1.0, 1.0, 1.0, 1.0, 1.0)
    assert not reasons("median", [*others, curve("bad", *[2.0] * 5)], recipe=slow)
    assert reasons("median", [*others, curve("bad", *[2.0] * 6)], recipe=slow)


def test_a_step_at_which_few_were_evaluated_says_nothing() -> None:
    """Five have finished, of which one was evaluated where the run in training is."""
    every = finished(1.0, 1.0, 1.0, 1.0, 1.0)
    elsewhere = [
        PrunerCurve(each.run_id, each.state, {step + 50: value for step, value in each.best_by_step.items()})
        for each in every[1:]
    ]
    bad = curve("bad", *[2.0] * 5)
    assert reasons("median", [*every, bad])
    assert not reasons("median", [every[0], *elsewhere, bad])
    assert idle_reason("median", [every[0], *elsewhere, bad]) == ""
    more = PrunerCurve("more", State.DONE, {150: 1.0})
    assert idle_reason("median", [*elsewhere, more, bad]) == (
        "the median pruner does not judge run bad: it is evaluated at other steps (such as 500) than those that have "
        "finished"
    )


def test_runs_that_are_evaluated_once_are_not_judged_and_that_is_said() -> None:
    once = [PrunerCurve(f"f{n}", State.DONE, {900: 1.0}) for n in range(6)]
    bad = curve("bad", 2.0)
    assert reasons("hyperband", [*once, *(curve(f"r{n}", 1.0, state=State.DONE) for n in range(20)), bad])
    assert not reasons("hyperband", [*once, bad])
    assert idle_reason("hyperband", [*once, bad]) == (
        "the hyperband pruner stops no run: those that have finished were evaluated once"
    )
    assert idle_reason("hyperband", [*finished(1.0), bad]) == ""


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_there_is_no_pruner_of_another_name() -> None:
    with pytest.raises(InputError, match="unknown pruner 'medain'; did you mean 'median'"):
        check_pruner("medain", RECIPE)


@pytest.mark.parametrize(
    ("pruner", "every", "fitting", "message"),
    [
        ("median", 900, 450, "an evaluation from step 225 on, before the end at step 900"),
        ("hyperband", 1000, 450, "an evaluation from step 100 on, before the end at step 900"),
    ],
)
def test_a_run_that_shows_nothing_before_its_end_cannot_be_pruned(
    pruner: str, every: int, fitting: int, message: str
) -> None:
    def every_so_often(every: int) -> FakeRecipe:
        return RECIPE.model_copy(update={"every": every})

    with pytest.raises(InputError) as error:
        check_pruner(pruner, every_so_often(every))
    expected = f"schedule.eval_every: {every}: --pruner {pruner} needs {message}; {fitting} works"
    assert (str(error.value), error.value.exit_code) == (expected, 2)
    check_pruner(pruner, every_so_often(fitting))
    check_pruner(pruner, RECIPE)
    check_pruner("none", every_so_often(every))


def test_a_run_that_is_all_warm_up_cannot_be_pruned() -> None:
    with pytest.raises(InputError, match="use a longer run or a shorter warm-up"):
        check_pruner("median", RECIPE.model_copy(update={"warmup": 800, "last_step": 700}))
