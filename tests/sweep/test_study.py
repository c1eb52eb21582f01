"""The study of a sweep: Optuna and its dashboard see what runs say, and what is on disk is the truth."""

import contextlib
import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any
from wsgiref.util import setup_testing_defaults

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as plots
from support.commandline import PATIENCE_S, keep, write_grid

from ettsweep.errors import CorruptError, EttsweepError, InputError, StorageError
from ettsweep.runs.folder import RunDir
from ettsweep.spec import RunSpec
from ettsweep.sweep import study
from ettsweep.sweep.changes import propose, rename_sweep
from ettsweep.sweep.gridfile import load_request
from ettsweep.sweep.ledger import load_ledger
from ettsweep.sweep.search import Centre
from ettsweep.sweep.study import Journal
from ettsweep.sweep.sweeps import Proposal

GRID: dict[str, Any] = {
    "centre": {"standard": {"lr": 0.25, "wd": 0.25}, "mup": {"lr": 1.0, "wd": 0.5}},
    "lr": {"range": [-2, 2]},
    "wd": {"range": [-1, 1]},
    "strategies": ["standard", "mup"],
    "criterion": {},
}
"""Two strategies on two free axes, judged by a bound: a race may add seeds."""

PLACES = [(0.25, 0.25), (0.5, 0.25), (0.25, 0.5), (0.125, 0.125)]
"""What is proposed for `standard`, first to last."""

STEPS = (8, 16, 24)


def loss(lr: float, wd: float, seed: int = 0) -> float:
    """Lowest at (0.5, 0.25)."""
    return 1 + abs(lr - 0.5) + abs(wd - 0.25) / 4 + 0.01 * seed


def finish(results: Path, spec: RunSpec, score: float | None) -> RunDir:
    """Finish a run whose best score halves its distance to the last one at each evaluation; None diverges."""
    run = RunDir.create(results, spec)
    assert run.claim({}, after=0)
    history = [{"step": step, "val_loss": (score or 9) + 2.0**-k, "loss": 1.0} for k, step in enumerate(STEPS[:-1], 1)]
    history += [] if score is None else [{"step": STEPS[-1], "val_loss": score}]
    ended = {"status": "done"} if score is not None else {"status": "diverged", "diverged_step": 20}
    assert run.finish({**ended, "score": score, "device_s": 36.0}, history)
    return run


class Made:
    """A sweep `w8` with made runs."""

    def __init__(self, results: Path, folder: Path, **changes: Any) -> None:
        self.results = results
        self.request = load_request(write_grid(folder / "w8.yaml", **GRID | changes))
        self.request = self.request.model_copy(update={"searched": True})
        keep(results, self.request)
        self.bases = {search.strategy: search.base for search in self.request.searches()}
        self.journal = Journal(results, "w8")

    def spec(self, place: tuple[float, float], seed: int = 0, strategy: str = "standard") -> RunSpec:
        return self.bases[strategy].at(*place, seed)

    def propose(self, *places: tuple[float, float], sampler: str = "tpe", strategy: str = "standard") -> None:
        points = tuple(Centre(lr=lr, wd=wd) for lr, wd in places)
        propose(self.results, "w8", [Proposal(strategy=strategy, sampler=sampler, points=points)])

    def finish(self, *places: tuple[float, float], seed: int = 0) -> None:
        for place in places:
            finish(self.results, self.spec(place, seed), loss(*place, seed))

    def write(self) -> None:
        self.journal.write(load_ledger(self.results))

    @property
    def data(self) -> bytes:
        return self.journal.path.read_bytes()


@pytest.fixture
def made(results: Path, tmp_path: Path) -> Made:
    """Return a sweep four of whose points were proposed and are finished, with one seed each."""
    made = Made(results, tmp_path)
    made.propose(*PLACES)
    made.finish(*PLACES)
    return made


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    with mpl.rc_context({"backend": "Agg"}):
        yield
    plt.close("all")


def opened(path: Path, name: str = "w8 standard") -> optuna.Study:
    """Return a study as anybody opens it."""
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path))))


def trials(made: Made, name: str = "w8 standard") -> list[FrozenTrial]:
    return opened(made.journal.path, name).trials


def said(made: Made) -> dict[tuple[float, float], tuple[str, float | None, Any]]:
    """Return what each trial says, by its place: where it is in the study is left out."""
    found = {(t.params["lr"], t.params["wd"]): (t.state.name, t.value, t.user_attrs) for t in trials(made)}
    assert len(found) == len(trials(made))
    return found


# --- what a trial is --------------------------------------------------------------------------------------------------


def test_a_trial_is_a_point_with_the_mean_of_its_seeds(made: Made) -> None:
    made.finish((0.5, 0.25), seed=1_000_000)
    made.write()
    first, second, *_ = trials(made)
    assert (first.params, first.value) == ({"lr": 0.25, "wd": 0.25}, loss(0.25, 0.25))
    assert first.user_attrs == {
        "runs": [made.spec((0.25, 0.25)).run_id],
        "seeds": [0],
        "proposed by": "tpe",
        "scores": [loss(0.25, 0.25)],
    }
    scores = [loss(0.5, 0.25), loss(0.5, 0.25, 1_000_000)]
    assert second.value == fmean(scores)
    assert second.user_attrs["scores"] == scores
    assert second.user_attrs["runs"] == [made.spec((0.5, 0.25), seed).run_id for seed in (0, 1_000_000)]
    score = loss(0.5, 0.25)
    assert second.intermediate_values == {8: score + 0.5, 16: score + 0.25, 24: score}, "the curve of its first seed"
    assert second.distributions == {
        "lr": FloatDistribution(0.0625, 1.0, log=True),
        "wd": FloatDistribution(0.125, 0.5, log=True),
    }


def test_proposals_come_first_to_last_and_then_all_other_points(made: Made) -> None:
    others = [(4.0, 0.25), (0.0625, 0.5), (0.0625, 0.25)]
    made.finish(*others)
    made.write()
    found = trials(made)
    assert [(t.params["lr"], t.params["wd"]) for t in found] == [*PLACES, *sorted(others)]
    assert [t.user_attrs.get("proposed by") for t in found] == ["tpe"] * 4 + [None] * 3
    assert found[0].distributions["lr"] == FloatDistribution(0.0625, 4.0, log=True), "it holds what lies beyond"


def test_seeds_that_count_for_no_verdict_are_in_no_mean(made: Made) -> None:
    made.write()
    before = said(made)
    made.finish((0.5, 0.25), seed=7)
    made.write()
    assert said(made) == before


def test_a_diverged_point_is_the_worst(made: Made) -> None:
    finish(made.results, made.spec((0.25, 0.25), 1_000_000), None)
    made.write()
    first, *others = trials(made)
    assert (first.state, first.value) == (TrialState.COMPLETE, max(t.value or 0 for t in others))
    assert first.user_attrs["diverged"] is True
    assert first.user_attrs["scores"] == [loss(0.25, 0.25), None]
    assert not any("diverged" in t.user_attrs for t in others)


def test_where_all_diverged_none_has_a_value(results: Path, tmp_path: Path) -> None:
    made = Made(results, tmp_path)
    finish(results, made.spec((0.25, 0.25)), None)
    made.write()
    (trial,) = trials(made)
    assert (trial.state, trial.values) == (TrialState.FAIL, None)


def test_a_pruned_point_has_its_curve_and_one_that_is_not_finished_is_left_out(made: Made) -> None:
    made.propose((1.0, 0.25), (1.0, 0.5))
    RunDir.create(made.results, made.spec((1.0, 0.5)))
    run = RunDir.create(made.results, made.spec((1.0, 0.25)))
    attempt = run.claim({}, after=0)
    assert attempt
    attempt.append(attempt.metrics_path, [{"step": 8, "val_loss": 3.0}])
    assert run.prune(8, "median pruner")
    attempt.fail("interrupted", "pruned")
    made.write()
    *_, last = trials(made)
    assert len(trials(made)) == 5
    assert (last.state, last.intermediate_values) == (TrialState.PRUNED, {8: 3.0})
    assert last.params == {"lr": 1.0, "wd": 0.25}
    assert last.user_attrs["pruned"] == "at step 8: median pruner"


def test_each_strategy_is_a_study_that_says_what_it_is_of(made: Made) -> None:
    finish(made.results, spec := made.spec((1.0, 0.5), strategy="mup"), 1.5)
    made.write()
    names = optuna.get_all_study_names(JournalStorage(JournalFileBackend(str(made.journal.path))))
    assert names == ["w8 standard", "w8 mup"]
    found = opened(made.journal.path, "w8 mup")
    assert found.user_attrs == {
        "ettsweep format": 1,
        "sweep": "w8",
        "family": spec.family_id,
        "metric": "best_loss",
    }
    assert found.metric_names == ["best_loss"]
    assert [trial.value for trial in found.trials] == [1.5]


def test_a_fixed_axis_is_no_parameter(results: Path, tmp_path: Path) -> None:
    centre = {"standard": {"lr": 0.25, "wd": 0.0}}
    made = Made(results, tmp_path, wd="fixed", centre=centre, strategies=["standard"])
    made.finish((0.25, 0.0), (0.5, 0.0))
    made.write()
    assert [trial.params for trial in trials(made)] == [{"lr": 0.25}, {"lr": 0.5}]
    assert opened(made.journal.path).user_attrs["wd"] == 0.0


def test_accuracies_are_maximized_and_the_least_is_the_worst(results: Path, tmp_path: Path) -> None:
    model = {"width": 8, "depth": 1, "heads": 2, "patch_size": 8, "image_size": 32, "channels": 3, "classes": 10}
    made = Made(results, tmp_path, model=model, task="cifar10")
    for place, accuracy in zip(PLACES, (0.5, 0.75, 0.25, None), strict=True):
        run = RunDir.create(results, made.spec(place))
        assert run.claim({}, after=0)
        status = {"status": "done"} if accuracy else {"status": "diverged", "diverged_step": 20}
        assert run.finish({**status, "score": accuracy}, [{"step": 8, "val_accuracy": accuracy}])
    made.write()
    found = opened(made.journal.path)
    assert (found.direction.name, found.best_value) == ("MAXIMIZE", 0.75)
    assert said(made)[PLACES[-1]][:2] == ("COMPLETE", 0.25)
    assert found.metric_names == ["best_accuracy"]


def test_no_pickle_is_in_a_journal(made: Made) -> None:
    made.write()
    lines = [json.loads(line) for line in made.data.splitlines()]
    assert not any(line.get("system_attrs") for line in lines), "where Optuna's samplers keep theirs"
    assert all(isinstance(line, dict) for line in lines)


# --- others open it ---------------------------------------------------------------------------------------------------


def drawn(axes: Any) -> list[list[list[float]]]:
    """Return the dots of a plot, series by series."""
    return [np.asarray(dots.get_offsets()).tolist() for dots in axes.collections]


def test_optunas_own_plots_show_what_the_runs_say(made: Made) -> None:
    made.write()
    found = opened(made.journal.path)
    scores = [loss(*place) for place in PLACES]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        assert [[k, score] for k, score in enumerate(scores)] in drawn(plots.plot_optimization_history(found))
        curves = plots.plot_intermediate_values(found)
        seen = [[[float(x), float(y)] for x, y in line.get_xydata()] for line in curves.lines]
        assert seen == [[[8, score + 0.5], [16, score + 0.25], [24, score]] for score in scores]
        lr, wd = plots.plot_slice(found)
        assert [[place[0], loss(*place)] for place in PLACES] in drawn(lr)
        assert [[place[1], loss(*place)] for place in PLACES] in drawn(wd)
        contour = drawn(plots.plot_contour(found, params=["lr", "wd"]))
        assert sorted(map(list, PLACES)) in [sorted(dots) for dots in contour]
    assert found.best_params == {"lr": 0.5, "wd": 0.25}


def asked_of(app: Any, path: str) -> Any:
    """Return what a web application answers to a GET."""
    environ: dict[str, Any] = {"PATH_INFO": path, "wsgi.input": BytesIO()}
    setup_testing_defaults(environ)
    statuses: list[str] = []
    body = b"".join(app(environ, lambda status, headers, *error: statuses.append(status)))
    assert statuses[0].startswith("200"), (statuses, body)
    return json.loads(body)


def dashboard(path: Path) -> Any:
    """Return the web application that `optuna-dashboard FILE` serves."""
    from optuna_dashboard import wsgi
    from optuna_dashboard._storage_url import get_storage

    return wsgi(get_storage(str(path)))


def test_optuna_dashboard_shows_the_studies(made: Made) -> None:
    finish(made.results, made.spec((1.0, 0.5), strategy="mup"), 1.5)
    made.write()
    app = dashboard(made.journal.path)
    listed = {one["study_name"]: one["study_id"] for one in asked_of(app, "/api/studies")["study_summaries"]}
    assert listed.keys() == {"w8 standard", "w8 mup"}
    shown = asked_of(app, f"/api/studies/{listed['w8 standard']}")
    assert [trial["values"] for trial in shown["trials"]] == [[loss(*place)] for place in PLACES]
    assert [trial["state"] for trial in shown["trials"]] == ["Complete"] * 4
    assert {axis["name"] for axis in shown["union_search_space"]} == {"lr", "wd"}
    assert len(asked_of(app, f"/api/studies/{listed['w8 mup']}")["trials"]) == 1


def test_a_dashboard_that_is_open_sees_what_is_appended(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write()
    storage = JournalStorage(JournalFileBackend(str(made.journal.path)))
    assert len(optuna.load_study(study_name="w8 standard", storage=storage).trials) == 4
    made.finish((1.0, 0.5))
    made.write()
    assert [t.value for t in optuna.load_study(study_name="w8 standard", storage=storage).trials][4:] == [loss(1, 0.5)]


# --- appended, or written anew ----------------------------------------------------------------------------------------


def test_what_is_new_is_appended(made: Made) -> None:
    made.write()
    before, inode = made.data, made.journal.path.stat().st_ino
    made.write()
    assert made.data == before, "nothing is new"
    made.propose((0.5, 0.5))
    made.finish((0.5, 0.5), (0.0625, 0.25))
    made.write()
    made.finish((0.0625, 0.5))
    made.write()
    assert made.data.startswith(before)
    assert made.journal.path.stat().st_ino == inode
    appended = said(made)
    assert len(appended) == 7
    made.journal.rebuild(load_ledger(made.results))
    assert said(made) == appended


@pytest.mark.parametrize("changed", ["mean", "range", "name", "strategy", "version", "kill", "trial"])
def test_what_is_no_longer_so_is_written_anew(
    made: Made, changed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as earlier:
        if changed == "version":
            earlier.setattr(study, "VERSION", 0)
        made.write()
    before, inode = made.data, made.journal.path.stat().st_ino
    match changed:
        case "mean":
            made.finish((0.5, 0.25), seed=1_000_000)
        case "range":
            made.finish((4.0, 0.25))
        case "name":
            rename_sweep(made.results, "w8", "w9")
            made.journal = Journal(made.results, "w9")
        case "strategy":
            grid = write_grid(
                tmp_path / "w8.yaml", **GRID | {"strategies": ["ntk"], "centre": {"ntk": {"lr": 1, "wd": 1}}}
            )
            keep(made.results, load_request(grid))
        case "kill":
            made.journal.path.write_bytes(before[:-5])
        case "trial":
            opened(made.journal.path).add_trial(optuna.create_trial(value=0.0, params={}, distributions={}))
    made.journal.check()
    made.write()
    assert made.journal.path.stat().st_ino != inode
    name = "w9" if changed == "name" else "w8"
    found = opened(made.journal.path, f"{name} standard")
    assert (found.user_attrs["sweep"], found.user_attrs["ettsweep format"]) == (name, 1)
    new = {"mean": fmean([loss(0.5, 0.25), loss(0.5, 0.25, 1_000_000)])}
    assert found.trials[1].value == new.get(changed, loss(0.5, 0.25))
    assert len(found.trials) == (5 if changed == "range" else 4)


def test_a_note_of_a_dashboard_stays_while_nothing_else_changes(made: Made) -> None:
    made.write()
    from optuna_dashboard import save_note

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        save_note(opened(made.journal.path), "a note")
    made.finish((0.5, 0.5))
    made.write()
    assert b"a note" in made.data
    assert len(trials(made)) == 5


def test_each_curve_is_read_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    evaluations = RunDir.evaluations
    monkeypatch.setattr(RunDir, "evaluations", lambda run: [read.append(run.id), evaluations(run)][1])
    made.write()
    made.finish((0.5, 0.25), seed=1_000_000)
    made.write()
    assert sorted(read) == sorted(made.spec(place).run_id for place in PLACES)


# --- kills, and a disk that is full -----------------------------------------------------------------------------------


def killed(target: Callable[[], None]) -> None:
    """Run something in a process of its own, which kills itself where it would sync a file."""

    def run() -> None:
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        target()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries do not matter to a child like this
        child = multiprocessing.get_context("fork").Process(target=run)
        child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.usefixtures("process")
def test_a_kill_while_it_is_written_leaves_the_old_one(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write()
    before = made.data
    made.finish((0.5, 0.25), seed=1_000_000)
    killed(made.write)
    assert made.data == before
    monkeypatch.setattr(study, "STALE_S", 0.1)
    made.write()
    assert trials(made)[1].value == fmean([loss(0.5, 0.25), loss(0.5, 0.25, 1_000_000)])


@pytest.mark.usefixtures("process")
def test_a_kill_while_it_is_appended_to_loses_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write()
    before = made.data
    made.finish((0.5, 0.5), (1.0, 0.5))
    killed(made.write)
    whole = made.data
    assert whole.startswith(before)
    assert len(trials(made)) == 6
    expected = said(made)
    monkeypatch.setattr(study, "STALE_S", 0.0)
    for cut in range(len(before), len(whole), 97):
        made.journal.path.write_bytes(whole[:cut])
        assert len(trials(made)) in (4, 5), "Optuna leaves a cut line out"
        made.journal.check()
        made.write()
        assert said(made) == expected


def test_no_lock_that_a_killed_dashboard_left_blocks(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna's is a link to the journal by the path that was given: from the folder it lies in, it leads nowhere."""
    made.write()
    made.finish((0.5, 0.5))
    monkeypatch.setattr(study, "STALE_S", 0.1)
    Path(f"{made.journal.path}.lock").symlink_to("results/sweeps/w8/study.journal")
    made.write()
    assert len(trials(made)) == 5
    assert [path.name for path in made.journal.path.parent.glob("*study*")] == ["study.journal"]


@pytest.mark.parametrize("how", ["anew", "appended"])
def test_a_full_disk_is_said_and_what_was_there_stays(
    made: Made, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    disk = small_disk("64k")
    monkeypatch.setattr(Journal, "path", disk / "study.journal")
    made.write()
    before = said(made)
    rest = {(2.0**i, 2.0**j) for i in range(-4, 1) for j in range(-3, 0)} - {*PLACES}
    made.finish(*rest)  # more than what is left of a page
    if how == "anew":
        made.finish((0.5, 0.25), seed=1_000_000)
    room = os.statvfs(disk)
    (disk / "rest").write_bytes(bytes(room.f_bavail * room.f_frsize))
    with pytest.raises(StorageError, match="disk is full"):
        made.write()
    assert before.items() <= said(made).items()
    (disk / "rest").unlink()
    made.write()
    mended = said(made)
    made.journal.rebuild(load_ledger(made.results))
    assert mended == said(made)
    assert len(mended) == 15
    assert [path.name for path in disk.iterdir()] == ["study.journal"]


# --- bad input --------------------------------------------------------------------------------------------------------

REMEDY = "; `ettsweep search --sweep w8 --rebuild` writes it anew from the runs"


def foreign(made: Made, attrs: Mapping[str, Any]) -> None:
    """Put a study in the journal's place that says other things of itself."""
    storage = JournalStorage(JournalFileBackend(str(made.journal.path)))
    other = optuna.create_study(study_name="other", storage=storage)
    for key, value in attrs.items():
        other.set_user_attr(key, value)


@pytest.mark.parametrize(
    ("attrs", "problem"),
    [
        ({}, "study 'other' was not written by ettsweep"),
        (
            {"ettsweep format": 2},
            "study 'other' was written by a later version of ettsweep (format 2, known is 1)",
        ),
        (
            {"ettsweep format": 1, "family": "0123", "sweep": "w16"},
            "study 'other' is of another sweep, w16: w8 has no family 0123",
        ),
    ],
)
def test_what_is_not_of_the_sweep_is_left_alone(made: Made, attrs: dict[str, Any], problem: str) -> None:
    foreign(made, attrs)
    before = made.data
    for write in (made.write, made.journal.check):
        with pytest.raises(InputError) as error:
            write()
        assert str(error.value) == f"{made.journal.path}: {problem}{REMEDY}"
    assert made.data == before
    assert made.journal.rebuild(load_ledger(made.results)) == f"wrote {made.journal.path}: 4 trials of 2 studies"
    made.journal.check()
    assert len(trials(made)) == 4


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no journal\n", "ValueError: line 1 is no JSON object"),
        (b"\x80\x04\x95pickle\n", "ValueError: line 1 is no JSON object"),
        (b"{}\n[1]\n", "ValueError: line 2 is no JSON object"),
        (b"[" * 100_000 + b"\n", "ValueError: line 1 is no JSON object"),
        (b'{"study": 1}\n', "KeyError: 'op_code'"),
        (b'{"op_code": 0}\n', "KeyError: 'study_name'"),
    ],
)
def test_what_cannot_be_read_is_left_alone(made: Made, content: bytes, problem: str) -> None:
    made.journal.path.write_bytes(content)
    for write in (made.write, made.journal.check):
        with pytest.raises(CorruptError) as error:
            write()
        told = str(error.value)
        assert told.startswith(f"{made.journal.path}: is no journal of Optuna's: {problem}")
        assert told.endswith(REMEDY)
    assert made.journal.path.read_bytes() == content
    made.journal.rebuild(load_ledger(made.results))
    assert len(trials(made)) == 4


def test_a_folder_in_its_place_is_to_be_moved_away(made: Made) -> None:
    made.journal.path.mkdir()
    for write in (made.write, made.journal.check):
        with pytest.raises(CorruptError, match=r"study\.journal: Is a directory; move it away"):
            write()


def test_damage_anywhere_is_a_message_or_mended(made: Made) -> None:
    made.write()
    whole = made.data
    told = []
    for at in range(0, len(whole), 211):
        made.journal.path.write_bytes(whole[:at] + b"#" + whole[at + 1 :])
        with contextlib.suppress(EttsweepError):
            made.write()
            assert len(trials(made)) == 4
            continue
        told.append(at)
    assert told


def test_a_sweep_that_is_not_there_has_no_journal(results: Path) -> None:
    Journal(results, "w8").check()
    with pytest.raises(InputError, match="unknown sweep 'w8'"):
        Journal(results, "w8").rebuild(load_ledger(results))
    assert not results.exists()
