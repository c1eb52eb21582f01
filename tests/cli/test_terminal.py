"""What people read in the terminal: numbers alike in all tables, each hint once, whose a message is."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from support.commandline import GRID, Call, keep, write_grid
from support.made_sweep import digits_spec, imagenet_spec

from ettsweep.cli.verdict_tables import score_note
from ettsweep.launch.progress import ProgressMonitor, render_progress
from ettsweep.runs.folder import RunDir
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.lattice import Axis
from ettsweep.study.study import Study

Ask = Callable[..., list[RunSpec]]
OTHER = {"model": {**GRID["model"], "width": 4}}
"""Another model."""


@pytest.fixture
def request_sweep(results: Path, tmp_path: Path) -> Ask:
    """Return a function that makes a sweep of the small grid, whose best point is the middle one."""

    def asked(name: str, spikes: int = 0, **changes: object) -> list[RunSpec]:
        sweep_spec = load_sweep_spec(write_grid(tmp_path / f"{name}.yaml", **changes))
        keep(results, sweep_spec)
        specs = sweep_spec.specs()
        for spec in specs:
            run = RunDir.create(results, spec)
            assert run.claim({}, after=0)
            score = 1 + abs(spec.lr - 0.25)
            assert run.finish({"status": "done", "score": score, "steps": 24, "loss_spikes": spikes}, [])
        return specs

    return asked


TABLES = {
    "status": 0,
    "verify-optimum --dry-run": 0,
    "seeds --dry-run": 0,
    "grid w8.yaml --lr-range -2:1 --dry-run": 0,
    "map --lr 2^-2 --wd 2^-2 --from standard --to standard --width 8": 0,
}


@pytest.mark.parametrize("command", TABLES)
def test_lr_and_wd_are_powers_of_two_in_every_table(
    command: str, call: Call, request_sweep: Ask, results: Path
) -> None:
    request_sweep("w8")
    cases = [*command.split(), *([] if command.startswith("map") else ["--results", results])]
    for form in ("table", "markdown"):
        head, *rows = (
            re.split(r"\s*\| | \|$|\s{2,}", line.strip()) for line in call(*cases, "--format", form).out.splitlines()
        )
        values = {row[head.index(name)] for row in rows if "---" not in row[1:2] for name in ("lr", "wd")}
        assert "2^-2 (0.25)" in values
        assert values <= {"2^-1 (0.5)", "2^-2 (0.25)", "2^-3 (0.125)", "2^-4 (0.0625)"}, form
    (first, *_) = csv.DictReader(io.StringIO(call(*cases, "--format", "csv").out))
    assert {first["lr"], first["wd"]} <= {"0.0625", "0.125", "0.25"}, "programs read numbers"


def test_lr_and_wd_are_powers_of_two_where_they_are_shown_otherwise(
    call: Call, request_sweep: Ask, results: Path
) -> None:
    spec = request_sweep("w8")[1]
    out = call("show", spec.run_id, "--all", "--results", results).out
    assert re.findall(r"^(?:spec\.)?[lw][rd] +(\S+ \S+)$", out, re.MULTILINE) == ["2^-2 (0.25)"] * 4
    attempt = RunDir.create(results, other := spec.with_point(0.125, 0.0, 3)).claim({}, after=0)
    assert attempt
    attempt.record_failure("error", "RuntimeError: out of luck")
    monitor = ProgressMonitor(results, [other], {})
    (console := Console(file=io.StringIO(), width=200)).print(render_progress(monitor, monitor.poll(), "all", 200))
    assert re.search(r"2\^-3 \(0.125\) +0 +3 ", console.file.getvalue())
    result = call("verify-optimum", "--at", "2^-1,2^-2", "--dry-run", "--results", results, code=1)
    assert re.search(r"refuted .*means +2\^-1 \(0.5\) +2\^-2 \(0.25\)", result.out)
    output = call("verify-optimum", "--at", "2^-1.5,2^-2", "--dry-run", "--results", results, code=2)
    assert "--at: lr 2^-1.5 is no point of w8 standard; the nearest is 2^-" in output.err


@pytest.mark.parametrize("option", ["--lr", "--wd"])
def test_what_is_neither_a_number_nor_a_power_is_refused(option: str, call: Call) -> None:
    mapping = {"--lr": "1", "--wd": "1", "--from": "ntk", "--to": "mup", "--width": "8"} | {option: "2^x"}
    result = call("map", *(token for pair in mapping.items() for token in pair), code=2)
    assert f"Invalid value for '{option}': '2^x' is not a number; expected something like 0.01 or 2^-6" in result.err


@pytest.mark.usefixtures("undrawn")
def test_report_prints_the_spikes_of_the_candidates(call: Call, request_sweep: Ask, results: Path) -> None:
    request_sweep("w8")
    err = call("report", "--results", results).err
    assert "no spikes at the candidates: 1 run, 24 steps" in err
    assert "\n3 finished runs: 0 device hours\n" in err
    request_sweep("w4", seeds=[0, 1], spikes=3, **OTHER)
    result = call("report", "--results", results)
    assert re.findall(r"^(w.) .* (\d+) +(\d+) +(\d \(.*\))$", result.out, re.MULTILINE) == [
        ("w4", "2", "48", "6 (3 a run, 125 per 1,000 steps)"),
        ("w8", "1", "24", "0 (0 a run, 0 per 1,000 steps)"),
    ]


@pytest.mark.parametrize("out", [None, "file", "file/below", "/proc/none", "taken"])
@pytest.mark.usefixtures("undrawn")
def test_report_suggests_out_where_it_cannot_write(
    out: str | None, call: Call, request_sweep: Ask, results: Path, tmp_path: Path
) -> None:
    request_sweep("w8")
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "tables" / "runs.csv").mkdir(parents=True)
    (results / "report").touch()
    result = call("report", "--results", results, *(["--out", out] if out else []), code=1)
    text = rf"ettsweep: {re.escape(out or str(results / 'report'))}: cannot be written \(.+\); choose another folder with --out\n"
    assert re.fullmatch(text, result.err)


# --- hints and names ------------------------------------------------------------------------------------------------


def failed(results: Path, spec: RunSpec, reason: str) -> None:
    attempt = RunDir.create(results, spec).claim({}, after=0)
    assert attempt
    attempt.record_failure("error", reason)


@pytest.mark.parametrize("command", ["verify-optimum --dry-run", "grid w8.yaml", "seeds --dry-run"])
def test_a_hint_is_given_once(command: str, call: Call, results: Path, tmp_path: Path) -> None:
    """Two of six runs failed alike, one otherwise: `retry` is for all three."""
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "w8.yaml", seeds=[0, 1]))
    keep(results, sweep_spec)
    for spec, reason in zip(sweep_spec.specs(), ("", "", "a", "a", "", "b"), strict=True):
        if reason:
            failed(results, spec, reason)
        else:
            assert RunDir.create(results, spec).finish({"status": "done", "score": 1.0}, [])
    result = call(*command.split(), "--results", results, code=None)
    assert result.err.count("`ettsweep retry ") == 1
    assert result.err.count("trains them again") == 1
    if not command.startswith("seeds"):
        assert re.search(r"^runs \w+, \w+ are failed: a$", result.err, re.MULTILINE)
        assert bool(re.search(r"^run \w+ is failed: b$", result.err, re.MULTILINE)) == command.startswith("grid")


def test_many_failed_runs_are_retried_by_their_sweep(call: Call, results: Path, tmp_path: Path) -> None:
    """And not the five alone whose ids are said."""
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "w8.yaml", seeds=[0, 1]))
    keep(results, sweep_spec)
    for spec in sweep_spec.specs():
        failed(results, spec, "a")
    result = call("grid", tmp_path / "w8.yaml", "--results", results, code=None)
    assert "... and 1 more" in result.err
    (command,) = re.findall(r"`ettsweep (retry [^`]+)` trains them again", result.err)
    assert command == f"retry --sweep w8 --results {results}"
    asked = call(*command.split(), code=None)
    assert "retry 6 runs?" in asked.out + asked.err


def test_a_hint_for_one_sweep_does_not_stand_for_another_of_the_family(
    call: Call, results: Path, tmp_path: Path
) -> None:
    """Over seed 0 a run of three failed, which the verdict says; over seed 1 a better neighbour hides the one that did."""
    sweep_spec_result = load_sweep_spec(write_grid(tmp_path / "one.yaml", seeds=[0]))
    point = {"lr": {"range": [0, 0]}, "wd": {"range": [0, 0]}}
    other = load_sweep_spec(write_grid(tmp_path / "other.yaml", seeds=[1], **point))
    for sweep_spec in (sweep_spec_result, other):
        keep(results, sweep_spec)
    (requested,) = other.specs()
    improved, inferior = (requested.with_point(requested.lr * x, requested.wd, 1) for x in (2.0, 0.5))
    first, *rest = sweep_spec_result.specs()
    for spec, score in ((requested, 2.0), (improved, 1.0), *((spec, 2.0) for spec in rest)):
        assert RunDir.create(results, spec).finish({"status": "done", "score": score}, [])
    for spec in (first, inferior):
        failed(results, spec, "a")
    assert first.family_id == inferior.family_id
    result = call("verify-optimum", "--dry-run", "--results", results, code=1)
    assert "1 neighbour is better\n" in result.err
    for spec in (first, inferior):
        assert result.err.count(f"`ettsweep retry {spec.run_id} --results") == 1


@pytest.mark.usefixtures("undrawn")
def test_what_holds_for_several_families_is_said_once_and_names_their_models(
    call: Call, request_sweep: Ask, results: Path
) -> None:
    grid = {"lr": {"range": [0, 0]}, "wd": {"range": [0, 0]}, "strategies": ["standard", "ntk"]}
    request_sweep("one", **grid)
    request_sweep("two", **grid, **OTHER)
    eight, four = "one vit-n8-l1-h2-p4-i8-c1-k10", "two vit-n4-l1-h2-p4-i8-c1-k10"
    names = f"{eight} standard, {eight} ntk, {four} standard, {four} ntk"
    text = f"{names}: edge: 6 of 6 neighbours had not been asked for\n"
    for command, code in (("verify-optimum --dry-run", 1), ("seeds", 1), ("seeds --dry-run", 1), ("report", 0)):
        result = call(*command.split(), "--results", results, code=code)
        assert text in result.err
        assert result.err.count("had not been asked for") == 1
        assert (f"not rerun, since not verified: {names}\n" in result.err) == command.startswith("seeds")
    result = call("verify-optimum", "--dry-run", "-s", "two", "--results", results, code=1)
    assert "two standard, two ntk: edge: 6 of 6" in result.err, "of one model, its sweep tells enough"
    specs = [spec for name in ("one", "two") for spec in load_sweep_spec(Path(f"{name}.yaml")).specs()]
    others = [spec.with_point(spec.lr, spec.wd, 7) for spec in specs]
    for spec in others:
        failed(results, spec, "RuntimeError: out of luck")
    monitor = ProgressMonitor(results, others, {})
    (console := Console(file=io.StringIO(), width=200)).print(render_progress(monitor, monitor.poll(), "all", 200))
    assert {*re.findall(r"vit-n\d", console.file.getvalue())} == {"vit-n4", "vit-n8"}


def test_a_score_says_of_which_models_it_is() -> None:
    digits, imagenet = (
        Study(spec, Axis(), Axis(), (0,), (Point(spec.lr, spec.wd),), "s")
        for spec in (digits_spec(None), imagenet_spec(None))
    )
    assert score_note([digits]).startswith("best_loss: the lowest validation loss")
    lines = score_note([digits, imagenet, digits]).splitlines()
    assert [line.partition(": best_")[0] for line in lines] == [digits.model, imagenet.model]


def test_data_that_several_sweeps_lack_are_told_of_all(call: Call, results: Path, tmp_path: Path) -> None:
    task = {"kind": "cifar10"}
    model = {"width": 8, "depth": 1, "heads": 2, "patch_size": 4, "image_size": 32, "channels": 3, "classes": 10}
    for name, width in (("c8", 8), ("c16", 16)):
        keep(
            results, load_sweep_spec(write_grid(tmp_path / f"{name}.yaml", task=task, model={**model, "width": width}))
        )
    err = call("verify-optimum", "--results", results, code=1).err
    assert "sweep c16 (vit-n16-l1-h2-p4-i32-k10), c8 (vit-n8-l1-h2-p4-i32-k10): " in err
    assert err.count("no data set given") == 1
