"""Fixtures that all tests share: a run that trains in a second, a results folder, a small disk, no leaks.

Three of them mark the tests that use them: `process` starts real processes, `cluster` breaks a SLURM cluster, and
`statistics` draws until it is sure. `make test` leaves the last two out, and cases that are marked `slow` by hand;
`make test-all` leaves out what is both `cluster` and `slow`; `make test-slurm` has all on a cluster.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commandline import end_workers
from support.forks import Forks, warm_workers
from support.holds import VARIABLE, ask_for_holds

from ettsweep.runs.spec import KINDS, RunSpec, validated_spec

pytest_plugins = ["support.devcluster", "support.scheduling"]

LEAN = Path(__file__).parent / "support" / "lean"
"""What processes run first that tests start, see `sitecustomize.py` there."""

MARKING = ("process", "cluster", "statistics")

# Before torch is imported, here and in child processes: on one thread, sums keep their order.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"  # workers of several threads that wait spinning take minutes beside others
TESTS = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(LEAN), TESTS, os.environ.get("PYTHONPATH")]))
os.environ["COLUMNS"] = "400"  # whole tables: `cli/test_tables.py` is about narrow ones
KINDS["fake"] = "support.fake:FAKE"  # what most runs of tests train; other processes: support/lean

# Compiling the package anew costs each process half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is written to disk is waited for until it lies there, which costs most where tests write and read small files.
MEMORY = Path("/dev/shm")
if MEMORY.is_mount() and shutil.disk_usage(MEMORY).free > 4 * 2**30 and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SPEC: dict[str, Any] = {
    "model": {"width": 8, "depth": 1, "heads": 2, "patch_size": 4, "image_size": 8, "channels": 1, "classes": 10},
    "task": {"kind": "digits"},
    "schedule": {"total_steps": 24, "warmup_steps": 4, "eval_every": 8},
    "batch_size": 32,
    "strategy": {"s": 0.0},
    "lr": 1.0,
    "wd": 2.0**-6,
    "seed": 0,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the marks of the fixtures that it uses.

    A fixture of such a name that a test file defines for itself starts no process: its tests would be left out unseen.
    """
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        for name in set(MARKING) & definitions.keys():
            if len(definitions[name]) > 1:
                raise pytest.UsageError(f"{item.path}: the fixture {name!r} hides the one that marks tests: rename it")
            item.add_marker(name)


@pytest.fixture
def process(results: Path) -> Iterator[None]:
    """Mark a test that starts real processes, and end the workers that it leaves behind."""
    yield
    end_workers(results)


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Give the process that others are forked from, which has imported torch once for all tests."""
    forks = Forks(tmp_path_factory.mktemp("forks") / "stderr")
    yield forks
    forks.close()


@pytest.fixture
def warm(forks: Forks) -> Iterator[None]:
    """Have workers of this machine forked from there."""
    with warm_workers(forks):
        yield


@pytest.fixture
def hold_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what has so many attempts stop their workers at their first checkpoints, until a test has them go on."""
    path = str(LEAN.with_name("holding"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([path, os.environ["PYTHONPATH"]]))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "holds"))
    return functools.partial(ask_for_holds, tmp_path / "holds")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have reports of this process leave the files of figures empty: drawing takes most of a report's time."""

    def export_all(figures: Sequence[tuple[str, Path]]) -> None:
        for _, stem in figures:
            for suffix in ("svg", "pdf", "png"):
                stem.with_name(f"{stem.name}.{suffix}").touch()

    monkeypatch.setattr("ettsweep.report.writer.export_all", export_all)


@pytest.fixture
def statistics() -> None:
    """Mark a test that measures over a long series of draws."""


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep slot locks, results and data folders of the user out of the tests, and torch on one thread."""
    monkeypatch.setenv("ETTSWEEP_SLOTS", str(tmp_path / "slots"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ETTSWEEP_RESULTS", "ETTSWEEP_IMAGENET", "ETTSWEEP_CIFAR10", "ETTSWEEP_CIFAR100"):
        monkeypatch.delenv(name, raising=False)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_sudden_end() -> Iterator[None]:
    """See that a command called in this process has not left it to end where a pipe breaks, in some later test."""
    before = signal.getsignal(signal.SIGPIPE)
    yield
    after = signal.signal(signal.SIGPIPE, before)
    assert after == before, "cli.main() was called without support.commandline.left_as_before"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a results folder that does not exist yet."""
    return tmp_path / "results"


@pytest.fixture
def make_spec() -> Callable[..., RunSpec]:
    """Return a function that makes the small spec with other values; parts are merged key by key.

    Usage: `make_spec(lr=2.0, schedule={"total_steps": 48})`.
    """

    def make(**changes: Any) -> RunSpec:
        data = dict(SPEC)
        for key, value in changes.items():
            old = data.get(key)
            data[key] = old | value if isinstance(old, dict) and isinstance(value, dict) else value
        return validated_spec(data, "spec")

    return make


@pytest.fixture
def spec(make_spec: Callable[..., RunSpec]) -> RunSpec:
    """Return a spec that trains in well under a second: 24 steps of a tiny Vision Transformer on digits."""
    return make_spec()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Give a function that mounts a file system of some size, such as `64k`; skip where it must not."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting a file system is not allowed here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)
