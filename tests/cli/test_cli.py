import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commandline import GRID, Call, ettsweep, keep, runs_in, write_fake_grid, write_grid

from ettsweep import cli
from ettsweep.console import with_results
from ettsweep.launch.cost import format_device_hours
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import lock_slot, unlock
from ettsweep.powers import parse_number
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep import LaunchSettings
from ettsweep.study.sweep_store import extend_sweep

COMMANDS = sorted(command.name or command.callback.__name__ for command in cli.make_app().registered_commands)  # type: ignore[union-attr]


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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(call: Call, command: str) -> None:
    for flag in ("--help", "-h"):
        assert f"ettsweep {command} [OPTIONS]" in call(command, flag).out


def test_help_lists_the_commands_that_are_promised(call: Call) -> None:
    text = call("--help").out
    promised = "grid verify-optimum seeds status watch logs show cancel retry clean report map scales train doctor"
    assert set(promised.split()) <= set(COMMANDS)
    assert all(f"  {command} " in text for command in COMMANDS)


def test_help_before_a_command_is_that_of_all(call: Call) -> None:
    assert call("--help", "status").out == call("--help").out


def test_the_version_is_printed(call: Call) -> None:
    from ettsweep import __version__

    assert call("--version").out == f"ettsweep {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["grdi"], ["grid", "--nope"], ["status", "--format", "xml"], ["map", "--lr", "a"]]
)
def test_wrong_usage_exits_2(call: Call, arguments: list[str]) -> None:
    call(*arguments, code=2)


# --- map and scales -------------------------------------------------------------------------------------------------

MAPS = [  # theory: width, lr, wd, from, to, lr, wd
    (1024, 1e-3, 0.01, "standard", "ntk", 32.768, 3.052e-7),
    (2048, 7e-4, 0.01, "standard", "ntk", 64.877, 1.079e-7),
    (768, 20, 4e-5, "ntk", "hybrid", 3.80, 2.1e-4),
    (768, 20, 4e-5, "ntk", "mup", 0.722, 1.1e-3),
    (768, 1e-3, 0.8, "standard", "ntk", 21.28, 3.76e-5),
    (768, 20, 4e-5, "ntk", "standard", 9.40e-4, 8.51e-1),
]


@pytest.mark.parametrize(("width", "lr", "wd", "from_", "to", "lr_to", "wd_to"), MAPS)
def test_the_map_gives_the_numbers_of_the_paper(
    call: Call, width: int, lr: float, wd: float, from_: str, to: str, lr_to: float, wd_to: float
) -> None:
    options = ("--lr", lr, "--wd", wd, "--from", from_, "--to", to, "--width", width)
    data = call("map", *options, "--format", "json").json
    assert list(data) == ["lr", "wd"]
    assert data["lr"] == pytest.approx(lr_to, rel=2e-3)
    assert data["wd"] == pytest.approx(wd_to, rel=3e-2)
    assert data["lr"] * data["wd"] == pytest.approx(lr * wd)


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_the_map_prints_one_row(call: Call, form: str) -> None:
    result = call("map", "--lr", 1, "--wd", 1, "--from", "standard", "--to", "ntk", "--width", 16, "--format", form)
    (row,) = table(result.out, form)
    assert list(row) == ["lr", "wd"]
    assert parse_number(row["lr"]) == 64
    assert parse_number(row["wd"]) == pytest.approx(1 / 64, rel=1e-3)


def test_the_map_takes_the_width_of_a_model_and_the_optimizer(call: Call) -> None:
    options = ("--lr", 1, "--wd", 1, "--from", "standard", "--to", "ntk", "--format", "json")
    assert call("map", *options, "--model", "vit-digits").json["lr"] == pytest.approx(32**1.5)
    assert call("map", *options, "--model", "vit-digits", "--optimizer", "sgd").json["lr"] == pytest.approx(32)


def test_scales_are_those_of_the_theory(call: Call) -> None:
    data = call("scales", "--model", "vit-b16", "--strategy", "ntk", "--lr", 20, "--format", "json").json
    assert list(data) == ["model", "strategy", "width", "output_rescale", "parameters", "beyond_theory", "groups"]
    assert (data["model"], data["strategy"], data["width"], data["parameters"]) == ("vit-b16", "ntk", 768, 86_444_008)
    keys = ["group", "shape", "parameters", "init_std", "lr_factor", "wd_factor", "effective_lr"]
    assert all(list(group) == keys for group in data["groups"])
    groups = {group["group"]: group for group in data["groups"]}
    assert sum(group["parameters"] for group in groups.values()) == 86_444_008
    for name in "qkvuwx":
        assert groups[name]["lr_factor"] == pytest.approx(4.698e-5, rel=1e-3)
        assert groups[name]["effective_lr"] == pytest.approx(9.40e-4, rel=1e-3)
    assert groups["pe"]["lr_factor"] == pytest.approx(0.03608, rel=1e-3)
    assert groups["head"]["lr_factor"] == pytest.approx(4.1175e-5, rel=1e-3)
    assert groups["head_bias"]["wd_factor"] == 0
    assert groups["q"]["wd_factor"] == pytest.approx(1 / groups["q"]["lr_factor"])


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
    # What `init` writes for a size is the grid file of a model of that name.
    assert "`ettsweep init --model 16x1`" in call("grid", "--model", "16x1", "--dry-run", code=2).err
    call("init", "--model", "16x1")
    assert "16x1.yaml" in call("grid", "--model", "16x1", "--dry-run").err


def test_runs_are_selected_by_the_size_of_their_model(call: Call, results: Path, tmp_path: Path) -> None:
    for name, width in (("a", 8), ("b", 16)):
        keep(results, load_sweep_spec(write_grid(tmp_path / f"{name}.yaml", model=GRID["model"] | {"width": width})))
    verdicts = call("verify-optimum", "--model", "16x1", "--dry-run", "--results", results, "--format", "json", code=1)
    assert [verdict["sweep"] for verdict in verdicts.json] == ["b"]
    refusal = call("verify-optimum", "--model", "64x4", "--results", results, code=2).err
    assert "--model 64x4: no study matches; available: vit-n16" in refusal


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_scales_print_a_row_for_each_group(call: Call, form: str) -> None:
    rows = table(call("scales", "--model", "vit-digits", "--format", form).out, form)
    assert [row["group"] for row in rows] == ["patch", "pe", "q", "k", "v", "u", "w", "x", "head", "head_bias"]


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
    assert "before it can be submitted" in result.err
    assert files(tmp_path / "r") == []


def test_missing_imagenet_says_where_to_point_and_submits_nothing(call: Call, tmp_path: Path) -> None:
    result = call("grid", "--model", "vit-b16", "--results", "r", code=1)
    assert "--data" in result.err
    assert "ETTSWEEP_IMAGENET" in result.err
    (tmp_path / "empty").mkdir()
    result = call("grid", "--model", "vit-b16", "--results", "r", "--data", "empty", code=1)
    assert f"{tmp_path / 'empty'} has no train/" in result.err
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_finished_grid_asked_for_again_submits_nothing(trained: Path) -> None:
    before = files(trained)
    options = (trained.parent / "grid.yaml", "--results", trained, "--launch-set", "slots=1")
    for follow in ([], ["--follow"]):
        result = ettsweep("grid", *options, *follow)
        assert "3 finished" in result.stderr or "3 of 3 runs finished" in result.stderr
    assert files(trained) == before


def test_a_dry_run_of_a_finished_grid_keeps_its_runs(trained: Path, call: Call) -> None:
    rows = call("grid", trained.parent / "grid.yaml", "--results", trained, "--dry-run", "--format", "json").json
    assert [(row["action"], row["state"]) for row in rows] == [("keep", "done")] * 3


# --- status, show, logs ---------------------------------------------------------------------------------------------

STATUS_KEYS = (
    ["run", "sweep", "family", "model", "task", "strategy", "lr", "wd", "log2_lr", "log2_wd", "seed", "state", "progress", "best_score", "reason", "where", "job", "slot", "left_s"]
)  # fmt: skip


def test_status_lists_each_run_as_promised(trained: Path, call: Call) -> None:
    rows = call("status", "--results", trained, "--format", "json").json
    assert [list(row) for row in rows] == [STATUS_KEYS] * 3
    assert {row["log2_lr"] for row in rows} == {-3, -2, -1}
    for row in rows:
        assert (row["state"], row["progress"], row["strategy"], row["task"]) == ("done", 1.0, "standard", "bowl")
        result = json.loads((trained / "runs" / row["run"] / "result.json").read_text())
        assert row["best_score"] == result["best_loss"]


def test_status_as_csv_and_markdown_has_the_same_runs(trained: Path, call: Call) -> None:
    rows = call("status", "--results", trained, "--format", "json").json
    as_csv = table(call("status", "--results", trained, "--format", "csv").out, "csv")
    assert list(as_csv[0]) == STATUS_KEYS
    assert [(r["run"], float(r["best_score"])) for r in as_csv] == [(r["run"], r["best_score"]) for r in rows]
    markdown = table(call("status", "--results", trained, "--format", "markdown").out, "markdown")
    assert [r["run"] for r in markdown] == [r["run"] for r in rows]


def test_status_of_nothing_is_an_empty_list(call: Call) -> None:
    Path("empty").mkdir()
    for form in ("json", "csv", "markdown", "table"):
        result = call("status", "--results", "empty", "--format", form)
        assert form != "json" or result.json == []
    assert "no runs yet; `ettsweep grid --model vit-digits --results empty` starts some" in result.err
    assert "no sweeps yet" in call("sweeps", "--results", "empty").err


def test_status_narrows(trained: Path, call: Call) -> None:
    rows = call("status", "--results", trained, "--format", "json").json
    first = rows[0]["run"]
    assert call("status", first[:8], "--results", trained, "--format", "json").json == rows[:1]
    assert call("status", "--strategy", "standard", "--results", trained, "--format", "json").json == rows
    assert len(call("status", "--state", "done", "--results", trained, "--format", "json").json) == 3


def test_status_shows_broken_run_folders(results: Path, finish_scores: Any, call: Call) -> None:
    specs = finish_scores([1.0, 1.0, 1.0])
    (results / "runs" / specs[0].run_id / "spec.json").write_text("{")
    (results / "runs" / specs[1].run_id / "result.json").write_text('{"run": "x"}')
    result = call("status", "--results", results, "--format", "json")
    assert f"run folder {specs[0].run_id} is broken" in result.err
    assert {row["run"]: row["state"] for row in result.json} == {specs[1].run_id: "failed", specs[2].run_id: "done"}
    assert call("show", specs[0].run_id, "--results", results, "--format", "json").json["state"] == "failed"


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


def test_watching_finished_runs_ends_with_a_summary(trained: Path, call: Call) -> None:
    assert "3/3 runs finished (3 done)" in call("watch", "--results", trained).err


def test_watching_runs_of_which_some_will_not_finish_exits_1(results: Path, finish_scores: Any, call: Call) -> None:
    specs = finish_scores([2.0, None, -1])
    failed(results, specs[2])
    result = call("watch", "--results", results, code=1)
    assert "2/3 runs finished (1 done, 1 diverged, 1 failed)" in result.err
    assert f"`ettsweep status --results {results}` lists the runs that have not finished" in result.err


def test_status_is_sorted_for_people(results: Path, finish_scores: Any, call: Call) -> None:
    base = finish_scores([2.0, 1.0, 2.0])[0]
    for lr, wd, seed in ((10.0, 0.5, 0), (9.0, 0.5, 0), (9.0, 0.5, 11), (9.0, 0.5, 2), (9.0, 0.25, 3)):
        RunDir.create(results, base.with_point(lr, wd, seed))
    mup = base.model_copy(update={"strategy": StrategySpec(s=1.0), "lr": 0.001})
    RunDir.create(results, mup)
    for form in ("json", "csv"):
        text = call("status", "--results", results, "--format", form).out
        rows = json.loads(text) if form == "json" else table(text, form)
        assert [(row["strategy"], float(row["lr"]), float(row["wd"]), int(row["seed"])) for row in rows] == [
            *(("standard", lr, 0.25, 0) for lr in (0.125, 0.25, 0.5)),
            ("standard", 9.0, 0.25, 3),
            *(("standard", 9.0, 0.5, seed) for seed in (0, 2, 11)),
            ("standard", 10.0, 0.5, 0),
            ("mup", 0.001, 0.25, 0),
        ]


@pytest.mark.parametrize(
    "command",
    [
        *(
            "status",
            "sweeps",
            "watch",
            "logs 0",
            "show 0",
            "cancel --all",
            "retry --all",
            "clean",
        ),
        *("verify-optimum", "seeds", "report", "train 0", "search --sweep a"),
        "sweeps delete a",
    ],
)
def test_who_looks_into_a_folder_that_is_not_there_is_given_the_first_command(
    call: Call, tmp_path: Path, command: str
) -> None:
    result = call(*command.split(), code=2)
    assert result.out == ""
    assert result.err == (
        f"ettsweep: no results yet: {tmp_path / 'results'} does not exist; `ettsweep grid --model vit-digits` starts a "
        "sweep there, --results DIR selects another folder\n"
    )
    assert "`ettsweep grid --model vit-digits --results a`" in call(*command.split(), "--results", "a", code=2).err
    Path("file").touch()
    result = call(*command.split(), "--results", "file", code=2)
    assert result.err == f"ettsweep: {tmp_path / 'file'} is not a folder; --results DIR selects another one\n"
    assert files(tmp_path) == [tmp_path / "file"]


def test_a_run_that_diverged_is_no_success_of_who_trains_it(results: Path, finish_scores: Any, call: Call) -> None:
    done, diverged, _ = finish_scores([1.0, None, 1.0])
    assert "diverged" in call("train", diverged.run_id, "--results", results, code=1).out
    assert "done" in call("train", done.run_id, "--results", results).out


def test_status_says_what_starts_runs_that_wait(results: Path, finish_scores: Any, call: Call) -> None:
    specs = finish_scores([2.0, -1, -1])
    assert "wait for a worker" not in call("status", "--results", results).err
    RunDir.create(results, specs[1])
    attempt = RunDir.create(results, specs[2]).claim({}, after=0)
    assert attempt
    attempt.record_failure("interrupted", "terminated")
    result = call("status", "--results", results)
    assert "2 runs wait for a worker" in result.err
    assert f"`ettsweep retry --state interrupted --state missing --results {results}`" in result.err
    assert "wait for a worker" not in call("status", "--state", "done", "--results", results).err


# --- what notes tell to type ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["ettsweep", "status"], "say `ettsweep watch`, then `ettsweep retry 1`, not `slots: 1`"),
        (
            ["ettsweep", "status", "--results", "r"],
            "say `ettsweep watch --results r`, then `ettsweep retry 1 --results r`, not `slots: 1`",
        ),
        (
            ["ettsweep", "status", "--results=a", "--results=my runs"],
            "say `ettsweep watch --results 'my runs'`, then `ettsweep retry 1 --results 'my runs'`, not `slots: 1`",
        ),
    ],
)
def test_commands_to_type_name_the_results_folder_that_was_given(argv: list[str], expected: str) -> None:
    assert with_results("say `ettsweep watch`, then `ettsweep retry 1`, not `slots: 1`", argv) == expected


def test_errors_name_the_results_folder_too(results: Path, finish_scores: Any, call: Call, tmp_path: Path) -> None:
    finish_scores([2.0, 1.0, 2.0])
    result = call("show", "fff", "--results", results, code=2)
    assert f"no run starts with 'fff'; `ettsweep status --results {results}` lists them" in result.err
    result = call("status", "fff", f"--results={tmp_path / 'my runs'}", code=2)
    assert f"`ettsweep grid --model vit-digits --results '{tmp_path / 'my runs'}'` starts a sweep there" in result.err


# --- verdicts -------------------------------------------------------------------------------------------------------

VERDICT_KEYS = {
    "family",
    "model",
    "strategy",
    "verdict",
    "lr",
    "wd",
    "score",
    "metric",
    "mode",
    "neighbours",
    "missing",
}


def test_an_optimum_is_verified_as_promised(trained: Path, call: Call) -> None:
    (verdict,) = call("verify-optimum", "--results", trained, "--format", "json").json
    assert set(verdict) >= VERDICT_KEYS
    assert (verdict["verdict"], verdict["lr"], verdict["wd"]) == ("optimal", 0.25, 0.25)
    assert (verdict["metric"], verdict["mode"], verdict["strategy"]) == ("best_loss", "min", "standard")
    assert verdict["missing"] == []
    assert all(list(n)[:4] == ["lr", "wd", "score", "state"] for n in verdict["neighbours"])
    assert {(n["lr"], n["wd"], n["state"]) for n in verdict["neighbours"]} == {
        (0.125, 0.25, "done"),
        (0.5, 0.25, "done"),
    }
    scores = {row["lr"]: row["best_score"] for row in call("status", "--results", trained, "--format", "json").json}
    assert verdict["score"] == scores[0.25] == min(scores.values())
    assert {n["lr"]: n["score"] for n in verdict["neighbours"]} == {0.125: scores[0.125], 0.5: scores[0.5]}


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_verdicts_print_a_row_for_each_family(trained: Path, call: Call, form: str) -> None:
    (row,) = table(call("verify-optimum", "--results", trained, "--format", form).out, form)
    assert (row["strategy"], parse_number(row["lr"])) == ("standard", 0.25)
    assert row["verdict"] == "optimal by the paper's comparison of means"


@pytest.mark.parametrize(
    ("scores", "verdict", "code", "missing"),
    [
        ([2.0, 1.0, 2.0], "optimal", 0, []),
        ([None, 1.0, None], "optimal", 0, []),
        ([1.0, 1.0, 2.0], "edge", 1, [0.0625]),
        ([2.0, 1.0, -1], "incomplete", 1, [0.5]),
        ([2.0, 2.0, 1.0], "edge", 1, [1.0]),
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


def test_a_named_point_is_judged(results: Path, finish_scores: Any, call: Call) -> None:
    finish_scores([3.0, 1.0, 2.0])
    options = ("verify-optimum", "--dry-run", "--results", results, "--format", "json")
    assert call(*options, "--at", "0.25,0.25").json[0]["verdict"] == "optimal"
    refuted = call(*options, "--at", "0.5,0.25", code=1).json[0]
    assert (refuted["verdict"], refuted["lr"], refuted["path"]) == ("refuted", 0.5, [])


def test_a_point_typed_as_status_prints_it_is_the_known_one(results: Path, call: Call, tmp_path: Path) -> None:
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "asked.yaml", centre={"standard": {"lr": 1 / 3, "wd": 2 / 3}}))
    keep(results, sweep_spec)
    for spec, score in zip(sweep_spec.specs(), (3.0, 1.0, 2.0), strict=True):
        finish(results, spec, score)
    options = ("verify-optimum", "--dry-run", "--results", results, "--format", "json")
    (verdict,) = call(*options, "--at", "0.3333,0.6667").json
    assert (verdict["verdict"], verdict["lr"], verdict["wd"]) == ("optimal", 1 / 3, 2 / 3)
    result = call(*options, "--at", "0.3333,0.5", code=2)
    assert "--at: wd is fixed at 0.6666666667 in asked standard, got 2^-1" in result.err


def test_a_point_of_several_families_is_refused(results: Path, call: Call, tmp_path: Path) -> None:
    keep(results, load_sweep_spec(write_grid(tmp_path / "asked.yaml", strategies=["standard", "mup"])))
    options = ("verify-optimum", "--dry-run", "--results", results)
    result = call(*options, "--at", "0.25,0.25", code=2)
    assert "--at needs a single study, but 2 are selected: asked vit-n8" in result.err
    assert "k10 standard, " in result.err
    assert "use --sweep and --strategy" in result.err
    call(*options, "--at", "0.25,0.25", "--strategy", "standard", code=1)


def test_sweeps_launched_differently_need_a_choice(results: Path, call: Call, tmp_path: Path) -> None:
    item, two = ("slots=1",), ("slots=2",)
    for strategy, launch_set in (("standard", item), ("mup", two)):
        sweep_spec = load_sweep_spec(write_grid(tmp_path / f"{strategy}.yaml", strategies=[strategy]))
        extend_sweep(results, strategy, sweep_spec, LaunchSettings(overrides=launch_set))
    options = ("--dry-run", "--results", results)
    for command in ("verify-optimum", "seeds"):
        result = call(command, *options, code=2)
        assert "these sweeps were launched differently (" in result.err
        assert "standard with local slots=1" in result.err
        assert "mup with local slots=2" in result.err
        assert "choose with --launch, or narrow them with --sweep" in result.err
    call("verify-optimum", *options, "--launch", "local", code=1)
    call("verify-optimum", *options, "--launch-set", "slots=1", code=1)
    call("verify-optimum", *options, "--strategy", "mup", code=1)
    call("verify-optimum", *options, "--sweep", "mup", code=1)
    assert not (results / "jobs").exists()


def test_no_more_runs_are_submitted_than_allowed(results: Path, finish_scores: Any, call: Call) -> None:
    finish_scores([1.0, 2.0, 3.0])
    result = call("verify-optimum", "--max-runs", 0, "--results", results, code=1)
    assert "1 more run is needed than --max-runs 0 allows" in result.err
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
    assert "not rerun, since not verified" in result.err
    finish(results, load_sweep_spec(Path("asked.yaml")).specs()[2], 3.0)
    rows = call("seeds", "--dry-run", "--count", 2, "--results", results, "--format", "json").json
    assert [(row["lr"], row["seed"], row["action"]) for row in rows] == [(0.25, 1, "submit"), (0.25, 2, "submit")]


# --- wrong input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("grid", "give a grid file, or --model NAME"),
        ("grid --model vit-digits grid.yaml", "give a grid file"),
        ("grid other.yaml", "other.yaml: no such file"),
        ("grid .", ".: cannot be read"),
        ("grid --model vit-digit", "unknown model 'vit-digit'; did you mean 'vit-digits'?"),
        ("grid grid.yaml --strategy nkt", "unknown strategy 'nkt'; did you mean 'ntk'?"),
        ("grid grid.yaml --strategy NTK", "unknown strategy 'NTK'; did you mean 'ntk'?"),
        ("grid --model VIT-DIGITS", "unknown model 'VIT-DIGITS'; did you mean 'vit-digits'?"),
        ("grid grid.yaml --launch LOCAL", "unknown launch profile 'LOCAL'; did you mean 'local'?"),
        ("grid grid.yaml --log WANDB", "unknown metric logger 'WANDB'; did you mean 'wandb'?"),
        ("grid grid.yaml --set optimizer=SGD", "unknown kind 'SGD'; did you mean 'sgd'?"),
        ("search grid.yaml --sampler TPE", "unknown sampler 'TPE'; did you mean 'tpe'?"),
        ("search grid.yaml --from NTK", "unknown strategy or sweep 'NTK'; did you mean 'ntk'?"),
        ("status --state DONE --results empty", "unknown state 'DONE'; did you mean 'done'?"),
        ("status --results asked --sweep GRID", "unknown sweep 'GRID'; did you mean 'grid'?"),
        ("status --results asked --model VIT-N8-L1-H2-P4-I8-C1-K10", "no run or study matches; did you mean 'vit-n8"),
        ("train grid.yaml --lr -1", "--lr: input should be greater than 0, got -1"),
        ("train grid.yaml --seed 2147483648", "--seed: input should be less than or equal to 2147483647"),
        ("grid grid.yaml --strategy s=7", "s must be a number from 0 to 1"),
        ("grid grid.yaml --launch loacl", "unknown launch profile 'loacl'; did you mean 'local'?"),
        ("grid grid.yaml --launch other.yaml", "other.yaml: no such launch profile"),
        ("grid grid.yaml --launch-set slots=0", "slots: a whole number of at least 1, or auto, is expected, got 0"),
        ("grid grid.yaml --launch-set slosts=1", "slosts: unknown key; did you mean slots?"),
        ("grid grid.yaml --launch-set slots=100000", "slots: 100000 are too many: this machine has "),
        ("grid grid.yaml --dry-run --set model.width=100000000", "GiB of any machine"),
        ("grid grid.yaml --dry-run --set model.width=1000000", "GiB of this machine"),
        ("train grid.yaml --set model.width=1000000", "GiB of this machine"),
        ("grid grid.yaml --dry-run --launch slurm-cpu --set model.width=20000", "8 GiB of 1 node with that mem_gb"),
        ("grid grid.yaml --set recipe.batch_size=8", "recipe.batch_size: unknown key; did you mean batch_size?"),
        ("grid grid.yaml --lr-range -1.5:1", "lr: -1.5 is no multiple of the step 1; nearest: -2, -1"),
        ("grid grid.yaml --set model.width=7", "width 7 is not divisible by heads 2; nearest width: 6, 8"),
        ("grid grid.yaml --set model.widht=8", "model.widht: unknown key"),
        ("grid grid.yaml --set batch_size", "key=value is expected"),
        ("grid grid.yaml --set lr=1", "use --lr-range"),
        ("grid grid.yaml --seeds a,b", "--seeds: whole numbers with commas are expected"),
        ("grid grid.yaml --seeds 1,1", "repeats a seed"),
        ("grid grid.yaml --seeds 2147483648,", "seeds.0: input should be less than or equal to 2147483647"),
        ("grid grid.yaml --strategy mup --strategy s=1", "strategy mup is given twice"),
        ("grid grid.yaml --lr-range -1:1:0.0001", "lr.step: input should be greater than or equal to 0.0009765625"),
        ("grid grid.yaml --launch-set devices=[99]", "devices: there is no GPU 99"),
        ("grid grid.yaml --lr-range 1", "--lr-range: low:high"),
        ("grid grid.yaml --lr-range 1:-1", "empty range"),
        ("verify-optimum --results empty", "no sweeps yet; `ettsweep grid --model vit-digits --results empty` starts one"),
        ("verify-optimum --results asked --strategy ntk", "--strategy ntk: no study matches; available: standard\n"),
        ("verify-optimum --results asked --strategy nkt", "unknown strategy 'nkt'"),
        ("verify-optimum --results asked --family zzz", "--family zzz: no study matches; available: "),
        ("report --results asked --model vit-b16", "--model vit-b16: no study matches; available: vit-n8"),
        ("verify-optimum --results asked --at 1", "--at: LR,WD is expected"),
        ("verify-optimum --results asked --launch nope", "unknown launch profile 'nope'"),
        ("seeds --results empty", "no sweeps yet"),
        ("report --results empty", "no sweeps yet"),
        ("status --state finshed --results empty", "unknown state 'finshed'"),
        ("status fff --results empty", "no run starts with 'fff'"),
        ("status --family zzz --results empty", "--family zzz: no run or study matches; there is none yet\n"),
        ("status --model nope --results empty", "--model nope: no run or study matches; there is none yet\n"),
        ("status --strategy nkt --results empty", "unknown strategy 'nkt'"),
        ("status --results asked --strategy mup", "--strategy mup: no run or study matches; available: standard\n"),
        ("status --results asked --model vit-b16", "--model vit-b16: no run or study matches; available: vit-n8"),
        ("watch --results asked --model vit-n9-l1-h2-p4-i8-c1-k10", "-k10: no run or study matches; did you mean 'vit-n8"),
        ("cancel --results asked --strategy mup", "--strategy mup: no run or study matches; available: standard\n"),
        ("show fff --results empty", "no run starts with 'fff'"),
        ("logs fff --results empty", "no run starts with 'fff'"),
        ("watch --results empty", "no runs to watch"),
        ("cancel --results empty", "select runs: "),
        ("cancel fff --results empty", "no run starts with 'fff'"),
        ("retry --results empty", "select runs: "),
        ("retry --all --launch nope --results empty", "unknown launch profile 'nope'"),
        ("train", "give a grid file or a run id"),
        ("train fff --results empty", "no run starts with 'fff'"),
        ("train grid.yaml --lr -1", "lr: input should be greater than 0, got -1"),
        ("train grid.yaml --wd inf", "wd: input should be a finite number"),
        ("map --lr 1 --wd 1 --from standard --to ntk", "a width is needed: give one of --width N, --model NAME, "),
        ("map --lr 1 --wd 1 --from ntk --to mup --width 8 --model 8x1", "a width is needed: give one of --width N, "),
        ("scales", "give a grid file, --model NAME, or --model WIDTHxDEPTH"),
        ("scales --model vit-digits grid.yaml", "give a grid file"),
        ("scales other.yaml", "other.yaml: no such file"),
        ("scales --model 64x", "unknown model '64x'"),
        ("grid --model gpt3-muon", "unknown model 'gpt3-muon'"),
        ("grid --model muon", "unknown model 'muon'"),
        ("grid --model 64x4", "no grid file has `model: 64x4`; `ettsweep init --model 64x4` writes one"),
        ("map --lr 1 --wd 1 --from standard --to ntk --model vit", "unknown model 'vit'"),
        ("map --lr 1 --wd 1 --from nkt --to ntk --width 8", "unknown strategy 'nkt'"),
        ("map --lr -1 --wd -1 --from ntk --to mup --width 8", "--lr: input should be greater than 0, got -1.0"),
        ("map --lr nan --wd 1 --from ntk --to mup --width 8", "--lr: input should be a finite number, got nan"),
        ("scales --model vit", "unknown model 'vit'"),
        ("scales --model vit-b16 --strategy nkt", "unknown strategy 'nkt'"),
        ("scales --model vit-b16 --lr 0", "--lr: a number between 0 and 1e30 is expected, got 0.0"),
    ],
)  # fmt: skip
def test_wrong_input_is_a_message_and_exit_code_2(call: Call, tmp_path: Path, arguments: str, message: str) -> None:
    grid = write_grid(tmp_path / "grid.yaml")
    keep(tmp_path / "asked", load_sweep_spec(grid))
    (tmp_path / "empty").mkdir()
    result = call(*arguments.split(), code=2)
    assert message in result.err
    assert result.err.startswith("ettsweep: ")
    assert result.out == ""
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["grid grid.yaml", "train grid.yaml"])
def test_a_results_folder_that_cannot_be_written_is_told(call: Call, tmp_path: Path, command: str) -> None:
    write_grid(tmp_path / "grid.yaml")
    (tmp_path / "file").touch()
    for results in ("file", "file/results", "/proc/results"):
        result = call(*command.split(), "--results", results, code=1)
        assert result.err.startswith("ettsweep: ")
        assert results in result.err


def test_a_sweep_edited_by_hand_is_told_and_others_go_on(call: Call, results: Path, finish_scores: Any) -> None:
    finish_scores([2.0, 1.0, 2.0])
    path = results / "sweeps" / "asked.yaml"
    text = path.read_text()
    path.write_text(text.replace("seeds:", "sedes:"))
    for command in ("verify-optimum", "seeds", "report"):
        result = call(command, "--results", results, "--sweep", "asked", code=1)
        assert f"{path}: asked.sedes: unknown key" in result.err
        assert "repair the file" in result.err
    path.with_name("other.yaml").write_text(text)
    result = call("verify-optimum", "--results", results)
    assert "sweep asked is left out: " in result.err
    path.write_text("- something: new\n")
    assert "something: unknown key" in call("status", "--results", results).err


def test_a_broken_run_cannot_be_trained_or_logged(call: Call, results: Path, finish_scores: Any) -> None:
    spec = finish_scores([2.0, 1.0, 2.0])[0]
    (results / "runs" / spec.run_id / "spec.json").write_text("{")
    for command in ("train", "retry"):
        err = call(command, spec.run_id, "--results", results, code=1).err
        assert f"{results / 'runs' / spec.run_id / 'spec.json'}: no valid JSON" in err
        assert "the command that asked for the run writes it anew" in err
    call("logs", spec.run_id, "--results", results)
    result = call("grid", "asked.yaml", "--dry-run", "--results", results, "--format", "json")
    assert {row["run"]: row["action"] for row in result.json}[spec.run_id] == "retry"  # its spec is written anew


# --- cancel, retry, clean, train, doctor ----------------------------------------------------------------------------


def test_many_runs_are_cancelled_only_after_a_yes(call: Call, results: Path, finish_scores: Any) -> None:
    specs = finish_scores([2.0, 1.0, 2.0])
    for seed in (1, 2):
        RunDir.create(results, specs[0].with_point(1.0, 0.5, seed))
    call("cancel", "--all", "--results", results, stdin="n\n", code=1)
    assert not list(results.glob("runs/*/cancel.json"))
    assert "2 runs cancelled" in call("cancel", "--all", "--results", results, stdin="y\n").err
    rows = call("status", "--results", results, "--format", "json").json
    assert sorted(row["state"] for row in rows) == ["cancelled", "cancelled", "done", "done", "done"]
    assert "0 runs cancelled" in call("cancel", "--all", "--yes", "--results", results).err


def test_a_question_that_nobody_can_answer_names_the_option(call: Call, results: Path, finish_scores: Any) -> None:
    specs = finish_scores([-1, -1, -1])
    for spec in specs:
        failed(results, spec)
    RunDir.create(results, specs[0].with_point(1.0, 0.5, 1))
    RunDir.create(results, specs[0].with_point(1.0, 0.5, 2))
    before = files(results)
    for command in ("cancel", "retry"):
        result = call(command, "--all", "--results", results, code=2)
        assert "no answer; --yes skips this question" in result.err
    assert files(results) == before


def test_a_failed_run_is_not_cancelled(call: Call, results: Path, finish_scores: Any) -> None:
    specs = finish_scores([2.0, -1, -1])
    failed(results, specs[1])
    RunDir.create(results, specs[2])
    result = call("cancel", "--all", "--yes", "--results", results)
    assert result.err.splitlines() == ["1 run cancelled"]
    rows = call("status", "--results", results, "--format", "json").json
    assert [row["state"] for row in rows] == ["done", "failed", "cancelled"]


def test_a_named_run_that_cannot_be_cancelled_says_why(call: Call, results: Path, finish_scores: Any) -> None:
    specs = finish_scores([2.0, None, -1])
    failed(results, specs[2])
    result = call("cancel", *(spec.run_id for spec in specs), "--yes", "--results", results)
    assert "0 runs cancelled" in result.err
    for spec, state in zip(specs, ("done", "diverged", "failed"), strict=True):
        assert f"run {spec.run_id} is {state}: nothing to cancel" in result.err
    assert not list(results.glob("runs/*/cancel.json"))


def test_retrying_a_run_in_training_does_nothing_to_it(call: Call, results: Path, finish_scores: Any) -> None:
    spec = finish_scores([2.0, 1.0, -1])[2]
    attempt = RunDir.create(results, spec).claim({}, after=0)  # this process lives
    assert attempt
    before = files(results)
    result = call("retry", spec.run_id, "--results", results)
    assert f"run {spec.run_id} is running: nothing to retry" in result.err
    assert files(results) == before
    assert not attempt.is_retried()
    assert RunDir(attempt.run).status().state is State.RUNNING


def test_retrying_a_finished_run_keeps_its_result(call: Call, results: Path, finish_scores: Any) -> None:
    spec = finish_scores([2.0, 1.0, 2.0])[0]
    before = files(results)
    assert "1 finished" in call("retry", spec.run_id, "--results", results).err
    assert files(results) == before


def test_a_result_edited_by_hand_is_a_failure_with_what_to_type(call: Call, results: Path, finish_scores: Any) -> None:
    spec = finish_scores([2.0, 1.0, 2.0])[0]
    path = results / "runs" / spec.run_id / "result.json"
    path.write_text(path.read_text().replace('"score": 2.0', '"score": 0.5'))
    row = call("status", spec.run_id, "--results", results, "--format", "json").json[0]
    assert (row["state"], row["best_score"]) == ("failed", None)
    reason = call("show", spec.run_id, "--results", results, "--format", "json").json["reason"]
    assert str(path) in reason
    assert f"`ettsweep retry {spec.run_id}` trains it again" in reason


def test_nothing_to_retry_is_said(call: Call, results: Path, finish_scores: Any) -> None:
    finish_scores([2.0, 1.0, 2.0])
    assert "nothing to do" in call("retry", "--all", "--yes", "--results", results).err
    assert not (results / "jobs").exists()


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
    grid = write_grid(tmp_path / "grid.yaml")
    options = ("train", grid, "--lr", 0.125, "--seed", 5, "--results", results)
    result = ettsweep(*options)
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


def test_doctor_tells_what_works(call: Call, results: Path) -> None:
    lock = lock_slot(LocalProfile(devices="cpu", slots=1).resolve_slots()[0], Path("/other"))
    assert lock
    options = ("--launch-set", "devices=cpu", "--launch-set", "slots=2", "--results", results, "--format", "json")
    rows = {row["check"]: row for row in call("doctor", *options).json}
    unlock(lock)
    messages = rows["profile local"]["detail"]
    assert messages.startswith("2 slots: cpu-0, cpu-1; ")
    assert f"; slot cpu-0, held by process {os.getpid()} of /other; locks in {os.environ['ETTSWEEP_SLOTS']}" in messages
    assert rows["torch"]["state"] == rows["data digits"]["state"] == rows["grids"]["state"] == "ok"
    assert rows["data imagenet"]["state"] == "absent"
    assert not results.exists()


def test_doctor_fails_where_nothing_can_work(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rows = call("doctor", "--launch", "nope", "--results", "file/results", "--format", "json", code=1).json
    failed = {row["check"] for row in rows if row["state"] == "failed"}
    assert failed == {"profile nope", "results file/results"}


@pytest.mark.slow
@pytest.mark.parametrize("missing", [False, True])
def test_doctor_compiles_where_a_profile_asks_for_it(
    call: Call, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    if missing:
        monkeypatch.setenv("CXX", "/nonexistent")
    elif not shutil.which("g++"):
        pytest.skip("there is no compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    options = (
        "--launch-set",
        "devices=cpu",
        "--launch-set",
        "trainer.compile=true",
        "--results",
        results,
        "--format",
        "json",
    )
    rows = {row["check"]: row for row in call("doctor", *options, code=int(missing)).json}
    state, messages = rows["compiler"]["state"], rows["compiler"]["detail"]
    expected = ("failed", "C++ compiler") if missing else ("ok", "compiles a toy block for cpu in ")
    assert (state, expected[1] in messages) == (expected[0], True), messages


# --- metric loggers ---------------------------------------------------------------------------------------------------


def test_an_unknown_metric_logger_is_refused_before_anything_is_submitted(tmp_path: Path, results: Path) -> None:
    result = ettsweep("grid", "--model", "vit-digits", "--log", "paper", "--results", results, code=2, cwd=tmp_path)
    assert result.stderr == "ettsweep: unknown metric logger 'paper'. Known: tensorboard, wandb\n"
    assert not results.exists()


@pytest.mark.slow
def test_metrics_go_to_tensorboard_too_and_later_commands_remember_it(tmp_path: Path, results: Path) -> None:
    grid = write_grid(tmp_path / "g.yaml", lr={"range": [0, 0]})
    ettsweep("grid", grid, "--log", "tensorboard", "--follow", "--results", results)
    ettsweep("verify-optimum", "--follow", "--results", results)
    runs = {run.id for run in runs_in(results)}
    assert len(runs) == 3
    assert {path.parent.name for path in results.glob("tensorboard/*/events.out.tfevents.*")} == runs
