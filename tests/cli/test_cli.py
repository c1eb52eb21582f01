"""Commands as people type them: what they print in which form, how they exit, what they refuse."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.claims import claimed, finished
from support.commandline import GRID, Call, ettsweep, keep, write_fake_grid, write_grid

from ettsweep import __version__, cli
from ettsweep.console import with_results
from ettsweep.launch.cost import format_device_hours
from ettsweep.runs.folder import RunDir
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep import LaunchSettings
from ettsweep.study.sweep_store import extend_sweep


@pytest.fixture
def finish_scores(request_sweep: Any, results: Path) -> Callable[[Sequence[float | None]], list[RunSpec]]:
    """Return a function that finishes the runs of the small grid; those of score None diverged, -1 leaves one out."""

    def ask(scores: Sequence[float | None]) -> list[RunSpec]:
        specs: list[RunSpec] = request_sweep(score=None)
        for spec, score in zip(specs, scores, strict=True):
            if score != -1:
                diverged = {"status": "diverged", "diverged_step": 1} if score is None else {}
                finished(RunDir.create(results, spec), score=score, **diverged)
        return specs

    return ask


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


# --- help -----------------------------------------------------------------------------------------------------------


def test_every_command_has_help_and_those_that_are_promised_are_there(call: Call) -> None:
    text = call("--help").out
    promised = "grid verify-optimum seeds status watch logs show cancel retry clean report map scales train doctor"
    assert set(promised.split()) <= set(cli.COMMANDS)
    assert all(f"  {command} " in text for command in cli.COMMANDS)
    assert call("--help", "status").out == text, "before a command, it is that of all"
    for command in cli.COMMANDS:
        assert f"ettsweep {command} [OPTIONS]" in call(command, "-h").out
    assert call("--version").out == f"ettsweep {__version__}\n"


def test_scales_and_map_take_the_model_and_the_optimizer_of_a_grid(call: Call, tmp_path: Path) -> None:
    def data(*arguments: object) -> Any:
        return call(*arguments, "--format", "json").json

    write_grid(tmp_path / "own.yaml", model="64x4", recipe=GRID["recipe"] | {"optimizer": "sgd"})
    by_size, by_grid = (("--model", "64x4"), ("own.yaml",))
    assert data("scales", *by_grid) == data("scales", *by_size, "--optimizer", "sgd") != data("scales", *by_size)
    point = ("map", "--lr", 1, "--wd", 1, "--from", "standard", "--to", "ntk")
    assert data(*point, *by_size)["lr"] == data(*point, "--width", 64)["lr"] == 64**1.5
    assert data(*point, *by_grid)["lr"] == 64, "by the optimizer of the grid"


# --- grid -----------------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_all_points_of_the_paper_and_changes_nothing(call: Call, tmp_path: Path) -> None:
    options = ("grid", "--strategy", "ntk", "--model", "vit-b16", "--dry-run", "--results", "r", "--format", "json")
    result = call(*options)
    assert {(row["lr"], row["wd"], row["action"], row["state"]) for row in result.json} == {
        (lr, wd, "submit", "missing") for lr in (10, 20, 40) for wd in (2e-5, 4e-5, 8e-5)
    }
    assert "9 runs would be submitted" in result.err
    assert "cannot be submitted yet" in result.err
    assert files(tmp_path / "r") == []


def test_missing_imagenet_says_where_to_point_and_submits_nothing(call: Call, tmp_path: Path) -> None:
    result = call("grid", "--model", "vit-b16", "--results", "r", code=1)
    assert "--data" in result.err
    assert "ETTSWEEP_IMAGENET" in result.err
    (tmp_path / "empty").mkdir()
    result = call("grid", "--model", "vit-b16", "--results", "r", "--data", "empty", code=1)
    assert f"{tmp_path / 'empty'} has no train/" in result.err
    assert not (tmp_path / "r").exists()


# --- status, watch --------------------------------------------------------------------------------------------------


def test_status_of_nothing_is_an_empty_list(call: Call) -> None:
    Path("empty").mkdir()
    assert call("status", "--results", "empty", "--format", "json").json == []
    said = call("status", "--results", "empty").err
    assert "no runs yet; `ettsweep grid --model vit-digits --results empty` starts some" in said
    assert "no sweeps yet" in call("sweeps", "--results", "empty").err


def test_watching_runs_of_which_some_will_not_finish_exits_1(results: Path, finish_scores: Any, call: Call) -> None:
    specs = finish_scores([2.0, None, -1])
    claimed(RunDir.create(results, specs[2])).record_failure("error", "RuntimeError: out of luck")
    result = call("watch", "--results", results, code=1)
    assert "2/3 runs finished (1 done, 1 diverged, 1 failed)" in result.err
    assert f"`ettsweep status --results {results}` lists the runs that have not finished" in result.err


def test_who_looks_into_a_folder_that_is_not_there_is_given_the_first_command(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command in ("status", "show 0", "sweeps delete a", "verify-optimum", "train 0", "search --sweep a"):
        result = call(*command.split(), code=2)
        assert result.out == ""
        assert result.err == (
            f"ettsweep: no results yet: {tmp_path / 'results'} does not exist; `ettsweep grid --model vit-digits` "
            "starts a sweep there, or pass --results DIR for another folder\n"
        )
    assert "`ettsweep grid --model vit-digits --results a`" in call("status", "--results", "a", code=2).err
    result = call("status", "--results", "file", code=2)
    assert result.err == f"ettsweep: --results: {tmp_path / 'file'} is not a folder\n"
    assert files(tmp_path) == [tmp_path / "file"]


def test_a_run_that_diverged_is_no_success_of_who_trains_it(results: Path, finish_scores: Any, call: Call) -> None:
    done, diverged, _ = finish_scores([1.0, None, 1.0])
    assert "diverged" in call("train", diverged.run_id, "--results", results, code=1).out
    assert "done" in call("train", done.run_id, "--results", results).out


def test_commands_to_type_name_the_results_folder_that_was_given() -> None:
    text, argv = "say `ettsweep watch`, not `slots: 1`", ["ettsweep", "status"]
    assert with_results(text, argv) == text
    named = "say `ettsweep watch --results 'my runs'`, not `slots: 1`"
    assert with_results(text, [*argv, "--results=a", "--results=my runs"]) == named


# --- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "verdict", "missing"),
    [
        ([None, 1.0, None], "optimal", []),
        ([1.0, 1.0, 2.0], "edge", [0.0625]),
        ([2.0, 1.0, -1], "incomplete", [0.5]),
    ],
)
def test_only_an_optimum_exits_0(
    results: Path, finish_scores: Any, call: Call, scores: list[float | None], verdict: str, missing: list[float]
) -> None:
    finish_scores(scores)
    before = files(results)
    code = 0 if verdict == "optimal" else 1
    result = call("verify-optimum", "--dry-run", "--results", results, "--format", "json", code=code)
    assert result.json[0]["verdict"] == verdict
    assert result.json[0]["missing"] == [{"lr": lr, "wd": 0.25} for lr in missing]
    assert files(results) == before
    assert re.findall(r"(\d+) runs? would be submitted", result.err) == [str(len(missing))] * bool(missing)


def test_a_point_of_several_families_is_refused(results: Path, call: Call, request_sweep: Any) -> None:
    request_sweep(score=None, strategies=["standard", "mup"])
    options = ("verify-optimum", "--dry-run", "--results", results, "--at", "0.25,0.25")
    result = call(*options, code=2)
    assert "--at needs one study, but 2 match: w8 vit-n8" in result.err
    assert "add --sweep or --strategy" in result.err
    call(*options, "--strategy", "standard", code=1)


def test_sweeps_launched_differently_need_a_choice(results: Path, call: Call, tmp_path: Path) -> None:
    for strategy, slots in (("standard", "slots=1"), ("mup", "slots=2")):
        sweep_spec = load_sweep_spec(write_grid(tmp_path / f"{strategy}.yaml", strategies=[strategy]))
        extend_sweep(results, strategy, sweep_spec, LaunchSettings(overrides=(slots,)))
    options = ("--dry-run", "--results", results)
    refused = call("verify-optimum", *options, code=2).err
    assert "these sweeps were launched differently (" in refused
    assert "standard with local slots=1" in refused
    assert "choose with --launch, or narrow them with --sweep" in refused
    for choice in (("--launch", "local"), ("--sweep", "mup")):
        call("verify-optimum", *options, *choice, code=1)
    assert not (results / "jobs").exists()


def test_seeds_are_rerun_for_verified_optima_only(results: Path, finish_scores: Any, call: Call) -> None:
    specs = finish_scores([2.0, 1.0, -1])
    result = call("seeds", "--dry-run", "--results", results, "--format", "json", code=1)
    assert result.json == []
    assert "skipped, since not verified" in result.err
    finished(RunDir.create(results, specs[2]), score=3.0)
    rows = call("seeds", "--dry-run", "--count", 2, "--results", results, "--format", "json").json
    assert [(row["lr"], row["seed"], row["action"]) for row in rows] == [(0.25, 1, "submit"), (0.25, 2, "submit")]


# --- wrong input ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a grid file, and results in which it was asked for, or which are empty."""
    folder = tmp_path_factory.mktemp("asked")
    keep(folder / "asked", load_sweep_spec(write_grid(folder / "grid.yaml")))
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("grid", "give a grid file, or --model NAME"),
        ("grid grid.yml", "grid.yml: no such file; did you mean grid.yaml?"),
        ("grid --model VIT-DIGITS", "unknown model 'VIT-DIGITS'; did you mean 'vit-digits'?"),
        ("grid --model 64x4", "no grid file has `model: 64x4`; `ettsweep init --model 64x4` writes one"),
        ("grid grid.yaml --launch loacl", "unknown launch profile 'loacl'; did you mean 'local'?"),
        ("grid grid.yaml --launch other.yaml", "other.yaml: no such launch profile"),
        ("grid grid.yaml --launch-set devices=[99]", "devices: no GPU 99 here"),
        ("grid grid.yaml --dry-run --set model.width=1000000", "GiB of this machine"),
        ("grid grid.yaml --dry-run --launch slurm-cpu --set model.width=20000", "8 GiB of 1 node with that mem_gb"),
        ("grid grid.yaml --seeds a,b", "--seeds: whole numbers with commas are expected"),
        ("status --state DONE --results empty", "unknown state 'DONE'; did you mean 'done'?"),
        ("status --results asked --sweep GRID", "unknown sweep 'GRID'; did you mean 'grid'?"),
        ("verify-optimum --results empty", "no sweeps yet; `ettsweep grid --model vit-digits --results empty` starts one"),
        ("verify-optimum --results asked --strategy ntk", "--strategy ntk: no study matches; available: standard\n"),

        ("show fff --results empty", "no run starts with 'fff'; `ettsweep status --results empty` lists them"),
        ("cancel --results empty", "select runs by id"),
        ("train", "pass a grid file, a run id"),
        ("train grid.yaml --lr -1", "--lr: input should be greater than 0, got -1"),

    ],
)  # fmt: skip
def test_wrong_input_is_a_message_and_exit_code_2(asked: Path, arguments: str, message: str) -> None:
    result = ettsweep(*arguments.split(), code=2, cwd=asked)
    assert message in result.stderr
    assert result.stderr.startswith("ettsweep: ")
    assert result.stdout == ""
    assert not (asked / "results").exists()


def test_a_results_folder_that_cannot_be_written_is_told(call: Call, tmp_path: Path) -> None:
    write_grid(tmp_path / "grid.yaml")
    for command in ("grid", "train"):
        result = call(command, "grid.yaml", "--results", "/proc/results", code=1)
        assert result.err.startswith("ettsweep: ")
        assert "/proc/results" in result.err


# --- cancel, retry, clean, train, doctor ----------------------------------------------------------------------------


def test_many_runs_are_cancelled_only_after_a_yes(call: Call, results: Path, finish_scores: Any) -> None:
    specs = finish_scores([2.0, 1.0, 2.0])
    for seed in (1, 2):
        RunDir.create(results, specs[0].with_point(Point.of(lr=1.0, wd=0.5), seed))
    done = specs[1].run_id
    assert f"run {done} is done: nothing to cancel" in call("cancel", done, "--yes", "--results", results).err
    call("cancel", "--all", "--results", results, stdin="n\n", code=1)
    for command in ("cancel", "retry"):
        unasked = call(command, "--all", "--results", results, code=2).err
        assert "no answer; pass --yes to skip this question" in unasked
    assert not list(results.glob("runs/*/cancel.json"))
    assert "2 runs cancelled" in call("cancel", "--all", "--results", results, stdin="y\n").err
    rows = call("status", "--results", results, "--format", "json").json
    assert sorted(row["state"] for row in rows) == ["cancelled", "cancelled", "done", "done", "done"]


def test_retrying_what_trains_or_is_finished_does_nothing_to_it(call: Call, results: Path, finish_scores: Any) -> None:
    done, _, spec = finish_scores([2.0, 1.0, -1])
    attempt = claimed(RunDir.create(results, spec))  # this process lives
    before = files(results)
    result = call("retry", spec.run_id, "--results", results)
    assert f"run {spec.run_id} is running: nothing to retry" in result.err
    assert "1 finished" in call("retry", done.run_id, "--results", results).err
    assert "nothing to do" in call("retry", "--all", "--yes", "--results", results).err
    assert files(results) == before
    assert not attempt.is_retried()
    assert RunDir(attempt.run).status().state is State.RUNNING


def test_clean_lists_before_it_removes_and_keeps_results(call: Call, results: Path, finish_scores: Any) -> None:
    spec = finish_scores([2.0, 1.0, 2.0])[0]
    checkpoint = results / "runs" / spec.run_id / "attempts" / "0001" / "states"
    checkpoint.mkdir()
    (checkpoint / "1").write_bytes(b"x" * 100)
    before = files(results)
    (row,) = call("clean", "--dry-run", "--results", results, "--format", "json").json
    assert (row["path"], row["bytes"]) == (str(checkpoint), 100)
    assert files(results) == before
    call("clean", "--results", results)
    assert files(results) == [path for path in before if checkpoint not in (path, path.parent)]


def test_one_run_trains_in_the_foreground_and_once(tmp_path: Path, results: Path) -> None:
    grid = write_fake_grid(tmp_path / "grid.yaml")
    result = ettsweep("train", grid, "--lr", 0.125, "--seed", 5, "--results", results)
    assert "step 24/24" in result.stderr
    assert result.stderr.startswith(f"grid file: {grid}\n1 run to train\n")
    (folder,) = (results / "runs").iterdir()
    seconds = json.loads((folder / "result.json").read_text())["device_s"]
    assert f"1 run trained: {format_device_hours(seconds)} in " in result.stderr
    output = ettsweep("train", folder.name[:6], "--results", results)
    assert output.stdout == result.stdout
    assert "step" not in output.stderr
    assert [path.name for path in (folder / "attempts").iterdir()] == ["0001"]
    assert json.loads((folder / "spec.json").read_text())["seed"] == 5
    assert not (results / "jobs").exists()


@pytest.mark.slow
def test_doctor_tells_what_works_and_what_does_not(call: Call, results: Path, tmp_path: Path) -> None:
    options = ("--launch-set", "devices=cpu", "--launch-set", "slots=2", "--results", results, "--format", "json")
    rows = {row["check"]: row for row in call("doctor", *options).json}
    assert rows["profile local"]["detail"].startswith("2 slots: cpu-0, cpu-1; ")
    assert rows["torch"]["state"] == rows["data digits"]["state"] == rows["grids"]["state"] == "ok"
    assert rows["data imagenet"]["state"] == "absent"
    assert not results.exists()
    (tmp_path / "file").touch()
    broken = call("doctor", "--launch", "nope", "--results", "file/results", "--format", "json", code=1).json
    assert {row["check"] for row in broken if row["state"] == "failed"} == {"profile nope", "results file/results"}


def test_runs_are_selected_by_the_size_of_their_model(call: Call, results: Path, request_sweep: Any) -> None:
    for name, width in (("a", 8), ("b", 16)):
        request_sweep(name, score=None, model=GRID["model"] | {"width": width})
    verdicts = call("verify-optimum", "--model", "16x1", "--dry-run", "--results", results, "--format", "json", code=1)
    assert [verdict["sweep"] for verdict in verdicts.json] == ["b"]
