"""What the command search shows at a terminal: the best score, and the runs that improved on all before."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.commandline import at_a_terminal, keep, write_fake_grid
from support.made_sweep import digits_spec, finish_at, imagenet_spec, searched

from ettsweep.cli.search_history import show_history
from ettsweep.console import Format
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.study import Study
from ettsweep.study.sweep import Suggestion
from ettsweep.study.sweep_updates import record_suggestions

LOSSES = (0.9, 1.3, 0.5, 0.75, 0.4)
STEPS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


class Terminal(io.StringIO):
    """A terminal that only remembers."""

    def isatty(self) -> bool:
        return True


def shown(results: Path, study: Study, monkeypatch: pytest.MonkeyPatch, form: Format = Format.TABLE) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    show_history([study], load_run_index(results), form)
    return re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue())


def made(results: Path, base: RunSpec, proposed: int = 4) -> Study:
    study = searched(base, STEPS[:proposed])
    for ended_s, (steps, loss) in enumerate(zip(STEPS, LOSSES, strict=True)):
        finish_at(results, study, steps, loss, ended_s=ended_s)
    return study


def test_runs_that_improved_are_listed_with_their_proposals(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = shown(results, made(results, digits_spec(None)), monkeypatch)
    title, head, *rows = (re.split(r"\s{2,}", line.strip()) for line in messages.splitlines() if line)
    assert title == ["vit-digits standard: best_loss 0.4000 in the best of 5 runs, 4 of them suggested"]
    assert head == ["run", "proposal", "lr", "wd", "seed", "best_loss (nats)"]
    assert rows == [
        ["1", "1", "2^-6 (0.015625)", "2^-1 (0.5)", "0", "0.9000"],
        ["3", "3", "2^-7 (0.0078125)", "2^-1 (0.5)", "0", "0.5000"],
        ["5", "2^-6 (0.015625)", "2^-2 (0.25)", "0", "0.4000"],
    ]


def test_accuracies_rise(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = shown(results, made(results, imagenet_spec(None)), monkeypatch)
    assert "best_accuracy 90.00% in the best of 5 runs" in messages
    assert [line.split()[-1] for line in messages.splitlines()[3:] if line] == ["77.50", "87.50", "90.00"]


def test_many_runs_of_a_long_name_fit_80_columns(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = digits_spec(0.25)
    steps = [(i, j) for i in range(-6, 7) for j in range(-6, 7)]
    study = replace(searched(base, steps[:150], reach=6), sweep="long-" * 12)
    for number, at in enumerate(steps):
        finish_at(results, study, at, 100.0 / (number + 1), ended_s=number)
    messages = shown(results, study, monkeypatch)
    assert max(map(len, messages.splitlines())) <= 80


@pytest.mark.parametrize("form", [Format.JSON, Format.CSV, Format.MARKDOWN])
def test_programs_are_told_nothing_of_it(results: Path, monkeypatch: pytest.MonkeyPatch, form: Format) -> None:
    assert shown(results, made(results, digits_spec(None)), monkeypatch, form) == ""


def test_nothing_is_shown_of_what_was_not_searched_or_has_no_run(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(results, made(results, digits_spec(None), proposed=0), monkeypatch) == ""
    assert shown(results / "empty", searched(digits_spec(None), STEPS), monkeypatch) == ""


def test_nothing_is_shown_where_the_output_is_no_terminal(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_history([made(results, digits_spec(None))], load_run_index(results), Format.TABLE)
    assert capsys.readouterr().out == ""


def test_all_diverged_is_said(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = searched(digits_spec(None), STEPS[:1])
    finish_at(results, study, (0, 0), 9.0, ended_s=1, diverged=True)
    assert "no score in 1 run, 1 of them suggested" in shown(results, study, monkeypatch)


@pytest.mark.usefixtures("process")
def test_a_search_shows_its_course_before_its_verdicts(results: Path, tmp_path: Path) -> None:
    sweep_spec = load_sweep_spec(write_fake_grid(tmp_path / "w8.yaml")).model_copy(update={"searched": True})
    keep(results, sweep_spec)
    (study,) = sweep_spec.studies("w8")
    centre = sweep_spec.centres["standard"]
    record_suggestions(results, "w8", [Suggestion(strategy="standard", sampler="surface", points=(centre,))])
    run = RunDir.create(results, study.base)
    assert run.finish({"status": "done", "score": 0.5}, [])
    _, observed = at_a_terminal("search", "--sweep", "w8", "--dry-run", "--results", results)
    assert observed.index("w8 standard: best_loss 0.5000 in the best of 1 run") < observed.index("verdict")
