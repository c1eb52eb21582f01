"""What a person uses in a notebook: frames against what lies in run folders, figures against those of the page."""

import json
import math
import shutil
import statistics
from pathlib import Path

import pandas as pd
import pytest
from support import made_sweep
from support.commandline import ettsweep, write_grid
from support.made_sweep import loss_at

from ettsweep.errors import CorruptError, InputError
from ettsweep.results import Results, load
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_store import extend_sweep

FRAMES = ("runs", "verdicts", "points", "curves", "spikes")
SEEDS, FRESH = (0, 1), 10


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder of a sweep of nine points under two strategies, lowest at the centre.

    Each point has two finished runs; the centre of standard was rerun with a fresh seed.
    """
    folder = tmp_path_factory.mktemp("made")
    recipe = {"batch_size": 32, "schedule": {"total_steps": 240, "warmup_steps": 24, "eval_every": 40}}
    wd, strategies = {"range": [-1, 1]}, ["standard", "ntk"]
    grid = write_grid(folder / "w8.yaml", wd=wd, strategies=strategies, seeds=list(SEEDS), criterion={}, recipe=recipe)
    results, sweep_spec = folder / "results", load_sweep_spec(grid)
    extend_sweep(results, "w8", sweep_spec)
    standard, ntk = sweep_spec.studies("w8")
    for study in (standard, ntk):
        for spec in study.specs():
            steps = (round(math.log2(a / b)) for a, b in zip((spec.lr, spec.wd), study.centre, strict=True))
            made_sweep.finish(results, spec, loss_at(*steps, spec.seed))
    made_sweep.finish(results, standard.base.with_point(standard.base.point, FRESH), 0.125)
    return results


@pytest.fixture
def copied(folder: Path, results: Path) -> Path:
    """Return a copy of it, to be changed."""
    return shutil.copytree(folder, results)


@pytest.fixture(scope="session")
def loaded(folder: Path) -> Results:
    """Return what it has."""
    return load(folder)


def test_runs_are_those_of_the_folder(folder: Path, loaded: Results) -> None:
    results = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("runs/*/result.json")}
    runs = loaded.runs.set_index("run")
    assert len(results) == 2 * 9 * len(SEEDS) + 1
    assert runs["best_loss"].to_dict() == {run: result["best_loss"] for run, result in results.items()}
    assert set(runs["sweep"]) == {"w8"}
    assert set(runs["state"]) == {"done"}
    assert repr(loaded) == f"{folder}: 1 sweep, 37 runs (37 done)"


def test_verdicts_are_those_of_the_command_line(folder: Path, loaded: Results) -> None:
    result = ettsweep("verify-optimum", "--dry-run", "--format", "json", "--results", folder, code=None)
    data = json.loads(result.stdout)
    columns = ["strategy", "verdict", "statement", "reason", "lr", "wd", "score"]
    assert loaded.verdicts[columns].to_dict("records") == [{name: item[name] for name in columns} for item in data]
    assert loaded.verdicts.set_index("strategy")["fresh_score"].to_dict() == {
        "standard": 0.125,
        "ntk": pytest.approx(math.nan, nan_ok=True),
    }


def test_a_folder_without_anything_has_frames_with_all_columns(loaded: Results, results: Path) -> None:
    results.mkdir()
    empty = load(results)
    for name in FRAMES:
        assert len(getattr(empty, name)) == 0
        assert list(getattr(empty, name).columns) == list(getattr(loaded, name).columns), name
    with pytest.raises(InputError, match=r"results: no sweeps yet, so there is nothing to draw$"):
        empty.figures.scores()


def test_frames_survive_parquet(loaded: Results, tmp_path: Path) -> None:
    for frame in (getattr(loaded, name) for name in FRAMES):
        frame.to_parquet(tmp_path / "frame.parquet")
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "frame.parquet"), frame)


def test_what_is_not_there_is_told_with_what_is(loaded: Results, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^several strategies match; choose one by strategy and sweep: .*'ntk', 'w8'"):
        loaded.figures.lattice()
    with pytest.raises(InputError, match=r"^unknown strategy 'mup'\. Known: ntk, standard$"):
        loaded.figures.lattice("mup")
    with pytest.raises(InputError, match=r"^unknown sweep 'w9'\. Known: w8$"):
        load(loaded.folder, "w9")
    with pytest.raises(InputError, match="is not a results folder: it has no runs/ and no sweeps/"):
        load(str(tmp_path))


def test_what_cannot_be_read_is_left_out_with_a_warning(copied: Path) -> None:
    item, other = sorted(path.name for path in copied.glob("runs/*"))[:2]
    (copied / "runs" / item / "spec.json").write_text("{")
    with (copied / "runs" / other / "metrics.jsonl").open("a") as metrics:
        metrics.write("what is this\n")
    (copied / "sweeps" / "w9.yaml").write_text("- asked: [")
    with pytest.warns(UserWarning, match=r"^left out: ") as warned:
        loaded = load(copied)
    assert len(warned) == 2
    assert len(loaded.runs) == 36
    assert set(loaded.broken) == {item, "w9"}
    assert repr(loaded).endswith("36 runs (36 done), 2 broken")
    with pytest.warns(UserWarning, match=f"left out: .*{other}"):
        curves = loaded.curves
    assert other not in set(curves["run"])
    assert set(loaded.broken) == {item, other, "w9"}
    with pytest.raises(CorruptError, match=r"w9\.yaml"):
        load(copied, "w9")


def test_each_figure_has_data(loaded: Results) -> None:
    figures = loaded.figures
    for chart in (figures.strategies(), figures.seeds(), figures.scores(), figures.curves("ntk")):
        assert any(chart.to_dict()["datasets"].values())


def test_a_figure_is_shown_and_saved_with_its_data_and_looks(loaded: Results, tmp_path: Path) -> None:
    chart = loaded.figures.lattice("ntk")
    shown = chart._repr_mimebundle_()["text/html"]
    chart.save(tmp_path / "map.svg")
    chart.save(tmp_path / "map.html")
    svg, html = ((tmp_path / f"map.{kind}").read_text() for kind in ("svg", "html"))
    best = f"{statistics.fmean(loss_at(0, 0, seed) for seed in SEEDS):.3f}".removeprefix("0")
    assert f">{best}</text>" in svg
    for text in (shown, html):
        assert f'"mean": "{best}"' in text
    for text in (shown, html, svg):
        assert "Liberation Sans" in text
    chart.save(tmp_path / "map.pdf")
    assert (tmp_path / "map.pdf").read_bytes().startswith(b"%PDF")
