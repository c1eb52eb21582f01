"""A session leaves sound files whatever becomes of its items, and its table says what they say."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commandline import PATIENCE_S

from bench import all_gpu
from bench.session import doctor, offline, targets, wheels
from bench.session.frame import Item, Step, take
from bench.session.steps import NAMES, make_step

FACTS = "bench.session.environment:facts"
HEADER = {"command": "test", "small": True}


@pytest.fixture(autouse=True)
def _own_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    for name, value in offline.environment(tmp_path, None).items():
        monkeypatch.setenv(name, value)


def taken(tmp_path: Path, *items: Item, budget_s: float = 200.0) -> dict[str, dict[str, Any]]:
    """Take a step; return its items by name, from the file that it leaves."""
    step = Step(9, "test", items, budget_s)
    take(step, tmp_path, tmp_path / "log", HEADER)
    record = json.loads((tmp_path / step.file_name).read_text())
    return {item["item"]: item for item in record["items"]}


def wait_until(there: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_items_that_fail_say_why_and_the_others_are_measured(tmp_path: Path) -> None:
    found = taken(
        tmp_path,
        Item("no model", "bench.session.models:alone", {"model": "no-such", "precision": "bf16", "compiled": False, "batch_size": 2, "quick": True}),
        Item("no module", "no_such_module:rows"),
        Item("abort", "os:abort"),
        Item("never ends", "signal:pause", limit_s=1.0),
        Item("not finite", "builtins:list", {}),
        Item("facts", FACTS),
    )  # fmt: skip
    assert {name: item["state"] for name, item in found.items()} == {
        "environment": "done",
        "no model": "failed",
        "no module": "not measured",
        "abort": "failed",
        "never ends": "failed",
        "not finite": "done",
        "facts": "done",
    }
    assert "no-such" in found["no model"]["message"]
    assert "Traceback" in found["no model"]["said"]
    assert found["no module"]["message"] == "no module no_such_module"
    assert found["abort"]["message"] == "its process ended by SIGABRT"
    assert found["never ends"]["message"] == "took more than 1 s"
    (row,) = found["facts"]["rows"]
    assert (row["torch"], row["cores"]) == (torch.__version__, len(os.sched_getaffinity(0)))


def test_what_the_time_does_not_suffice_for_is_not_reached(tmp_path: Path) -> None:
    found = taken(tmp_path, Item("facts", FACTS), budget_s=0.0)
    assert [item["state"] for item in found.values()] == ["not reached", "not reached"]


def test_what_an_item_has_started_ends_with_it(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; sleep 1000"
    taken(tmp_path, Item("starts", "subprocess:call", {"args": ["sh", "-c", script]}, limit_s=1.0))
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_step_that_is_killed_leaves_what_it_had_measured(tmp_path: Path, how: signal.Signals) -> None:
    file = tmp_path / "out" / "1-attention.json"
    command = [sys.executable, "-m", "bench.all_gpu", "--small", "--step", "1", "--out", str(file.parent)]
    with subprocess.Popen(command, cwd=offline.CHECKOUT, stdout=subprocess.PIPE) as process:
        wait_until(lambda: file.exists() and file.read_text().count('"done"') >= 3)
        process.send_signal(how)
        process.communicate(timeout=PATIENCE_S)  # what it had started holds the pipe as long as it lives
    states = [item["state"] for item in json.loads(file.read_text())["items"]]
    assert states[:3] == ["done"] * 3
    assert states[-1] == "not reached"
    assert not [path for path in file.parent.iterdir() if how is signal.SIGTERM and path.suffix == ".tmp"]


@pytest.mark.slow
def test_a_small_session_measures_all_steps(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "bench/all_gpu.py", "--small", "--out", str(out)]
    subprocess.run(command, cwd=offline.CHECKOUT, check=True, capture_output=True)
    assert {path.name for path in out.iterdir()} == {"targets.md", *(f"{n}-{name}.json" for n, name in NAMES.items())}
    table = (out / "targets.md").read_text()
    for number, name in NAMES.items():
        record = json.loads((out / f"{number}-{name}.json").read_text())
        assert record["environment"]["torch"] == torch.__version__
        assert [item["item"] for item in record["items"][1:]] == [
            i.name for i in make_step(number, tmp_path, small=True).items
        ]
        for item in record["items"]:
            assert item["state"] in ("done", "not measured"), item
            if item["state"] == "done":
                assert all(any(isinstance(cell, int | float) for cell in row.values()) for row in item["rows"]), item
            else:
                assert f"- step {number}, {item['item']}: not measured: {item['message']}" in table
        assert f"| {number} {name}, tiny sizes |" in table
    reached = [
        i["state"] for n in (1, 2, 3, 4, 7) for i in json.loads((out / f"{n}-{NAMES[n]}.json").read_text())["items"]
    ]
    assert set(reached) == {"done"}


def test_every_function_of_every_step_is_there_and_takes_its_arguments(tmp_path: Path) -> None:
    import inspect
    from pkgutil import resolve_name

    for number in NAMES:
        for small in (True, False):
            step = make_step(number, tmp_path, small=small)
            assert len({item.name for item in step.items}) == len(step.items)
            assert step.budget_s < 480
            for item in step.items:
                inspect.signature(resolve_name(item.function)).bind(**item.arguments)
                json.dumps(item.arguments)


@pytest.mark.parametrize("text", ["8", "x", "", "1,9"])
def test_a_step_that_there_is_not_is_refused(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["all_gpu", "--step", text])
    with pytest.raises(SystemExit, match="2"):
        all_gpu.main()
    assert "one of 1 to 7" in capsys.readouterr().err


# --- the table --------------------------------------------------------------------------------------------------------


def written(out: Path, number: int, items: dict[str, list[dict[str, Any]]], **changes: Any) -> None:
    told = [{"item": name, "state": "done", "rows": rows, "wall_s": 1.0} for name, rows in items.items()]
    told += changes.pop("more", [])
    environment = {"device": "NVIDIA H200", "torch": "2.15", "measured_bf16_tflops": 790.0}
    record = {"step": number, "name": NAMES[number], "small": False, "wall_s": 9.0, "environment": environment}
    (out / f"{number}-{NAMES[number]}.json").write_text(json.dumps({**record, "items": told, **changes}))


def contest(
    speed: str, other: str, precision: str, compiled: bool, batch: int, rate: float, ratio: float
) -> dict[str, Any]:
    named = {"precision": precision, "compiled": compiled, "batch_size": batch, "ratio": ratio, "utilisation": None}
    return {**named, speed: rate, f"{other}_{speed}": rate / ratio}


def packed(model: str, times: dict[int, float]) -> dict[str, list[dict[str, Any]]]:
    ways = {"alone": 1.0, "lockstep": 1.1}
    return {
        f"{model}, {k} at once": [
            {"members": k, "way": w, "times as fast": t} for w, t in {**ways, "fast": best}.items()
        ]
        for k, best in times.items()
    }


def table(out: Path) -> dict[str, tuple[str, str]]:
    return {v.target.partition(":")[0]: (v.measured, v.verdict) for v in targets.verdicts(targets.read(out))}


def test_the_table_holds_what_was_measured_to_the_targets(tmp_path: Path) -> None:
    vit = "vit-b16 beside timm"
    rows = [contest("images_per_s", "timm", "bf16", True, b, rate, 1.2) for b, rate in ((256, 4000.0), (512, 4151.0))]
    eager = contest("images_per_s", "timm", "fp16", False, 512, 3000.0, 1.09)
    written(
        tmp_path,
        2,
        {
            f"{vit}, bf16, compiled, batch 256": rows[:1],
            f"{vit}, bf16, compiled, batch 512": rows[1:],
            f"{vit}, fp16, eager, batch 512": [eager],
        },
    )
    mbart = contest("tokens_per_s", "mbart", "bf16", True, 32, 1e5, 1.1)
    written(tmp_path, 4, {"bart-large beside MBart, bf16, compiled, batch 32": [mbart]})
    written(
        tmp_path,
        5,
        {
            "waits of vit-b16, bf16, eager": [{"steps": 10, "waits": 0}],
            "waits of bart-large, fp16, eager": [{"steps": 10, "waits": 20}],
        },
    )
    written(
        tmp_path,
        7,
        packed("vit-digits", {1: 1.0, 8: 30.0, 32: 10.1, 128: 9.9}) | packed("vit-cifar10", {32: 2.5, 128: 3.1}),
    )
    found = table(tmp_path)
    # 4,151 images/s of 104.8 GFLOPs each.
    assert found["vit-b16, bf16, compiled"] == (
        "4,151 images/s at batch 512, 435 of 790 TFLOP/s measured: 55.1%",
        "met",
    )
    assert found[f"{vit}, bf16, compiled"] == ("1.200 (4,151 to 3,459 at batch 512)", "met")
    assert found[f"{vit}, fp16, eager"] == ("1.090 (3,000 to 2,752 at batch 512)", "not met")
    assert found["bart-large beside MBart, bf16, compiled"] == ("1.100 (100,000 to 90,909 at batch 32)", "met")
    assert found["vit-digits packed"] == (
        "1: 1.10 (lockstep), 8: 30.00 (fast), 32: 10.10 (fast), 128: 9.90 (fast)",
        "not met",
    )
    assert found["vit-cifar10 packed"][1] == "met"
    assert found["no step makes the host wait for the device"] == ("bart-large, fp16, eager: 20 in 10 steps", "not met")
    targets.show(tmp_path)
    assert "| 1.200 (4,151 to 3,459 at batch 512) | met |" in (tmp_path / "targets.md").read_text()


def test_tiny_sizes_and_broken_files_measure_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, 5, {"waits of vit-b16, bf16, eager": [{"steps": 10, "waits": 0}]}, small=True)
    (tmp_path / "2-vit.json").write_text('{"step": 2')
    failed = {"item": "vit-digits, 32 at once", "state": "failed", "message": "out of memory", "wall_s": 1.0}
    broken = {"vit-digits, 128 at once": [{"members": 128, "way": "fast", "message": "no compiler"}]}
    written(tmp_path, 7, packed("vit-digits", {8: 30.0}) | broken, more=[failed])
    assert {verdict for _, verdict in table(tmp_path).values()} == {"not measured"}
    assert "2-vit.json: cannot be read" in capsys.readouterr().out
    targets.show(tmp_path)
    told = (tmp_path / "targets.md").read_text()
    assert "| 5 doctor, tiny sizes | NVIDIA H200 | 2.15 | 1 | 1 | 9 |" in told
    assert "- step 7, vit-digits, 32 at once: failed: out of memory" in told


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
        found = doctor._waits(take_step, 3)
    assert (found["steps"], found["waits"]) == (3, 3)
    assert found["where"].startswith("3 x ")
    assert Path(__file__).name in found["where"]
    assert modes == ["synchronize", "warn", "default"]


def test_numbers_of_the_doctor_are_read() -> None:
    fit = "micro_batch=440 of 1024: 61.5 GiB of NVIDIA H200; 2,922.5 images/s in the largest step tried"
    assert doctor._numbers(fit) == {"micro_batch": 440, "memory_gib": 61.5, "samples_per_s": 2922.5}
    peak = "790 TFLOP/s measured, 989 by the data sheet (80%), in products of 8192; NVIDIA H200"
    assert doctor._numbers(peak) == {"tflops": 790}


def wheel(folder: Path, name: str, tag: str) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as file:
        file.writestr(f"{name}.py", "value = 1\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize("tag", ["py3-none-any", "cp27-cp27m-win32"])
def test_wheels_are_put_into_a_folder_also_where_pip_refuses(
    tmp_path: Path, tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path, "one", "py3-none-any")
    wheel(tmp_path, "other", tag)
    offline.install(tmp_path, tmp_path / "packages")
    assert ("unpacked" in capsys.readouterr().out) == (tag != "py3-none-any")
    code = "import one, other; from importlib.metadata import version; print(version('one'), other.value)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path / "packages")}, capture_output=True, text=True)  # fmt: skip
    assert done.stdout == "1.0 1\n"


def test_a_folder_without_wheels_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no wheels there"):
        offline.install(tmp_path, tmp_path / "packages")


def test_the_wheels_are_those_that_a_torch_does_not_bring() -> None:
    from importlib.metadata import version

    names = wheels.wanted("3.12")
    for name in ("pydantic", "pydantic-core", "submitit", "timm", "transformers", "tokenizers", "scikit-learn"):
        assert f"{name}=={version(name)}" in names
    left_out = ("torch", "torchvision", "numpy", "nvidia", "triton", "scipy", "sympy", "cuda")
    assert not [name for name in names if name.startswith(left_out)]
