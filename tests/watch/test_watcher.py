"""Looks at a results folder: what each finds, what is read again, and what is wrong with the folder."""

import os
import shutil
import time
from pathlib import Path

import pytest
from support.made_sweep import finish
from support.watched import MIDDLE, NOON, ask, at, choose_all, claim, family, finish_all, judged, watcher

from ettsweep.errors import InputError
from ettsweep.files import folder_names
from ettsweep.report.verdict_view import make_views
from ettsweep.runs.folder import RunDir, runs_dir, sweeps_dir
from ettsweep.runs.index import RunIndex, load_run_index
from ettsweep.runs.state import State
from ettsweep.study.judgement import judge
from ettsweep.study.sweep_store import SweepStore
from ettsweep.watch.watcher import Selection, Watcher


def test_a_family_is_not_judged_before_it_is(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    watch = watcher(results)
    first = family(watch.poll())
    assert (first.verdict, first.stale) == (None, True)
    assert (first.finished, first.runs) == (18, 18)
    assert watch.judge_next()
    assert not watch.judge_next()
    family_result = family(watch.view())
    assert [family_result.verdict] == make_views(judge([family_result.study], load_run_index(results)))
    assert not family_result.stale


def test_runs_that_nobody_has_made_yet_are_among_those_of_a_family(results: Path) -> None:
    (study,) = ask(results)
    finish(results, at(study, 0, 0), 0.5)
    claim(results, at(study, 0, 0, 1))
    family_result = family(watcher(results).poll())
    assert family_result.states == {State.DONE: 1, State.RUNNING: 1, State.MISSING: 16}
    assert (family_result.finished, family_result.runs) == (1, 18)


def test_a_run_in_training_is_seen_with_step_loss_and_speed(results: Path) -> None:
    (study,) = ask(results)
    attempt = claim(results, at(study, 0, 0), step=60, loss=1.25)
    attempt.append(attempt.metrics_path, [{"step": 60, "val_loss": 9.0, "val_accuracy": 0.1}])
    (run,) = watcher(results).poll().runs
    assert (run.step, run.loss, run.steps_per_s, run.attempt, run.sweep) == ("60/240", 1.25, 20.0, 1, "small")
    assert run.run.status.remaining_s == pytest.approx(9.0)


def test_those_that_train_come_first_then_those_that_need_a_person(results: Path) -> None:
    (study,) = ask(results)
    RunDir.create(results, at(study, -1, 0))
    claim(results, at(study, 0, 0)).record_failure("error", "RuntimeError: out of luck")
    claim(results, at(study, 1, 0))
    assert [run.run.state for run in watcher(results).poll().runs] == [State.RUNNING, State.FAILED, State.MISSING]


def test_finished_runs_are_read_once(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    watch = watcher(results)
    before = watch.poll()
    for path in runs_dir(results).glob("*/result.json"):
        path.write_text("{")
    assert watch.poll().sweep_status.finished == before.sweep_status.finished == {State.DONE: 18}


def test_run_folders_are_listed_again_only_once_some_came_or_went(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (study,) = ask(results)
    finish(results, at(study, 0, 0), 0.5)
    listed = list[Path]()

    def counted(folder: Path) -> list[str]:
        listed.append(folder)
        return folder_names(folder)

    monkeypatch.setattr("ettsweep.runs.index.folder_names", counted)
    watch = watcher(results)
    watch.poll()
    watch.poll()
    assert len(listed) == 2, "the folder has just changed: another change may bear the same time"
    os.utime(runs_dir(results), (time.time() - 60, time.time() - 60))
    for _ in range(3):
        watch.poll()
    assert len(listed) == 3
    finish(results, at(study, 1, 0), 0.5)
    assert watch.poll().sweep_status.finished_count == 2


def test_a_verdict_is_found_again_only_where_a_run_has_finished(results: Path) -> None:
    (first, other) = ask(results, strategies=["standard", "ntk"])
    for item in (first, other):
        finish_all(results, item, MIDDLE[:8])
        claim(results, at(item, 1, 1, 0))
    watch = watcher(results)
    judged(watch)
    claim(results, at(first, 1, 1, 1))
    watch.poll()
    assert not any(item.stale for item in watch.view().families), "that a run trains changes no verdict"
    finish(results, at(first, 1, 1, 0), 0.5)
    watch.poll()
    assert [item.stale for item in watch.view().families] == [True, False]
    assert watch.judge_next()
    assert not watch.judge_next()


def test_runs_and_sweeps_that_come_later_appear(results: Path) -> None:
    (study,) = ask(results)
    finish(results, at(study, 0, 0), 0.5)
    watch = watcher(results)
    assert len(watch.poll().families) == 1
    (other,) = ask(results, "other", seeds=[7])
    claim(results, at(other, 0, 0, 7))
    view = watch.poll()
    assert [item.title for item in view.families] == ["other standard", "small standard"]
    assert [run.sweep for run in view.runs] == ["other"]
    assert (view.sweep_status.run_count, view.sweep_status.finished_count) == (2, 1)


def test_what_cannot_be_read_is_told_and_all_else_is_shown(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    broken = runs_dir(results) / at(study, 0, 0).run_id
    (broken / "spec.json").write_text("{\x1b[2J")
    (runs_dir(results) / "0123456789ab").write_text("a file")
    (runs_dir(results) / "notes").mkdir()
    (sweeps_dir(results) / "odd.yaml").write_text("{")
    view = judged(watcher(results))
    folder, sweep = view.problems
    assert "is broken" in folder
    assert "(and 1 more folder)" in folder
    assert sweep.startswith("sweep odd is left out: ")
    assert "\x1b" not in folder
    assert family(view).finished == 17


def test_a_broken_run_that_is_mended_is_seen(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    path = runs_dir(results) / at(study, 0, 0).run_id / "spec.json"
    text = path.read_text()
    path.write_text("{")
    watch = watcher(results)
    assert len(watch.poll().problems) == 1
    path.write_text(text)
    view = watch.poll()
    assert view.problems == ()
    assert family(view).finished == 18


def test_runs_that_are_removed_are_gone(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    watch = watcher(results)
    watch.poll()
    shutil.rmtree(runs_dir(results) / at(study, 0, 0).run_id)
    assert family(watch.poll()).states == {State.DONE: 17, State.MISSING: 1}


def test_a_folder_that_vanishes_is_an_error_until_it_is_back(results: Path, tmp_path: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    watch = watcher(results)
    before = judged(watch)
    results.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        watch.poll()
    (tmp_path / "elsewhere").rename(results)
    assert watch.poll().families[0].finished == before.families[0].finished


def test_where_nothing_is_meant_the_first_look_says_so(results: Path) -> None:
    def none(run_index: RunIndex, sweep_store: SweepStore) -> Selection:
        raise InputError("no runs to watch")

    with pytest.raises(InputError, match="no runs to watch"):
        Watcher(results, none, lambda: NOON).poll()


def test_once_something_was_seen_what_is_meant_may_go(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    answers = [choose_all]

    def choose(run_index: RunIndex, sweep_store: SweepStore) -> Selection:
        if not answers:
            raise InputError("unknown sweep")
        return answers.pop()(run_index, sweep_store)

    watch = Watcher(results, choose, lambda: NOON)
    watch.poll()
    shutil.rmtree(runs_dir(results) / at(study, 0, 0).run_id)
    assert watch.poll().sweep_status.run_count == 17


def test_a_long_first_look_says_how_far_it_is(results: Path) -> None:
    studies = ask(results, seeds=list(range(12)))
    for steps in MIDDLE:
        for seed in range(12):
            RunDir.create(results, at(studies[0], *steps, seed))
    collected: list[str] = []
    watcher(results).poll(collected.append)
    assert collected == ["reading runs: 0 of 108", "reading runs: 100 of 108"]


def test_the_runs_of_a_sweep_are_those_that_it_asks_for(results: Path) -> None:
    (study,) = ask(results)
    (other,) = ask(results, "other", seeds=[7])
    claim(results, at(study, 0, 0))
    claim(results, at(other, 0, 0, 7))
    watch = watcher(results)
    watch.poll()
    assert [run.spec.seed for run in watch.runs_of("other")] == [7]
