"""What has happened: from one look to the next, and what was there at the first."""

from pathlib import Path

import pytest
from support.made_sweep import finish
from support.watched import MIDDLE, NOON, ask, at, claim, family, finish_all, judged, watcher

from ettsweep.files import Json
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run
from ettsweep.runs.spec import RunSpec
from ettsweep.watch.events import Event, describe_spikes


def told(events: tuple[Event, ...]) -> list[tuple[str, str, str]]:
    return [(event.kind, event.text, event.at) for event in events]


def test_of_the_past_no_times_are_told_and_the_last_comes_last(results: Path) -> None:
    (study,) = ask(results)
    claim(results, at(study, 0, 0)).record_failure("error", "\n RuntimeError: out of luck\nsecond line")
    finish(results, at(study, 1, 0), 0.5, diverged=True)
    finish(results, at(study, 0, 1), 0.5)
    RunDir.create(results, at(study, 0, -1)).cancel()
    events = watcher(results).poll().events
    assert told(events) == [("failed", "RuntimeError: out of luck", ""), ("diverged", "at step 81", "")]
    assert events[0].subject == at(study, 0, 0).run_id[:8]
    assert events[0].position == "standard (2^-6, 2^-1) seed 0"


def test_what_happens_between_looks_is_told_with_the_time(results: Path) -> None:
    (study,) = ask(results)
    specs = [at(study, *steps) for steps in MIDDLE[:5]]
    failing, diverging, finishing, cancelled, requeued = specs
    attempts = [claim(results, spec) for spec in specs]
    watch = watcher(results)
    assert watch.poll().events == ()
    attempts[0].record_failure("error", "RuntimeError: out of luck")
    finish(results, diverging, 0.5, diverged=True)
    finish(results, finishing, 0.5)
    RunDir.create(results, cancelled).cancel()
    attempts[3].record_failure("interrupted", "cancelled")
    attempts[4].record_failure("interrupted", "preempted")
    claim(results, requeued).record_resume(1, 60)
    events = watch.poll().events
    assert {event.subject: (event.kind, event.text, event.at) for event in events} == {
        failing.run_id[:8]: ("failed", "RuntimeError: out of luck", NOON),
        diverging.run_id[:8]: ("diverged", "at step 81", NOON),
        cancelled.run_id[:8]: ("cancelled", "", NOON),
        requeued.run_id[:8]: ("requeued", "attempt 2 resumes from step 60", NOON),
    }
    assert watch.poll().events == events, "each is told once"


def test_what_a_file_says_is_spelled_out_on_one_line(results: Path) -> None:
    (study,) = ask(results)
    claim(results, at(study, 0, 0)).record_failure("error", "\x1b[2J[red]gone\u202e")
    assert told(watcher(results).poll().events) == [("failed", r"\x1b[2J[red]gone\u202e", "")]


def spiky(results: Path, spec: RunSpec, events: object) -> Run:
    run = RunDir.create(results, spec)
    assert run.finish({"status": "done", "score": 1.0, "steps": 240, "spike_events": events}, [])
    return Run(run, spec, *run.status_and_result())


LOSS = {"kind": "loss", "step": 60, "last_step": 61, "sigmas": 7.25}
GRADIENT: Json = {"kind": "grad", "step": 90, "last_step": 90, "sigmas": 12.0}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([LOSS], "1 spike; loss at step 60 by 7.25 sigmas"),
        ([LOSS, GRADIENT], "2 spikes; grad at step 90 by 12 sigmas"),
        ([{"kind": "accuracy", "step": 80, "depth": 0.1}], "1 spike; accuracy at step 80"),
        ([], ""),
        ("edited by hand", ""),
        ([3], ""),
    ],
)
def test_spikes_of_a_finished_run_are_told_with_the_highest(results: Path, events: object, expected: str) -> None:
    (study,) = ask(results)
    assert describe_spikes(spiky(results, at(study, 0, 0), events)) == expected
    result = told(watcher(results).poll().events)
    assert result == ([("spikes", expected, "")] if expected else [])


def test_a_verdict_is_told_once_it_is_reached_and_once_it_is_lost(results: Path) -> None:
    (study,) = ask(results, criterion={"rule": "paper"})
    finish_all(results, study, [steps for steps in MIDDLE if steps != (1, 0)])
    watch = watcher(results)
    assert family(judged(watch)).verdict.word == "incomplete"  # type: ignore[union-attr]
    assert watch.view().events == ()
    finish_all(results, study, [(1, 0)])
    view = judged(watch)
    assert told(view.events) == [("reached", "optimal by the paper's comparison of means at (2^-6, 2^-1)", NOON)]
    assert view.events[0].subject == "small standard"
    ask(results, seeds=[0, 1, 2])  # more is asked for: it is not optimal until that is there
    assert told(judged(watch).events)[1][:1] == ("lost",)
