"""The journal for Optuna: its tools see what runs say, and no file is written over."""

from pathlib import Path
from statistics import fmean

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from support.commandline import keep, write_grid

from ettsweep.report.optuna_journal import write_journal
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep import Suggestion
from ettsweep.study.sweep_store import load_sweep_store, record_suggestions

SUGGESTED = [(0.25, 0.25), (0.5, 0.25), (0.25, 0.5), (0.125, 0.125)]
"""Points suggested for `standard`, first to last."""


def finish(results: Path, spec: RunSpec, score: float | None) -> None:
    """Finish a run whose best score falls at each evaluation; None diverges."""
    run = RunDir.create(results, spec)
    assert run.claim({}, after=0)
    history = [{"step": step, "val_loss": (score or 9) + 1 - step / 24, "loss": 1.0} for step in (8, 16, 24)]
    ended = {"status": "diverged", "diverged_step": 20} if score is None else {"status": "done"}
    assert run.finish({**ended, "score": score, "device_s": 36.0}, history)


@pytest.fixture
def bases(results: Path, tmp_path: Path) -> dict[str, RunSpec]:
    """Create a searched sweep `w8` of two strategies; return the base of each."""
    centres = {"standard": {"lr": 0.25, "wd": 0.25}, "mup": {"lr": 1.0, "wd": 0.5}}
    grid = write_grid(tmp_path / "w8.yaml", centre=centres, strategies=[*centres], wd={"range": [-1, 1]}, criterion={})
    sweep_spec = load_sweep_spec(grid).model_copy(update={"searched": True})
    keep(results, sweep_spec)
    points = tuple({"lr": lr, "wd": wd} for lr, wd in SUGGESTED)
    record_suggestions(results, "w8", [Suggestion(strategy="standard", sampler="tpe", points=points)])
    return {study.strategy: study.base for study in sweep_spec.studies()}


def opened(path: Path, name: str = "w8 standard") -> optuna.Study:
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path))))


def test_a_trial_is_a_point_with_the_mean_of_its_seeds(
    results: Path, tmp_path: Path, bases: dict[str, RunSpec]
) -> None:
    base, path = bases["standard"], tmp_path / "w8.journal"
    for score, (lr, wd) in enumerate(SUGGESTED, 1):
        finish(results, base.with_point(Point.of(lr=lr, wd=wd), 0), float(score))
    finish(results, base.with_point(Point.of(lr=0.5, wd=0.25), 1_000_000), 2.5)
    finish(results, base.with_point(Point.of(lr=0.25, wd=0.5), 1_000_000), None)
    finish(results, base.with_point(Point.of(lr=0.0625, wd=0.25), 0), 7.0)  # not suggested, and beyond what was
    finish(results, base.with_point(Point.of(lr=0.25, wd=0.25), 7), 100.0)  # a seed that counts for no verdict
    finish(results, bases["mup"].with_point(Point.of(lr=1.0, wd=0.5), 0), 1.5)
    told = write_journal(path, load_sweep_store(results).studies, load_run_index(results))
    assert told == f"wrote {path}: 6 trials of 2 studies, for optuna-dashboard"
    study = opened(path)
    assert (study.direction.name, study.metric_names) == ("MINIMIZE", ["best_loss"])
    assert [(t.params["lr"], t.params["wd"]) for t in study.trials] == [*SUGGESTED, (0.0625, 0.25)]
    assert [t.state.name for t in study.trials] == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert [t.value for t in study.trials] == [1.0, fmean([2.0, 2.5]), None, 4.0, 7.0]
    trial = study.trials[1]
    assert trial.user_attrs == {
        "runs": [base.with_point(Point.of(lr=0.5, wd=0.25), seed).run_id for seed in (0, 1_000_000)],
        "seeds": [0, 1_000_000],
        "scores": [2.0, 2.5],
    }
    assert trial.intermediate_values == pytest.approx({8: 2 + 2 / 3, 16: 2 + 1 / 3, 24: 2.0})
    assert trial.distributions["lr"] == FloatDistribution(0.0625, 0.5, log=True)
    assert [t.value for t in opened(path, "w8 mup").trials] == [1.5]


def test_accuracies_are_maximized(results: Path, tmp_path: Path) -> None:
    model = {"width": 8, "depth": 1, "heads": 2, "patch_size": 8, "image_size": 32, "channels": 3, "classes": 10}
    keep(results, load_sweep_spec(write_grid(tmp_path / "w8.yaml", model=model, task="cifar10")))
    write_journal(tmp_path / "w8.journal", load_sweep_store(results).studies, load_run_index(results))
    assert opened(tmp_path / "w8.journal").direction.name == "MAXIMIZE"
