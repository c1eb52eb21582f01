"""What was measured against what is aimed at: one table of all steps that have left their files."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ettsweep.files import write_atomic
from ettsweep.models.architectures import model_spec
from ettsweep.models.cost import train_flops_per_sample

Json = dict[str, Any]
Row = dict[str, Any]
Steps = dict[int, Json]

PEAK_SHARE, BESIDE, PACKED_DIGITS, PACKED_CIFAR = 0.55, 1.1, 10.0, 3.0
MANY = (32, 128)
"""Runs at once from which on a pack is to reach its target."""


@dataclass(frozen=True)
class Verdict:
    """A line of the table; `met` is None where nothing was measured."""

    target: str
    measured: str
    met: bool | None

    @property
    def verdict(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "not met"


def read(out: Path) -> Steps:
    """Return the records of the steps that there are, by number; those of tiny sizes measure nothing."""
    found = {}
    for path in sorted(out.glob("[0-9]-*.json")):
        try:
            record = json.loads(path.read_text())
            found[int(record["step"])] = record
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{path}: cannot be read ({error})")
    return found


def rows(steps: Steps, number: int, name: str) -> Iterator[tuple[str, Row]]:
    """Yield item and row of what was measured in a step, of items whose name starts so."""
    for item in steps.get(number, {}).get("items", []):
        if item["state"] == "done" and item["item"].startswith(name):
            yield from ((item["item"], row) for row in item["rows"])


def verdicts(steps: Steps) -> list[Verdict]:
    """Return the lines of the table."""
    real = {number: record for number, record in steps.items() if not record["small"]}
    return [
        _share(real),
        *_beside(real, 2, "vit-b16 beside timm", "images_per_s", "timm"),
        *_beside(real, 4, "bart-large beside MBart", "tokens_per_s", "MBart"),
        _packed(real, "vit-digits", PACKED_DIGITS, all),
        _packed(real, "vit-cifar10", PACKED_CIFAR, any),
        _waits(real),
    ]


def measured_peak(steps: Steps) -> float | None:
    """Return what bf16 products reached, in FLOP/s: in the step of the training steps, else the best of the others."""
    peaks = {number: record["environment"].get("measured_bf16_tflops") for number, record in steps.items()}
    best = peaks.get(2) or max((peak for peak in peaks.values() if peak), default=None)
    return best * 1e12 if best else None


def _share(steps: Steps) -> Verdict:
    target = f"vit-b16, bf16, compiled: {PEAK_SHARE:.0%} of the measured peak (of 790 TFLOP/s: 4,150 images/s)"
    found = [row for _, row in rows(steps, 2, "vit-b16 beside timm, bf16, compiled")]
    peak = measured_peak(steps)
    if not found or not peak:
        return Verdict(target, "", None)
    best = max(found, key=lambda row: row["images_per_s"])
    reached = best["images_per_s"] * train_flops_per_sample(model_spec("vit-b16"))
    told = (
        f"{best['images_per_s']:,.0f} images/s at batch {best['batch_size']}, {reached / 1e12:.0f} of {peak / 1e12:.0f}"
    )
    sheet = f"; {best['utilisation']:.1%} of the data sheet's" if best["utilisation"] else ""
    return Verdict(target, f"{told} TFLOP/s measured: {reached / peak:.1%}{sheet}", reached / peak >= PEAK_SHARE)


def _beside(steps: Steps, number: int, name: str, speed: str, other: str) -> list[Verdict]:
    """Return a line for each precision, compiled and not, at the batch that is fastest."""
    best: dict[tuple[str, bool], Row] = {}
    for _, row in rows(steps, number, name):
        key = row["precision"], row["compiled"]
        if key not in best or row[speed] > best[key][speed]:
            best[key] = row
    target = f"{name}, {{}}: {BESIDE} times as fast in one loop"
    if not best:
        return [Verdict(target.format("bf16 and fp16"), "", None)]
    return [
        Verdict(
            target.format(f"{precision}, {'compiled' if compiled else 'eager'}"),
            f"{row['ratio']:.3f} ({row[speed]:,.0f} to {row[f'{other.lower()}_{speed}']:,.0f} at batch {row['batch_size']})",
            row["ratio"] >= BESIDE,
        )
        for (precision, compiled), row in sorted(best.items())
    ]


def _packed(steps: Steps, model: str, wanted: float, enough: Callable[[Iterator[bool]], bool]) -> Verdict:
    """Hold the best way of each number of runs to the target: of all numbers, or of any."""
    told = "at 32 and 128 runs at once" if enough is all else "at 32 or 128 runs at once"
    target = f"{model} packed: {wanted:g} times single runs, {told}"
    best: dict[int, Row] = {}
    for _, row in rows(steps, 7, f"{model}, "):
        times, before = row.get("times as fast", 0.0), best.get(row["members"], {}).get("times as fast", 0.0)
        if row["way"] != "alone" and times > before:
            best[row["members"]] = row
    cells = [f"{k}: {row['times as fast']:.2f} ({row['way']})" for k, row in sorted(best.items())]
    many = [best[k]["times as fast"] for k in MANY if k in best]
    if len(many) < (len(MANY) if enough is all else 1):
        return Verdict(target, ", ".join(cells), None)
    return Verdict(target, ", ".join(cells), enough(times >= wanted for times in many))


def _waits(steps: Steps) -> Verdict:
    found = list(rows(steps, 5, "waits of "))
    waiting = [
        f"{name.removeprefix('waits of ')}: {row['waits']} in {row['steps']} steps"
        for name, row in found
        if row["waits"]
    ]
    told = "; ".join(waiting) or (
        f"none in {sum(row['steps'] for _, row in found)} steps of {len(found)} kinds" if found else ""
    )
    return Verdict("no step makes the host wait for the device", told, not waiting if found else None)


# --- shown ------------------------------------------------------------------------------------------------------------


def markdown(steps: Steps) -> str:
    """Return the table, what it was measured on, and what was not measured and why."""
    lines = ["| target | measured | |", "|---|---|---|"]
    lines += [f"| {v.target} | {v.measured} | {v.verdict} |" for v in verdicts(steps)]
    lines += ["", "| step | on | torch | items | done | seconds |", "|---|---|---|---|---|---|"]
    for number, record in sorted(steps.items()):
        where, items = record["environment"], record["items"]
        done = sum(item["state"] == "done" for item in items)
        small = ", tiny sizes" if record["small"] else ""
        lines.append(
            f"| {number} {record['name']}{small} | {where.get('device', '?')} | {where.get('torch', '?')} | {len(items)} | "
            f"{done} | {record['wall_s']:.0f} |"
        )
    missed = [
        f"- step {number}, {item['item']}: {item['state']}{': ' if item.get('message') else ''}{item.get('message', '')}"
        for number, record in sorted(steps.items())
        for item in record["items"]
        if item["state"] != "done"
    ]
    return "\n".join([*lines, *(["", *missed] if missed else [])]) + "\n"


def show(out: Path) -> None:
    """Print the table, and write it beside the files that it was made of."""
    steps = read(out)
    text = markdown(steps)
    write_atomic(out / "targets.md", text)
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(text)
        return
    table = Table("target", "measured", "")
    colours = {"met": "green", "not met": "red", "not measured": "yellow"}
    for v in verdicts(steps):
        table.add_row(v.target, v.measured, f"[{colours[v.verdict]}]{v.verdict}")
    Console().print(table)
    print(text[text.index("| step |") :])
