"""Commands under random strikes: whatever is killed, frozen or signalled, each run ends once, exact, and leaves nothing.

STRIKES is the number of strikes (20), SEED what they follow from (0).
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
from support.commandline import ETTSWEEP, ettsweep, runs_in, wait_for, worker_pids
from support.own_code import processes_with

from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State

STRIKES, SEED = int(os.environ.get("STRIKES", "20")), int(os.environ.get("SEED", "0"))

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
    if any(process.poll() is not None for process in below):
        print("Signal 9 (SIGKILL) received by a process", flush=True)
        sys.exit(1)
    time.sleep(0.02)
'''

pytestmark = pytest.mark.usefixtures("process")


def processes(results: Path) -> dict[str, list[int]]:
    """Return the pids of all processes of all runs, by what they are."""
    found: dict[str, list[int]] = {"supervisor": [], "leader": [], "below": []}
    kinds = {b"supervisor.py": "supervisor", b"tree.py": "leader"}
    for pid, words in processes_with(*(f"ETTSWEEP_RUN={run.id}" for run in runs_in(results))).items():
        names = (os.path.basename(word) for word in words)  # noqa: PTH119  of bytes
        found[next((kinds[name] for name in names if name in kinds), "below")].append(pid)
    return found


@pytest.mark.slow
def test_runs_under_strikes_end_once_exact_and_leave_nothing(tmp_path: Path, results: Path) -> None:
    (tmp_path / "tree.py").write_text(TREE)
    grid = tmp_path / "sweep.yaml"
    block = {
        "command": [sys.executable, "tree.py", "{lr}", "{seed}", "{out}"],
        "score": {"name": "err", "mode": "min"},
        "resume": {"checkpoint": r"{out}/(?P<step>\d+)\.json", "add": "{checkpoint}"},
        "stop": {"grace": "1s"},
        "steps": 200,
    }
    runs = max(4, STRIKES // 5)
    axes = {"centre": {"lr": 2.0**-8}, "lr": {"range": [0, 1]}, "seeds": list(range(runs // 2))}
    grid.write_text(yaml.safe_dump({"run": block, **axes}))
    heart = ("--launch-set", "heartbeat_s=1", "--launch-set", "slots=2")
    command = [ETTSWEEP, "grid", "--grid", grid, "--results", results, "--follow", *heart]
    rng, struck = random.Random(SEED), list[str]()

    def follow() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    following = follow()
    while len(struck) < STRIKES:
        time.sleep(rng.uniform(0.3, 1.2))
        if following.poll() is not None:
            if runs_in(results) and all(run.result() for run in runs_in(results)):
                break
            following = follow()
        targets = processes(results) | {"worker": worker_pids(results) if results.exists() else []}
        kinds = [kind for kind, pids in targets.items() if pids]
        if not kinds:
            continue
        kind = rng.choice(kinds)
        pid, number = rng.choice(sorted(targets[kind])), rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
        try:
            if rng.random() < 0.25:  # frozen first, as by a debugger or a full machine
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.2)
                os.kill(pid, signal.SIGCONT)
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        struck.append(f"{signal.Signals(number).name} {kind}")
    following.wait()

    def ended() -> bool:
        ettsweep("grid", "--grid", grid, "--results", results, "--follow", *heart, code=None)
        return all(run.result() for run in runs_in(results))

    wait_for(ended, "the end of all runs")
    assert [run.status().state for run in runs_in(results)] == [State.DONE] * len(runs_in(results)), struck
    wait_for(lambda: not any(processes(results).values()), "the end of all processes")
    calm = tmp_path / "calm"
    ettsweep("grid", "--grid", grid, "--results", calm, "--follow", "--launch-set", "slots=2")
    for run in runs_in(results):
        undisturbed = RunDir(calm / "runs" / run.id)
        assert run.metrics_path.read_bytes() == undisturbed.metrics_path.read_bytes(), struck
    failures = [attempt.failure() for run in runs_in(results) for attempt in map(run.attempt, run.attempt_numbers())]
    assert not [each for each in failures if each and each["kind"] == "error"], "no run is called failed"
    print(f"{len(runs_in(results))} runs, {len(failures)} attempts, {len(struck)} strikes: {dict(Counter(struck))}")
