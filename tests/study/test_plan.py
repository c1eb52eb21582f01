"""Plans: what is done about each run, by its state."""

from collections.abc import Callable
from pathlib import Path

from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.study.plan import make_plan

MakeSpec = Callable[..., RunSpec]


def ledger_of(states: dict[RunSpec, State]) -> RunIndex:
    runs = {
        spec.run_id: Run(RunDir(Path("runs") / spec.run_id), spec, Status(state, f"because {state}"))
        for spec, state in states.items()
    }
    return RunIndex(runs, {})


ACTIONS = {
    State.MISSING: "submit",
    State.INTERRUPTED: "retry",
    **dict.fromkeys((State.QUEUED, State.RUNNING, State.DONE, State.DIVERGED), "keep"),
    **dict.fromkeys((State.FAILED, State.CANCELLED, State.HELD, State.UNKNOWN), "blocked"),
}


def test_the_state_decides_what_is_done_about_a_run(spec: RunSpec) -> None:
    assert {*ACTIONS} == {*State}
    for state, action in ACTIONS.items():
        plan = make_plan([spec], ledger_of({spec: state}))
        by_name = {name: getattr(plan, name) for name in ("submit", "retry", "keep", "blocked") if getattr(plan, name)}
        assert list(by_name) == [action]
        (planned,) = by_name[action]
        assert (planned.spec, planned.state, planned.reason) == (spec, state, f"because {state}")
    assert [p.spec for p in make_plan([spec], RunIndex({}, {})).submit] == [spec], "it is nowhere"


def test_a_run_with_a_damaged_spec_is_taken_on(spec: RunSpec) -> None:
    plan = make_plan([spec], RunIndex({}, {spec.run_id: "spec.json was edited"}))
    (planned,) = plan.retry
    assert (planned.spec, planned.state) == (spec, State.INTERRUPTED)
    assert plan.to_launch == (planned,)


def test_a_run_asked_for_twice_is_planned_once(make_spec: MakeSpec) -> None:
    once, mapped_back = make_spec(lr=0.1), make_spec(lr=0.1 * (1 + 1e-15))
    assert once != mapped_back
    assert len(make_plan([once, once, mapped_back], RunIndex({}, {})).submit) == 1


def test_interrupted_runs_are_launched_first_and_order_is_kept(make_spec: MakeSpec) -> None:
    specs = [make_spec(seed=seed) for seed in range(4)]
    plan = make_plan(specs, ledger_of({specs[1]: State.INTERRUPTED, specs[3]: State.INTERRUPTED}))
    assert [p.spec.seed for p in plan.to_launch] == [1, 3, 0, 2]
