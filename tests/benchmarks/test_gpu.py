"""Measurements on a GPU leave a sound file whatever becomes of an item, and the table says what the file does."""

import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.commandline import wait_for
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
    processes = psutil.process_iter(["environ", "cmdline"])
    return [str(process.info["cmdline"]) for process in processes if str(folder) in str(process.info["environ"])]


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


def test_what_is_there_is_not_measured_again_and_a_line_that_a_kill_has_cut_does_not_count(tmp_path: Path) -> None:
    out, table = tmp_path / "gpu.jsonl", tmp_path / "table.md"
    line = {"item": "environment", "small": True, "state": "done", "wall_s": 1.0, "rows": [{"cores": 3}]}
    gpu.append(out, line)
    out.write_bytes(out.read_bytes() + b'{"item": "environment", "small": tr')  # what a kill amid a write would leave
    gpu.append(out, line | {"item": "head", "state": "failed", "message": "out of memory"})
    gpu.append(out, line | {"rows": [{"cores": 4}]})
    before = out.read_bytes()
    command = [sys.executable, "-m", "bench.gpu", "--small", "--out", out, "--table", table]
    subprocess.run([*command, "--items", "environment", "head"], cwd=CHECKOUT, check=True)
    assert out.read_bytes() == before
    text = table.read_text()
    assert "| environment | 1 | cores 4 |" in text
    assert "| head | 1 | failed: out of memory |" in text
    assert "| doctor --fit, vit-b16 | 0 | not measured: not yet |" in text


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


def verdicts(rows: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[str, bool | None]]:
    lines = {name: {"rows": result} for name, result in rows.items()}
    return {target.partition(":")[0]: (measured, met) for target, measured, met in gpu.verdicts(lines)}


def beside(precision: str, compiled: bool, batch: int, rate: float, other: float) -> list[dict[str, Any]]:
    speeds = {"images_per_s": rate, "timm_images_per_s": other, "ratio": rate / other, "utilisation": rate / 9438}
    return [{"precision": precision, "compiled": compiled, "batch_size": batch, **speeds}]


def in_ensembles(model: str, times: dict[int, float]) -> dict[str, list[dict[str, Any]]]:
    return {
        f"{model} in an ensemble, {runs} at once": [
            {"runs": runs, "way": "alone", "times as fast": 1.0},
            {"runs": runs, "way": "ensemble", "times as fast": speed},
        ]
        for runs, speed in times.items()
    }


def attention(kind: str, backend: str, **result: object) -> dict[str, Any]:
    return {"kind": kind, "head_size": 64, "backend": backend, **result}


def test_the_table_holds_what_was_measured_to_the_targets() -> None:
    vit, finite = "vit-b16 beside timm", "gradients of attention are finite in the kernels that a run takes"
    lines: dict[str, list[dict[str, Any]]] = {
        f"{vit}, bf16, compiled, batch 256": beside("bf16", True, 256, 4000.0, 3300.0),
        f"{vit}, bf16, compiled, batch 512": beside("bf16", True, 512, 4160.0, 3467.0),
        f"{vit}, fp16, eager, batch 512": beside("fp16", False, 512, 3000.0, 2752.0),
        "waits of vit-b16": [{"steps": 10, "waits": 0}],
        "waits of bart-large": [{"steps": 10, "waits": 20}],
        **in_ensembles("vit-digits", {8: 30.0, 32: 10.1, 128: 9.9}),
        **in_ensembles("vit-cifar10", {32: 2.5, 128: 3.1}),
        "attention of vit-b16": [attention("full", "default", finite=True)],
        "attention of an encoder": [
            attention("key mask", "default", finite=False),
            attention("key mask", "efficient", finite=True),
            attention("key mask", "flash", message="does not take this shape"),
        ],
        "vit-b16 run, ntk, bf16": [{"data_wait": 0.3}, {"attempts": 2}],
        "a killed worker": [{"runs": 9, "done": 9, "disturbed": 0}],
    }
    result = verdicts(lines)
    assert result["vit-b16, bf16, compiled"] == ("44.1%: 4,160 images/s at batch 512", True)
    assert result[f"{vit}, bf16, compiled"] == ("1.200 (4,160 to 3,467 at batch 512)", True)
    assert result[f"{vit}, fp16, eager"] == ("1.090 (3,000 to 2,752 at batch 512)", False)
    assert result["bart-large beside MBart, bf16 and fp16"] == ("", None)
    assert result["vit-digits in an ensemble"] == ("8: 30.00, 32: 10.10, 128: 9.90", False)
    assert result["vit-cifar10 in an ensemble"][1] is True
    waits = "no step makes the host wait for the device"
    assert result[waits] == ("waits of bart-large: 20 in 10 steps", False)
    assert result[finite][1] is True
    assert verdicts({"attention of vit-b16": [attention("full", "default", finite=False)]})[finite][1] is False
    assert result["the loader keeps up with vit-b16"] == ("vit-b16 run, ntk, bf16: 30.0%", False)
    killed = "a killed worker leaves the runs of the others alone"
    assert result[killed][1] is True
    lost = verdicts({"a killed worker": [{"runs": 9, "done": 8, "disturbed": 0}]})
    assert lost[killed] == ("a killed worker: 0 of 9 began again, 1 did not end", False)


def test_nothing_measured_meets_no_target() -> None:
    broken = {"vit-digits in an ensemble, 128 at once": [{"runs": 128, "way": "ensemble", "message": "out of memory"}]}
    assert {met for _, met in verdicts(broken).values()} == {None}


# --- parts ------------------------------------------------------------------------------------------------------------


def test_waits_are_counted_after_the_first_steps_and_told_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: modes.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def take_step() -> None:
        modes.append("step")
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count_waits_result = gpu_items.count_waits(take_step, 3)
    assert (count_waits_result["steps"], count_waits_result["waits"]) == (3, 3)
    assert count_waits_result["places"].startswith("3 x ")
    assert Path(__file__).name in count_waits_result["places"]
    assert modes == [*["step"] * 4, "synchronize", "warn", *["step"] * 3, "default"]
