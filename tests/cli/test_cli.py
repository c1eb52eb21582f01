"""Commands as people type them: what they print in which form, how they exit, what they refuse."""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commandline import GRID, Call, ettsweep, keep, write_fake_grid, write_grid

from ettsweep import __version__, cli
from ettsweep.console import with_results
from ettsweep.launch.cost import format_device_hours
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import lock_slot, unlock
from ettsweep.powers import parse_number
from ettsweep.runs.folder import RunDir
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep import LaunchSettings
from ettsweep.study.sweep_store import extend_sweep


def table(text: str, form: str) -> list[dict[str, str]]:
    """Parse CSV or Markdown."""
    if form == "csv":
        return list(csv.DictReader(io.StringIO(text)))
    head, rule, *rows = ([c.strip() for c in line.strip("|").split(" | ")] for line in text.splitlines())
    assert set(rule) == {"---"}
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with the small fake grid trained by the command line; tests only read it."""
    folder = tmp_path_factory.mktemp("trained")
    grid = write_fake_grid(folder / "grid.yaml")
    results = folder / "results"
    env = {**os.environ, "ETTSWEEP_SLOTS": str(folder / "slots")}
    ettsweep("grid", grid, "--follow", "--results", results, "--launch-set", "slots=1", env=env)
    return results


@pytest.fixture
def finish_scores(tmp_path: Path, results: Path) -> Callable[[Sequence[float | None]], list[RunSpec]]:
    """Return a function that asks for the small grid, and finishes its runs with made scores; -1 leaves one out."""

    def ask(scores: Sequence[float | None]) -> list[RunSpec]:
        sweep_spec = load_sweep_spec(write_grid(tmp_path / "asked.yaml"))
        keep(results, sweep_spec)
        specs = sweep_spec.specs()
        for spec, score in zip(specs, scores, strict=True):
            if score != -1:
                finish(results, spec, score)
        return specs

    return ask


def finish(results: Path, spec: RunSpec, score: float | None) -> None:
    run = RunDir.create(results, spec)
    assert run.claim({}, after=0)
    status = {"status": "diverged", "diverged_step": 1} if score is None else {"status": "done"}
    assert run.finish({**status, "score": score}, [])


def failed(results: Path, spec: RunSpec) -> None:
    attempt = RunDir.create(results, spec).claim({}, after=0)
    assert attempt
    attempt.record_failure("error", "RuntimeError: out of luck")


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


@pytest.mark.parametrize("arguments", [["grdi"], ["grid", "--nope"], ["status", "--format", "xml"]])
def test_wrong_usage_exits_2(call: Call, arguments: list[str]) -> None:
    call(*arguments, code=2)


# --- map and scales -------------------------------------------------------------------------------------------------


def test_scales_are_those_of_the_theory(call: Call) -> None:
    data = call("scales", "--model", "vit-b16", "--strategy", "ntk", "--lr", 20, "--format", "json").json
    assert list(data) == ["model", "strategy", "width", "output_rescale", "parameters", "beyond_theory", "groups"]
    assert (data["model"], data["strategy"], data["width"], data["parameters"]) == ("vit-b16", "ntk", 768, 86_444_008)
    keys = ["group", "shape", "parameters", "init_std", "lr_factor", "wd_factor", "effective_lr"]
    assert all(list(group) == keys for group in data["groups"])
    groups = {group["group"]: group for group in data["groups"]}
    assert list(groups) == ["patch", "pe", "q", "k", "v", "u", "w", "x", "head", "head_bias"]
    assert sum(group["parameters"] for group in groups.values()) == 86_444_008
    assert groups["q"]["lr_factor"] == pytest.approx(4.698e-5, rel=1e-3)
    assert groups["q"]["effective_lr"] == pytest.approx(9.40e-4, rel=1e-3)
    assert groups["q"]["wd_factor"] == pytest.approx(1 / groups["q"]["lr_factor"])
    assert groups["head_bias"]["wd_factor"] == 0


def test_a_model_is_named_in_one_way_wherever_it_is_named(call: Call, tmp_path: Path) -> None:
    def data(*arguments: object) -> Any:
        return call(*arguments, "--format", "json").json

    write_grid(tmp_path / "own.yaml", model="64x4", recipe=GRID["recipe"] | {"optimizer": "sgd"})
    by_size, by_grid = (("--model", "64x4"), ("own.yaml",))
    assert (data("scales", *by_size)["width"], data("scales", *by_size)["model"]) == (64, "vit-n64-l4-h8-p4-i8-c1-k10")
    assert data("scales", *by_grid) == data("scales", *by_size, "--optimizer", "sgd") != data("scales", *by_size)
    assert data("scales", *by_grid, "--optimizer", "adamw") == data("scales", *by_size)
    point = ("map", "--lr", 1, "--wd", 1, "--from", "standard", "--to", "ntk")
    assert data(*point, *by_size)["lr"] == 64**1.5
    assert data(*point, *by_grid)["lr"] == 64, "by the optimizer of the grid"
    assert data(*point, "--width", 64) == data(*point, *by_size)
    assert data(*point, "--width", 64, "--optimizer", "sgd") == data(*point, *by_grid)
    # What `init` writes for a size is the grid file of a model of that name.
    assert "`ettsweep init --model 16x1`" in call("grid", "--model", "16x1", "--dry-run", code=2).err
    call("init", "--model", "16x1")
    assert "16x1.yaml" in call("grid", "--model", "16x1", "--dry-run").err


# --- grid -----------------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_all_points_of_the_paper_and_changes_nothing(call: Call, tmp_path: Path) -> None:
    options = ("grid", "--strategy", "ntk", "--model", "vit-b16", "--dry-run", "--results", "r")
    rows = call(*options, "--format", "json").json
    assert {(row["lr"], row["wd"]) for row in rows} == {(lr, wd) for lr in (10, 20, 40) for wd in (2e-5, 4e-5, 8e-5)}
    assert {(row["action"], row["model"], row["strategy"], row["state"]) for row in rows} == {
        ("submit", "vit-b16", "ntk", "missing")
    }
    result = call(*options)
    assert all(row["run"] in result.out for row in rows)
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


# --- status, show, logs ---------------------------------------------------------------------------------------------

STATUS_KEYS = (
    ["run", "sweep", "family", "model", "task", "strategy", "lr", "wd", "log2_lr", "log2_wd", "seed", "state", "progress", "best_score", "reason", "where", "job", "slot", "left_s"]
)  # fmt: skip


def test_status_lists_each_run_as_promised(trained: Path, call: Call) -> None:
    rows = call("status", "--results", trained, "--format", "json").json
    assert [list(row) for row in rows] == [STATUS_KEYS] * 3
    assert [row["log2_lr"] for row in rows] == [-3, -2, -1]
    for row in rows:
        assert (row["state"], row["progress"], row["strategy"], row["task"]) == ("done", 1.0, "standard", "bowl")
        result = json.loads((trained / "runs" / row["run"] / "result.json").read_text())
        assert row["best_score"] == result["best_loss"]
    as_csv = table(call("status", "--results", trained, "--format", "csv").out, "csv")
    assert list(as_csv[0]) == STATUS_KEYS
    assert [(r["run"], float(r["best_score"])) for r in as_csv] == [(r["run"], r["best_score"]) for r in rows]
    markdown = table(call("status", "--results", trained, "--format", "markdown").out, "markdown")
    assert [r["run"] for r in markdown] == [r["run"] for r in rows]
    assert call("status", rows[0]["run"][:8], "--results", trained, "--format", "json").json == rows[:1]
    assert call("status", "--state", "failed", "--results", trained, "--format", "json").json == []


def test_status_of_nothing_is_an_empty_list(call: Call) -> None:
    Path("empty").mkdir()
    for form in ("json", "csv", "markdown", "table"):
        result = call("status", "--results", "empty", "--format", form)
        assert form != "json" or result.json == []
    assert "no runs yet; `ettsweep grid --model vit-digits --results empty` starts some" in result.err
    assert "no sweeps yet" in call("sweeps", "--results", "empty").err


def test_a_run_is_shown_with_all_that_is_known(trained: Path, call: Call) -> None:
    run = call("status", "--results", trained, "--format", "json").json[0]["run"]
    data = call("show", run[:9], "--results", trained, "--format", "json").json
    assert {key: data[key] for key in ("run", "state", "progress")} == {"run": run, "state": "done", "progress": 1.0}
    assert data["spec"]["width"] == 8
    assert data["attempts"][0]["slot"] == "cpu-0"
    assert data["result"]["steps"] == 24
    keys = {row["key"] for row in table(call("show", run, "--results", trained, "--format", "csv").out, "csv")}
    assert {"run", "spec.width", "attempts.1.slot", "result.score"} <= keys
    assert run in call("show", run, "--results", trained).out


def test_logs_print_each_attempt(trained: Path, call: Call) -> None:
    run = call("status", "--results", trained, "--format", "json").json[0]["run"]
    text = call("logs", run, "--results", trained).out
    assert text.startswith("== attempt 1\n")
    assert "step 24/24" in text
    assert "finished" in text
    assert f"run {run} has no attempt 2" in call("logs", run, "--attempt", 2, "--results", trained, code=1).err


def test_watching_runs_of_which_some_will_not_finish_exits_1(results: Path, finish_scores: Any, call: Call) -> None:
    specs = finish_scores([2.0, None, -1])
    failed(results, specs[2])
    result = call("watch", "--results", results, code=1)
    assert "2/3 runs finished (1 done, 1 diverged, 1 failed)" in result.err
    assert f"`ettsweep status --results {results}` lists the runs that have not finished" in result.err


def test_who_looks_into_a_folder_that_is_not_there_is_given_the_first_command(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command in (
        *("status", "sweeps", "watch", "logs 0", "show 0", "cancel --all", "retry --all", "clean", "sweeps delete a"),
        *("verify-optimum", "seeds", "report", "train 0", "search --sweep a"),
    ):
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


def test_an_optimum_is_verified_as_promised(trained: Path, call: Call) -> None:
    verify = ("verify-optimum", "--results", trained, "--format")
    (verdict,) = call(*verify, "json").json
    promised = "family model strategy verdict lr wd score metric mode neighbours missing"
    assert set(verdict) >= {*promised.split()}
    assert (verdict["verdict"], verdict["lr"], verdict["wd"]) == ("optimal", 0.25, 0.25)
    assert (verdict["metric"], verdict["mode"], verdict["strategy"]) == ("best_loss", "min", "standard")
    assert verdict["missing"] == []
    assert all(list(n)[:4] == ["lr", "wd", "score", "state"] for n in verdict["neighbours"])
    scores = {row["lr"]: row["best_score"] for row in call("status", "--results", trained, "--format", "json").json}
    assert verdict["score"] == scores[0.25] == min(scores.values())
    assert {(n["lr"], n["wd"], n["score"], n["state"]) for n in verdict["neighbours"]} == {
        (lr, 0.25, scores[lr], "done") for lr in (0.125, 0.5)
    }
    (row,) = table(call(*verify, "markdown").out, "markdown")
    assert (row["strategy"], parse_number(row["lr"])) == ("standard", 0.25)
    assert row["verdict"] == "optimal by the paper's comparison of means"


@pytest.mark.parametrize(
    ("scores", "verdict", "code", "missing"),
    [
        ([None, 1.0, None], "optimal", 0, []),
        ([1.0, 1.0, 2.0], "edge", 1, [0.0625]),
        ([2.0, 1.0, -1], "incomplete", 1, [0.5]),
    ],
)
def test_only_an_optimum_exits_0(
    results: Path,
    finish_scores: Any,
    call: Call,
    scores: list[float | None],
    verdict: str,
    code: int,
    missing: list[float],
) -> None:
    finish_scores(scores)
    before = files(results)
    result = call("verify-optimum", "--dry-run", "--results", results, "--format", "json", code=code)
    assert result.json[0]["verdict"] == verdict
    assert result.json[0]["missing"] == [{"lr": lr, "wd": 0.25} for lr in missing]
    assert files(results) == before
    assert re.findall(r"(\d+) runs? would be submitted", result.err) == [str(len(missing))] * bool(missing)


def test_a_named_point_is_judged(results: Path, call: Call, tmp_path: Path) -> None:
    """Also if it is typed as `status` prints it, with fewer digits than it has."""
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "asked.yaml", centre={"standard": {"lr": 1 / 3, "wd": 2 / 3}}))
    keep(results, sweep_spec)
    for spec, score in zip(sweep_spec.specs(), (3.0, 1.0, 2.0), strict=True):
        finish(results, spec, score)
    options = ("verify-optimum", "--dry-run", "--results", results, "--format", "json")
    (verdict,) = call(*options, "--at", "0.3333,0.6667").json
    assert (verdict["verdict"], verdict["lr"], verdict["wd"]) == ("optimal", 1 / 3, 2 / 3)
    (refuted,) = call(*options, "--at", "0.6667,0.6667", code=1).json
    assert (refuted["verdict"], refuted["lr"], refuted["path"]) == ("refuted", 2 / 3, [])
    result = call(*options, "--at", "0.3333,0.5", code=2)
    assert "--at: wd is fixed at 0.6666666667 in asked standard, got 2^-1" in result.err


def test_a_point_of_several_families_is_refused(results: Path, call: Call, tmp_path: Path) -> None:
    keep(results, load_sweep_spec(write_grid(tmp_path / "asked.yaml", strategies=["standard", "mup"])))
    options = ("verify-optimum", "--dry-run", "--results", results)
    result = call(*options, "--at", "0.25,0.25", code=2)
    assert "--at needs one study, but 2 match: asked vit-n8" in result.err
    assert "add --sweep or --strategy" in result.err
    call(*options, "--at", "0.25,0.25", "--strategy", "standard", code=1)


def test_sweeps_launched_differently_need_a_choice(results: Path, call: Call, tmp_path: Path) -> None:
    for strategy, slots in (("standard", "slots=1"), ("mup", "slots=2")):
        sweep_spec = load_sweep_spec(write_grid(tmp_path / f"{strategy}.yaml", strategies=[strategy]))
        extend_sweep(results, strategy, sweep_spec, LaunchSettings(overrides=(slots,)))
    options = ("--dry-run", "--results", results)
    for command in ("verify-optimum", "seeds"):
        result = call(command, *options, code=2)
        assert "these sweeps were launched differently (" in result.err
        assert "standard with local slots=1" in result.err
        assert "mup with local slots=2" in result.err
        assert "choose with --launch, or narrow them with --sweep" in result.err
    for choice in (("--launch", "local"), ("--launch-set", "slots=1"), ("--sweep", "mup")):
        call("verify-optimum", *options, *choice, code=1)
    assert not (results / "jobs").exists()


def test_a_failed_neighbour_is_named_with_what_to_type(results: Path, finish_scores: Any, call: Call) -> None:
    specs = finish_scores([2.0, 1.0, -1])
    failed(results, specs[2])
    result = call("verify-optimum", "--results", results, "--format", "json", code=1)
    (verdict,) = result.json
    assert verdict["verdict"] == "incomplete"
    assert {n["state"] for n in verdict["neighbours"]} == {"done", "failed"}
    assert f"`ettsweep retry {specs[2].run_id}`" in verdict["reason"]
    assert not (results / "jobs").exists()


def test_seeds_are_rerun_for_verified_optima_only(results: Path, finish_scores: Any, call: Call) -> None:
    finish_scores([2.0, 1.0, -1])
    result = call("seeds", "--dry-run", "--results", results, "--format", "json", code=1)
    assert result.json == []
    assert "skipped, since not verified" in result.err
    finish(results, load_sweep_spec(Path("asked.yaml")).specs()[2], 3.0)
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
        ("grid other.yaml", "other.yaml: no such file"),
        ("grid grid.yml", "grid.yml: no such file; did you mean grid.yaml?"),
        ("grid --model VIT-DIGITS", "unknown model 'VIT-DIGITS'; did you mean 'vit-digits'?"),
        ("grid --model 64x4", "no grid file has `model: 64x4`; `ettsweep init --model 64x4` writes one"),
        ("grid grid.yaml --strategy NTK", "unknown strategy 'NTK'; did you mean 'ntk'?"),
        ("grid grid.yaml --launch loacl", "unknown launch profile 'loacl'; did you mean 'local'?"),
        ("grid grid.yaml --launch other.yaml", "other.yaml: no such launch profile"),
        ("grid grid.yaml --launch-set devices=[99]", "devices: no GPU 99 here"),
        ("grid grid.yaml --log WANDB", "unknown metric logger 'WANDB'; did you mean 'wandb'?"),
        ("grid grid.yaml --set optimizer=SGD", "unknown kind 'SGD'; did you mean 'sgd'?"),
        ("grid grid.yaml --set lr=1", "use --range lr="),
        ("grid grid.yaml --dry-run --set model.width=1000000", "GiB of this machine"),
        ("grid grid.yaml --dry-run --launch slurm-cpu --set model.width=20000", "8 GiB of 1 node with that mem_gb"),
        ("grid grid.yaml --seeds a,b", "--seeds: whole numbers with commas are expected"),
        ("status --state DONE --results empty", "unknown state 'DONE'; did you mean 'done'?"),
        ("status --results asked --sweep GRID", "unknown sweep 'GRID'; did you mean 'grid'?"),
        ("status --results asked --model VIT-N8-L1-H2-P4-I8-C1-K10", "no run or study matches; did you mean 'vit-n8"),
        ("verify-optimum --results empty", "no sweeps yet; `ettsweep grid --model vit-digits --results empty` starts one"),
        ("verify-optimum --results asked --strategy ntk", "--strategy ntk: no study matches; available: standard\n"),
        ("verify-optimum --results asked --at 1,2,3", "--at: lr,wd is expected"),
        ("show fff --results empty", "no run starts with 'fff'; `ettsweep status --results empty` lists them"),
        ("watch --results empty", "no runs to watch"),
        ("cancel --results empty", "select runs by id"),
        ("train", "pass a grid file, a run id"),
        ("train grid.yaml --lr -1", "--lr: input should be greater than 0, got -1"),
        ("train grid.yaml --seed 2147483648", "--seed: input should be less than or equal to 2147483647"),
        ("map --lr 1 --wd 1 --from ntk --to mup --width 8 --model 8x1", "pass a width: --width N, "),
        ("scales", "give a grid file, --model NAME, or --model WIDTHxDEPTH"),
        ("scales --model vit-b16 --lr 0", "--lr: must be between 0 and 1e30, got 0.0"),
    ],
)  # fmt: skip
def test_wrong_input_is_a_message_and_exit_code_2(asked: Path, arguments: str, message: str) -> None:
    result = ettsweep(*arguments.split(), code=2, cwd=asked)
    assert message in result.stderr
    assert result.stderr.startswith("ettsweep: ")
    assert result.stdout == ""
    assert not (asked / "results").exists()


@pytest.mark.parametrize("results", ["file", "/proc/results"])
def test_a_results_folder_that_cannot_be_written_is_told(call: Call, tmp_path: Path, results: str) -> None:
    write_grid(tmp_path / "grid.yaml")
    (tmp_path / "file").touch()
    for command in ("grid", "train"):
        result = call(command, "grid.yaml", "--results", results, code=1)
        assert result.err.startswith("ettsweep: ")
        assert results in result.err


# --- cancel, retry, clean, train, doctor ----------------------------------------------------------------------------


def test_many_runs_are_cancelled_only_after_a_yes(call: Call, results: Path, finish_scores: Any) -> None:
    specs = finish_scores([2.0, 1.0, 2.0])
    for seed in (1, 2):
        RunDir.create(results, specs[0].with_point(Point.of(lr=1.0, wd=0.5), seed))
    call("cancel", "--all", "--results", results, stdin="n\n", code=1)
    assert "no answer; pass --yes to skip this question" in call("cancel", "--all", "--results", results, code=2).err
    assert not list(results.glob("runs/*/cancel.json"))
    assert "2 runs cancelled" in call("cancel", "--all", "--results", results, stdin="y\n").err
    rows = call("status", "--results", results, "--format", "json").json
    assert sorted(row["state"] for row in rows) == ["cancelled", "cancelled", "done", "done", "done"]
    assert "0 runs cancelled" in call("cancel", "--all", "--yes", "--results", results).err
    assert "no answer; pass --yes to skip this question" in call("retry", "--all", "--results", results, code=2).err


def test_a_named_run_that_cannot_be_cancelled_says_why(call: Call, results: Path, finish_scores: Any) -> None:
    specs = finish_scores([2.0, None, -1])
    failed(results, specs[2])
    result = call("cancel", *(spec.run_id for spec in specs), "--yes", "--results", results)
    assert "0 runs cancelled" in result.err
    for spec, state in zip(specs, ("done", "diverged", "failed"), strict=True):
        assert f"run {spec.run_id} is {state}: nothing to cancel" in result.err
    assert not list(results.glob("runs/*/cancel.json"))


def test_retrying_what_trains_or_is_finished_does_nothing_to_it(call: Call, results: Path, finish_scores: Any) -> None:
    done, _, spec = finish_scores([2.0, 1.0, -1])
    attempt = RunDir.create(results, spec).claim({}, after=0)  # this process lives
    assert attempt
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
    assert " to train" not in output.stderr
    assert [path.name for path in (folder / "attempts").iterdir()] == ["0001"]
    assert json.loads((folder / "spec.json").read_text())["seed"] == 5
    assert not (results / "jobs").exists()


@pytest.fixture
def busy_slot() -> Iterator[None]:
    """Have somebody else train in the first slot."""
    lock = lock_slot(LocalProfile(devices="cpu", slots=1).resolve_slots()[0], Path("/other"))
    assert lock
    yield
    unlock(lock)


@pytest.mark.slow
@pytest.mark.usefixtures("busy_slot")
def test_doctor_tells_what_works_and_what_does_not(call: Call, results: Path, tmp_path: Path) -> None:
    options = ("--launch-set", "devices=cpu", "--launch-set", "slots=2", "--results", results, "--format", "json")
    rows = {row["check"]: row for row in call("doctor", *options).json}
    messages = rows["profile local"]["detail"]
    assert messages.startswith("2 slots: cpu-0, cpu-1; ")
    assert f"; slot cpu-0, held by process {os.getpid()} of /other; locks in {os.environ['ETTSWEEP_SLOTS']}" in messages
    assert rows["torch"]["state"] == rows["data digits"]["state"] == rows["grids"]["state"] == "ok"
    assert rows["data imagenet"]["state"] == "absent"
    assert not results.exists()
    (tmp_path / "file").touch()
    broken = call("doctor", "--launch", "nope", "--results", "file/results", "--format", "json", code=1).json
    assert {row["check"] for row in broken if row["state"] == "failed"} == {"profile nope", "results file/results"}


def test_runs_are_selected_by_the_size_of_their_model(call: Call, results: Path, tmp_path: Path) -> None:
    for name, width in (("a", 8), ("b", 16)):
        keep(results, load_sweep_spec(write_grid(tmp_path / f"{name}.yaml", model=GRID["model"] | {"width": width})))
    verdicts = call("verify-optimum", "--model", "16x1", "--dry-run", "--results", results, "--format", "json", code=1)
    assert [verdict["sweep"] for verdict in verdicts.json] == ["b"]
    refusal = call("verify-optimum", "--model", "64x4", "--results", results, code=2).err
    assert "--model 64x4: no study matches; available: vit-n16" in refusal
