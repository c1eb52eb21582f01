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
from ettsweep.runs.index import load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.lattice import Centre
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

    def spec(self, location: tuple[float, float], seed: int = 0, strategy: str = "standard") -> RunSpec:
        return self.bases[strategy].with_point(*location, seed)

    def propose(self, *places: tuple[float, float], sampler: str = "tpe", strategy: str = "standard") -> None:
        points = tuple(Centre(lr=lr, wd=wd) for lr, wd in places)
        record_suggestions(self.results, "w8", [Suggestion(strategy=strategy, sampler=sampler, points=points)])

    def finish(self, *places: tuple[float, float], seed: int = 0) -> None:
        for location in places:
            finish(self.results, self.spec(location, seed), loss(*location, seed))

    def write(self, path: Path | None = None) -> str:
        sweep_store = load_sweep_store(self.results)
        studies = [study for sweep in sweep_store.select() for study in sweep.studies]
        return write_journal(path or self.path, sweep_store, studies, load_run_index(self.results))


@pytest.fixture
def searched_sweep(results: Path, tmp_path: Path) -> Made:
    """Return a sweep four of whose points were proposed and are finished, with one seed each."""
    made = Made(results, tmp_path)
    made.propose(*PLACES)
    made.finish(*PLACES)
    return made


def opened(path: Path, name: str = "w8 standard") -> optuna.Study:
    """Return a study as anybody opens it."""
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path))))


def trials(searched_sweep: Made, name: str = "w8 standard") -> list[FrozenTrial]:
    return opened(searched_sweep.path, name).trials


def said(searched_sweep: Made) -> dict[tuple[float, float], tuple[str, float | None, Any]]:
    """Return what each trial says, by its place: where it is in the study is left out."""
    mapping = {(t.params["lr"], t.params["wd"]): (t.state.name, t.value, t.user_attrs) for t in trials(searched_sweep)}
    assert len(mapping) == len(trials(searched_sweep))
    return mapping


# --- what a trial is --------------------------------------------------------------------------------------------------


def test_a_trial_is_a_point_with_the_mean_of_its_seeds(searched_sweep: Made) -> None:
    searched_sweep.finish((0.5, 0.25), seed=1_000_000)
    searched_sweep.write()
    first, second, *_ = trials(searched_sweep)
    assert (first.params, first.value) == ({"lr": 0.25, "wd": 0.25}, loss(0.25, 0.25))
    assert first.user_attrs == {
        "runs": [searched_sweep.spec((0.25, 0.25)).run_id],
        "seeds": [0],
        "proposed by": "tpe",
        "scores": [loss(0.25, 0.25)],
    }
    scores = [loss(0.5, 0.25), loss(0.5, 0.25, 1_000_000)]
    assert second.value == fmean(scores)
    assert second.user_attrs["scores"] == scores
    assert second.user_attrs["runs"] == [searched_sweep.spec((0.5, 0.25), seed).run_id for seed in (0, 1_000_000)]
    score = loss(0.5, 0.25)
    assert second.intermediate_values == {8: score + 0.5, 16: score + 0.25, 24: score}, "the curve of its first seed"
    assert second.distributions == {
        "lr": FloatDistribution(0.0625, 1.0, log=True),
        "wd": FloatDistribution(0.125, 0.5, log=True),
    }


def test_proposals_come_first_to_last_and_then_all_other_points(searched_sweep: Made) -> None:
    others = [(4.0, 0.25), (0.0625, 0.5), (0.0625, 0.25)]
    searched_sweep.finish(*others)
    searched_sweep.write()
    trials_result = trials(searched_sweep)
    assert [(t.params["lr"], t.params["wd"]) for t in trials_result] == [*PLACES, *sorted(others)]
    assert [t.user_attrs.get("proposed by") for t in trials_result] == ["tpe"] * 4 + [None] * 3
    assert trials_result[0].distributions["lr"] == FloatDistribution(0.0625, 4.0, log=True), "it holds what lies beyond"


def test_seeds_that_count_for_no_verdict_are_in_no_mean(searched_sweep: Made) -> None:
    searched_sweep.write()
    before = said(searched_sweep)
    searched_sweep.finish((0.5, 0.25), seed=7)
    searched_sweep.write()
    assert said(searched_sweep) == before


def test_a_diverged_point_is_the_worst(searched_sweep: Made) -> None:
    finish(searched_sweep.results, searched_sweep.spec((0.25, 0.25), 1_000_000), None)
    searched_sweep.write()
    first, *others = trials(searched_sweep)
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


def test_each_strategy_is_a_study_that_says_what_it_is_of(searched_sweep: Made) -> None:
    finish(searched_sweep.results, spec := searched_sweep.spec((1.0, 0.5), strategy="mup"), 1.5)
    searched_sweep.write()
    names = optuna.get_all_study_names(JournalStorage(JournalFileBackend(str(searched_sweep.path))))
    assert names == ["w8 standard", "w8 mup"]
    opened_result = opened(searched_sweep.path, "w8 mup")
    assert opened_result.user_attrs == {"sweep": "w8", "family": spec.family_id}
    assert opened_result.metric_names == ["best_loss"]
    assert [trial.value for trial in opened_result.trials] == [1.5]


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
    for location, accuracy in zip(PLACES, (0.5, 0.75, 0.25, None), strict=True):
        run = RunDir.create(results, made.spec(location))
        assert run.claim({}, after=0)
        status = {"status": "done"} if accuracy else {"status": "diverged", "diverged_step": 20}
        assert run.finish({**status, "score": accuracy}, [{"step": 8, "val_accuracy": accuracy}])
    made.write()
    opened_result = opened(made.path)
    assert (opened_result.direction.name, opened_result.best_value) == ("MAXIMIZE", 0.75)
    assert said(made)[PLACES[-1]][:2] == ("COMPLETE", 0.25)
    assert opened_result.metric_names == ["best_accuracy"]


def test_no_pickle_is_in_a_journal(searched_sweep: Made) -> None:
    searched_sweep.write()
    lines = [json.loads(line) for line in searched_sweep.path.read_bytes().splitlines()]
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


def test_optuna_dashboard_shows_the_studies(searched_sweep: Made) -> None:
    finish(searched_sweep.results, searched_sweep.spec((1.0, 0.5), strategy="mup"), 1.5)
    searched_sweep.write()
    app = dashboard(searched_sweep.path)
    mapping = {item["study_name"]: item["study_id"] for item in asked_of(app, "/api/studies")["study_summaries"]}
    assert mapping.keys() == {"w8 standard", "w8 mup"}
    asked_of_result = asked_of(app, f"/api/studies/{mapping['w8 standard']}")
    assert [trial["values"] for trial in asked_of_result["trials"]] == [[loss(*location)] for location in PLACES]
    assert [trial["state"] for trial in asked_of_result["trials"]] == ["Complete"] * 4
    assert {axis["name"] for axis in asked_of_result["union_search_space"]} == {"lr", "wd"}
    assert len(asked_of(app, f"/api/studies/{mapping['w8 mup']}")["trials"]) == 1


# --- the file ---------------------------------------------------------------------------------------------------------


def test_it_is_written_again_in_its_place(searched_sweep: Made) -> None:
    searched_sweep.write()
    inode = searched_sweep.path.stat().st_ino
    searched_sweep.finish((1.0, 0.5), (0.0625, 0.25))
    assert searched_sweep.write() == f"wrote {searched_sweep.path}: 6 trials of 2 studies, for optuna-dashboard"
    assert len(trials(searched_sweep)) == 6
    assert searched_sweep.path.stat().st_ino != inode, "in one rename"
    assert [path.name for path in searched_sweep.path.parent.iterdir() if "journal" in path.name] == [
        searched_sweep.path.name
    ]


@pytest.mark.parametrize(
    "content", [b"no journal\n", b"\x80\x04\x95pickle\n", b"{}\n[1]\n", b"[" * 100_000 + b"\n", b'{"op_code": 0}\n']
)
def test_what_is_no_journal_is_left_alone(searched_sweep: Made, content: bytes) -> None:
    searched_sweep.path.write_bytes(content)
    with pytest.raises(InputError, match="exists, and is not a journal that ettsweep wrote"):
        searched_sweep.write()
    assert searched_sweep.path.read_bytes() == content


def test_a_folder_or_a_pipe_in_its_place_is_refused(searched_sweep: Made) -> None:
    for make in (Path.mkdir, os.mkfifo):
        path = searched_sweep.path.with_name(f"{make.__name__}.journal")
        make(path)
        with pytest.raises(InputError, match="exists, and is not a journal"):
            searched_sweep.write(path)


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
def test_a_kill_while_it_is_written_leaves_the_old_one(searched_sweep: Made) -> None:
    searched_sweep.write()
    before = searched_sweep.path.read_bytes()
    searched_sweep.finish((0.5, 0.25), seed=1_000_000)
    killed(searched_sweep.write)
    assert searched_sweep.path.read_bytes() == before
    searched_sweep.write()
    assert trials(searched_sweep)[1].value == fmean([loss(0.5, 0.25), loss(0.5, 0.25, 1_000_000)])


@pytest.mark.usefixtures("process")
def test_a_full_disk_is_said_and_what_was_there_stays(searched_sweep: Made, small_disk: Callable[[str], Path]) -> None:
    searched_sweep.path = small_disk("64k") / "w8.journal"
    searched_sweep.write()
    before = searched_sweep.path.read_bytes()
    searched_sweep.finish(*{(2.0**i, 2.0**j) for i in range(-4, 1) for j in range(-3, 0)} - {*PLACES})
    statvfs_result = os.statvfs(searched_sweep.path.parent)
    (searched_sweep.path.parent / "rest").write_bytes(bytes(statvfs_result.f_bavail * statvfs_result.f_frsize))
    with pytest.raises(StorageError, match="disk is full"):
        searched_sweep.write()
    assert searched_sweep.path.read_bytes() == before
    assert {path.name for path in searched_sweep.path.parent.iterdir()} == {"rest", "w8.journal"}
