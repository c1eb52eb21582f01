"""Commands as people call them, for tests of what they say, and sweeps for them."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.claims import finished
from support.commandline import Call, Done, ettsweep, keep, write_grid

from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Return a function that runs a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int | None = 0, stdin: str = "") -> Done:
        result = ettsweep(*arguments, code=code, stdin=io.StringIO(stdin))
        return Done(result.returncode, result.stdout, result.stderr)

    return run


def best_at_centre(spec: RunSpec) -> float:
    return 1 + abs(spec.lr - 0.25)


@pytest.fixture
def request_sweep(results: Path, tmp_path: Path) -> Callable[..., list[RunSpec]]:
    """Return a function that asks for the small grid under a name, and finishes the runs that `score` has a value for.

    By `score=None`, runs are only asked for. `facts` are of each result; all else is of the grid file.
    """

    def ask(
        name: str = "w8",
        score: Callable[[RunSpec], float | None] | None = best_at_centre,
        write: Callable[..., Path] = write_grid,
        facts: dict[str, object] | None = None,
        **changes: Any,
    ) -> list[RunSpec]:
        keep(results, sweep_spec := load_sweep_spec(write(tmp_path / f"{name}.yaml", **changes)))
        for spec in sweep_spec.specs() if score else ():
            run, value = RunDir(results / "runs" / spec.run_id), score(spec)
            if value is not None and not run.path.exists():
                finished(RunDir.create(results, spec), score=value, **{"device_s": 36.0} | (facts or {}))
        return sweep_spec.specs()

    return ask
