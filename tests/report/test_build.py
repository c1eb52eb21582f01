"""The whole report, from run folders to files."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from support.made_sweep import (
    FRESH,
    Made,
    digits_spec,
    finish,
    finish_at,
    imagenet_spec,
    loss_at,
    read,
    search,
    searched,
)

from ettsweep.errors import StorageError
from ettsweep.files import sha256_of
from ettsweep.report import build, written
from ettsweep.report.build import Histories, cells_of, point_curves, strategy_curves, write_report
from ettsweep.report.families import JudgedFamily, compare, judged
from ettsweep.runs.folder import RunDir
from ettsweep.sweep.criterion import Stated
from ettsweep.sweep.ledger import load_ledger
from ettsweep.sweep.search import Axis, Point
from ettsweep.sweep.verify import look_at


def family(made: Made, strategy: str) -> JudgedFamily:
    return next(f for f in judged(made.runs, made.verdicts) if f.verdict.strategy == strategy)


def test_report_writes_everything_it_returns(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report"
    before = {p: p.stat().st_mtime_ns for p in made.results.rglob("*")}
    paths = write_report(made.results, out, made.runs, made.verdicts, made.searches)
    assert {p: p.stat().st_mtime_ns for p in made.results.rglob("*")} == before, "results are only read"
    assert sorted(paths) == sorted(p for p in out.rglob("*") if p.is_file() and p.name != written.NAME)
    assert paths[0] == out / "report.html"
    names = {p.name for p in paths}
    for stem in ("seeds", "standard-map", "standard-curves", "ntk-map", "hybrid-map", "hybrid-curves"):
        assert {f"vit-digits-{stem}.png", f"vit-digits-{stem}.pdf"} <= names
    assert not any("mup" in name for name in names), "no run of it exists"
    assert not any("course" in name for name in names), "nothing was searched"
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 1 + 2 * 3
    assert "proposed" not in page


def test_cells_are_the_points_over_the_seeds_of_the_search(made: Made) -> None:
    cells = cells_of(family(made, "standard"))
    centre = cells[Point(2.0**-6, 0.5)]
    assert centre.score == pytest.approx(sum(loss_at(0, 0, s) for s in (0, 1, 2)) / 3), "fresh seeds are left out"
    assert cells[Point(2.0**-5, 1.0)].state == "diverged", "one of three seeds did"
    assert cells[Point(2.0**-5, 1.0)].score is None
    assert sum(c.state == "done" for c in cells.values()) == 8
    assert centre.error == pytest.approx(statistics.stdev(loss_at(0, 0, s) for s in (0, 1, 2)) / math.sqrt(3))
    by_bound = cells_of(family(made, "ntk"))[Point(2.0**-5, 0.5)]
    assert (by_bound.state, by_bound.seeds) == ("done", 2), "the third is to come"
    paper = replace(made.verdict("ntk"), search=made.verdict("ntk").search.judged_by(Stated(rule="paper")))
    assert cells_of(judged(made.runs, [paper])[0])[Point(2.0**-5, 0.5)].state == "missing"
    assert cells_of(family(made, "mup")) == {}


def test_racing_counts_and_fresh_seeds_are_the_others(noisy: Made) -> None:
    standard = family(noisy, "standard")
    centre = cells_of(standard)[Point(2.0**-6, 0.5)]
    own = [run.score or math.nan for run in standard.optimum]
    assert centre.seeds == 5
    assert centre.score == pytest.approx(statistics.fmean(own))
    curves = strategy_curves(standard, Histories())
    assert curves is not None
    assert (len(curves.search_scores), curves.fresh_scores) == (5, ())


def test_neighbours_without_a_run_are_on_the_map(tmp_path: Path) -> None:
    base = digits_spec(None)
    finish(tmp_path, base, 0.1)
    one = read(tmp_path, [search(base, seeds=(0,))])
    (only,) = judged(one.runs, one.verdicts)
    cells = cells_of(only)
    assert len(cells) == 7
    assert sorted(c.state for c in cells.values()) == ["done"] + ["missing"] * 6


def test_what_was_searched_has_its_course_and_shows_proposals_to_come(tmp_path: Path) -> None:
    asked = searched(digits_spec(0.0), [(0, 0), (2, 2), (-2, 1)])
    for ended_s, steps in enumerate([(0, 0), (2, 2)]):
        finish_at(tmp_path, asked, steps, 0.1 + ended_s, ended_s=ended_s)
    one = read(tmp_path, [asked])
    (only,) = judged(one.runs, one.verdicts)
    assert cells_of(only)[asked.proposed[2]].state == "missing"
    paths = write_report(tmp_path, tmp_path / "report", one.runs, one.verdicts, one.searches)
    names = {path.name for path in paths}
    assert {"vit-digits-ntk-course.png", "vit-digits-ntk-course.pdf"} <= names
    page = paths[0].read_text()
    assert page.count("data:image/png;base64,") == 4, "seeds, map, course, curves"
    assert page.count('alt="Best score against runs spent for ntk"') == 1
    assert "the order in which points were proposed" in page


def test_curves_are_in_epochs_and_over_the_seeds_of_the_search(made: Made) -> None:
    standard = family(made, "standard")
    histories = Histories()
    points = point_curves(standard, cells_of(standard), histories)
    assert len(points) == 9
    best = points[0]
    assert (best.point, len(best.curves)) == (Point(2.0**-6, 0.5), 3)
    # 797 images in batches of 64 are 12 steps an epoch.
    assert best.curves[0].trained == pytest.approx([40 * k / 12 for k in range(1, 7)])
    assert best.curves[1].loss[-1] == loss_at(0, 0, 1)
    assert best.curves[1].accuracy[-1] == 1 - loss_at(0, 0, 1) / 4
    assert points[-1].score is None, "the diverged one comes last"


def test_fresh_seeds_are_what_the_seeds_figure_shows(made: Made) -> None:
    histories = Histories()
    standard = strategy_curves(family(made, "standard"), histories)
    assert standard is not None
    assert len(standard.curves) == len(standard.fresh_scores) == len(FRESH)
    assert len(standard.search_scores) == 3
    hybrid = strategy_curves(family(made, "hybrid"), histories)
    assert hybrid is not None
    assert (len(hybrid.curves), hybrid.fresh_scores) == (3, ())
    assert strategy_curves(family(made, "mup"), histories) is None


def test_corrupt_histories_are_skipped_and_listed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    base = digits_spec(None)
    for seed in (0, 1, 2):
        finish(results, base.at(base.lr, base.wd, seed), 0.1)
    made = read(results, [search(base)])
    broken = made.runs[0]
    broken.dir.metrics_path.write_text('{"step": 1, "loss": 9.0}\n')
    told: list[str] = []
    write_report(results, tmp_path / "report", made.runs, made.verdicts, made.searches, told.append)
    (line,) = told
    assert str(broken.dir.metrics_path) in line
    assert f"`ettsweep retry {broken.id}`" in line
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Histories that could not be read" in page
    assert f"<code>{broken.id}</code>" in page
    intact = [run.id for run in made.runs[1:]]
    assert not any(f"<code>{name}</code>: " in page for name in intact)


def test_only_the_histories_that_figures_need_are_read(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    history = RunDir.history

    def counted(self: RunDir) -> list[dict[str, object]]:
        asked.append(self.id)
        return history(self)

    monkeypatch.setattr(RunDir, "history", counted)
    monkeypatch.setattr(build, "MAX_OTHER_POINTS", 1)
    blank = tmp_path / "blank.png"
    blank.touch()
    monkeypatch.setattr(build, "save", lambda *_: [blank])
    write_report(made.results, tmp_path, made.runs, made.verdicts, made.searches)
    # standard: candidate and fresh seeds, 6 neighbours, 1 other; ntk: a neighbour has two of three; hybrid: 3.
    assert len(asked) == len(set(asked)) == (8 * 3 + 2) + (7 * 3 + 2) + 3 * 3


def test_what_has_no_score_is_not_drawn_and_the_page_says_why(tmp_path: Path) -> None:
    base, fixed = digits_spec(None), Axis(fixed=True)
    finish(tmp_path, base, 0.1, diverged=True)
    single = replace(search(base, seeds=(0,)), lr=fixed, wd=fixed, points=(Point(base.lr, base.wd),))
    made = read(tmp_path, [single])
    paths = write_report(tmp_path, tmp_path / "report", made.runs, made.verdicts, made.searches)
    assert [path for path in paths if path.parent.name == "figures"] == []
    page = paths[0].read_text()
    assert "Nothing was searched, as both axes are fixed; of 1 finished run, 1 diverged.</p>" in page


def test_what_an_earlier_report_wrote_is_gone_and_nothing_else(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: path.write_bytes(b"drawn"))
    out, figures, outside = tmp_path / "report", tmp_path / "report" / "figures", tmp_path / "other" / "drawn.png"
    outside.parent.mkdir()
    outside.write_bytes(b"drawn")
    first = write_report(made.results, out, made.runs, made.verdicts, made.searches)
    (figures / "mine-map.png").write_bytes(b"drawn")
    (figures / "vit-digits-ntk-map.png").write_bytes(b"drawn over")
    listed = json.loads((out / written.NAME).read_text())
    strange = dict.fromkeys(("../other/drawn.png", str(outside), "figures/../../other/drawn.png", "figures/.."))
    listed |= dict.fromkeys(strange, sha256_of(outside))
    (out / written.NAME).write_text(json.dumps(listed))
    second = write_report(made.results, out, made.runs, [made.verdict("standard")], made.searches)
    assert outside.exists()
    left = {path for path in out.rglob("*") if path.is_file()} - {out / written.NAME}
    assert left == {*second, figures / "mine-map.png", figures / "vit-digits-ntk-map.png"}
    assert figures / "vit-digits-hybrid-map.png" in set(first) - left


@pytest.mark.slow
def test_sweeps_of_one_model_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    small, large, vit = digits_spec(None, 32), digits_spec(None, 64), imagenet_spec(0.0)
    for base in (small, large, vit):
        finish(tmp_path, base, 0.1)
    made = read(tmp_path, [search(base, seeds=(0,)) for base in (small, large, vit)])
    titles = [comparison.title for comparison in compare(judged(made.runs, made.verdicts))]
    assert titles == [
        "vit-b16 on imagenet",
        "vit-digits on digits (batch_size 32)",
        "vit-digits on digits (batch_size 64)",
    ]
    paths = write_report(tmp_path, tmp_path / "report", made.runs, made.verdicts, made.searches)
    assert len(paths) == len(set(paths))
    assert sum(p.name.startswith("vit-digits-standard") and p.suffix == ".png" for p in paths) == 4


def test_an_optimum_beyond_the_grid_is_found_however_its_runs_were_rounded(tmp_path: Path) -> None:
    base = digits_spec(None)
    for seed in (0, 1, 2, 3):
        beyond = Point(base.lr, base.wd).moved(1 + 1e-7 * (seed % 2), 0)
        finish(tmp_path, base.at(beyond.lr, beyond.wd, seed), 0.1)
        finish(tmp_path, base.at(base.lr, base.wd, seed), 0.2)
    asked = search(base)
    runs = list(load_ledger(tmp_path).runs.values())
    for found in (runs, runs[::-1]):
        (only,) = judged(found, [look_at(asked, found).verdict()])
        assert [run.spec.seed for run in only.optimum] == [0, 1, 2, 3]
        assert len(only.points) == 2


def test_strategies_stand_in_their_usual_order(made: Made) -> None:
    (comparison,) = compare(judged(made.runs, made.verdicts[::-1]))
    assert [f.verdict.strategy for f in comparison.families] == ["standard", "ntk", "hybrid", "mup"]


def test_no_runs_make_a_report(tmp_path: Path) -> None:
    paths = write_report(tmp_path / "results", tmp_path / "report", [], [], {})
    assert all(path.exists() for path in paths)


def test_unwritable_folder_is_a_storage_error(made: Made, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        write_report(made.results, tmp_path / "file", made.runs, made.verdicts, made.searches)


def test_verdicts_that_no_registry_knows_are_drawn(made: Made, tmp_path: Path) -> None:
    strange = [replace(v, search=replace(v.search)) for v in made.verdicts[2:]]
    for verdict in strange:
        vars(verdict.search).update(strategy='../$x^{"<b>', model="..")
    paths = write_report(made.results, tmp_path / "r", made.runs, strange, made.searches)
    assert all(path.resolve().is_relative_to((tmp_path / "r").resolve()) for path in paths)
