"""Measurements on a GPU leave a sound file whatever becomes of an item, and the table says what the file does."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commandline import PATIENCE_S, wait_for
from support.forks import Forks

from bench import gpu, gpu_items
from ettsweep.files import read_lines
from ettsweep.processes import cores

CHECKOUT = Path(__file__).parents[2]
RUN = """
import json, sys, time
from pathlib import Path
from bench import gpu
items, out, seconds = json.loads(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
gpu.run([gpu.Item(*item) for item in items], out, time.monotonic() + seconds, small=True)
"""


def measured(out: Path, seconds: float, *items: gpu.Item) -> dict[str, dict[str, Any]]:
    """Measure items in a process of their own; return their lines."""
    dumps_result = json.dumps([list(vars(item).values()) for item in items])
    subprocess.run([sys.executable, "-c", RUN, dumps_result, str(out), str(seconds)], cwd=CHECKOUT, check=True)
    return gpu.read(out, small=True)


def left_behind(folder: Path) -> list[str]:
    """Return the commands of processes whose environment names a folder."""
    collected = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in (process / "environ").read_text(errors="replace"):
                collected.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return collected


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_an_item_that_fails_says_why_one_that_hangs_ends_with_all_it_started_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    wrong = {"model": "vit-b16", "batch_size": "no number", "small": False}
    measured_result = measured(
        tmp_path / "gpu.jsonl",
        200.0,
        gpu.Item("fails", "alone", wrong, 60.0),
        gpu.Item("hangs", "killed_worker", {"mps": False, "small": False}, 9.0),  # amid a grid, with workers of its own
        gpu.Item("environment", "environment", {"small": True}, 60.0),
    )
    assert [line["state"] for line in measured_result.values()] == ["failed", "failed", "done"]
    assert "no number" in measured_result["fails"]["log"]
    assert measured_result["hangs"]["message"] == "took more than 9 s"
    assert not left_behind(tmp_path)
    (row,) = measured_result["environment"]["rows"]
    assert (row["torch"], row["cores"]) == (torch.__version__, cores())


def test_an_item_for_which_the_time_did_not_suffice_is_left_for_another_call(tmp_path: Path) -> None:
    items = [gpu.Item(name, "environment", {"small": True}, 60.0) for name in ("first", "second")]
    assert not measured(tmp_path / "gpu.jsonl", 0.3, *items)


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_what_was_measured_before_a_kill_is_kept_and_not_measured_again(tmp_path: Path) -> None:
    out, table = tmp_path / "gpu.jsonl", tmp_path / "table.md"
    command = [sys.executable, "-m", "bench.gpu", "--small", "--out", str(out), "--table", str(table)]
    command += ["--items", "environment", "attention of vit-b16"]
    with subprocess.Popen(command, cwd=CHECKOUT) as process:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (out.exists() and out.read_bytes().endswith(b"\n")):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    before = out.read_bytes()
    out.write_bytes(before + b'{"item": "attention of vit-b16", "small": tr')  # what a kill amid a write would leave
    subprocess.run(command, cwd=CHECKOUT, check=True)
    assert out.read_bytes().startswith(before)
    lines = gpu.read(out, small=True)
    assert [(name, line["state"]) for name, line in lines.items()] == [
        ("environment", "done"),
        ("attention of vit-b16", "done"),
    ]
    assert out.read_text().count('"environment"') == 1
    text = table.read_text()
    assert "| attention of vit-b16 | " in text
    assert "| head | 0 | not measured: not yet |" in text


@pytest.mark.slow
@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("item", gpu.items(small=True), ids=lambda item: item.name)
def test_each_item_measures_numbers(item: gpu.Item, forks: Forks, tmp_path: Path) -> None:
    rows, log = tmp_path / "rows", tmp_path / "log"
    rows.touch()
    log.touch()
    arguments = (item.function, json.dumps(item.arguments), str(tmp_path), str(rows))
    forks.start("bench.gpu_items:main", *arguments, env=dict(os.environ), output=log)
    *lines, end = wait_for(lambda: [*read_lines(rows)] if '"state"' in rows.read_text() else [], item.name)
    lacking = not torch.cuda.is_available() and (item.function == "waits" or bool(item.arguments.get("mps")))
    assert end["state"] == ("not measured" if lacking else "done"), end
    assert bool(lines) != lacking
    assert all(any(isinstance(cell, int | float) for cell in line["row"].values()) for line in lines)


@pytest.mark.parametrize("small", [True, False])
def test_every_item_has_a_name_of_its_own_and_a_function_that_takes_its_arguments(small: bool) -> None:
    items = gpu.items(small)
    assert len({item.name for item in items}) == len(items)
    for item in items:
        inspect.signature(getattr(gpu_items, item.function)).bind(Path(), **json.loads(json.dumps(item.arguments)))


# --- the table --------------------------------------------------------------------------------------------------------


def contest(speed: str, other: str, precision: str, compiled: bool, batch: int, rate: float, ratio: float) -> Any:
    mapping = {"precision": precision, "compiled": compiled, "batch_size": batch, "ratio": ratio}
    return {**mapping, speed: rate, f"{other}_{speed}": rate / ratio, "utilisation": rate * 1.048e11 / 989e12}


def verdicts(rows: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[str, bool | None]]:
    lines = {name: {"rows": result} for name, result in rows.items()}
    return {target.partition(":")[0]: (measured, met) for target, measured, met in gpu.verdicts(lines)}


def test_the_table_holds_what_was_measured_to_the_targets() -> None:
    def ensembles(model: str, times: dict[int, float]) -> dict[str, list[dict[str, Any]]]:
        return {
            f"{model} in an ensemble, {k} at once": [
                {"runs": k, "way": method, "times as fast": t} for method, t in (("alone", 1.0), ("ensemble", speed))
            ]
            for k, speed in times.items()
        }

    vit = "vit-b16 beside timm"
    attention = {"head_size": 64, "finite": True}
    verdicts_result = verdicts(
        {
            f"{vit}, bf16, compiled, batch 256": [contest("images_per_s", "timm", "bf16", True, 256, 4000.0, 1.2)],
            f"{vit}, bf16, compiled, batch 512": [contest("images_per_s", "timm", "bf16", True, 512, 4160.0, 1.2)],
            f"{vit}, fp16, eager, batch 512": [contest("images_per_s", "timm", "fp16", False, 512, 3000.0, 1.09)],
            "bart-large beside MBart, bf16, compiled, batch 32": [
                contest("tokens_per_s", "mbart", "bf16", True, 32, 1e5, 1.1)
            ],
            "waits of vit-b16": [{"steps": 10, "waits": 0}],
            "waits of bart-large": [{"steps": 10, "waits": 20}],
            **ensembles("vit-digits", {8: 30.0, 32: 10.1, 128: 9.9}),
            **ensembles("vit-cifar10", {32: 2.5, 128: 3.1}),
            "attention of vit-b16": [{"kind": "full", "backend": "default", **attention}],
            "attention of an encoder": [
                {"kind": "key mask", "backend": "default", **attention, "finite": False},
                {"kind": "key mask", "backend": "efficient", **attention},
                {"kind": "key mask", "backend": "flash", "head_size": 64, "message": "does not take this shape"},
            ],
            "vit-b16 run, ntk, bf16": [{"data_wait": 0.3}, {"attempts": 2}],
            "a killed worker": [{"runs": 9, "done": 9, "disturbed": 0}],
        }
    )
    assert verdicts_result["vit-b16, bf16, compiled"] == ("44.1%: 4,160 images/s at batch 512", True)
    assert verdicts_result[f"{vit}, bf16, compiled"] == ("1.200 (4,160 to 3,467 at batch 512)", True)
    assert verdicts_result[f"{vit}, fp16, eager"] == ("1.090 (3,000 to 2,752 at batch 512)", False)
    assert verdicts_result["bart-large beside MBart, bf16, compiled"] == ("1.100 (100,000 to 90,909 at batch 32)", True)
    assert verdicts_result["vit-digits in an ensemble"] == ("8: 30.00, 32: 10.10, 128: 9.90", False)
    assert verdicts_result["vit-cifar10 in an ensemble"][1] is True
    assert verdicts_result["no step makes the host wait for the device"] == (
        "waits of bart-large: 20 in 10 steps",
        False,
    )
    assert verdicts_result["gradients of attention are finite in the kernels that a run takes"][1] is True
    assert verdicts_result["the loader keeps up with vit-b16"] == ("vit-b16 run, ntk, bf16: 30.0%", False)
    assert verdicts_result["a killed worker leaves the runs of the others alone"][1] is True


def test_nothing_measured_meets_no_target() -> None:
    broken = {"vit-digits in an ensemble, 128 at once": [{"runs": 128, "way": "ensemble", "message": "out of memory"}]}
    assert {met for _, met in verdicts(broken).values()} == {None}


# --- parts ------------------------------------------------------------------------------------------------------------


def test_waits_are_counted_after_the_first_steps_and_told_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: modes.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def take_step() -> None:
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count_waits_result = gpu_items.count_waits(take_step, 3)
    assert (count_waits_result["steps"], count_waits_result["waits"]) == (3, 3)
    assert count_waits_result["places"].startswith("3 x ")
    assert Path(__file__).name in count_waits_result["places"]
    assert modes == ["synchronize", "warn", "default"]
