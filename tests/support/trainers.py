"""Trainers with known answers for `ettsweep try`: one small program, with switches for what real ones do wrong."""

import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

WALK = '''"""Fits a number to noisy batches, a step at a time; its faults are options.

It takes its time where a trial is to meet it in training, or always if it is slow.
"""
import argparse, json, os, random, signal, subprocess, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--out")
parser.add_argument("--resume")
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--pause", type=float, default=0.03)
parser.add_argument("--slow", action="store_true")
parser.add_argument("--faults", default="")
options = parser.parse_args()
faults = options.faults.split(",")
seed = 1337 if "constant" in faults else None if "entropy" in faults else options.seed
rng, value, first, told = random.Random(seed), 3.0, 1, []
if options.resume and "ignores-checkpoint" not in faults:
    with open(options.resume) as file:
        state = json.load(file)
    first, value = state["step"] + 1, state["value"]
    if "forgets-random" in faults:
        rng = random.Random()
    else:
        rng.setstate((state["random"][0], tuple(state["random"][1]), state["random"][2]))
is_met = bool({"killed", "stopped"} & set(options.out.split("/"))) and not options.resume
pause = options.pause if is_met or options.slow else 0.0
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in faults else lambda *_: told.append(1))
if "children" in faults:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)


def save(step):
    with open(options.out + "/part", "w") as file:
        json.dump({"step": step, "value": value, "random": rng.getstate()}, file)
    os.rename(options.out + "/part", options.out + "/ckpt-%d.json" % step)


for step in range(first, options.steps + 1):
    batch = rng.gauss(1, 0.3)
    loss = (value - batch) ** 2
    value += 0.2 * (batch - value)
    digits = 1 if "coarse" in faults else 12
    print("[ettsweep]", json.dumps({"step": step, "loss": loss, "err": round(value, digits)}), flush=True)
    if step % 10 == 0 or told:
        save(step)
    if told:
        sys.exit(1)
    time.sleep(pause)
'''

FUNCTION = '''"""The same as a function."""
import json, random, time


def main(run, steps=80):
    rng, value = random.Random(run.seed), 3.0
    if run.resume_from:
        value, state = json.loads(run.resume_from.read_text())
        rng.setstate((state[0], tuple(state[1]), state[2]))
    for step in range(run.resume_step + 1, steps + 1):
        value += 0.2 * (rng.gauss(1, 0.3) - value)
        run.log(step, err=value)
        if step % 10 == 0 or run.should_stop:
            run.save(step, lambda path: path.write_text(json.dumps([value, rng.getstate()])))
        if run.should_stop:
            return
        time.sleep(0.015)
'''

SCORE = {"name": "err", "mode": "min"}

RESUME = {"checkpoint": r"{out}/ckpt-(?P<step>\d+)\.json", "add": "--resume {checkpoint}"}


def write_walk(
    folder: Path, faults: str = "", *, name: str = "walk", run: dict[str, Any] | None = None, **grid: Any
) -> Path:
    """Write the program and a grid file that sweeps it with some faults; return the file."""
    (folder / "walk.py").write_text(WALK)
    seed = "" if grid.get("seeds") == "none" else " --seed {seed}"
    command = f"{shlex.quote(sys.executable)} walk.py --lr {{lr}}{seed} --out {{out}}"
    command += f" --faults {faults}" if faults else ""
    block = {"command": command, "score": SCORE, "resume": RESUME, "stop": {"grace": "1s"}}
    return _write_grid(folder / f"{name}.yaml", block | (run or {}), **grid)


def write_function(folder: Path) -> Path:
    """Write the function and a grid file that sweeps it; return the file."""
    (folder / "mine.py").write_text(FUNCTION)
    return _write_grid(folder / "function.yaml", {"function": "mine:main", "score": SCORE, "steps": 80})


def _write_grid(path: Path, run: dict[str, Any], **grid: Any) -> Path:
    axes = {"centre": {"lr": 0.25}, "lr": {"range": [-1, 1]}, "seeds": [0, 1]}
    path.write_text(yaml.safe_dump({"run": run, **axes, **grid}))
    return path
