"""The figures of a report: which there are, what they are called, what their captions say, and their files."""

import io
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np
import pytest
import vl_convert
from PIL import Image
from support.made_sweep import Made, digits_spec, finish, finish_at, imagenet_spec, read, search, searched
from support.scene import scene

from ettsweep.files import dumps
from ettsweep.process_pool import Pool, open_pool
from ettsweep.report import figure_export
from ettsweep.report.families import judged_families, strategy_comparisons
from ettsweep.report.figure_files import Figure, FigureBuilder
from ettsweep.report.run_histories import RunHistories
from ettsweep.runs.folder import RunDir
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.study.lattice import Axis
from ettsweep.study.study import Study


def drawn(sample: Made) -> list[Figure]:
    drawing = FigureBuilder(RunHistories(100))
    return [
        figure
        for comparison in strategy_comparisons(judged_families(sample.runs, sample.verdicts))
        for _, figure in drawing.build(comparison)
    ]


@cache
def figures_of(sample: Made) -> list[Figure]:
    """Return the figures of a made sweep, drawn once."""
    return drawn(sample)


def caption(sample: Made, kind: str = "map") -> str:
    return next(figure.caption for figure in figures_of(sample) if figure.kind == kind)


def finished(results: Path, base: RunSpec, studies: Sequence[Study] | None = None, **how: bool) -> Made:
    """Return what there is of one finished run."""
    finish(results, base, 0.1, **how)
    return read(results, [*(studies or [search(base, seeds=(0,))])])


def test_captions_say_that_not_all_runs_have_curves(sample: Made) -> None:
    (comparison,) = strategy_comparisons(judged_families(sample.runs, sample.verdicts))
    figures = [figure for _, figure in FigureBuilder(RunHistories(10, seeds=2)).build(comparison)]
    fewer = {figure.kind for figure in figures if "only the first 2 of each point are drawn" in figure.caption}
    assert fewer == {"trajectories", "curves"}
    assert "only the first" not in caption(sample, "curves")


# --- which ------------------------------------------------------------------------------------------------------------


def test_each_family_has_its_figures_and_all_together_theirs(sample: Made) -> None:
    by_name = {figure.name: figure for figure in figures_of(sample)}
    values = [
        f"{strategy}-{kind}" for strategy in ("standard", "ntk", "hybrid") for kind in ("map", "trajectories", "curves")
    ]
    assert set(by_name) == {f"vit-digits-{name}" for name in ("strategies", "seeds", "scores", *values)}, (
        "mup has no runs"
    )
    assert by_name["vit-digits-ntk-map"].title == "vit-digits on digits: ntk"
    assert by_name["vit-digits-seeds"].title == "vit-digits on digits"
    assert all(figure.name.endswith(f"-{figure.kind}") for figure in by_name.values())


def test_figures_belong_to_their_family_and_those_of_all_to_the_first(sample: Made) -> None:
    (comparison,) = strategy_comparisons(judged_families(sample.runs, sample.verdicts))
    by_key = {(key, figure.kind) for key, figure in FigureBuilder(RunHistories(100)).build(comparison)}
    assert (sample.verdict("standard").key, "strategies") in by_key
    assert (sample.verdict("hybrid").key, "map") in by_key
    assert len(by_key) == 3 + 3 * 3


def test_all_can_be_drawn_with_data_that_they_name(sample: Made, noisy: Made) -> None:
    for figure in [*figures_of(sample), *figures_of(noisy)]:
        assert scene(figure.spec).marks, figure.name


def test_suggested_points_are_numbered_on_the_map(tmp_path: Path) -> None:
    searched_result = searched(digits_spec(0.0), [(0, 0), (2, 2), (-2, 1)])
    for n, steps in enumerate([(0, 0), (2, 2)]):
        finish_at(tmp_path, searched_result, steps, 0.1 + n)
    text = read(tmp_path, [searched_result])
    assert [figure.kind for figure in figures_of(text)] == ["seeds", "map", "trajectories", "curves"]
    assert "Numbers: the order in which points were suggested" in caption(text)


def test_a_search_that_has_only_begun_has_its_map(tmp_path: Path) -> None:
    searched_result = searched(digits_spec(0.0), [(0, 0)])
    RunDir.create(tmp_path, searched_result.specs()[0])
    (only,) = figures_of(read(tmp_path, [searched_result]))
    assert (only.kind, scene(only.spec).legend) == ("map", ["missing"])


def test_a_search_that_has_proposed_nothing_yet_has_no_figure(tmp_path: Path) -> None:
    searched_result = searched(digits_spec(0.0), [])
    assert figures_of(read(tmp_path, [searched_result])) == []


def test_strategies_without_weight_decay_have_no_map_of_both(tmp_path: Path) -> None:
    """log2 of 0 has no place on it."""
    bases = [digits_spec(s).model_copy(update={"wd": 0.0}) for s in (None, 0.0)]
    for base in bases:
        finish(tmp_path, base, 0.1)
    text = read(tmp_path, [search(base, wd_fixed=True, seeds=(0,)) for base in bases])
    assert "strategies" not in {figure.kind for figure in figures_of(text)}


def test_what_has_no_score_has_no_figure_of_scores(tmp_path: Path) -> None:
    fixed, base = Axis(fixed=True), digits_spec(None)
    single = replace(search(base, seeds=(0,)), lr=fixed, wd=fixed, grid_points=(Point(base.lr, base.wd),))
    assert figures_of(finished(tmp_path, base, [single], diverged=True)) == []


def test_without_an_evaluation_there_are_no_trajectories(tmp_path: Path) -> None:
    """Curves of training are there as soon as there is a step."""
    base = digits_spec(None)
    attempt = RunDir.create(tmp_path, base).claim({}, after=0)
    assert attempt
    attempt.append(attempt.metrics_path, [{"step": 1, "loss": 2.0, "grad_norm": 1.0, "lr": 0.1}])
    assert [figure.kind for figure in figures_of(read(tmp_path, [search(base, seeds=(0,))]))] == ["map", "curves"]


# --- what they are called ---------------------------------------------------------------------------------------------


def test_two_sweeps_of_one_model_are_told_apart(tmp_path: Path) -> None:
    small, large, vit = digits_spec(None, 32), digits_spec(None, 64), imagenet_spec(0.0)
    for base in (small, large):
        finish(tmp_path, base, 0.1)
    finished_result = finished(tmp_path, vit, [search(base, seeds=(0,)) for base in (small, large, vit)])
    assert [
        comparison.title
        for comparison in strategy_comparisons(judged_families(finished_result.runs, finished_result.verdicts))
    ] == [
        "vit-b16 on imagenet",
        "vit-digits on digits (batch_size 32)",
        "vit-digits on digits (batch_size 64)",
    ]
    names = [figure.name for figure in figures_of(finished_result)]
    assert len(names) == len(set(names))
    assert sum(name.startswith("vit-digits-standard") for name in names) == 6
    assert f"vit-digits-standard-{finished_result.verdicts[1].family[:6]}-map" in names


@pytest.mark.parametrize(
    "sweeps",
    [
        ["a_b", "a-b"],
        ["a_b_c", "a-b-c", "a_b-c", "a-b_c"],
        ["a.b", "apb", "A.b"],
        ["W8", "w8"],
        ["w", "w-ntk", "w_ntk"],
        [f"{'x' * 63}{end}" for end in "_-."],
    ],
)
def test_sweeps_of_one_family_have_files_of_their_own_where_case_is_ignored_too(
    tmp_path: Path, sweeps: list[str]
) -> None:
    finished_result = finished(
        tmp_path, base := digits_spec(0.0), [replace(search(base, seeds=(0,)), sweep=sweep) for sweep in sweeps]
    )
    names = [figure.name.lower() for figure in figures_of(finished_result)]
    assert sum(name.endswith("-map") for name in names) == len(sweeps)
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 200


@pytest.mark.parametrize(("sweep", "plain"), [("s=0.25", "s0p25"), ('../$x^{"<b>', "pp--x----b-"), ("ж/名", "---")])
def test_names_of_files_are_plain(tmp_path: Path, sweep: str, plain: str) -> None:
    base = digits_spec(0.0)
    finished_result = finished(tmp_path, base, [replace(search(base, seeds=(0,)), sweep=sweep)])
    assert f"{plain}-ntk-map" in [figure.name for figure in figures_of(finished_result)]


# --- captions ---------------------------------------------------------------------------------------------------------


def test_a_map_says_what_its_frames_and_colours_mean(sample: Made) -> None:
    caption_result = caption(sample)
    assert caption_result.startswith(
        "Mean ± standard error over n of the search's seeds. Red: the candidate. Its six neighbours,"
    )
    assert "off this lattice" not in caption_result
    assert "suggested" not in caption_result
    hybrid = next(f.caption for f in figures_of(sample) if f.name == "vit-digits-hybrid-map")
    assert hybrid == "Mean ± standard error over n of the search's seeds. Red: the candidate.", "by the paper's rule"


@pytest.mark.parametrize(
    ("off", "message"), [(1, "1 point off this lattice is not drawn."), (2, "2 points off this lattice are not drawn.")]
)
def test_points_off_the_lattice_are_noted(tmp_path: Path, off: int, message: str) -> None:
    base = digits_spec(None)
    search_result = search(base, seeds=(0,))
    odd = [Point(base.lr * factor, base.wd) for factor in (1.3, 1.7)[:off]]
    assert message in caption(
        finished(tmp_path, base, [replace(search_result, grid_points=(*search_result.grid_points, *odd))])
    )


# --- files ------------------------------------------------------------------------------------------------------------


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.fixture(scope="module")
def saved(sample: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A map with a hostile title, as it is on disk."""
    folder = tmp_path_factory.mktemp("figures")
    figure = next(figure for figure in figures_of(sample) if figure.kind == "map")
    paths = replace(figure, name="m", title="$\\frac{ <script>&").save(folder)
    assert sorted(paths) == sorted(folder.iterdir())
    return {path.suffix: path.read_bytes() for path in paths}


def test_files_are_whole(saved: dict[str, bytes]) -> None:
    assert set(saved) == {".png", ".svg", ".pdf"}
    assert saved[".pdf"].startswith(b"%PDF")
    assert saved[".pdf"].rstrip().endswith(b"%%EOF")
    svg = ElementTree.fromstring(saved[".svg"])
    width, height = (float(svg.attrib[name]) for name in ("width", "height"))
    high, wide, _ = pixels(saved[".png"]).shape
    assert (wide, high) == (pytest.approx(2 * width, abs=2), pytest.approx(2 * height, abs=2))


def test_names_are_drawn_as_they_are(saved: dict[str, bytes]) -> None:
    texts = [element.text for element in ElementTree.fromstring(saved[".svg"]).iter("{http://www.w3.org/2000/svg}text")]
    assert "$\\frac{ <script>&" in texts
    assert {"lr", "wd", "diverged", ".100"} <= set(texts)


def test_images_have_ink_and_colours_on_white(saved: dict[str, bytes]) -> None:
    """`currentColor`, which the page decides on, is black in files; so it is where the SVG alone is an image."""
    for png in (saved[".png"], vl_convert.svg_to_png(saved[".svg"].decode())):
        image = pixels(png)
        assert image[0, 0].tolist() == [255, 255, 255]
        assert (image.max(2) < 40).mean() > 0.002, "ink"
        assert (np.ptp(image, axis=2) > 80).mean() > 0.05, "colours"


def test_a_file_has_the_title_of_the_page_above_the_figures_own(sample: Made, tmp_path: Path) -> None:
    figure = next(figure for figure in figures_of(sample) if figure.kind == "trajectories")
    figure.save(tmp_path)
    svg = ElementTree.fromstring((tmp_path / f"{figure.name}.svg").read_bytes())
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"vit-digits on digits: standard", "standard"} <= set(texts)


def test_the_same_figure_is_the_same_file(sample: Made, tmp_path: Path) -> None:
    """A PDF lists what it uses in any order, and is the same but for that."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        drawn(sample)[0].save(tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        item, other = path.read_bytes(), (tmp_path / "two" / path.name).read_bytes()
        assert len(item) == len(other) if path.suffix == ".pdf" else item == other, path.suffix


def test_figures_are_drawn_here_where_processes_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a limit on memory."""

    def dying(workers: int, method: Literal["fork", "spawn"], prepare: object) -> AbstractContextManager[Pool]:
        return open_pool(workers, method, os._exit, 1)

    monkeypatch.setattr(figure_export, "open_pool", dying)
    monkeypatch.setattr(figure_export, "cores", lambda: 2)
    spec = dumps({"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x"}}})
    stems = [tmp_path / str(k) for k in range(2 * figure_export.MIN_PER_PROCESS)]
    figure_export.export_all([(spec, stem) for stem in stems])
    assert all(path.stat().st_size for stem in stems for path in figure_export.paths_of(stem))
