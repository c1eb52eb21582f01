"""The journal for Optuna: it and its dashboard see what runs say, and no file of somebody else is written over."""

import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from support.commandline import PATIENCE_S, keep, write_grid

from ettsweep.errors import InputError, StorageError
from ettsweep.report.optuna_journal import write_journal
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.lattice import Centre
from ettsweep.study.run_index import load_run_index
from ettsweep.study.sweep import Suggestion
from ettsweep.study.sweep_store import load_sweep_store
from ettsweep.study.sweep_updates import record_suggestions

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
        self.sweep_spec = load_sweep_spec(write_grid(folder / "w8.yaml", **GRID | changes))
        self.sweep_spec = self.sweep_spec.model_copy(update={"searched": True})
        keep(results, self.sweep_spec)
        self.bases = {study.strategy: study.base for study in self.sweep_spec.studies()}
        self.path = folder / "w8.journal"

    def spec(self, place: tuple[float, float], seed: int = 0, strategy: str = "standard") -> RunSpec:
        return self.bases[strategy].with_point(*place, seed)

    def propose(self, *places: tuple[float, float], sampler: str = "tpe", strategy: str = "standard") -> None:
        points = tuple(Centre(lr=lr, wd=wd) for lr, wd in places)
        record_suggestions(self.results, "w8", [Suggestion(strategy=strategy, sampler=sampler, points=points)])

    def finish(self, *places: tuple[float, float], seed: int = 0) -> None:
        for place in places:
            finish(self.results, self.spec(place, seed), loss(*place, seed))

    def write(self, path: Path | None = None) -> str:
        sweep_store = load_sweep_store(self.results)
        studies = [study for sweep in sweep_store.select() for study in sweep.studies]
        return write_journal(path or self.path, sweep_store, studies, load_run_index(self.results))


@pytest.fixture
def made(results: Path, tmp_path: Path) -> Made:
    """Return a sweep four of whose points were proposed and are finished, with one seed each."""
    made = Made(results, tmp_path)
    made.propose(*PLACES)
    made.finish(*PLACES)
    return made


def opened(path: Path, name: str = "w8 standard") -> optuna.Study:
    """Return a study as anybody opens it."""
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path))))


def trials(made: Made, name: str = "w8 standard") -> list[FrozenTrial]:
    return opened(made.path, name).trials


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
    attempt.record_failure("interrupted", "pruned")
    made.write()
    *_, last = trials(made)
    assert len(trials(made)) == 5
    assert (last.state, last.intermediate_values) == (TrialState.PRUNED, {8: 3.0})
    assert last.params == {"lr": 1.0, "wd": 0.25}
    assert last.user_attrs["pruned"] == "at step 8: median pruner"


def test_each_strategy_is_a_study_that_says_what_it_is_of(made: Made) -> None:
    finish(made.results, spec := made.spec((1.0, 0.5), strategy="mup"), 1.5)
    made.write()
    names = optuna.get_all_study_names(JournalStorage(JournalFileBackend(str(made.path))))
    assert names == ["w8 standard", "w8 mup"]
    found = opened(made.path, "w8 mup")
    assert found.user_attrs == {"sweep": "w8", "family": spec.family_id}
    assert found.metric_names == ["best_loss"]
    assert [trial.value for trial in found.trials] == [1.5]


def test_a_fixed_axis_is_no_parameter(results: Path, tmp_path: Path) -> None:
    centre = {"standard": {"lr": 0.25, "wd": 0.0}}
    made = Made(results, tmp_path, wd="fixed", centre=centre, strategies=["standard"])
    made.finish((0.25, 0.0), (0.5, 0.0))
    made.write()
    assert [trial.params for trial in trials(made)] == [{"lr": 0.25}, {"lr": 0.5}]
    assert opened(made.path).user_attrs["wd"] == 0.0


def test_accuracies_are_maximized_and_the_least_is_the_worst(results: Path, tmp_path: Path) -> None:
    model = {"width": 8, "depth": 1, "heads": 2, "patch_size": 8, "image_size": 32, "channels": 3, "classes": 10}
    made = Made(results, tmp_path, model=model, task="cifar10")
    for place, accuracy in zip(PLACES, (0.5, 0.75, 0.25, None), strict=True):
        run = RunDir.create(results, made.spec(place))
        assert run.claim({}, after=0)
        status = {"status": "done"} if accuracy else {"status": "diverged", "diverged_step": 20}
        assert run.finish({**status, "score": accuracy}, [{"step": 8, "val_accuracy": accuracy}])
    made.write()
    found = opened(made.path)
    assert (found.direction.name, found.best_value) == ("MAXIMIZE", 0.75)
    assert said(made)[PLACES[-1]][:2] == ("COMPLETE", 0.25)
    assert found.metric_names == ["best_accuracy"]


def test_no_pickle_is_in_a_journal(made: Made) -> None:
    made.write()
    lines = [json.loads(line) for line in made.path.read_bytes().splitlines()]
    assert not any(line.get("system_attrs") for line in lines), "where Optuna's samplers keep theirs"
    assert all(isinstance(line, dict) for line in lines)


# --- others open it ---------------------------------------------------------------------------------------------------


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
    app = dashboard(made.path)
    listed = {one["study_name"]: one["study_id"] for one in asked_of(app, "/api/studies")["study_summaries"]}
    assert listed.keys() == {"w8 standard", "w8 mup"}
    shown = asked_of(app, f"/api/studies/{listed['w8 standard']}")
    assert [trial["values"] for trial in shown["trials"]] == [[loss(*place)] for place in PLACES]
    assert [trial["state"] for trial in shown["trials"]] == ["Complete"] * 4
    assert {axis["name"] for axis in shown["union_search_space"]} == {"lr", "wd"}
    assert len(asked_of(app, f"/api/studies/{listed['w8 mup']}")["trials"]) == 1


# --- the file ---------------------------------------------------------------------------------------------------------


def test_it_is_written_again_in_its_place(made: Made) -> None:
    made.write()
    inode = made.path.stat().st_ino
    made.finish((1.0, 0.5), (0.0625, 0.25))
    assert made.write() == f"wrote {made.path}: 6 trials of 2 studies, for optuna-dashboard"
    assert len(trials(made)) == 6
    assert made.path.stat().st_ino != inode, "in one rename"
    assert [path.name for path in made.path.parent.iterdir() if "journal" in path.name] == [made.path.name]


@pytest.mark.parametrize(
    "content", [b"no journal\n", b"\x80\x04\x95pickle\n", b"{}\n[1]\n", b"[" * 100_000 + b"\n", b'{"op_code": 0}\n']
)
def test_what_is_no_journal_is_left_alone(made: Made, content: bytes) -> None:
    made.path.write_bytes(content)
    with pytest.raises(InputError, match="exists, and is not a journal that ettsweep wrote"):
        made.write()
    assert made.path.read_bytes() == content


def test_a_folder_or_a_pipe_in_its_place_is_refused(made: Made) -> None:
    for make in (Path.mkdir, os.mkfifo):
        path = made.path.with_name(f"{make.__name__}.journal")
        make(path)
        with pytest.raises(InputError, match="exists, and is not a journal"):
            made.write(path)


def killed(target: Callable[[], object]) -> None:
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
def test_a_kill_while_it_is_written_leaves_the_old_one(made: Made) -> None:
    made.write()
    before = made.path.read_bytes()
    made.finish((0.5, 0.25), seed=1_000_000)
    killed(made.write)
    assert made.path.read_bytes() == before
    made.write()
    assert trials(made)[1].value == fmean([loss(0.5, 0.25), loss(0.5, 0.25, 1_000_000)])


@pytest.mark.usefixtures("process")
def test_a_full_disk_is_said_and_what_was_there_stays(made: Made, small_disk: Callable[[str], Path]) -> None:
    made.path = small_disk("64k") / "w8.journal"
    made.write()
    before = made.path.read_bytes()
    made.finish(*{(2.0**i, 2.0**j) for i in range(-4, 1) for j in range(-3, 0)} - {*PLACES})
    room = os.statvfs(made.path.parent)
    (made.path.parent / "rest").write_bytes(bytes(room.f_bavail * room.f_frsize))
    with pytest.raises(StorageError, match="disk is full"):
        made.write()
    assert made.path.read_bytes() == before
    assert {path.name for path in made.path.parent.iterdir()} == {"rest", "w8.journal"}
