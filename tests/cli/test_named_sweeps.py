"""Sweeps as people meet them: named, extended, refused, listed, shared, and each with verdicts of its own."""

import csv
import io
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.commandline import GRID, Call, ended, keep, runs_in, start, wait_for, write_fake_grid, write_grid

from ettsweep.errors import CorruptError
from ettsweep.launch.follow import read_run_index
from ettsweep.launch.progress import ProgressMonitor, render_progress
from ettsweep.launch.submissions import submission_folders
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_store import load_sweep_store

Ask = Callable[..., list[RunSpec]]
OTHER = {"batch_size": 16, "schedule": GRID["recipe"]["schedule"]}
BOTH = {"wd": {"range": [-1, 0]}, "lr": {"range": [-1, 0]}}
"""Axes that are both free: four points."""


def finish(results: Path, spec: RunSpec, score: float, **facts: object) -> None:
    run = RunDir.create(results, spec)
    if run.claim({}, after=0):
        assert run.finish({"status": "done", "score": score, "device_s": 36.0} | facts, [])


@pytest.fixture
def request_sweep(tmp_path: Path, results: Path) -> Ask:
    """Return a function that asks for a grid under a name, and finishes its runs with what `score` makes of them."""

    def asked(name: str, score: Callable[[RunSpec], float | None] | None = None, **changes: Any) -> list[RunSpec]:
        sweep_spec = load_sweep_spec(write_grid(tmp_path / f"{name}.yaml", **changes))
        keep(results, sweep_spec)
        for spec in sweep_spec.specs():
            if score and (score_result := score(spec)) is not None:
                finish(results, spec, score_result)
        return sweep_spec.specs()

    return asked


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
    hint = (
        "grid",
        "both.yaml",
        "--wd-range",
        "fixed",
        "--set",
        "centre.standard.wd=0.125",
        "--results",
        results,
    )
    refused = call(*hint, code=2)
    assert "sweep both is for another recipe or lattice: wd is searched there, fixed here" in refused.err
    sweep_spec = load_sweep_spec(
        tmp_path / "both.yaml", overrides=["centre.standard.wd=0.125"], wd_range="fixed", lr_range="-1:1"
    )
    keep(results, sweep_spec.model_copy(update={"grid": "held.yaml"}))
    for spec in sweep_spec.specs():
        finish(results, spec, falling(spec))
    verdicts_result = verdicts(call, results, code=1)
    assert (
        verdicts_result["held"]["verdict"],
        len(verdicts_result["held"]["neighbours"]),
        verdicts_result["held"]["wd"],
    ) == ("optimal", 2, 0.125)
    assert verdicts_result["both"]["verdict"] == "edge"
    assert verdicts(call, results, "-s", "held", code=0).keys() == {"held"}
    err = call("verify-optimum", "--dry-run", "--results", results, code=1).err
    assert (
        "both standard, held standard: sweeps disagree: edge at (2^-2, 2^-3) in both, optimal at (2^-2, 2^-3) in held; "
        "lr was requested from 2^-3 to 2^-2 / 2^-3 to 2^-1; wd is searched in steps of 1 / fixed at 2^-3" in err
    )

    keep(results, load_sweep_spec(tmp_path / "both.yaml"))  # asked for once more
    assert verdicts(call, results) == verdicts_result
    shutil.copytree(results, tmp_path / "elsewhere")
    for number, path in enumerate(sorted((tmp_path / "elsewhere").rglob("*"), reverse=True)):
        os.utime(path, (number, number))
    assert verdicts(call, tmp_path / "elsewhere") == verdicts_result
    pages = [call("report", "--results", results, "--format", "json").json]
    assert [row["verdict"] for row in pages[0]] == ["edge", "optimal"]
    page = unescape((results / "report" / "report.html").read_text())
    assert "sweep both" in page
    assert page.count("Sweeps disagree: edge at (2^-2, 2^-3) in both, optimal at (2^-2, 2^-3) in held; ") == 2
    assert "wd is searched in steps of 1 / fixed at 2^-3" in page


@pytest.mark.usefixtures("undrawn")
def test_the_report_says_of_which_sweep_a_run_is_as_status_does(call: Call, results: Path, request_sweep: Ask) -> None:
    """Not of each whose lattice it lies on: of those that ask for it, or had it trained beyond what they asked for."""
    low = request_sweep("low", falling, lr={"range": [-1, 0]})
    request_sweep("high", falling, lr={"range": [0, 1]})
    finish(results, climbed := low[0].with_point(2.0, low[0].wd, 0), 5.0)

    def told(command: str) -> dict[str, str]:
        text = call(*command.split(), "--results", results, "--format", "csv", code=None).out
        text = (results / "report" / "tables" / "runs.csv").read_text() if command.startswith("report") else text
        return {row["run"]: row["sweep"] for row in csv.DictReader(io.StringIO(text))}

    reference = told("status")
    assert sorted(reference.values()) == ["high", "high, low", "high, low", "low"]
    assert reference[climbed.run_id] == "high, low", "which nobody asks for"
    assert told("report") == reference
    assert told("report -s high").items() <= reference.items()
    assert "<td>high, low" in (results / "report" / "report.html").read_text()


@pytest.mark.parametrize("in_result", [True, False], ids=["by their results", "by their attempts"])
@pytest.mark.usefixtures("undrawn")
def test_runs_of_other_versions_are_named_in_a_verdict(
    call: Call, results: Path, request_sweep: Ask, *, in_result: bool
) -> None:
    specs = request_sweep("w8")
    for spec, code in zip(specs, ("aaaa", "bbbb", "aaaa"), strict=True):
        facts = {"environment": {"ettsweep": "0.9"} | ({"code": code} if in_result else {})}
        finish(results, spec, 1 + abs(spec.lr - 0.25), **facts)
        origin = {"packages": {"ettsweep": "0.9", "torch": f"2.{code[0]}"}, "code": code}
        attempt = RunDir(results / "runs" / spec.run_id).latest_attempt()
        assert attempt
        attempt.record("started", {"provenance": origin})
    err = call("verify-optimum", "--dry-run", "--results", results).err
    assert (
        "w8 standard: runs of different versions are compared: 2 trained by ettsweep 0.9, code aaaa, "
        f"{specs[1].run_id} by ettsweep 0.9, code bbbb (there torch was 2.a, is 2.b); "
        f"`ettsweep show {specs[1].run_id} --results {results}` lists" in err
    )
    (verdict,) = verdicts(call, results).values()
    assert {"version": "ettsweep 0.9, code bbbb", "runs": [specs[1].run_id]} in verdict["versions"]
    call("report", "--results", results)
    assert f"{specs[1].run_id} by ettsweep 0.9, code bbbb" in (results / "report" / "report.html").read_text()


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


@pytest.mark.parametrize(
    ("options", "message", "free"),
    [
        (["--set", "batch_size=64"], "batch_size is 32 there, 64 here", "w8-batch_size-64"),
        (["--wd-range", "-1:1"], "wd is fixed there, searched here", "w8-wd-searched"),
        (["--lr-range", "-1:1:0.5"], "the step of lr is 1 there, 0.5 here", "w8-lr-step-0.5"),
        (["--set", "centre.standard.lr=0.3"], "in steps of 1 in log2 from 2^-2 there, 0.3 here", "w8-lr-0.3"),
    ],
)
def test_another_question_is_answered_with_a_command_that_asks_it(
    call: Call, results: Path, request_sweep: Ask, options: list[str], message: str, free: str
) -> None:
    request_sweep("w8")
    result = call("grid", "w8.yaml", "--dry-run", "--results", results, *options, code=2)
    assert f"sweep w8 is for another recipe or lattice: {message}" in result.err.replace("lr of standard is ", "")
    command = shlex.split(result.err.strip().splitlines()[-1])
    assert command[:1] + command[-2:] == ["ettsweep", "--name", free]
    assert call(*command[1:]).out.startswith("run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--launch", "nope"], "unknown launch profile 'nope'"),
        (["--launch-set", "slot=2"], "slot: unknown key; did you mean slots?"),
        (["--launch-set", "slots=100000"], "slots: 100000 are too many"),
    ],
)
def test_what_no_name_would_mend_is_told_before_that_the_name_is_taken(
    call: Call, results: Path, request_sweep: Ask, options: list[str], message: str
) -> None:
    request_sweep("w8")
    values = ("grid", "w8.yaml", "--dry-run", "--results", results, "--set", "batch_size=64")
    result = call(*values, *options, code=2)
    assert message in result.err
    assert "is for another recipe or lattice" not in result.err


def test_two_grid_files_of_one_stem_are_told_apart(
    call: Call, results: Path, request_sweep: Ask, tmp_path: Path
) -> None:
    request_sweep("w8")
    (tmp_path / "other").mkdir()
    write_grid(tmp_path / "other" / "w8.yaml", task="digits", recipe=OTHER)
    result = call("grid", "other/w8.yaml", "--dry-run", "--results", results, code=2)
    assert "batch_size is 32 there, 16 here" in result.err
    assert "other/w8.yaml --dry-run" in result.err


def test_a_part_of_a_sweep_can_be_asked_for_alone(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep("w8", strategies=["standard", "mup"], seeds=[0, 1])
    for options, strategies, seeds in (
        (["--strategy", "mup"], {"mup"}, {0, 1}),
        (["--seeds", "1,"], {"standard", "mup"}, {1}),
        (["--strategy", "standard", "--seeds", "0"], {"standard"}, {0}),
    ):
        rows = call("grid", "w8.yaml", "--dry-run", "--results", results, "--format", "json", *options).json
        assert ({row["strategy"] for row in rows}, {row["seed"] for row in rows}) == (strategies, seeds)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (3, [], "seeds: 3 means seeds 0 to 2; seed 3 alone is [3]\n"),
        ([0], ["--seeds", "12"], "--seeds 12 means seeds 0 to 11; seed 12 alone is --seeds 12,\n"),
        (1, [], "seeds: 1 means seed 0; seed 1 alone is [1]\n"),
        ([3], [], None),
        (3, ["--seeds", "3,4"], None),
        (3, ["--seeds", "3,"], None),
        (3, ["--seeds", "0"], None),
    ],
)
def test_which_seeds_a_number_means_is_printed(
    call: Call, tmp_path: Path, content: object, options: list[str], message: str | None
) -> None:
    write_grid(tmp_path / "w8.yaml", seeds=content)
    err = call("grid", "w8.yaml", "--dry-run", *options).err
    assert err.count(message or " means seed") == (message is not None)


@pytest.mark.parametrize("name", ["../up", "a/b", ".", "-x", "a\nb", "a\x1b[31mb", "0123456789ab", "x" * 65, ""])
def test_a_name_that_could_be_a_path_or_a_run_is_refused(call: Call, results: Path, tmp_path: Path, name: str) -> None:
    write_grid(tmp_path / "w8.yaml")
    result = call("grid", "w8.yaml", f"--name={name}", "--results", results, code=2)
    assert "--name" in result.err
    assert "\x1b" not in result.err
    assert not results.exists()


# --- sweeps: list ---------------------------------------------------------------------------------------------------


def test_sweeps_are_listed_with_what_people_ask_of_them(call: Call, results: Path, request_sweep: Ask) -> None:
    specs = request_sweep("w8", lambda spec: 1 + abs(spec.lr - 0.25))
    request_sweep("wide", strategies=["standard", "mup"], recipe=OTHER)
    w8, wide = call("sweeps", "--results", results, "--format", "json").json
    assert (w8["sweep"], w8["families"], w8["runs"]) == ("w8", 1, "3 done")
    assert (w8["device h"], w8["verdicts"]) == (
        round(len(specs) * 0.01, 4),
        "standard optimal by the paper's comparison of means",
    )
    stat_result = (path := results / "sweeps" / "w8.yaml").stat()
    os.utime(path, (10**10, 10**10))
    (changed, _) = call("sweeps", "--results", results, "--format", "json").json
    os.utime(path, (stat_result.st_atime, stat_result.st_mtime))
    assert (changed.pop("last change"), w8.pop("last change")[-4:]) == ("2286-11-20 17:46 UTC", " UTC")
    assert changed == w8
    assert (wide["families"], wide["runs"], wide["device h"]) == (2, "6 missing", 0)
    assert wide["verdicts"] == "standard incomplete, mup incomplete"
    for form in ("table", "csv", "markdown"):
        assert "standard incomplete, mup incomplete" in call("sweeps", "--results", results, "--format", form).out


def test_options_of_a_subcommand_go_after_its_name(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep("w8")
    result = call("sweeps", "--results", results, "delete", "w8", "--yes", code=2)
    assert "put the options of `sweeps delete` after its name" in result.err
    assert load_sweep_store(results).sweeps.keys() == {"w8"}


def test_runs_that_a_call_left_out_are_told(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep(
        "w8", lambda spec: 1 + abs(spec.lr - 0.25) if spec.strategy.s is None else None, strategies=["standard", "mup"]
    )
    result = call("grid", "w8.yaml", "--strategy", "standard", "--results", results)
    assert (
        f"3 other runs of sweep w8 are missing: `ettsweep verify-optimum --sweep w8 --results {results}`" in result.err
    )


def test_a_damaged_sweep_is_named_and_others_go_on(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep("w8", lambda spec: 1 + abs(spec.lr - 0.25))
    request_sweep("bad", recipe=OTHER)
    path = results / "sweeps" / "bad.yaml"
    for content, messages in (("- later: 1", "later: unknown key"), ("- asked: [", "repair the file")):
        path.write_text(content)
        result = call("verify-optimum", "--dry-run", "--results", results)
        assert f"sweep bad is left out: {path}: " in result.err
        assert messages in result.err
        assert "left out" in call("sweeps", "--results", results).err
        (results / "sweeps" / "w8.yaml").rename(results / "away")
        assert "no sweep can be read" in call("verify-optimum", "--results", results, code=1).err
        (results / "away").rename(results / "sweeps" / "w8.yaml")
        for command in ("verify-optimum --sweep bad", "status -s bad"):
            assert str(path) in call(*command.split(), "--results", results, code=1).err
        assert str(path) in call("grid", "bad.yaml", "--results", results, code=1).err


def test_sweeps_none_of_which_can_be_read_are_a_failure(call: Call, results: Path, request_sweep: Ask) -> None:
    for name, messages in (("bad", "1 sweep cannot be read"), ("worse", "2 sweeps cannot be read")):
        request_sweep(name)
        (results / "sweeps" / f"{name}.yaml").write_bytes(bytes(200))
        result = call("sweeps", "--results", results, code=1)
        assert messages in result.err
        assert f"sweep {name} is left out" in result.err
        assert "makes one" not in result.err


# --- deleted --------------------------------------------------------------------------------------------------------


def test_a_deleted_sweep_leaves_its_runs_to_those_that_need_them(call: Call, results: Path, request_sweep: Ask) -> None:
    specs = request_sweep("w8", lambda spec: 1 + abs(spec.lr - 0.25))
    request_sweep("centre", lr="fixed")
    before = verdicts(call, results, "--sweep", "centre")
    assert "no answer; --yes skips this question" in call("sweeps", "delete", "w8", "--results", results, code=2).err
    call("sweeps", "delete", "w8", "--results", results, code=1, stdin="n\n")
    assert load_sweep_store(results).sweeps.keys() == {"w8", "centre"}
    result = call("sweeps", "delete", "w8", "--results", results, stdin="y\n")
    assert "sweep w8 is deleted\n3 runs stay: `ettsweep clean --unused-runs" in result.err
    assert [path.name for path in (results / "sweeps").iterdir()] == ["centre.yaml"]
    assert [sweep for sweep, _ in states(call, results).values()].count("-") == 2
    assert verdicts(call, results, "--sweep", "centre") == before
    assert "unknown sweep 'w8'" in call("sweeps", "delete", "w8", "--yes", "--results", results, code=2).err

    options = "clean", "--unused-runs", "--results", results
    assert call(*options, "--dry-run", "--format", "csv").out.count("run of no sweep") == 2
    assert "--yes" in call(*options, code=2).err
    call(*options, "--yes")
    assert states(call, results).keys() == {spec.run_id for spec in specs if spec.lr == 0.25}
    request_sweep("w8", lambda spec: 1 + abs(spec.lr - 0.25))  # its name is free, and what is left of it is used
    assert verdicts(call, results, "--sweep", "w8")["w8"]["verdict"] == "optimal"


def test_runs_of_damaged_sweeps_and_of_workers_are_not_unused(call: Call, results: Path, request_sweep: Ask) -> None:
    kept = request_sweep("w8", falling)
    request_sweep("bad", falling, recipe=OTHER)
    (spec,) = request_sweep("gone", lr="fixed", recipe=GRID["recipe"] | {"batch_size": 8})
    assert RunDir.create(results, spec).claim({}, after=0)
    (results / "sweeps" / "bad.yaml").write_text("asked: [")
    assert "bad.yaml" in call("clean", "--unused-runs", "--yes", "--results", results, code=1).err
    result = call("sweeps", "delete", "bad", "gone", "--yes", "--results", results)
    assert "1 run will be trained all the same: `ettsweep cancel --sweep gone " in result.err
    assert load_sweep_store(results).broken == {}
    call("clean", "--unused-runs", "--yes", "--results", results)
    assert {run.id for run in runs_in(results)} == {spec.run_id, *(spec.run_id for spec in kept)}


# --- runs that are shared, and those of nobody ----------------------------------------------------------------------


def test_cancelling_a_sweep_leaves_what_another_wants(call: Call, results: Path, request_sweep: Ask) -> None:
    mine, theirs = request_sweep("w8"), request_sweep("seeds", seeds=[0, 1])
    shared = {spec.run_id for spec in mine}
    for spec in theirs:
        RunDir.create(results, spec)
    result = call("cancel", "--sweep", "seeds", "--yes", "--results", results)
    assert "3 runs are kept: sweep w8 needs them too" in result.err
    assert "3 runs cancelled" in result.err
    states_result = states(call, results)
    assert {run for run, (_, state) in states_result.items() if state == "cancelled"} == states_result.keys() - shared


def test_a_run_of_another_sweeps_climb_is_left_alone(call: Call, results: Path, request_sweep: Ask) -> None:
    """Nobody asks for it, and it lies on both lattices: either may have climbed there."""
    (first, *_) = request_sweep("w8")
    request_sweep("wider", lr={"range": [-2, 1]})
    RunDir.create(results, climbed := first.with_point(first.lr * 16, first.wd, 0))
    assert states(call, results)[climbed.run_id][0] == "w8, wider"
    result = call("cancel", "--sweep", "wider", "--yes", "--results", results)
    assert "1 run is kept: sweep w8 needs it too" in result.err
    assert states(call, results)[climbed.run_id][1] == "missing"


def test_runs_belong_to_the_sweep_that_asks_for_them(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep("w8", lambda spec: 1 + abs(spec.lr - 0.25))
    extra = request_sweep("wider", lambda spec: 1 + abs(spec.lr - 0.25), lr={"range": [-2, 1]}, seeds=[0, 1])
    assert len(states(call, results, "-s", "w8")) == 3
    assert len(states(call, results, "-s", "wider")) == len(extra) == 8
    w8, wider = call("sweeps", "--results", results, "--format", "json").json
    assert (w8["runs"], w8["device h"], wider["runs"], wider["device h"]) == ("3 done", 0.03, "8 done", 0.08)


def test_a_run_that_no_sweep_asks_for_is_shown_under_a_dash(call: Call, results: Path, request_sweep: Ask) -> None:
    (first, *_) = request_sweep("w8")
    RunDir.create(results, first)
    finish(results, elsewhere := first.with_point(0.3, first.wd, 0), 0.1)
    assert states(call, results) == {first.run_id: ("w8", "missing"), elsewhere.run_id: ("-", "done")}
    assert elsewhere.run_id in call("status", "--results", results).out
    assert states(call, results, "--sweep", "w8").keys() == {first.run_id}
    assert call("show", elsewhere.run_id, "--results", results, "--format", "json").json["sweep"] == "-"
    assert verdicts(call, results)["w8"]["reason"].startswith("no finished point yet")


def test_the_picture_of_runs_names_their_sweeps_where_there_are_several(results: Path, request_sweep: Ask) -> None:
    (first, *_) = request_sweep("w8")
    attempt = RunDir.create(results, first).claim({}, after=0)
    assert attempt
    attempt.record_failure("error", "RuntimeError: out of luck")

    def shown() -> str:
        monitor = ProgressMonitor(results, [first], load_sweep_store(results).studies_by_family)
        (console := Console(file=io.StringIO(), width=200)).print(render_progress(monitor, monitor.poll(), "all", 200))
        return str(console.file.getvalue())  # type: ignore[attr-defined]

    assert "w8" not in shown()
    request_sweep("more", seeds=[0, 1])
    assert "more, w8" in shown()


# --- a climb within its budget ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_a_climb_stops_where_its_budget_ends_and_else_goes_on_until_it_stands(
    call: Call, results: Path, tmp_path: Path
) -> None:
    write_fake_grid(tmp_path / "far.yaml", centre={"standard": {"lr": 0.25 / 2**6, "wd": 0.25}})
    follow = ("--follow", "--results", results)
    call("grid", "far.yaml", "--launch-set", "slots=1", *follow)
    result = call("verify-optimum", *follow, "--max-runs", 2, "--format", "json", code=1)
    assert "about 1 run to come, at most 2: about " in result.err
    assert "far standard: 3 runs were requested, 2 more were added, and about 1 would be needed, " in result.err
    assert "; --max-runs 2 leaves 0 runs for it: stopped\n" in result.err
    advice = f"`ettsweep verify-optimum --follow --max-runs 100 --results {results}` goes on\n"
    assert advice in result.err
    assert len(runs_in(results)) == 5
    assert result.json[0]["verdict"] == "edge"
    call("verify-optimum", *follow)
    assert verdicts(call, results)["far"]["verdict"] == "optimal"


# --- what is renamed or damaged meanwhile ---------------------------------------------------------------------------


def rename_by_hand(sweep: Path) -> None:
    sweep.rename(sweep.with_name("other.yaml"))


def damage(sweep: Path) -> None:
    sweep.write_text("- asked: [")


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("change", "message"),
    [(rename_by_hand, "sweep w8 was renamed or deleted meanwhile\n"), (damage, "sweep w8 cannot be read: ")],
)
def test_a_sweep_that_is_gone_when_its_command_ends_is_named(
    results: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    grid = write_fake_grid(tmp_path / "w8.yaml")
    command = start("grid", grid, "--follow", "--results", results)
    wait_for(lambda: list(results.glob("runs/*/attempts/0001/claim.json")), "a run in training")
    change(results / "sweeps" / "w8.yaml")
    assert message in ended(command).stderr
    assert {run.status().state for run in runs_in(results)} == {State.DONE}


@pytest.mark.parametrize("command", ["sweeps", "status", "verify-optimum", "report", "watch", "clean"])
@pytest.mark.parametrize("folder", ["sweeps", "runs", "jobs"])
def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
    call: Call, results: Path, request_sweep: Ask, folder: str, command: str
) -> None:
    request_sweep("w8", falling)
    shutil.rmtree(results / folder, ignore_errors=True)
    (results / folder).write_text("")
    if (folder, command) != ("sweeps", "clean"):  # which has nothing to do with sweeps
        result = call(command, "--results", results, code=1)
        assert result.err == f"ettsweep: {results / folder}: cannot be read: Not a directory\n"


@pytest.mark.parametrize(
    ("folder", "read"), [("sweeps", load_sweep_store), ("runs", read_run_index), ("jobs", submission_folders)]
)
def test_a_folder_that_is_closed_to_its_reader_is_not_taken_for_an_empty_one(
    request_sweep: Ask, results: Path, folder: str, read: Callable[[Path], object]
) -> None:
    request_sweep("w8", falling)
    with tempfile.TemporaryDirectory() as public:
        Path(public).chmod(0o755)
        shared = shutil.copytree(results, Path(public) / "results")
        (shared / folder).mkdir(exist_ok=True)
        (shared / folder).chmod(0)
        reader = 65534 if os.geteuid() == 0 else os.geteuid()  # to root, nothing is closed
        os.seteuid(reader)
        try:
            with pytest.raises(CorruptError, match=f"^{shared / folder}: cannot be read: Permission denied$"):
                read(shared)
        finally:
            os.seteuid(os.getuid())
            (shared / folder).chmod(0o700)
