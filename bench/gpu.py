"""Measure all that is worth knowing on a GPU: `make bench-all-gpu`, or `python -m bench.gpu --minutes 9 --out FILE`.

Items are measured one after the other, each by a process of its own, and each leaves a line of JSON in the file as soon as it
is over. What is in the file is not measured again, so that several short calls make one table. An item that fails says
why, and the next one goes on; one that takes too long is killed with all that it has started. Nothing is installed: torch and
the packages of ettsweep are there, or what lacks them is "not measured".
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from ettsweep.files import loads, read_lines, write_atomic
from ettsweep.trainer.device import limit_spinning

Json = dict[str, Any]

CHECKOUT = Path(__file__).resolve().parents[1]
OUT = CHECKOUT / "results" / "benchmarks" / "gpu.jsonl"

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LOG_CHARS = 1500
"""Of what a failed item printed, the last that are kept."""


# --- what there is to measure -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """Something to measure: a function of bench/gpu_items.py, by name, yields rows.

    Attributes:
        limit_s: seconds after which it has failed.
    """

    name: str
    function: str
    arguments: Json
    limit_s: float


def items(small: bool) -> list[Item]:
    """Return all items, the most important first; small ones, one of a kind, have sizes that a CPU can measure too."""
    created = list[Item]()

    def add(name: str, function: str, limit_s: float = 150.0, /, **arguments: object) -> None:
        created.append(Item(name, function, {**arguments, "small": small}, limit_s))

    add("environment", "environment")
    for model, other, size in (("vit-b16", "timm", 512), ("bart-large", "MBart", 32)):
        settings = [(p, c, size) for c in (True, False) for p in ("bf16", "fp16")]
        for precision, compiled, batch in (*settings, ("bf16", True, size // 2), ("bf16", True, size * 2)):
            name = f"{model} beside {other}, {precision}, {'compiled' if compiled else 'eager'}, batch {batch}"
            mapping = {"precision": precision, "compiled": compiled, "batch_size": batch}
            add(name, "beside", 240.0, model=model, other=other, **mapping)
    add("r2c2 alone", "alone", 200.0, model="r2c2", batch_size=16)
    add("attention of vit-b16", "attention", kind="full", shape=(256, 196, 768), dropout=0.0)
    add("attention of an encoder", "attention", kind="key mask", shape=(32, 514, 1024), dropout=0.1)
    add("attention of a decoder", "attention", kind="causal", shape=(32, 514, 1024), dropout=0.1)
    add("head", "head")
    for model, members in product(("vit-digits", "vit-cifar10"), (32, 128, 8)):
        add(f"{model} in an ensemble, {members} at once", "ensembles", 200.0, model=model, runs=members)
    add("a grid alone and in an ensemble", "ensemble_grid", 240.0)
    for precision in ("bf16", "fp16"):
        mapping = {"strategy": "ntk", "precision": precision, "resume": True}
        add(f"vit-b16 run, ntk, {precision}, resumed", "vit_run", 240.0, **mapping)
    add("r2c2 run, ntk", "text_run", 240.0, model="r2c2", strategy="ntk", steps=20, batch_size=32)
    for strategy in ("standard", "ntk"):
        mapping = {"model": "bart-large", "strategy": strategy, "steps": 100, "batch_size": 64}
        add(f"bart-large run, {strategy}", "text_run", 240.0, **mapping)
    for model in ("vit-b16", "bart-large", "a stack"):
        add(f"waits of {model}", "waits", 200.0, model=model)
    for model in ("vit-b16", "bart-large"):
        add(f"doctor --fit, {model}", "doctor_fit", 200.0, model=model)
    for mps in (False, True):
        through = " through MPS" if mps else ""
        add(f"workers{through}", "workers", 300.0, slots=[2, 4] if mps else [1, 2, 4], mps=mps)
        add(f"a killed worker{through}", "killed_worker", 200.0, mps=mps)
    for strategy, precision in product(("standard", "hybrid", "mup"), ("bf16", "fp16")):
        mapping = {"strategy": strategy, "precision": precision, "resume": False}
        add(f"vit-b16 run, {strategy}, {precision}", "vit_run", **mapping)
    kinds = dict[tuple[object, ...], Item]()
    for item in created:  # of small ones, the model is the same for all that a function measures
        kinds.setdefault((item.function, *(item.arguments.get(key) for key in ("other", "kind", "mps"))), item)
    return [*kinds.values()] if small else created


# --- the process that has them measured ---------------------------------------------------------------------------------


def measure(item: Item, limit_s: float, folder: Path) -> Json:
    """Have an item measured by a process of its own; return its rows, state and message."""
    rows, log = folder / "rows", folder / "log"
    rows.write_text("")
    mapping = {"ETTSWEEP_SLOTS": str(folder / "slots"), "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)}
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    command = [
        sys.executable,
        "-m",
        "bench.gpu_items",
        item.function,
        json.dumps(item.arguments),
        str(folder),
        str(rows),
    ]
    began_s, delayed = time.monotonic(), False
    with log.open("w") as out:
        env = os.environ | mapping | {"PYTHONPATH": path}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            delayed = True
        finally:
            end(process)
    lines = read_lines(rows)
    answer = next((line for line in lines if "state" in line), None)
    if answer is None:
        code = process.returncode
        ended = f"its process ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
        answer = {"state": "failed", "message": f"took more than {limit_s:.0f} s" if delayed else ended}
    if answer["state"] == "failed":
        answer["log"] = log.read_text(errors="replace")[-LOG_CHARS:].strip()
    wall_s = round(time.monotonic() - began_s, 1)
    return {**answer, "late": delayed, "wall_s": wall_s, "rows": [line["row"] for line in lines if "row" in line]}


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process with its group, and all that these had started: orphans are children of this process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while orphans := psutil.Process().children():
        for orphan in orphans:
            orphan.kill()
        psutil.wait_procs(orphans)


def run(expected: Sequence[Item], out: Path, deadline_s: float, small: bool) -> None:
    """Measure items until the time is up, and append a line for each.

    An item for which the time did not suffice leaves none: another call measures it.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    limit_spinning()  # as its programs do, before torch is imported
    with tempfile.TemporaryDirectory(prefix="ettsweep-gpu-", ignore_cleanup_errors=True) as name:
        for result, item in enumerate(expected):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                print(f"the time is up: {len(expected) - result} items are left for another call")
                return
            print(f"{item.name} ...", end="", flush=True)
            began = datetime.now(UTC).isoformat(timespec="seconds")
            measure_result = measure(item, min(left_s, item.limit_s), Path(name))
            if measure_result.pop("late") and left_s < item.limit_s:
                print(f"\r{item.name}: the time is up", flush=True)
                continue
            line = {"item": item.name, "small": small, "began": began, **measure_result}
            append(out, line)
            print(f"\r{item.name}: {brief(line)} ({line['wall_s']:.0f} s)", flush=True)


def append(out: Path, line: Json) -> None:
    """Append a line, also after one that a kill has cut."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a+b") as file:
        if file.tell() and not out.read_bytes().endswith(b"\n"):
            file.write(b"\n")
        file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(out: Path, small: bool) -> dict[str, Json]:
    """Return the last line of each item; lines that a kill has cut are left out."""
    collected = {}
    for raw in out.read_bytes().splitlines() if out.exists() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            line = loads(raw)
            if line["small"] is small:
                collected[str(line["item"])] = line
    return collected


def brief(line: Json) -> str:
    """Return what came of an item in a line: its last row, or its message."""
    if line["state"] != "done":
        return f"{line['state']}: {line.get('message', '')}"[:160]
    row = line["rows"][-1] if line["rows"] else {}
    cells = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if v is not None]
    return ", ".join(cells)[:160]


# --- the table ----------------------------------------------------------------------------------------------------------

PEAK_SHARE = 0.44
"""Of the peak on the data sheet; of an H100 or H200, 4,150 images/s."""

BESIDE, IN_ENSEMBLE, DATA_WAIT = 1.1, {"vit-digits": (10.0, all), "vit-cifar10": (3.0, any)}, 0.1
MANY = (32, 128)
"""Runs at once from which on an ensemble is to reach its target."""

Verdict = tuple[str, str, bool | None]
"""A target, what was measured, and whether it is met; None where nothing was measured."""


def verdicts(lines: dict[str, Json]) -> list[Verdict]:
    """Hold what was measured to the targets."""

    def rows(start: str) -> list[tuple[str, Json]]:
        return [(name, row) for name, line in lines.items() if name.startswith(start) for row in line["rows"]]

    return [
        _share(rows("vit-b16 beside timm, bf16, compiled")),
        *_beside("vit-b16 beside timm", rows("vit-b16 beside"), "images_per_s", "timm_images_per_s"),
        *_beside("bart-large beside MBart", rows("bart-large beside"), "tokens_per_s", "mbart_tokens_per_s"),
        *(_ensemble(model, rows(f"{model} in an ensemble"), *expected) for model, expected in IN_ENSEMBLE.items()),
        _none("no step makes the host wait for the device", rows("waits of"), _waits),
        _none("gradients of attention are finite in the kernels that a run takes", rows("attention"), _not_finite),
        _none(f"the loader keeps up with vit-b16: data_wait of {DATA_WAIT:.0%} at most", rows("vit-b16 run"), _slow),
        _none("a killed worker leaves the runs of the others alone", rows("a killed worker"), _disturbed),
    ]


def _share(rows: list[tuple[str, Json]]) -> Verdict:
    target = f"vit-b16, bf16, compiled: {PEAK_SHARE:.0%} of the peak on the data sheet"
    best = max((row for _, row in rows if row["utilisation"]), key=lambda row: row["images_per_s"], default=None)
    if best is None:
        return target, "", None
    text = f"{best['utilisation']:.1%}: {best['images_per_s']:,.0f} images/s at batch {best['batch_size']}"
    return target, text, best["utilisation"] >= PEAK_SHARE


def _beside(name: str, rows: list[tuple[str, Json]], speed: str, other: str) -> Iterator[Verdict]:
    """Yield a line for each precision, compiled and not, at the batch that is fastest."""
    target = f"{name}, {{}}: {BESIDE} times as fast in one loop"
    best: dict[tuple[str, bool], Json] = {}
    for _, row in sorted(rows, key=lambda pair: float(pair[1][speed])):
        best[row["precision"], row["compiled"]] = row
    for (precision, compiled), row in sorted(best.items()):
        text = f"{row['ratio']:.3f} ({row[speed]:,.0f} to {row[other]:,.0f} at batch {row['batch_size']})"
        message = f"{precision}, {'compiled' if compiled else 'eager'}"
        yield target.format(message), text, row["ratio"] >= BESIDE
    if not best:
        yield target.format("bf16 and fp16"), "", None


def _ensemble(model: str, rows: list[tuple[str, Json]], expected: float, enough: Callable[..., bool]) -> Verdict:
    """Hold the speed of ensembles to the target: of all numbers of runs, or of any."""
    quantity = f"at 32 {'and' if enough is all else 'or'} 128 runs at once"
    target = f"{model} in an ensemble: {expected:g} times single runs, {quantity}"
    speeds = {
        row["runs"]: row["times as fast"] for _, row in rows if row["way"] == "ensemble" and "times as fast" in row
    }
    text = ", ".join(f"{k}: {speed:.2f}" for k, speed in sorted(speeds.items()))
    values = [speeds[k] >= expected for k in MANY if k in speeds]
    return target, text, enough(values) if len(values) >= (len(MANY) if enough is all else 1) else None


def _none(target: str, rows: list[tuple[str, Json]], wrong: Callable[[Json], str]) -> Verdict:
    """Hold rows to what none of them may have."""
    values = [f"{name}: {text}" for name, row in rows if (text := wrong(row))]
    return (
        target,
        "; ".join(values) or (f"in {len(rows)} of {len(rows)} cases" if rows else ""),
        not values if rows else None,
    )


def _waits(row: Json) -> str:
    return f"{row['waits']} in {row['steps']} steps" if row.get("waits") else ""


def _not_finite(row: Json) -> str:
    text = "efficient" if row["kind"] == "key mask" else "default"
    return "" if row["backend"] != text or row.get("finite", True) else f"head size {row['head_size']}, {text}"


def _slow(row: Json) -> str:
    later = row.get("data_wait_later")
    wait = later if later is not None else row.get("data_wait") or 0.0
    return f"{wait:.1%}" if wait > DATA_WAIT else ""


def _disturbed(row: Json) -> str:
    lost = row["runs"] - row["done"]
    return f"{row['disturbed']} of {row['runs']} began again, {lost} did not end" if row["disturbed"] or lost else ""


def table(out: Path, small: bool) -> str:
    """Return what was measured against the targets, and what came of each item, as Markdown."""
    lines, message = read(out, small), {None: "not measured", True: "met", False: "not met"}
    text = ["| target | measured | |", "|---|---|---|"]
    verdicts_result = verdicts({} if small else lines)
    text += [f"| {target} | {measured} | {message[met]} |" for target, measured, met in verdicts_result]
    if on := sorted({f"{line['device']}, torch {line['torch']}" for line in lines.values() if "device" in line}):
        text += ["", f"Measured on {'; '.join(on)}."]
    text += ["", f"| item{', of tiny sizes' if small else ''} | seconds | |", "|---|---|---|"]
    for item in items(small):
        line = lines.get(item.name, {"state": "not measured", "message": "not yet", "wall_s": 0.0})
        text.append(f"| {item.name} | {line['wall_s']:.0f} | {brief(line).replace('|', '/')} |")
    return "\n".join(text) + "\n"


def main() -> None:
    """Measure what is asked for and not there yet, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="a JSON line an item, appended")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all of it; 0 prints the table alone")
    parser.add_argument("--items", nargs="+", default=[""], metavar="WORD", help="those whose names hold one of these")
    parser.add_argument("--again", action="store_true", help="measure again what has failed")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try all of it, also on a CPU")
    args = parser.parse_args()
    by_name = {item.name: item for item in items(args.small)}
    deadline_s = time.monotonic() + 60 * args.minutes
    values = [item for item in by_name.values() if any(token in item.name for token in args.items)]
    if not values:
        parser.error(f"--items: no name of the {len(by_name)} items holds one of these; --minutes 0 lists them")
    over = {name for name, line in read(args.out, args.small).items() if not (args.again and line["state"] == "failed")}
    if args.minutes > 0:
        run([item for item in values if item.name not in over], args.out, deadline_s, args.small)
    text = table(args.out, args.small)
    print(f"\n{text}", end="")
    if args.table:
        write_atomic(args.table, text)


if __name__ == "__main__":
    main()
