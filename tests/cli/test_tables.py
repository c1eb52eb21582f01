"""Tables in a terminal of 80 columns: no line is longer, and no number or word is broken."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.claims import claimed, finished
from support.commandline import GRID, Call, keep, write_grid

from ettsweep.runs.folder import RunDir
from ettsweep.study.grid_file import load_sweep_spec

Json = Any

WIDTH = 80

TABLES = {
    "status": ("lr", "wd", "seed", "progress", "best_score"),
    "verify-optimum --dry-run": ("lr", "wd", "score"),
    "sweeps": ("families",),
    "report": ("lr", "wd", "score"),
    "doctor": (),
    "compare a.csv b.csv --min --score loss": ("mean", "sd", "min"),
    "grid {grid} --dry-run": ("lr", "wd", "seed"),
}
"""Commands that print tables, and the numbers of their JSON that these show."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two sweeps of other models with long names under three strategies; some runs failed."""
    folder = tmp_path_factory.mktemp("tables")
    for width, name in ((8, "image-classifier-of-monday-with-long-warmup"), (16, "the-same-of-tuesday")):
        model = GRID["model"] | {"width": width, "depth": 12}
        grid = write_grid(folder / f"{name}.yaml", model=model, strategies=["standard", "ntk", "s=0.25"], seeds=[0, 1])
        keep(folder / "results", sweep_spec := load_sweep_spec(grid))
        for number, spec in enumerate(sweep_spec.specs()):
            run = RunDir.create(folder / "results", spec)
            if number % 5:
                finished(run, score=1.23456 + abs(spec.lr - 0.25) + 0.01 * number)
            else:
                reason = f"RuntimeError: CUDA out of memory in layer {number}, which needs 3.21 GiB"
                claimed(run).record_failure("error", reason)
    (folder / "a.csv").write_text("seed,loss\n0,3.12345\n1,3.2\n2,3.0\n")
    (folder / "b.csv").write_text("seed,loss\n0,3.2\n1,3.3\n2,3.4\n")
    write_grid(folder / "another.yaml", strategies=["standard", "ntk", "hybrid"], lr={"range": [-1, 1], "step": 0.5})
    return folder


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.slow) if name in ("doctor", "report") else name for name in TABLES]
)
@pytest.mark.usefixtures("undrawn")
def test_every_table_fits_80_columns_and_breaks_nothing(
    command: str, call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    arguments = command.format(grid=folder / "another.yaml").split()
    arguments += ["--results", "results"]

    def lines(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        return call(*arguments, code=None).out.splitlines()

    narrow, wide = lines(WIDTH), lines(4000)
    assert not [line for line in narrow if len(line) > WIDTH and len(line.split()) > 1]
    assert words(narrow) <= words(wide) | decimals(words(wide)) | {"in", "all", "rows"}, "no word is broken"
    if TABLES[command]:
        data = json.loads(call(*arguments, "--format", "json", code=None).out)
        expected = {rounded(value) for value in values(data, TABLES[command])}
        assert expected
        assert expected <= words(narrow)


def words(lines: Iterable[str]) -> set[str]:
    """Return the words of a table, without what a sentence puts around them."""
    return {word.strip("(),:;") for line in lines for word in line.split()}


def decimals(words: Iterable[str]) -> set[str]:
    """Return the numbers that narrow tables show in place of powers of two."""
    return {rounded(2.0 ** float(word.removeprefix("2^"))) for word in words if word.startswith("2^")}


def values(data: Json, keys: Iterable[str]) -> Iterator[float]:
    """Yield the numbers that rows have under some keys, and those of a single row."""
    rows = data if isinstance(data, list) else data["scores"]
    yield from (row[key] for row in rows for key in keys if isinstance(row.get(key), int | float))


def rounded(value: float) -> str:
    """Return a whole number as it is, and any other with three significant digits; large ones as whole numbers."""
    if 1000 <= abs(value) < 1e5 or (value == int(value) and abs(value) < 1e5) or isinstance(value, int):
        return str(round(value))
    return re.sub(r"e([+-])0*", lambda match: "e" + match[1].strip("+"), f"{value:.3g}")
