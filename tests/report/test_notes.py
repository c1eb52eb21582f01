"""What to do next, for each verdict."""

from dataclasses import replace
from typing import Any

import pytest
from support.made_sweep import Made, changed, digits_spec, strategy_of

from ettsweep.report.families import judged_families
from ettsweep.report.notes import NextStep, next_steps
from ettsweep.runs.point import Point
from ettsweep.runs.state import State, Status
from ettsweep.study.judgement import evaluate
from ettsweep.study.reason import Code, Reason
from ettsweep.study.verdict import Bound, RunsNeeded


def steps(sample: Made, **changes: Any) -> dict[str, NextStep]:
    """Return what to do by strategy, with the same changes of all verdicts."""
    verdicts = [replace(v, study=replace(v.study, sweep="w"), **changes) for v in sample.verdicts]
    return {v.strategy: step for v, step in zip(verdicts, next_steps(verdicts), strict=True)}


def test_each_strategy_has_its_own_next_step(sample: Made) -> None:
    steps_result = steps(sample)
    centre = digits_spec(None).with_point(Point.of(lr=2.0**-6, wd=0.5), 0)
    assert steps_result["standard"].command == f"ettsweep show {centre.run_id}", "it has fresh seeds"
    verify = "ettsweep verify-optimum --sweep w --strategy {} --follow"
    assert steps_result["ntk"].command == verify.format("ntk"), "a run is missing"
    assert steps_result["hybrid"].command == "ettsweep seeds --sweep w --strategy hybrid --follow"
    assert steps_result["mup"].command == verify.format("mup")


def test_runs_to_come_are_watched(sample: Made) -> None:
    runs = [changed(run, status=Status(State.RUNNING)) for run in sample.runs if strategy_of(run) == "ntk"]
    verdicts = [evaluate(v.study, runs).verdict() if v.strategy == "ntk" else v for v in sample.verdicts]
    steps_result = steps(Made(sample.results, runs, verdicts))
    assert steps_result["ntk"] == NextStep(
        "27 runs queued or running: follow their progress", "ettsweep watch --sweep w --strategy ntk"
    )


def test_an_open_verdict_says_how_many_runs_it_takes(noisy: Made) -> None:
    def step(code: Code, **facts: object) -> NextStep:
        return steps(noisy, verdict="unresolved", reason=Reason(code, {"device_s": 0.0} | facts))["standard"]

    verify = "ettsweep verify-optimum --sweep w --follow"
    forecast = {"runs": 24, "runs_range": [10, 60]}
    assert step("beyond_margin", **forecast) == NextStep("about 24 more runs decide it, likely 10 to 60", verify)
    assert step("too_few_seeds", runs=1) == NextStep("1 run is missing", verify)
    assert step("beyond_margin", runs=None) == NextStep("train the runs that narrow the bound, seed by seed", verify)
    assert step("edge_above", runs=None) == NextStep("use the lr one step below: no more seeds are planned")
    # Nine points with one seed each: a second one of candidate and six neighbours gives 6 degrees of freedom.
    assert steps(noisy)["mup"].text == "7 more runs measure the noise"


def test_families_that_have_had_their_extra_runs_need_a_stated_budget(
    noisy: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Families of a command share what is allowed, so it is used up by all of them together."""
    bound = noisy.verdict("standard").bound
    assert isinstance(bound, Bound)
    families = judged_families(noisy.runs, noisy.verdicts)
    extra_runs = [sum(not f.verdict.study.requests(run.point, run.spec.seed) for run in f.runs) for f in families]
    total = sum(extra_runs)
    assert max(extra_runs) > total / len(families), "racing has given one of them more than its share"
    for limit, runs in ((total // len(families) + 1, None), (total // len(families), 100 * 2 * len(families))):
        monkeypatch.setattr("ettsweep.report.notes.EXTRA_RUNS", limit)
        steps_result = steps(noisy, verdict="unresolved", bound=replace(bound, further_runs=RunsNeeded(100, 50, 300)))
        options = f" --max-runs {runs}" if runs else ""
        assert steps_result["standard"].command == f"ettsweep verify-optimum --sweep w --follow{options}"


def test_a_tie_is_resolved_by_a_bound(sample: Made) -> None:
    commands = {step.command for step in steps(sample, verdict="tie", blocked_run_ids=()).values()}
    assert commands == {"ettsweep verify-optimum --sweep w --rule bound --follow"}
