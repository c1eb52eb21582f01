"""Commands under random strikes: whatever is killed or frozen, each run ends once, exact, and leaves nothing.

STRIKES is the number of strikes (10), SEED what they follow from (0). On SLURM, see `test_chaos.py`.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from support.arrays import workers
from support.commandline import ETTSWEEP, ettsweep, runs_in, wait_for
from support.own_code import processes_with

from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State

STRIKES, SEED = int(os.environ.get("STRIKES", "10")), int(os.environ.get("SEED", "0"))

TREE = '''"""A leader with two processes below, one in a session of its own, which write checkpoints for it."""
import json, os, random, subprocess, sys, time

lr, seed, out = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
idle = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
below = [subprocess.Popen(idle), subprocess.Popen(idle, start_new_session=True)]
rng, value, first = random.Random(seed), 3.0, 1
if sys.argv[4:]:
    with open(sys.argv[4]) as file:
        first, value, state = json.load(file)
    rng.setstate((state[0], tuple(state[1]), state[2]))
for step in range(first, 201):
    value += 0.05 * (1 - value) + rng.gauss(0, lr)
    print("[ettsweep]", json.dumps({"step": step, "err": value}), flush=True)
    if step % 10 == 0:
        with open(out + "/part", "w") as file:
            json.dump([step + 1, value, rng.getstate()], file)
        os.rename(out + "/part", f"{out}/{step}.json")
    if ended := [process.pid for process in below if process.poll() is not None]:
        print("Signal 9 (SIGKILL) received by PID", ended[0], flush=True)  # as torchrun says it
        sys.exit(1)
    time.sleep(0.02)
'''

START_S = 0.75
"""Seconds in which most attempts come to their first checkpoint."""

pytestmark = [pytest.mark.usefixtures("process"), pytest.mark.slow]


def processes(results: Path) -> dict[str, list[int]]:
    """Return the pids of all processes of all runs, by what they are."""
    found: dict[str, list[int]] = {"worker": workers(results), "supervisor": [], "leader": [], "below": []}
    kinds = {b"supervisor.py": "supervisor", b"tree.py": "leader"}
    outs = (f"ETTSWEEP_OUT={run.path.resolve() / 'out'}" for run in runs_in(results))
    for pid, words in processes_with(*outs).items():
        names = (os.path.basename(word) for word in words)  # noqa: PTH119  of bytes
        found[next((kinds[name] for name in names if name in kinds), "below")].append(pid)
    return found


def strike(rng: random.Random, results: Path) -> str:
    """Strike at a process, if there is any; return what was struck, by what."""
    targets = {kind: pids for kind, pids in processes(results).items() if pids}
    if not targets:
        return ""
    kind = rng.choice(list(targets))
    pid, number = rng.choice(sorted(targets[kind])), rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
    try:
        if frozen := rng.random() < 0.25:  # first, as by a debugger or a full machine
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(pid, signal.SIGCONT)
        os.kill(pid, number)
    except ProcessLookupError:
        return ""
    return f"{'STOP+' if frozen else ''}{number.name.removeprefix('SIG')} {kind}"


def test_runs_under_strikes_end_once_exact_and_leave_nothing(tmp_path: Path) -> None:
    results, calm = tmp_path / "results", tmp_path / "calm"
    (tmp_path / "tree.py").write_text(TREE)
    grid = tmp_path / "sweep.yaml"
    block = {
        "command": [sys.executable, "tree.py", "{lr}", "{seed}", "{out}"],
        "score": {"name": "err", "mode": "min"},
        "resume": {"checkpoint": r"{out}/(?P<step>\d+)\.json", "add": "{checkpoint}"},
        "stop": {"grace": "1s"},
        "steps": 200,
    }
    seeds = list(range(max(2, STRIKES // 4)))
    grid.write_text(yaml.safe_dump({"run": block, "centre": {"lr": 2.0**-8}, "lr": {"range": [0, 0]}, "seeds": seeds}))
    asked = ("grid", grid, "--follow", "--launch-set", "heartbeat_s=1", "--launch-set", "slots=2", "--results")

    def follow() -> "subprocess.Popen[bytes]":
        # A run that was struck too often without a step in between waits for its user.
        ettsweep("retry", "--all", "--yes", "--results", results, code=None)
        return subprocess.Popen([ETTSWEEP, *asked, results], stdout=log, stderr=log)

    def ended() -> bool:
        return bool(runs_in(results)) and all(run.result() for run in runs_in(results))

    rng, struck = random.Random(SEED), list[str]()
    with (tmp_path / "follow.log").open("w") as log:
        following = follow()
        while not ended():
            if following.poll() is not None:
                following = follow()
            time.sleep(rng.uniform(0.4, 1.6) * START_S)  # how often it strikes; nothing waits for this
            if len(struck) < STRIKES:
                struck += filter(None, [strike(rng, results)])
        following.wait()
    runs = runs_in(results)
    assert [run.status().state for run in runs] == [State.DONE] * len(seeds), struck
    wait_for(lambda: not any(processes(results).values()), "the end of all processes")
    ettsweep(*asked, calm)
    for run in runs:
        assert run.metrics_path.read_bytes() == RunDir(calm / "runs" / run.id).metrics_path.read_bytes(), struck
        assert (run.result() or {})["attempts"] == run.attempt_numbers()[-1], struck
    failures = [attempt.failure() for run in runs for attempt in map(run.attempt, run.attempt_numbers())]
    assert not [each for each in failures if each and each["kind"] == "error"], "no run is called failed"
    assert len(struck) >= STRIKES / 2, "it was over before it had begun"
    print(f"\n{len(runs)} runs, {len(failures)} attempts, {len(struck)} strikes")
    reasons = (f"attempt: {each['reason'] if each else 'done, or did not live to tell'}" for each in failures)
    print(*(f"{n:5d} {what}" for what, n in sorted((Counter(struck) + Counter(reasons)).items())), sep="\n")
