"""The decay of a step and its time scale, by hand, and where a report shows them."""

from pathlib import Path

import pandas as pd
import pytest
from support.commandline import ettsweep, finish, keep, write_grid
from support.made_runs import MakeSpec, decoder_run, text_run

from ettsweep.report.time_scale import TimeScale, time_scale
from ettsweep.runs.point import Point
from ettsweep.study.grid_file import load_sweep_spec


def test_time_scale_is_in_steps_and_in_epochs_of_images(make_spec: MakeSpec) -> None:
    spec = make_spec(batch_size=32)  # of 797 images: 24 steps, the rest left out
    assert spec.info.steps_per_epoch == 24
    scale = time_scale(Point.of(lr=2.0**-4, wd=2.0**-6), spec.info)
    assert scale == TimeScale(2.0**-10, 1024.0, 1024 / 24, None)
    assert (scale.lr_wd_text, scale.text) == ("2^-10", "1024 steps, 42.7 epochs")
    assert time_scale(Point.of(lr=1.0, wd=0.0), spec.info).text == "no decay"
    sgd = make_spec(optimizer={"kind": "sgd", "momentum": 0.75})
    assert time_scale(Point.of(lr=2.0**-4, wd=2.0**-6), sgd.info).steps == 256, "momentum takes each step four times"
    windows, padded = decoder_run().info, text_run().info
    assert time_scale(Point.of(lr=2.0**-2, wd=2.0**-3), windows).tokens == 32 * windows.tokens_per_step == 32 * 9 * 24
    assert time_scale(Point.of(lr=2.0**-2, wd=2.0**-3), padded) == TimeScale(2.0**-5, 32.0, None, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a finished sweep of made scores."""
    write_grid(tmp_path / "g.yaml", strategies=["standard"], lr={"range": [-1, 1]}, wd={"range": [-1, 1]}, seeds=[0])
    sweep_spec = load_sweep_spec(tmp_path / "g.yaml")
    keep(tmp_path / "results", sweep_spec)
    for number, spec in enumerate(sweep_spec.specs()):
        finish(tmp_path / "results", spec, 1.0 + number / 100)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_report_has_it_in_tables_and_hovers(folder: Path) -> None:
    ettsweep("report", cwd=folder, code=None)
    report = folder / "results" / "report"
    points = pd.read_csv(report / "tables" / "points.csv")
    assert points["lr_wd"].tolist() == pytest.approx((points["lr"] * points["wd"]).tolist())
    assert (points["lr_wd"] * points["timescale_steps"]).tolist() == pytest.approx([1.0] * len(points))
    assert points["timescale_epochs"].notna().all()
    optima = pd.read_csv(report / "tables" / "optima.csv")
    assert optima["lr_wd"].tolist() == pytest.approx((optima["lr"] * optima["wd"]).tolist())
    page = (report / "report.html").read_text()
    for text in ("time scale", " epochs"):
        assert text in page
