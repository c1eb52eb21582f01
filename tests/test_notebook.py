"""The notebook in docs, executed by a kernel on a results folder whose runs were trained for it."""

import re
import statistics
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from support.commandline import ettsweep, runs_in, write_fake_grid

NOTEBOOK = Path(__file__).parent.parent / "docs" / "results.ipynb"

GRID = {"wd": {"range": [-1, 1]}, "strategies": ["standard", "ntk"], "seeds": [0, 1], "criterion": {}}


def of(notebook: Any, cell: str) -> dict[str, str]:
    """Return what a cell showed, by kind."""
    (output,) = next(item.outputs for item in notebook.cells if item.id == cell)
    return dict(output.data)


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_the_notebook_shows_what_was_trained(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ettsweep("grid", write_fake_grid(tmp_path / "w8.yaml", **GRID), "--follow", "--results", results)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("ETTSWEEP_RESULTS", str(results))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(elsewhere)}}).execute()

    values = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert {output.output_type for output in values} <= {"execute_result", "display_data"}, "nothing was warned of"
    assert of(notebook, "load")["text/plain"] == f"{results}: 1 sweep, 36 runs (36 done)"

    table = of(notebook, "verdicts")["text/html"]
    assert re.findall(r"<td>(standard|ntk)</td>", table) == ["standard", "ntk"]

    scores: dict[tuple[float, float], list[float]] = {}
    for run in runs_in(results):
        spec, result = run.spec(), run.result()
        if spec.strategy.s is None:
            assert result is not None
            scores.setdefault((spec.lr, spec.wd), []).append(result["best_loss"])
    hexagons = re.findall(r'"mean": "([^"]+)"', of(notebook, "lattice")["text/html"])
    expected = {f"{statistics.fmean(score):.3f}".removeprefix("0") for score in scores.values()}
    assert len(scores) == 9
    assert expected <= set(hexagons)

    assert "vegaEmbed" in of(notebook, "curves")["text/html"]
    shown = re.findall(r'"run": "([0-9a-f]{12})"', of(notebook, "curves")["text/html"])
    assert len(shown) == 2 * 2 * 3, "two strategies, two seeds, three evaluations"
    assert of(notebook, "spikes")["text/html"].count("<tr>") == 1 + 2 * 3, (
        "names, and a row for each lr of each strategy"
    )
    assert (elsewhere / "lattice.pdf").read_bytes().startswith(b"%PDF")
    assert [path.name for path in elsewhere.iterdir()] == ["lattice.pdf"]
