"""The figures of a report: which there are, what they are called, what their captions say, and their files."""

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import vl_convert
from PIL import Image
from support.made_sweep import Made, digits_spec, finish, imagenet_spec, read, search
from support.scene import scene

from ettsweep.report.families import judged_families, strategy_comparisons
from ettsweep.report.figure_files import Figure, FigureBuilder
from ettsweep.report.run_histories import RunHistories
from ettsweep.runs.spec import RunSpec
from ettsweep.study.study import Study


@cache
def figures_of(sample: Made) -> list[Figure]:
    """Return the figures of a made sweep, drawn once."""
    drawing = FigureBuilder(RunHistories(100))
    comparisons = strategy_comparisons(judged_families(sample.runs, sample.verdicts))
    return [figure for comparison in comparisons for _, figure in drawing.build(comparison)]


def finished(results: Path, base: RunSpec, studies: Sequence[Study]) -> Made:
    """Return what there is of one finished run."""
    finish(results, base, 0.1)
    return read(results, [*studies])


# --- which ------------------------------------------------------------------------------------------------------------


def test_each_family_has_its_figures_and_all_together_theirs(sample: Made) -> None:
    by_name = {figure.name: figure for figure in figures_of(sample)}
    values = [f"{strategy}-{kind}" for strategy in ("standard", "ntk", "hybrid") for kind in ("map", "curves")]
    assert set(by_name) == {f"vit-digits-{name}" for name in ("strategies", "seeds", "scores", *values)}, (
        "mup has no runs"
    )
    assert by_name["vit-digits-ntk-map"].title == "vit-digits on digits: ntk"
    assert by_name["vit-digits-seeds"].title == "vit-digits on digits"
    assert all(figure.name.endswith(f"-{figure.kind}") for figure in by_name.values())


@pytest.mark.parametrize("kind", ["strategies", "seeds", "scores", "map", "curves"])
def test_each_kind_can_be_drawn_with_data_that_it_names(sample: Made, kind: str) -> None:
    assert scene(next(figure.spec for figure in figures_of(sample) if figure.kind == kind)).marks


# --- what they are called ---------------------------------------------------------------------------------------------


def test_two_sweeps_of_one_model_are_told_apart(tmp_path: Path) -> None:
    small, large, vit = digits_spec(None, 32), digits_spec(None, 64), imagenet_spec(0.0)
    for base in (small, large):
        finish(tmp_path, base, 0.1)
    finished_result = finished(tmp_path, vit, [search(base, seeds=(0,)) for base in (small, large, vit)])
    titles = ["vit-b16 on imagenet", *(f"vit-digits on digits (batch_size {size})" for size in (32, 64))]
    comparisons = strategy_comparisons(judged_families(finished_result.runs, finished_result.verdicts))
    assert [comparison.title for comparison in comparisons] == titles
    names = [figure.name for figure in figures_of(finished_result)]
    assert len(names) == len(set(names))
    assert f"vit-digits-standard-{finished_result.verdicts[1].family[:6]}-map" in names


def test_names_of_files_are_plain_and_differ_where_case_is_ignored_too(tmp_path: Path) -> None:
    base, sweeps = digits_spec(0.0), ("a-b_c", "a_b-c", "a_B-c", '../$x^{"<b>ж s=0.25')
    made = finished(tmp_path, base, [replace(search(base, seeds=(0,)), sweep=sweep) for sweep in sweeps])
    names = [figure.name.lower() for figure in figures_of(made) if figure.kind == "map"]
    assert len(set(names)) == len(sweeps)
    assert "pp--x----b---s0p25-ntk-map" in names


# --- captions ---------------------------------------------------------------------------------------------------------


def test_a_map_says_what_its_frames_and_colours_mean(sample: Made) -> None:
    captions = {figure.name: figure.caption for figure in figures_of(sample)}
    line, hexagons = (captions[f"vit-digits-{strategy}-map"] for strategy in ("hybrid", "standard"))
    assert line == "Dots: mean over the search's seeds ± standard error. Ring: the best point."
    assert (
        hexagons
        == "Colour: mean over the search's seeds. Thick frame: the best point. Thin frames: its six neighbours."
    )


# --- files ------------------------------------------------------------------------------------------------------------


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def test_files_are_whole_and_have_the_texts_and_colours_of_the_figure(sample: Made, tmp_path: Path) -> None:
    """`currentColor`, which the page decides on, is black in files; so it is where the SVG alone is an image."""
    figure = next(figure for figure in figures_of(sample) if figure.kind == "map")
    paths = replace(figure, name="m", title="$\\frac{ <script>&").save(tmp_path)
    saved = {path.suffix: path.read_bytes() for path in paths}
    assert sorted(paths) == sorted(tmp_path.iterdir())
    assert set(saved) == {".png", ".svg", ".pdf"}
    assert saved[".pdf"].startswith(b"%PDF")
    svg = ElementTree.fromstring(saved[".svg"])
    texts = {element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"$\\frac{ <script>&", "lr", "wd", "diverged", ".100"} <= texts
    assert pixels(saved[".png"]).shape[1] == pytest.approx(2 * float(svg.attrib["width"]), abs=2)
    for png in (saved[".png"], vl_convert.svg_to_png(saved[".svg"].decode())):
        image = pixels(png)
        assert image[0, 0].tolist() == [255, 255, 255]
        assert (image.max(2) < 40).mean() > 0.002, "ink"
        assert (np.ptp(image, axis=2) > 80).mean() > 0.05, "colours"
