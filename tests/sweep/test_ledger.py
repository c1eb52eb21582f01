import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ettsweep.cli.run_views import best_score, describe, in_order, status_row
from ettsweep.errors import InputError
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import Owner, Prospect, State, ThisMachine
from ettsweep.spec import RunSpec
from ettsweep.sweep.ledger import Selection, count_states, find_run, load_ledger

MakeSpec = Callable[..., RunSpec]


def start(results: Path, spec: RunSpec) -> Attempt:
    """Return a first attempt that this process owns."""
    attempt = RunDir.create(results, spec).claim({"slot": "cpu-0"}, after=0)
    assert attempt is not None
    return attempt


def evaluate(attempt: Attempt, steps: int, *losses: float | None) -> None:
    """Write the metrics of some steps, then some evaluations."""
    lines: list[dict[str, Any]] = [{"step": step, "loss": 2.0} for step in range(1, steps + 1)]
    lines += [{"step": steps, "val_loss": loss, "val_accuracy": 0.5} for loss in losses]
    attempt.append(attempt.metrics_path, lines)


def finish(results: Path, spec: RunSpec, score: float | None) -> RunDir:
    attempt = start(results, spec)
    status = {"status": "diverged", "diverged_step": 3} if score is None else {"status": "done"}
    assert attempt.run.finish({**status, "score": score}, [])
    return attempt.run


# --- reading --------------------------------------------------------------------------------------------------------


def test_no_results_folder_holds_no_runs(results: Path) -> None:
    ledger = load_ledger(results)
    assert (ledger.runs, ledger.broken) == ({}, {})
    results.touch()
    assert load_ledger(results).runs == {}


class Look(ThisMachine):
    """An outlook that says what a test wants it to say, or asks this machine."""

    def __init__(self, queued: str = "", life: Any = None) -> None:
        self.queued, self.life = queued, life

    def owner(self, attempt: Attempt) -> Owner:
        return Owner(self.life) if self.life else super().owner(attempt)

    def prospect(self, run_id: str) -> Prospect | None:
        return Prospect(State.QUEUED) if run_id == self.queued else None


def test_each_run_is_found_with_its_state_and_score(results: Path, make_spec: MakeSpec) -> None:
    done, diverged, running, failed, queued, missing = (make_spec(seed=seed) for seed in range(6))
    finish(results, done, 0.25)
    finish(results, diverged, None)
    start(results, running)
    start(results, failed).fail("error", "ValueError: bad")
    for spec in (queued, missing):
        RunDir.create(results, spec)
    ledger = load_ledger(results, Look(queued=queued.run_id))
    assert {run.spec.seed: (run.state, run.score) for run in ledger.runs.values()} == {
        0: (State.DONE, 0.25),
        1: (State.DIVERGED, None),
        2: (State.RUNNING, None),
        3: (State.FAILED, None),
        4: (State.QUEUED, None),
        5: (State.MISSING, None),
    }
    assert ledger.runs[failed.run_id].status.reason == "ValueError: bad"
    assert ledger.state("0" * 12).state is State.MISSING


def test_the_owner_is_judged_by_whoever_can(results: Path, spec: RunSpec) -> None:
    start(results, spec)
    for life, state in {"alive": "running", "dead": "interrupted", "unknown": "unknown"}.items():
        assert load_ledger(results, Look(life=life)).runs[spec.run_id].state == state


@pytest.mark.parametrize("content", ["", "{", "[]", '{"lr": 1}', '{"seed": true}'])
def test_a_broken_folder_is_told_apart_and_waits_to_be_written_anew(
    results: Path, make_spec: MakeSpec, content: str
) -> None:
    sound, broken = make_spec(seed=0), make_spec(seed=1)
    for spec in (sound, broken):
        RunDir.create(results, spec)
    RunDir(results / "runs" / broken.run_id).spec_path.write_text(content)
    ledger = load_ledger(results)
    assert list(ledger.runs) == [sound.run_id]
    assert list(ledger.broken) == [broken.run_id]
    status = ledger.state(broken.run_id)
    assert (status.state, status.reason) == (
        State.INTERRUPTED,
        "its spec.json is damaged and will be written anew",
    )
    assert "the command that asked for the run writes it anew" in ledger.broken[broken.run_id]
    assert describe(ledger, broken.run_id)["reason"] == ledger.broken[broken.run_id]


def test_a_spec_edited_by_hand_is_not_taken_for_the_run(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    run.spec_path.write_text(run.spec_path.read_text().replace('"seed": 0', '"seed": 1'))
    assert "it was edited by hand" in load_ledger(results).broken[run.id]


def test_what_is_no_run_folder_is_passed_over(results: Path, spec: RunSpec) -> None:
    RunDir.create(results, spec)
    for name in ("notes", "ABCDEF012345", "..", f"{spec.run_id}x"):
        (results / "runs" / name).mkdir(exist_ok=True)
    (results / "runs" / "README").touch()
    ledger = load_ledger(results)
    assert (list(ledger.runs), ledger.broken) == ([spec.run_id], {})


def test_reading_never_writes(results: Path, make_spec: MakeSpec) -> None:
    finish(results, make_spec(seed=0), 0.5)
    evaluate(start(results, make_spec(seed=1)), 2, 0.7)

    def tree() -> list[tuple[str, int, int]]:
        paths = sorted(results.rglob("*"))
        return [(str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in paths]

    before = tree()
    ledger = load_ledger(results)
    for run in ledger.runs.values():
        status_row(run)
        describe(ledger, run.id)
    assert tree() == before


def test_a_family_is_all_runs_that_differ_in_lr_wd_and_seed_only(results: Path, make_spec: MakeSpec) -> None:
    family = [make_spec(), make_spec(lr=2.0), make_spec(wd=0.5), make_spec(seed=1)]
    other = make_spec(model={"width": 16})
    for spec in (*family, other):
        RunDir.create(results, spec)
    found = load_ledger(results).family(family[0].family_id)
    assert {run.id for run in found} == {spec.run_id for spec in family}


# --- rows -----------------------------------------------------------------------------------------------------------


def test_a_status_row_says_what_the_run_is_and_how_far(results: Path, spec: RunSpec) -> None:
    attempt = start(results, spec)
    evaluate(attempt, 6, 0.9, 0.8)
    attempt.append(attempt.timings_path, [{"step": 6, "progress": 0.25, "wall_s": 1.0}])
    row = status_row(load_ledger(results).runs[spec.run_id])
    assert row == {
        "run": spec.run_id,
        "family": spec.family_id,
        "model": "vit-n8-l1-h2-p4-i8-c1-k10",
        "task": "digits",
        "strategy": "ntk",
        "lr": 1.0,
        "wd": 2.0**-6,
        "log2_lr": 0.0,
        "log2_wd": -6.0,
        "seed": 0,
        "state": "running",
        "progress": 0.25,
        "best_score": 0.8,
        "reason": "",
        "where": socket.gethostname(),
        "job": None,
        "left_s": 3.0,
    }


def test_wd_zero_has_no_log2(results: Path, make_spec: MakeSpec) -> None:
    spec = make_spec(wd=0.0)
    RunDir.create(results, spec)
    assert status_row(load_ledger(results).runs[spec.run_id])["log2_wd"] is None


def test_the_best_score_of_a_run_in_training_is_of_its_evaluations_so_far(results: Path, spec: RunSpec) -> None:
    attempt = start(results, spec)

    def best() -> float | None:
        return best_score(load_ledger(results).runs[spec.run_id])

    assert best() is None
    evaluate(attempt, 2, 0.9, 0.4, None, 0.7)
    assert best() == 0.4
    assert attempt.run.finish({"status": "done", "score": 0.3}, [])
    assert best() == 0.3


def test_the_best_score_reaches_back_over_attempts(results: Path, spec: RunSpec) -> None:
    first = start(results, spec)
    evaluate(first, 4, 0.4)
    first.append(first.metrics_path, [{"step": 5, "loss": 1.0}, {"step": 5, "val_loss": 0.1}])  # after the checkpoint
    second = first.run.claim({}, after=1)
    assert second is not None
    second.resume_from(1, 4)
    evaluate_from_5 = [{"step": 5, "loss": 1.0}, {"step": 5, "val_loss": 0.6}]
    second.append(second.metrics_path, evaluate_from_5)
    assert best_score(load_ledger(results).runs[spec.run_id]) == 0.4


def test_all_that_is_known_of_a_run_is_described(results: Path, spec: RunSpec) -> None:
    first = start(results, spec)
    first.fail("interrupted", "terminated")
    second = first.run.claim({"slot": "cpu-1", "torch": "2.8"}, after=1)
    assert second is not None
    second.resume_from(1, 8)
    assert second.run.finish({"status": "done", "score": 0.5}, [])
    data = describe(load_ledger(results), spec.run_id)
    assert data["state"] == "done"
    assert data["spec"]["model"]["width"] == 8
    assert data["result"]["score"] == 0.5
    assert [(a["attempt"], a["from"], a["slot"], a["ended"]) for a in data["attempts"]] == [
        (1, "the start", "cpu-0", "terminated"),
        (2, "attempt 1, step 8", "cpu-1", None),
    ]
    assert data["attempts"][1]["host"] == os.uname().nodename


def test_runs_are_ordered_by_model_strategy_point_and_seed(results: Path, make_spec: MakeSpec) -> None:
    expected = [
        make_spec(model={"width": 16}, lr=9.0, seed=9),
        make_spec(strategy={"s": None}, lr=4.0),
        make_spec(lr=0.5, wd=0.5, seed=1),
        make_spec(lr=2.0, wd=0.0, seed=7),
        make_spec(lr=2.0, wd=0.25, seed=3),
        make_spec(lr=2.0, wd=0.25, seed=11),
        make_spec(lr=10.0, wd=0.0),
        make_spec(strategy={"s": 1.0}, lr=0.25),
    ]
    for spec in expected:
        RunDir.create(results, spec)
    found = sorted(load_ledger(results).runs.values(), key=in_order)
    assert [run.spec for run in found] == expected


def test_states_are_counted_in_their_order() -> None:
    counts = count_states([State.FAILED, State.DONE, State.QUEUED, State.DONE])
    assert list(counts.items()) == [(State.QUEUED, 1), (State.DONE, 2), (State.FAILED, 1)]


# --- choosing -------------------------------------------------------------------------------------------------------


def test_a_run_is_found_by_the_start_of_its_id(results: Path, make_spec: MakeSpec) -> None:
    ids = [RunDir.create(results, make_spec(seed=seed)).id for seed in range(40)]  # two of 40 share a first digit
    ledger = load_ledger(results)
    assert find_run(ledger, ids[0]) == ids[0]
    shared = next(d for d in "0123456789abcdef" if sum(i.startswith(d) for i in ids) > 1)
    with pytest.raises(InputError, match=rf"runs start with '{shared}': {shared}"):
        find_run(ledger, shared)
    with pytest.raises(InputError, match="no run starts with 'xyz'; `ettsweep status` lists them"):
        find_run(ledger, "xyz")


def test_a_broken_run_is_found_too(results: Path, spec: RunSpec) -> None:
    RunDir.create(results, spec).spec_path.write_text("{")
    assert find_run(load_ledger(results), spec.run_id[:5]) == spec.run_id


def test_a_selection_narrows_by_each_of_its_parts(results: Path, make_spec: MakeSpec) -> None:
    ntk, other_lr = make_spec(), make_spec(lr=2.0)
    standard = make_spec(strategy={"s": None})
    wide = make_spec(model={"width": 16})
    for spec in (ntk, other_lr, standard, wide):
        RunDir.create(results, spec)
    RunDir(results / "runs" / wide.run_id).cancel()
    ledger = load_ledger(results)

    def chosen(**parts: Any) -> set[str]:
        return {run.id for run in Selection(**{k: tuple(v) for k, v in parts.items()}).of(ledger)}

    everything = {ntk.run_id, other_lr.run_id, standard.run_id, wide.run_id}
    assert chosen() == everything
    assert chosen(runs=[ntk.run_id[:8], wide.run_id]) == {ntk.run_id, wide.run_id}
    assert chosen(families=[ntk.family_id[:6]]) == {ntk.run_id, other_lr.run_id}
    assert chosen(strategies=["standard"]) == {standard.run_id}
    assert chosen(strategies=["s=0"]) == everything - {standard.run_id}
    assert chosen(models=["vit-n16-l1-h2-p4-i8-c1-k10"]) == {wide.run_id}
    assert chosen(states=[State.CANCELLED]) == {wide.run_id}
    assert chosen(states=[State.CANCELLED], strategies=["standard"]) == set()
    with pytest.raises(InputError, match="unknown family 'zzz'"):
        chosen(families=["zzz"])
    with pytest.raises(InputError, match="unknown strategy 'nkt'; did you mean 'ntk'"):
        chosen(strategies=["nkt"])


def test_log2_of_mapped_points_is_rounded_alike(results: Path, make_spec: MakeSpec) -> None:
    spec = make_spec(lr=2.0**-7 * (1 + 4e-16))
    RunDir.create(results, spec)
    row = status_row(load_ledger(results).runs[spec.run_id])
    assert (row["lr"], row["log2_lr"]) == (spec.lr, -7.0)
