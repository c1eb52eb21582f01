"""Looks at a results folder: what each finds, what is read again, and what is wrong with the folder."""

from pathlib import Path

import pytest
from support.made_sweep import finish
from support.watched import MIDDLE, NOON, ask, at, cells, claim, family, finish_all, judged, look, watcher

from ettsweep.launch.progress import SweepStatus
from ettsweep.report.verdict_view import make_views
from ettsweep.runs.folder import RunDir, runs_dir, sweeps_dir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.state import State
from ettsweep.study.judgement import judge
from ettsweep.watch.view import CANDIDATE, NEIGHBOUR, Event
from ettsweep.watch.watcher import Watcher


def status(watch: Watcher) -> SweepStatus:
    result = look(watch).status
    assert result
    return result


def test_a_family_is_not_judged_before_it_is(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    watch = watcher(results)
    *progress, before, after = watch.poll()
    assert not any(view.status for view in progress)
    first, family_result = family(before), family(after)
    assert (first.verdict, first.is_stale, first.counts) == (None, True, {State.DONE: 18})
    assert [family_result.verdict] == make_views(judge([family_result.study], load_run_index(results)))
    assert not family_result.is_stale


def test_a_run_in_training_is_seen_with_step_loss_and_speed(results: Path) -> None:
    (study,) = ask(results)
    attempt = claim(results, at(study, 0, 0), step=60, loss=1.25)
    attempt.append(attempt.metrics_path, [{"step": 60, "val_loss": 9.0, "val_accuracy": 0.1}])
    (run,) = look(watcher(results)).runs.values()
    assert (run.run.status.progress, run.loss, run.steps_per_s, run.sweep) == (0.25, 1.25, 20.0, "small")
    assert family(look(watcher(results))).counts == {State.RUNNING: 1, State.MISSING: 17}
    assert run.run.status.remaining_s == pytest.approx(9.0)


def test_those_that_train_come_first_then_those_that_need_a_person(results: Path) -> None:
    (study,) = ask(results)
    RunDir.create(results, at(study, -1, 0))
    claim(results, at(study, 0, 0)).record_failure("error", "RuntimeError: out of luck")
    claim(results, at(study, 1, 0))
    states = [run.run.state for run in look(watcher(results)).runs.values()]
    assert states == [State.RUNNING, State.FAILED, State.MISSING]


def test_a_view_without_news_equals_the_one_before(results: Path) -> None:
    (study,) = ask(results)
    claim(results, at(study, 0, 0)).record_failure("error", "RuntimeError: out of luck")
    claim(results, at(study, 1, 0))
    watch = watcher(results)
    before = judged(watch)
    assert look(watch) == before, "nothing is drawn"
    claim(results, at(study, 0, 1))
    assert look(watch) != before


def test_runs_and_sweeps_that_come_later_appear(results: Path) -> None:
    (study,) = ask(results)
    finish(results, at(study, 0, 0), 0.5)
    watch = watcher(results)
    assert len(look(watch).families) == 1
    (other,) = ask(results, "other", seeds=[7])
    claim(results, at(other, 0, 0, 7))
    view = look(watch)
    assert [item.title for item in view.families.values()] == ["other standard", "small standard"]
    assert [run.sweep for run in view.runs.values()] == ["other"]
    assert (status(watch).run_count, status(watch).finished_count) == (2, 1)


def test_what_cannot_be_read_is_told_and_all_else_is_shown(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    broken = runs_dir(results) / at(study, 0, 0).run_id
    (broken / "spec.json").write_text("{")
    (runs_dir(results) / "0123456789ab").write_text("a file")
    (sweeps_dir(results) / "odd.yaml").write_text("{")
    view = judged(watcher(results))
    folder, sweep = view.problems
    assert "is broken" in folder
    assert "(and 1 more folder)" in folder
    assert sweep.startswith("sweep odd is left out: ")
    assert family(view).counts[State.DONE] == 17


# --- the lattice --------------------------------------------------------------------------------------------------------


def test_a_lattice_fills_in_as_runs_finish(results: Path) -> None:
    (study,) = ask(results)
    for i, j in MIDDLE:
        RunDir.create(results, at(study, i, j))
    watch = watcher(results)
    before = cells(family(look(watch)))
    assert {cell.state for cell in before.values()} == {State.MISSING}
    assert set(before) == set(MIDDLE)
    finish(results, at(study, 1, 0, 0), 0.5)
    finish(results, at(study, 1, 0, 1), 0.7)
    claim(results, at(study, 0, 1))
    after = cells(family(look(watch)))
    assert (after[1, 0].state, after[1, 0].score, after[1, 0].states) == (State.DONE, 0.6, (State.DONE, State.DONE))
    assert (after[0, 1].state, after[0, 1].score) == (State.RUNNING, None)
    assert after[-1, -1] == before[-1, -1]


def test_candidate_and_neighbours_are_marked_also_beyond_what_was_asked_for(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    cells_result = cells(family(judged(watcher(results))))
    assert cells_result[0, 0].mark == CANDIDATE
    around = {(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)}
    assert {location for location, cell in cells_result.items() if cell.mark == NEIGHBOUR} == around
    (shifted,) = ask(results, "shifted", seeds=[5])
    for i, j in MIDDLE:  # the best is a corner, some of whose neighbours nobody has asked for
        finish(results, at(shifted, i, j, 5), 2.0 - i - j)
    view = judged(watcher(results))
    cells_result = cells(next(item for item in view.families.values() if item.study.sweep == "shifted"))
    assert cells_result[1, 1].mark == CANDIDATE
    assert (cells_result[2, 1].mark, cells_result[2, 1].state) == (NEIGHBOUR, State.MISSING)


# --- events -------------------------------------------------------------------------------------------------------------


def test_what_happens_between_looks_is_an_event(results: Path) -> None:
    (study,) = ask(results)
    specs = [at(study, *steps) for steps in MIDDLE[:5]]
    failing, diverging, finishing, cancelled, requeued = specs
    attempts = [claim(results, spec) for spec in specs]
    claim(results, at(study, 1, 1)).record_failure("error", "RuntimeError: before the first look")
    watch = watcher(results)
    assert look(watch).events == ()
    attempts[0].record_failure("error", "RuntimeError: out of luck")
    finish(results, diverging, 0.5, diverged=True)
    finish(results, finishing, 0.5)
    RunDir.create(results, cancelled).cancel()
    attempts[3].record_failure("interrupted", "cancelled")
    attempts[4].record_failure("interrupted", "preempted")
    claim(results, requeued).record_resume(1, 60)
    events = look(watch).events
    assert {event.subject[:8]: (event.kind, event.text, event.at) for event in events} == {
        failing.run_id[:8]: ("failed", "RuntimeError: out of luck", NOON),
        diverging.run_id[:8]: ("diverged", "at step 81", NOON),
        cancelled.run_id[:8]: ("cancelled", "", NOON),
        requeued.run_id[:8]: ("requeued", "attempt 2 resumes from step 60", NOON),
    }
    assert f"{failing.run_id[:8]} standard (2^-7, 2^-2) seed 0" in {event.subject for event in events}
    assert look(watch).events == events, "each happens once"


def test_an_optimum_that_is_reached_or_lost_is_an_event(results: Path) -> None:
    (study,) = ask(results, criterion={"rule": "paper"})
    finish_all(results, study, [steps for steps in MIDDLE if steps != (1, 0)])
    watch = watcher(results)
    view = judged(watch)
    assert family(view).verdict.word == "incomplete"  # type: ignore[union-attr]
    assert view.events == ()
    finish_all(results, study, [(1, 0)])
    (event,) = judged(watch).events
    text = "optimal by the paper's comparison of means at (2^-6, 2^-1)"
    assert event == Event(NOON, "reached", "small standard", text)
    ask(results, seeds=[0, 1, 2])  # more is asked for: it is not optimal until that is there
    assert [event.kind for event in judged(watch).events] == ["reached", "lost"]
