"""The whole report, from run folders to files."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.made_sweep import Made, digits_spec, finish, read, search

from ettsweep.files import Json, sha256_of
from ettsweep.report import writer
from ettsweep.report.figure_export import paths_of
from ettsweep.report.writer import write_report
from ettsweep.runs.folder import RunDir
from ettsweep.study.verdict import Verdict


@pytest.mark.usefixtures("undrawn")
def test_report_writes_everything_it_returns(sample: Made, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report"
    before = {p: p.stat().st_mtime_ns for p in sample.results.rglob("*")}
    paths = write_report(sample.results, out, sample.runs, sample.verdicts, sample.studies_by_family)
    assert {p: p.stat().st_mtime_ns for p in sample.results.rglob("*")} == before, "results are only read"
    assert sorted(paths) == sorted(p for p in out.rglob("*") if p.is_file() and p.name != writer.MANIFEST_NAME)
    assert paths[0] == out / "report.html"
    names = {p.name for p in paths}
    values = [f"{strategy}-{kind}" for strategy in ("standard", "ntk", "hybrid") for kind in ("map", "curves")]
    for stem in ("strategies", "seeds", "scores", *values):
        assert {f"vit-digits-{stem}.{suffix}" for suffix in ("png", "svg", "pdf")} <= names
    assert not any("mup" in name for name in names), "no run of it exists"
    page = paths[0].read_text()
    assert page.count('class="spec"') == 3 + 3 * 2, "each is drawn by the page"
    assert "suggested" not in page


@pytest.mark.usefixtures("undrawn")
def test_corrupt_histories_are_skipped_and_listed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    base = digits_spec(None)
    for seed in (0, 1, 2):
        finish(results, base.with_point(base.point, seed), 0.1)
    text = read(results, [search(base)])
    broken = text.runs[0]
    broken.dir.metrics_path.write_text('{"step": 1, "loss": 9.0}\n')
    collected: list[str] = []
    write_report(results, tmp_path / "report", text.runs, text.verdicts, text.studies_by_family, collected.append)
    (line,) = collected
    assert str(broken.dir.metrics_path) in line
    assert f"`ettsweep retry {broken.id}`" in line
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Histories that could not be read" in page
    assert f"<code>{broken.id}</code>" in page
    intact = [run.id for run in text.runs[1:]]
    assert not any(f"<code>{name}</code>: " in page for name in intact)


@pytest.mark.usefixtures("undrawn")
def test_histories_are_read_once_each(sample: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = Counter[str]()
    history = RunDir.history

    def counted(self: RunDir, result: Json | None = None) -> list[Json]:
        requested[self.id] += 1
        return history(self, result)

    monkeypatch.setattr(RunDir, "history", counted)
    write_report(sample.results, tmp_path, sample.runs, sample.verdicts, sample.studies_by_family)
    assert requested == dict.fromkeys((run.id for run in sample.runs if run.state.finished), 1)


@pytest.mark.usefixtures("undrawn")
def test_what_an_earlier_report_wrote_is_gone_and_nothing_else(sample: Made, tmp_path: Path) -> None:
    out, figures, outside = tmp_path / "report", tmp_path / "report" / "figures", tmp_path / "other" / "drawn.png"
    outside.parent.mkdir()
    outside.touch()
    first = write_report(sample.results, out, sample.runs, sample.verdicts, sample.studies_by_family)
    (figures / "mine-map.png").write_bytes(b"drawn")
    (figures / "vit-digits-ntk-map.png").write_bytes(b"drawn over")
    data = json.loads((out / writer.MANIFEST_NAME).read_text())
    strange = dict.fromkeys(("../other/drawn.png", str(outside), "figures/../../other/drawn.png", "figures/.."))
    data["files"] |= dict.fromkeys(strange, sha256_of(outside))
    # As where case is ignored: one file by two names, that of an earlier report and that of the next.
    alias = figures / "VIT-digits-standard-map.png"
    alias.symlink_to("vit-digits-standard-map.png")
    data["files"]["figures/VIT-digits-standard-map.png"] = sha256_of(alias)
    (out / writer.MANIFEST_NAME).write_text(json.dumps(data))
    second = write_report(sample.results, out, sample.runs, [sample.verdict("standard")], sample.studies_by_family)
    assert outside.exists()
    left = {path for path in out.rglob("*") if path.is_file()} - {out / writer.MANIFEST_NAME}
    assert left == {*second, figures / "mine-map.png", figures / "vit-digits-ntk-map.png", alias}
    assert figures / "vit-digits-hybrid-map.png" in set(first) - left


@pytest.mark.slow
def test_only_figures_that_have_changed_are_drawn_again(
    sample: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[str]()

    def write(verdicts: Sequence[Verdict]) -> list[str]:
        drawn.clear()
        write_report(sample.results, tmp_path, sample.runs, verdicts, sample.studies_by_family)
        return sorted(drawn)

    def export_all(figures: Sequence[tuple[str, Path]]) -> None:
        assert (tmp_path / "report.html").exists(), "the page is there first"
        for _, stem in figures:
            drawn.append(stem.name)
            for path in paths_of(stem):
                path.write_text(stem.name)

    monkeypatch.setattr("ettsweep.report.writer.export_all", export_all)
    first = write(sample.verdicts)
    assert len(first) == 3 + 3 * 2
    assert write(sample.verdicts) == []
    (tmp_path / "figures" / "vit-digits-ntk-map.svg").unlink()
    (tmp_path / "figures" / "vit-digits-scores.pdf").write_text("edited")
    assert write(sample.verdicts) == ["vit-digits-ntk-map", "vit-digits-scores"]
    standard = sample.verdict("standard")
    assert standard.bound is not None
    bound = replace(standard.bound, differences=standard.bound.differences[1:])
    fewer = replace(standard, neighbours=standard.neighbours[1:], bound=bound)
    changed = write([fewer if verdict is standard else verdict for verdict in sample.verdicts])
    assert 0 < len(changed) < len(first)
    assert all("ntk" not in name for name in changed)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_many_figures_are_files_where_they_are_asked_for_and_kept_up_to_date_from_then_on(
    sample: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_DEFAULT_FIGURES", 8)  # of nine
    warnings = list[str]()

    def write(figure_files: bool | None) -> tuple[int, bool, bool]:
        """Return the number of files of figures, whether the page links to them, and says how to have them."""
        warnings.clear()
        made = sample.results, tmp_path, sample.runs, sample.verdicts, sample.studies_by_family
        paths = write_report(*made, warnings.append, figure_files=figure_files)
        page = paths[0].read_text()
        assert page.count('class="spec"') == 9, "the page draws them all the same"
        files = [path for path in (tmp_path / "figures").iterdir() if path in paths]
        return len(files), 'href="figures/' in page, "report --figures" in page

    assert write(None) == (0, False, True)
    assert warnings == ["the page has 9 figures; --figures writes them as files too"]
    assert write(True) == (27, True, False)
    assert write(None) == (27, True, False), "as the report before"
    assert not warnings
    assert write(False) == (0, False, True)
    monkeypatch.setattr(writer, "MAX_DEFAULT_FIGURES", 9)
    assert write(None) == (27, True, False)


def test_no_runs_make_a_report(tmp_path: Path) -> None:
    paths = write_report(tmp_path / "results", tmp_path / "report", [], [], {})
    assert all(path.exists() for path in paths)
