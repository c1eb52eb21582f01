"""Results folders to watch, and a terminal to watch them in."""

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import RunIndex
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import SweepStore
from ettsweep.watch.view import Cell, FamilyView, View
from ettsweep.watch.watcher import Selection, Watcher
from support.commandline import keep, wait_for, write_grid
from support.made_sweep import finish, loss_at
from support.points import moved

NOON = "12:00:00"

SMALL: dict[str, Any] = {
    "recipe": {"batch_size": 32, "schedule": {"total_steps": 240, "warmup_steps": 24, "eval_every": 40}},
    "centre": {"standard": {"lr": 2.0**-6, "wd": 0.5}},
    "wd": {"range": [-1, 1]},
    "seeds": [0, 1],
    "criterion": {"margin": "5%"},
}
"""Nine points of two seeds."""

MIDDLE = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]


def ask(results: Path, name: str = "small", **changes: Any) -> list[Study]:
    """Have a sweep be asked for; return the search of each strategy."""
    sweep_spec = load_sweep_spec(write_grid(results.parent / f"{name}.yaml", **SMALL | changes))
    keep(results, sweep_spec)
    return sweep_spec.studies(name)


def at(study: Study, i: int, j: int, seed: int = 0) -> RunSpec:
    """Return the run that many steps from the centre."""
    return study.base.with_point(moved(study.centre, i, j), seed)


def finish_all(results: Path, study: Study, steps: Iterable[tuple[int, int]] = MIDDLE) -> None:
    """Have all runs of some points be finished, with the best score in the middle."""
    for i, j in steps:
        for seed in study.seeds:
            finish(results, at(study, i, j, seed), loss_at(i, j, seed))


def claim(results: Path, spec: RunSpec, step: int = 60, loss: float = 1.25) -> Attempt:
    """Have this process train a run, which has come to a step at 20 steps a second."""
    run = RunDir.create(results, spec)
    attempt = run.claim({}, after=(run.attempt_numbers() or [0])[-1])
    assert attempt
    attempt.append(attempt.metrics_path, [{"step": step, "loss": loss, "grad_norm": 1.0, "lr": spec.lr}])
    line = {"steps_per_s": 20.0}
    times = [{"step": s, "progress": s / 240, "wall_s": s / 20, **line} for s in (step // 2, step)]
    attempt.append(attempt.timings_path, times)
    return attempt


def choose_all(run_index: RunIndex, sweep_store: SweepStore) -> Selection:
    """Mean all that there is."""
    return list(run_index.runs.values()), [study for sweep in sweep_store.select() for study in sweep.studies]


def watcher(results: Path) -> Watcher:
    """Return one for which it is always noon."""
    return Watcher(results, choose_all, lambda: NOON)


def look(watch: Watcher) -> View:
    """Look, and judge nothing."""
    return next(view for view in watch.poll() if view.status)


def judged(watch: Watcher) -> View:
    """Look, and find all verdicts."""
    *_, view = watch.poll()
    return view


def family(view: View, strategy: str = "standard") -> FamilyView:
    return next(result for result in view.families.values() if result.study.strategy == strategy)


def cells(family_view: FamilyView) -> dict[tuple[int, int], Cell]:
    return {(cell.i, cell.j): cell for cell in family_view.cells}


# --- a terminal -----------------------------------------------------------------------------------------------------

PLAIN_ENVIRONMENT = ("NO_COLOR", "COLORTERM", "COLUMNS", "LINES", "TMUX", "TERM_PROGRAM")


class Terminal:
    """A real terminal, a tmux of its own, with a shell in it."""

    def __init__(self, width: int, height: int, **variables: str) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        self._name = f"ettsweep-{uuid.uuid4().hex}"
        env = {key: value for key, value in os.environ.items() if key not in PLAIN_ENVIRONMENT}
        setting = [f"{key}={value}" for key, value in variables.items()]
        shell = ["env", *setting, "PS1=before$ ", "HISTFILE=", "bash", "--norc", "--noprofile"]
        size = ["-x", str(width), "-y", str(height)]
        command = ["tmux", "-L", self._name, "-f", "/dev/null", "new-session", "-d", *size, *shell]
        subprocess.run(command, env=env, check=True)
        self.wait_for(r"before\$")

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        completed = subprocess.run(["tmux", "-L", self._name, *words], capture_output=True, text=True, check=True)
        return completed.stdout

    def type(self, text: str) -> None:
        """Type a line."""
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by the names that tmux has for them."""
        self._tmux("send-keys", *keys)

    def seen(self, colours: bool = False) -> str:
        """Return what is seen; with what sets colours, if these are of interest."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def wait_for(self, pattern: str) -> str:
        """Return what is seen once a pattern is among it."""
        found: re.Match[str] = wait_for(lambda: re.search(pattern, self.seen(), re.MULTILINE), pattern)
        return found.string

    def modes(self) -> str:
        """Return in what state the terminal is: its other screen, cursor, mouse."""
        return self._tmux("display-message", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag}")

    def pid(self) -> int:
        """Return the process that the shell runs."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(children[0])
