"""Sweeps as people meet them: named, extended, refused, listed, shared, and each with verdicts of its own."""

import os
import shlex
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from support.claims import claimed
from support.commandline import GRID, Call, runs_in, write_fake_grid

from ettsweep.launch.submissions import submission_folders
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.study.sweep_store import load_sweep_store

Ask = Callable[..., list[RunSpec]]
OTHER = {"batch_size": 16, "schedule": GRID["recipe"]["schedule"]}
BOTH = {"wd": {"range": [-1, 0]}, "lr": {"range": [-1, 0]}}
"""Axes that are both free: four points."""


def falling(spec: RunSpec) -> float:
    """Better with more lr, and with less wd: an optimum that is nowhere."""
    return 1 + 0.1 * abs(spec.lr - 0.25) + spec.wd


def verdicts(call: Call, results: Path, *options: object, code: int | None = None) -> dict[str, dict[str, Any]]:
    """Return what `verify-optimum` says of each sweep, of one family each."""
    result = call("verify-optimum", "--dry-run", "--results", results, "--format", "json", *options, code=code)
    return {row["sweep"]: row for row in result.json}


def states(call: Call, results: Path, *options: object) -> dict[str, tuple[str, str]]:
    """Return the sweep and the state of each run."""
    rows = call("status", "--results", results, "--format", "json", *options).json
    return {row["run"]: (row["sweep"], row["state"]) for row in rows}


# --- a verdict belongs to a sweep -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_no_later_question_changes_a_verdict(call: Call, results: Path, request_sweep: Ask, tmp_path: Path) -> None:
    request_sweep("both", falling, **BOTH)
    free = verdicts(call, results, code=1)
    assert (free["both"]["verdict"], free["both"]["wd"]) == ("edge", 0.125)
    held = ("--range", "wd=fixed", "--set", "centre.standard.wd=0.125")
    refused = call("grid", "both.yaml", *held, "--dry-run", "--results", results, code=2)
    assert "sweep both is for another recipe or lattice: wd is searched there, fixed here" in refused.err
    command = shlex.split(refused.err.strip().splitlines()[-1])
    assert command[:1] + command[-2:] == ["ettsweep", "--name", "both-wd-fixed"]
    assert call(*command[1:]).out.startswith("run"), "the command that asks it is valid"
    request_sweep("held", falling, centre={"standard": {"lr": 0.25, "wd": 0.125}}, lr={"range": [-1, 1]}, wd="fixed")
    found = verdicts(call, results, code=1)
    assert (found["held"]["verdict"], len(found["held"]["neighbours"]), found["held"]["wd"]) == ("optimal", 2, 0.125)
    assert found["both"]["verdict"] == "edge"
    assert verdicts(call, results, "-s", "held", code=0).keys() == {"held"}
    err = call("verify-optimum", "--dry-run", "--results", results, code=1).err
    assert (
        "both standard, held standard: sweeps disagree: edge at (2^-2, 2^-3) in both, optimal at (2^-2, 2^-3) in held; "
        "lr was requested from 2^-3 to 2^-2 / 2^-3 to 2^-1; wd is searched in steps of 1 / fixed at 2^-3" in err
    )
    rows = call("report", "--results", results, "--format", "json").json
    assert [row["verdict"] for row in rows] == ["edge", "optimal"]
    page = unescape((results / "report" / "report.html").read_text())
    assert page.count("Sweeps disagree: edge at (2^-2, 2^-3) in both, optimal at (2^-2, 2^-3) in held; ") == 2


def test_runs_of_other_versions_are_named_in_a_verdict(call: Call, results: Path, request_sweep: Ask) -> None:
    specs = request_sweep("w8", score=None)
    for spec, code in zip(specs, ("aaaa", "bbbb", "aaaa"), strict=True):
        attempt = claimed(run := RunDir.create(results, spec))
        attempt.record(
            "started", {"provenance": {"packages": {"ettsweep": "0.9", "torch": f"2.{code[0]}"}, "code": code}}
        )
        environment = {"ettsweep": "0.9", "code": code}
        assert run.finish({"status": "done", "score": 1 + abs(spec.lr - 0.25), "environment": environment}, [])
    err = call("verify-optimum", "--dry-run", "--results", results).err
    assert (
        "w8 standard: the runs have different versions: 2 trained by ettsweep 0.9, code aaaa, "
        f"{specs[1].run_id} by ettsweep 0.9, code bbbb (there torch was 2.a, is 2.b); "
        f"`ettsweep show {specs[1].run_id} --results {results}` lists" in err
    )
    (verdict,) = verdicts(call, results).values()
    assert {"version": "ettsweep 0.9, code bbbb", "runs": [specs[1].run_id]} in verdict["versions"]


# --- names, extending, refusing -------------------------------------------------------------------------------------


def test_a_grid_makes_the_sweep_of_its_file_or_of_the_name_that_is_given(
    call: Call, results: Path, tmp_path: Path
) -> None:
    write_fake_grid(tmp_path / "w8.yaml")
    follow = ("--follow", "--launch-set", "slots=1", "--results", results)
    call("grid", "w8.yaml", "--dry-run", "--results", results)
    assert not results.exists()
    call("grid", "w8.yaml", *follow)
    call("grid", "w8.yaml", "--name", "again", *follow)
    assert len(submission_folders(results)) == 1, "runs belong to nobody, and train once"
    sweeps = load_sweep_store(results).sweeps
    assert sweeps["w8"].sweep_specs == sweeps["again"].sweep_specs
    assert set(states(call, results).values()) == {("again, w8", "done")}


# --- sweeps: list ---------------------------------------------------------------------------------------------------


def test_sweeps_are_listed_with_what_people_ask_of_them(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep("w8")
    request_sweep("wide", score=None, strategies=["standard", "mup"], recipe=OTHER)
    os.utime(results / "sweeps" / "w8.yaml", (10**10, 10**10))
    w8, wide = call("sweeps", "--results", results, "--format", "json").json
    assert (w8["sweep"], w8["families"], w8["runs"], w8["device h"]) == ("w8", 1, "3 done", 0.03)
    assert w8["last change"] == "2286-11-20 17:46 UTC"
    assert w8["verdicts"] == "standard optimal by the paper's comparison of means"
    assert (wide["families"], wide["runs"], wide["device h"]) == (2, "6 missing", 0)
    assert wide["verdicts"] == "standard incomplete, mup incomplete"


def test_a_damaged_sweep_is_named_and_others_go_on(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep("w8")
    request_sweep("bad", score=None, recipe=OTHER)
    path = results / "sweeps" / "bad.yaml"
    path.write_text(path.read_text().replace("seeds:", "sedes:"))
    result = call("verify-optimum", "--dry-run", "--results", results)
    assert f"sweep bad is left out: {path}: asked.sedes: unknown key" in result.err
    for command in ("verify-optimum --sweep bad", "grid bad.yaml"):
        result = call(*command.split(), "--results", results, code=1)
        assert str(path) in result.err
        assert "repair the file" in result.err
    (results / "sweeps" / "w8.yaml").unlink()
    assert "no sweep can be read" in call("verify-optimum", "--results", results, code=1).err


# --- deleted --------------------------------------------------------------------------------------------------------


def test_a_deleted_sweep_leaves_its_runs_to_those_that_need_them(call: Call, results: Path, request_sweep: Ask) -> None:
    specs = request_sweep("w8")
    request_sweep("centre", score=None, lr="fixed")
    before = verdicts(call, results, "--sweep", "centre")
    call("sweeps", "delete", "w8", "--results", results, code=1, stdin="n\n")
    assert load_sweep_store(results).sweeps.keys() == {"w8", "centre"}
    result = call("sweeps", "delete", "w8", "--results", results, stdin="y\n")
    assert "deleted sweep w8\nkept 3 runs: `ettsweep clean --unused-runs" in result.err
    assert [path.name for path in (results / "sweeps").iterdir()] == ["centre.yaml"]
    assert [sweep for sweep, _ in states(call, results).values()].count("-") == 2
    assert verdicts(call, results, "--sweep", "centre") == before

    options = "clean", "--unused-runs", "--results", results
    assert call(*options, "--dry-run", "--format", "csv").out.count("run of no sweep") == 2
    assert "--yes" in call(*options, code=2).err
    call(*options, "--yes")
    assert states(call, results).keys() == {spec.run_id for spec in specs if spec.lr == 0.25}


def test_runs_of_damaged_sweeps_and_of_workers_are_not_unused(call: Call, results: Path, request_sweep: Ask) -> None:
    kept = request_sweep("w8", falling)
    request_sweep("bad", falling, recipe=OTHER)
    (spec,) = request_sweep("gone", score=None, lr="fixed", recipe=GRID["recipe"] | {"batch_size": 8})
    assert RunDir.create(results, spec).claim({}, after=0)
    (results / "sweeps" / "bad.yaml").write_text("asked: [")
    assert "bad.yaml" in call("clean", "--unused-runs", "--yes", "--results", results, code=1).err
    result = call("sweeps", "delete", "bad", "gone", "--yes", "--results", results)
    assert "1 run will still train: `ettsweep cancel --sweep gone " in result.err
    assert load_sweep_store(results).broken == {}
    call("clean", "--unused-runs", "--yes", "--results", results)
    assert {run.id for run in runs_in(results)} == {spec.run_id, *(spec.run_id for spec in kept)}


# --- runs that are shared, and those of nobody ----------------------------------------------------------------------


def test_cancelling_a_sweep_leaves_what_another_wants(call: Call, results: Path, request_sweep: Ask) -> None:
    mine, theirs = request_sweep("w8", score=None), request_sweep("seeds", score=None, seeds=[0, 1])
    shared = {spec.run_id for spec in mine}
    for spec in theirs:
        RunDir.create(results, spec)
    result = call("cancel", "--sweep", "seeds", "--yes", "--results", results)
    assert "3 runs are kept: sweep w8 needs them too" in result.err
    assert "3 runs cancelled" in result.err
    states_result = states(call, results)
    assert {run for run, (_, state) in states_result.items() if state == "cancelled"} == states_result.keys() - shared


# --- what is damaged meanwhile ---------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["sweeps", "runs"])
def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(call: Call, results: Path, folder: str) -> None:
    results.mkdir()
    (results / folder).write_text("")
    result = call("status", "--results", results, code=1)
    assert result.err == f"ettsweep: {results / folder}: cannot be read: Not a directory\n"
