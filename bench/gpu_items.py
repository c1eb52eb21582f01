"""What `bench/gpu.py` measures: each function yields rows, in a process of its own.

Its first argument is a folder that all items of a call share.
"""

# B batch, T tokens, H heads, C channels of a head, N tokens of all texts, D width, V words

import contextlib
import ctypes
import importlib.util
import itertools
import json
import math
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer

from bench import encdec, ensemble, turns, vit
from bench.ensemble import ETTSWEEP
from bench.waves import CLASSES, write_images
from ettsweep import __version__
from ettsweep.files import json_or_empty, read_json, read_lines
from ettsweep.processes import cores
from ettsweep.provenance import provenance
from ettsweep.trainer.models import cross_entropy
from ettsweep.trainer.models.model_cost import peak_flops
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.specs import Precision

Row = dict[str, Any]
Rows = Iterator[Row]

PR_SET_PDEATHSIG = 1  # linux/prctl.h
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class NotMeasuredError(Exception):
    """This machine lacks what an item is about."""


def need(*modules: str) -> None:
    """Raise where programs that are started would lack a package."""
    if missing := [module for module in modules if not importlib.util.find_spec(module)]:
        raise NotMeasuredError(f"no module {', '.join(missing)}")


def seconds_of(work: Callable[[], object], small: bool) -> float:
    """Return the median seconds of a call, once the device is done."""
    return float(Timer("work()", globals={"work": work}).blocked_autorange(min_run_time=0.01 if small else 0.4).median)


def environment(folder: Path, small: bool) -> Rows:
    """Yield versions, device and commit."""
    code, on_gpu = provenance(), DEVICE.type == "cuda"
    row = {
        "device": device_name(),
        "memory_gib": torch.cuda.get_device_properties(DEVICE).total_memory / 2**30 if on_gpu else None,
        "sheet_bf16_tflops": (peak_flops(device_name(), "bf16") or 0.0) / 1e12 or None,
        "cores": cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "ettsweep": __version__,
        "commit": code["git"],
        "code": code["code"],
    }
    for field in ("driver_version", "power.limit"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
            row[field] = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    for package in ("timm", "torchvision", "transformers", "triton", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            row[package] = version(package)
    yield row


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.machine()


# --- training steps -----------------------------------------------------------------------------------------------------


def beside(
    folder: Path, model: str, other: str, precision: Precision, compiled: bool, batch_size: int, small: bool
) -> Rows:
    """Let ours and another library's model take turns at training steps."""
    need("timm" if other == "timm" else "transformers")
    count = 5
    if small:
        turns.TURN_S, count = 1e-3, 2
        model, compiled, batch_size = "vit-digits" if other == "timm" else "encdec-tiny", False, 2
    measure = vit.measure if other == "timm" else partial(encdec.measure, encdec.BESIDE)
    yield measure(count, model, DEVICE, precision, compiled, batch_size)


def alone(folder: Path, model: str, batch_size: int, small: bool) -> Rows:
    """Let ours take steps with activation checkpointing: how fast, and in how much memory?"""
    count = encdec.ALONE_STEPS
    if small:
        turns.TURN_S, count, model, batch_size = 1e-3, 2, "encdec-tiny", 2
    yield encdec.measure(encdec.ALONE, count, model, DEVICE, "bf16", False, batch_size)


def waits(folder: Path, model: str, small: bool) -> Rows:
    """Count how often the host waits for the device in training steps; CUDA itself says so."""
    if DEVICE.type != "cuda":
        raise NotMeasuredError("a CPU has computed when a call returns: there is nothing to wait for")
    if model == "a stack":
        yield {"model": model, **count_waits(ensemble.stacked(ensemble.DIGITS, 8, DEVICE))}
        return
    module, batch_size = (vit, 64) if model.startswith("vit") else (encdec, 8)
    precisions: tuple[Precision, ...] = ("bf16", "fp16")
    for compiled, precision in itertools.product((False, True), precisions):
        trainer = module.our_trainer(module.run_spec(model_spec(model), precision, batch_size), DEVICE, compiled)
        waits = count_waits(partial(trainer.train_step, 1e-4, trainer.task.batches(1)))
        yield {"model": model, "precision": precision, "compiled": compiled, **waits}


SYNCHRONIZED = "called a synchronizing CUDA operation"
"""What torch says of a wait; it also warns, once, that it may not notice all of them."""


def count_waits(take_step: Callable[[], object], steps: int = 10) -> Row:
    """Return how often steps make the host wait for the device, once they are warm, and where."""
    for _ in range(4):
        take_step()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(steps):
                take_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    counter = Counter(f"{w.filename}:{w.lineno}" for w in caught if SYNCHRONIZED in str(w.message))
    told = "; ".join(f"{n} x {location}" for location, n in counter.most_common(8))
    return {"steps": steps, "waits": counter.total(), "places": told}


# --- kernels ------------------------------------------------------------------------------------------------------------

BACKENDS = {
    "default": None,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention(folder: Path, kind: str, shape: tuple[int, int, int], dropout: float, small: bool) -> Rows:
    """Time forward and backward pass of attention in bf16, by head size and backend.

    `kind` is full, key mask, as encoders have and decoders that read from them, or causal. The gradients have to be
    finite, and are compared with those of plain formulas in fp32, of the first texts and without dropout.
    """
    B, T, D = (2, 24, 256) if small else shape
    for C, backend in itertools.product((64,) if small else (64, 128, 32), ("default", "math") if small else BACKENDS):
        row = {"kind": kind, "head_size": C, "backend": backend}
        try:
            yield row | _attention((B, T, D // C, C), kind, BACKENDS[backend], dropout, small)
        except RuntimeError as error:
            if "No available kernel" not in str(error) and "No viable backend" not in str(error):
                raise
            yield row | {"message": "does not take this shape"}


def _attention(
    shape: tuple[int, int, int, int], kind: str, backend: SDPBackend | None, dropout: float, small: bool
) -> Row:
    B, T, H, C = shape
    # A leaf laid out as the model's projection is: the gradient of q, k and v is one tensor.
    qkv = torch.randn(B, T, 3, H, C, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    lengths = T - (T // 2) * torch.arange(B, device=DEVICE) // B
    read_B11T = (torch.arange(T, device=DEVICE) < lengths[:, None])[:, None, None] if kind == "key mask" else None
    d_BHTC = torch.randn(B, H, T, C, device=DEVICE, dtype=torch.bfloat16)

    def step(qkv: Tensor, count: int = B, p: float = dropout) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in qkv[:count].unbind(2))
        mask = None if read_B11T is None else read_B11T[:count]
        out = F.scaled_dot_product_attention(q, k, v, mask, p, kind == "causal")
        (gradient,) = torch.autograd.grad(out, qkv, d_BHTC[:count].to(out.dtype))
        return gradient

    smallest = min(B, 4)
    with sdpa_kernel(backend) if backend else nullcontext():
        finite = bool(step(qkv).isfinite().all())
        ours = step(qkv, smallest, 0.0)[:smallest].float()
        step_s = seconds_of(lambda: step(qkv), small)
    with sdpa_kernel(SDPBackend.MATH):
        exact = step(qkv.detach().float().requires_grad_(), smallest, 0.0)[:smallest]
    flops = 3.5 * 4 * B * H * T * T * C * (0.5 if kind == "causal" else 1.0)
    error = float((ours - exact).norm() / exact.norm())
    return {"ms": 1000 * step_s, "tflops": flops / step_s / 1e12, "finite": finite, "error": error}


def head(folder: Path, small: bool) -> Rows:
    """Time loss and gradients of a head over a large vocabulary: ours, with columns rounded up or not, or all logits."""
    D, N, V = (32, 64, 50) if small else (1024, 16 * 514, 50265)
    h_ND = torch.randn(N, D, device=DEVICE, requires_grad=True)
    w_VD = (0.02 * torch.randn(V, D, device=DEVICE)).requires_grad_()
    targets_N = torch.randint(1, V, (N,), device=DEVICE)
    targets_N[::10] = 0

    def step(ours: bool) -> object:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            if ours:
                loss = cross_entropy.linear_cross_entropy(h_ND, w_VD, targets_N, 0)
            else:
                loss = F.cross_entropy(F.linear(h_ND, w_VD).float(), targets_N, ignore_index=0, reduction="sum")
        return torch.autograd.grad(loss, (h_ND, w_VD))

    multiple = dict(cross_entropy.COLUMN_MULTIPLE)
    for method in ("ours", "ours, columns as they are", "all logits"):
        cross_entropy.COLUMN_MULTIPLE.clear()
        cross_entropy.COLUMN_MULTIPLE.update(multiple if method == "ours" else {})
        if DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        step_s = seconds_of(partial(step, method != "all logits"), small)
        gib = torch.cuda.max_memory_allocated() / 2**30 if DEVICE.type == "cuda" else None
        yield {"way": method, "ms": 1000 * step_s, "tflops": 3 * 2 * N * D * V / step_s / 1e12, "memory_gib": gib}


# --- ensembles and workers --------------------------------------------------------------------------------------------------


def ensembles(folder: Path, model: str, runs: int, small: bool) -> Rows:
    """Time training steps of many runs in an ensemble, beside the same runs alone."""
    if DEVICE.type == "cpu":
        torch.set_num_threads(1)
    if small:
        yield from ensemble.steps("vit-digits", 2, DEVICE, 1, 2)
    else:
        yield from ensemble.steps(model, runs, DEVICE, *((5, 10) if runs <= 8 else (3, 4)))


def ensemble_grid(folder: Path, small: bool) -> Rows:
    """Time a whole grid through the command line on one slot, alone and in an ensemble."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary_directory:
        runs, options = (9, SHORT) if small else (36, ())
        yield from ensemble.commands(runs, Path(temporary_directory), (1, 32), options)


SHORT = ("--set=schedule.total_steps=8", "--set=schedule.warmup_steps=2", "--set=schedule.eval_every=4")
HALF = ("--set=schedule.total_steps=120", "--set=schedule.warmup_steps=12")


def grid(results: Path, slots: int, seeds: int, *options: str) -> list[str]:
    """Return the command that trains nine points of vit-digits, with some seeds, one run after the other on each slot."""
    values = ["grid", "--model", "vit-digits", "--strategy", "standard", "--seeds", ",".join(map(str, range(seeds)))]
    return [*values, f"--launch-set=slots={slots}", *options, "--results", str(results), "--follow"]


@contextlib.contextmanager
def shared_device(folder: Path, mps: bool) -> Iterator[Path]:
    """Give a folder for workers that share the device, through MPS or not."""
    with tempfile.TemporaryDirectory(dir=folder) as name, mps_daemon(Path(name)) if mps else nullcontext():
        yield Path(name)


def workers(folder: Path, slots: list[int], mps: bool, small: bool) -> Rows:
    """Time runs of vit-digits with several workers on the device.

    `runs_per_min` is by the clock on the wall, starts of workers and evaluations included; `steady_runs_per_min` by the
    seconds that a run takes once its worker is there.
    """
    with shared_device(folder, mps) as shared:
        for number in slots[:1] if small else slots:
            results, began_s = shared / f"{number}", time.monotonic()
            command = grid(results, number, 1 if small else 4, *(SHORT if small else ()))
            subprocess.run([*ETTSWEEP, *command], capture_output=True, text=True, check=True)
            wall_s = time.monotonic() - began_s
            jsons = [read_json(path) for path in results.glob("runs/*/result.json")]
            each_s = statistics.median(result["wall_s"] for result in jsons)
            rates = {"runs_per_min": 60 * len(jsons) / wall_s, "steady_runs_per_min": 60 * number / each_s}
            yield {"slots": number, "mps": mps, "runs": len(jsons), "wall_s": wall_s, "run_s": each_s, **rates}


def killed_worker(folder: Path, mps: bool, small: bool) -> Rows:
    """Kill one of two workers that share the device amid their runs: the runs of the other have to go on unharmed."""
    with shared_device(folder, mps) as shared:
        results = shared / "results"
        values = grid(results, 2, 1, *(HALF if small else ()))
        with subprocess.Popen([*ETTSWEEP, *values], stderr=subprocess.PIPE, text=True) as command:
            while len(training := _training(results)) < 2:
                if command.poll() is not None:
                    raise RuntimeError(f"no two workers trained at a time: {command.communicate()[1][-500:]}")
                time.sleep(0.05)
            os.kill(min(training), signal.SIGKILL)
            command.communicate()
        by_name = {path.parent.name: read_json(path) for path in results.glob("runs/*/result.json")}
        repeated = {run for run, result in by_name.items() if result["attempts"] > 1}
        killed = {training[min(training)]}
        yield {
            "mps": mps,
            "runs": len(list(results.glob("runs/*"))),
            "done": len(by_name),
            "taken_on": len(repeated & killed),
            "disturbed": len(repeated - killed),
            "exit_code": command.returncode,
        }


def _training(results: Path) -> dict[int, str]:
    """Return the runs amid their steps by the process that trains them."""
    collected = {}
    for claim in results.glob("runs/*/attempts/*/claim.json"):
        run = claim.parents[2]
        pid = json_or_empty(claim).get("process", {}).get("pid")
        if pid and (claim.parent / "metrics.jsonl").exists() and not (run / "result.json").exists():
            collected[int(pid)] = run.name
    return collected


@contextlib.contextmanager
def mps_daemon(folder: Path) -> Iterator[None]:
    """Run a daemon of NVIDIA's MPS for the body, with pipes and logs of its own; nothing else of the device is set.

    Raises:
        NotMeasuredError: there is none, or it does not start.
    """
    if not (command := shutil.which("nvidia-cuda-mps-control")):
        raise NotMeasuredError("no nvidia-cuda-mps-control on the PATH")
    for name in ("pipe", "log"):
        (folder / name).mkdir()
        os.environ[f"CUDA_MPS_{name.upper()}_DIRECTORY"] = str(folder / name)
    log = folder / "daemon"
    with (
        log.open("w") as out,
        subprocess.Popen([command, "-f"], stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process,
    ):
        try:
            deadline_s = time.monotonic() + 10.0
            while not (folder / "pipe" / "control").exists():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise NotMeasuredError(f"{command} does not start: {log.read_text().strip() or 'it says nothing'}")
                time.sleep(0.1)
            yield
        finally:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run([command], input=b"quit -t 5\n", capture_output=True, timeout=15, check=False)
            process.kill()


# --- whole runs, and the doctor -----------------------------------------------------------------------------------------

OVERFLOWS_AT_START = 20
"""Steps in which a loss scaler may still look for its scale."""


def vit_run(folder: Path, strategy: str, precision: str, resume: bool, small: bool) -> Rows:
    """Train vit-b16 through the loader on made JPEG files; then once more, stopped halfway and resumed."""
    need("timm", "torchvision")
    steps, batch_size, images = (12, 16, 160) if small else (80, 512, 5120)
    counts = {"train": images, "val": CLASSES * (images // (8 * CLASSES))}
    data = folder / "images"
    if not data.exists():
        path = Path(tempfile.mkdtemp(dir=folder))
        write_images(path, counts, 72 if small else 256)
        path.rename(data)
    sets = {"task.train_size": images, "task.val_size": counts["val"], "model.classes": CLASSES, "precision": precision}
    if small:
        sets |= {"model.width": 32, "model.heads": 2, "model.depth": 2, "model.image_size": 64, "task.resize": 72}
    command = train_command("vit-b16", strategy, steps, batch_size, sets, "--data", str(data))
    undisturbed = train(folder, command)
    yield told(undisturbed)
    if resume:
        result = train(folder, command, stop_at=steps // 2)
        ours, theirs = losses(result), losses(undisturbed)
        largest = max(abs(ours.get(step, math.inf) / loss - 1) for step, loss in theirs.items())
        equal = sum(ours.get(step) == loss for step, loss in theirs.items())
        yield {"attempts": result["attempts"], "equal": equal, "of": len(theirs), "largest_difference": largest}


def text_run(folder: Path, model: str, strategy: str, steps: int, batch_size: int, small: bool) -> Rows:
    """Train an encoder-decoder on Python's documentation."""
    sets: dict[str, object] = {"task.kind": "pydoc", "model.vocabulary": 4096, "schedule.stop_step": "null"}
    if small:
        steps, batch_size = 20, 4
        sets |= {"model.width": 32, "model.depth": 1, "model.heads": 2, "model.tokens": 64, "model.vocabulary": 608}
    result = told(train(folder, train_command(model, strategy, steps, batch_size, sets)))
    rate, tokens = result["samples_per_s"], sets.get("model.tokens", 514)
    yield {**result, "tokens_per_s": tokens * rate if rate else None}


def train_command(
    model: str, strategy: str, steps: int, batch_size: int, sets: dict[str, Any], *options: str
) -> list[str]:
    schedule = {"total_steps": steps, "warmup_steps": max(1, steps // 10), "eval_every": steps // 4}
    sets |= {"batch_size": batch_size, **{f"schedule.{name}": value for name, value in schedule.items()}}
    values = ["train", "--model", model, "--strategy", strategy, *options]
    return [*ETTSWEEP, *values, *(f"--set={key}={value}" for key, value in sets.items())]


def train(folder: Path, command: list[str], stop_at: int | None = None) -> Row:
    """Train a run to its end, or once stop and resume it after a step; return its result with its metrics."""
    with tempfile.TemporaryDirectory(dir=folder) as results:
        full = [*command, "--results", results]
        if stop_at is not None:
            with subprocess.Popen(full, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                for line in process.stderr:
                    if f" step {stop_at}/" in line:
                        process.send_signal(signal.SIGTERM)
        subprocess.run(full, capture_output=True, text=True, check=True)
        (run,) = Path(results, "runs").iterdir()
        return read_json(run / "result.json") | {
            "metrics": read_lines(run / "metrics.jsonl"),
            "timings": read_lines(max(run.glob("attempts/*/timings.jsonl"))),
        }


def losses(result: Row) -> dict[int, float]:
    """Return the training loss of each step."""
    return {line["step"]: line["loss"] for line in result["metrics"] if line.get("loss") is not None}


def told(result: Row) -> Row:
    """Return how a run ended, what came out, and how fast."""
    curve = losses(result)
    late = [line for line in result["metrics"] if line.get("overflow") and line["step"] > OVERFLOWS_AT_START]
    waits = [line["data_wait"] for line in result["timings"][1:]]  # in the first, the loader's processes start
    names = ("status", "steps", "final_loss", "final_accuracy", "final_bits", "overflow_steps", "samples_per_s")
    return {
        **{name: result[name] for name in (*names, "utilisation", "data_wait", "memory_gib")},
        **{name: result["execution"][name] for name in ("compile", "micro_batch")},
        "first_loss": curve.get(1),
        "last_loss": curve[max(curve)] if curve else None,
        "late_overflows": len(late),
        "data_wait_later": statistics.mean(waits) if waits else None,
    }


def doctor_fit(folder: Path, model: str, small: bool) -> Rows:
    """Yield what `doctor --fit` says of a model's batch."""
    options = ["--launch-set=devices=cpu"] if small else []
    values = ["doctor", "--model", "vit-digits" if small else model, "--fit", "--format", "json", *options]
    completed = subprocess.run([*ETTSWEEP, *values], capture_output=True, text=True, check=False)
    if not completed.stdout.startswith("["):
        raise RuntimeError(completed.stderr.strip())
    for row in json.loads(completed.stdout):
        if "fit" in row["check"].split():
            size = re.search(r"micro_batch=(\d+)", row["detail"])
            yield row | {"micro_batch": int(size[1]) if size else 0}


# --- the process that measures one item ---------------------------------------------------------------------------------


def main(function: str, arguments: str, folder: str, path: str) -> None:
    """Call a function of this module; append its rows to a file as they come, and at last what became of it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    on = {"device": device_name(), "torch": torch.__version__}
    with Path(path).open("a", buffering=1) as file:

        def write(line: Row) -> None:
            file.write(json.dumps(line, allow_nan=False) + "\n")

        try:
            for row in globals()[function](Path(folder), **json.loads(arguments)):
                finite = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
                write({"row": finite})
            write({"state": "done", **on})
        except NotMeasuredError as error:
            write({"state": "not measured", "message": str(error), **on})
        except BaseException as error:
            traceback.print_exc()
            write({"state": "failed", "message": reason(error), **on})


def reason(error: BaseException) -> str:
    """Return an error in a line: the first of its text, and the last, where a program that failed says why."""
    text = str(getattr(error, "stderr", None) or error)
    lines = [line.strip()[:300] for line in text.splitlines() if line.strip()]
    kind = "out of memory" if "out of memory" in text.lower() else type(error).__name__
    ends = lines[-1:] if isinstance(error, subprocess.CalledProcessError) else dict.fromkeys([*lines[:1], *lines[-1:]])
    return f"{kind}: {' ... '.join(ends)}"


if __name__ == "__main__":
    main(*sys.argv[1:])
