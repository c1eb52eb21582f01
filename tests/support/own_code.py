"""Runs of functions and commands in tests: their only run, its result, its processes, what planning them imports."""

from pathlib import Path
from typing import Any

from ettsweep.runs.folder import RunDir
from support.commandline import ettsweep, runs_in, wait_for


def only_run(results: Path) -> RunDir:
    """Return the one run of a results folder."""
    (run,) = runs_in(results)
    return run


def result_of(run: RunDir) -> dict[str, Any]:
    """Wait for the result of a run."""
    return dict(wait_for(run.result, "its result"))


def undisturbed_metrics(tmp_path: Path, run: RunDir) -> bytes:
    """Return what a run records in another folder, where nothing happens to it."""
    alone = tmp_path / "alone"
    ettsweep("train", "--spec", run.spec_path, "--results", alone)
    return only_run(alone).metrics_path.read_bytes()


def processes_with(*entries: str) -> dict[int, list[bytes]]:
    """Return the words of all processes that have one of these `NAME=value` in their environment, by ascending pid."""
    wanted, found = {entry.encode() for entry in entries}, dict[int, list[bytes]]()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if wanted & set((path / "environ").read_bytes().split(b"\0")):
                    found[int(path.name)] = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
    return dict(sorted(found.items()))


def processes_of(run: RunDir) -> list[int]:
    """Return the pids of a run's processes: its supervisor, its leader, and those below."""
    # Not by its id, which a run of another test may have too.
    return list(processes_with(f"ETTSWEEP_OUT={(run.path / 'out').resolve()}"))
