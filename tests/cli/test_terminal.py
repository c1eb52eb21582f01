"""What people read in the terminal: numbers alike in all tables, each hint once, whose a message is."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from support.claims import claimed, finished
from support.commandline import GRID, Call

from ettsweep.launch.progress import ProgressMonitor, render_progress
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec

Ask = Callable[..., list[RunSpec]]
OTHER = {"model": {**GRID["model"], "width": 4}}
"""Another model."""


@pytest.mark.parametrize("command", ["status", "verify-optimum --dry-run", "grid w8.yaml --range lr=-2:1 --dry-run"])
def test_lr_and_wd_are_powers_of_two_in_every_table(
    command: str, call: Call, request_sweep: Ask, results: Path
) -> None:
    request_sweep("w8")
    words = [*command.split(), "--results", results, "--format"]
    for form in ("table", "markdown"):
        *_, printed = call(*words, form).out.split("\n\n")  # below the answer
        head, *rows = (re.split(r"\s*\| | \|$|\s{2,}", line.strip()) for line in printed.splitlines())
        values = {row[head.index(name)] for row in rows if "---" not in row[1:2] for name in ("lr", "wd")}
        assert "2^-2 (0.25)" in values
        assert values <= {"2^-1 (0.5)", "2^-2 (0.25)", "2^-3 (0.125)", "2^-4 (0.0625)"}, form
    (first, *_) = csv.DictReader(io.StringIO(call(*words, "csv").out))
    assert {first["lr"], first["wd"]} <= {"0.0625", "0.125", "0.25"}, "programs read numbers"


@pytest.mark.usefixtures("undrawn")
def test_report_prints_the_spikes_of_the_candidates(call: Call, request_sweep: Ask, results: Path) -> None:
    request_sweep("w8", facts={"steps": 24, "loss_spikes": 0})
    err = call("report", "--results", results).err
    assert "no spikes at the candidates: 1 run, 24 steps" in err
    assert "\n3 finished runs: 0.03 device hours\n" in err
    request_sweep("w4", facts={"steps": 24, "loss_spikes": 3}, seeds=[0, 1], **OTHER)
    result = call("report", "--results", results)
    assert re.findall(r"^(w.) .* (\d+) +(\d+) +(\d \(.*\))$", result.out, re.MULTILINE) == [
        ("w4", "2", "48", "6 (3 a run, 125 per 1,000 steps)"),
        ("w8", "1", "24", "0 (0 a run, 0 per 1,000 steps)"),
    ]


# --- hints and names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["verify-optimum --dry-run", "grid w8.yaml"])
def test_a_hint_is_given_once(command: str, call: Call, request_sweep: Ask, results: Path) -> None:
    """Two of six runs failed alike, one otherwise: `retry` is for all three."""
    specs = request_sweep(score=None, seeds=[0, 1])
    for spec, reason in zip(specs, ("", "", "a", "a", "", "b"), strict=True):
        if reason:
            claimed(RunDir.create(results, spec)).record_failure("error", reason)
        else:
            finished(RunDir.create(results, spec))
    result = call(*command.split(), "--results", results, code=None)
    assert result.err.count("`ettsweep retry ") == 1
    assert result.err.count("trains them again") == 1
    assert re.search(r"^runs \w+, \w+ are failed: a$", result.err, re.MULTILINE)
    assert bool(re.search(r"^run \w+ is failed: b$", result.err, re.MULTILINE)) == command.startswith("grid")


def test_what_holds_for_several_families_is_said_once_and_names_their_models(
    call: Call, request_sweep: Ask, results: Path
) -> None:
    grid = {"lr": {"range": [0, 0]}, "wd": {"range": [0, 0]}, "strategies": ["standard", "ntk"]}
    request_sweep("one", **grid)
    request_sweep("two", **grid, **OTHER)
    eight, four = "one vit-n8-l1-h2-p4-i8-c1-k10", "two vit-n4-l1-h2-p4-i8-c1-k10"
    names = f"{eight} standard, {eight} ntk, {four} standard, {four} ntk"
    text = f"{eight} standard, {four} standard: Best so far: lr 0.25, wd 0.25. 6 neighbours were not tried yet."
    result = call("seeds", "--results", results, code=1)
    said = " ".join(result.out.split())
    assert text in said
    assert said.count("lr 0.25, wd 0.25") == 1
    assert f"skipped, since not verified: {names}\n" in result.err
    result = call("verify-optimum", "--dry-run", "-s", "two", "--results", results, code=1)
    assert "two standard: Best so far" in result.out, "of one model, its sweep tells enough"
    specs = [spec for name in ("one", "two") for spec in load_sweep_spec(Path(f"{name}.yaml")).specs()]
    others = [spec.with_point(spec.point, 7) for spec in specs]
    for spec in others:
        claimed(RunDir.create(results, spec)).record_failure("error", "RuntimeError: out of luck")
    monitor = ProgressMonitor(results, others, {})
    (console := Console(file=io.StringIO(), width=200)).print(render_progress(monitor, monitor.poll(), "all", 200))
    assert {*re.findall(r"vit-n\d", console.file.getvalue())} == {"vit-n4", "vit-n8"}
