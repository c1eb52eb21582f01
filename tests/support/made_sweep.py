"""A made sweep with real run folders: four families whose every number is known."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, load_run_index
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import Axis, expand
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import StudiesByFamily
from ettsweep.study.verdict import Verdict
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.tasks.images.image_task import DigitsTask, ImageNetTask
from support.points import moved

SEEDS = (0, 1, 2)
FRESH = (10, 11)
EVALUATIONS = 6


def digits_spec(s: float | None, batch_size: int = 64) -> RunSpec:
    return TransformerRun(
        model=VitSpec(width=32, depth=2, heads=4, patch_size=4, image_size=8, channels=1, classes=10),
        task=DigitsTask(),
        schedule=ScheduleSpec(total_steps=240, warmup_steps=24, eval_every=40),
        batch_size=batch_size,
        strategy=StrategySpec(s=s),
        lr=2.0**-6,
        wd=0.5,
        seed=0,
    )


def imagenet_spec(s: float | None) -> RunSpec:
    model = VitSpec(width=768, depth=12, heads=12, patch_size=16, image_size=224, classes=1000)
    schedule = ScheduleSpec(total_steps=3120, warmup_steps=312, eval_every=520)
    changes = {"model": model, "task": ImageNetTask(), "schedule": schedule, "batch_size": 4096, "lr": 20.0, "wd": 4e-5}
    return digits_spec(s).model_copy(update=changes)


def loss_at(i: int, j: int, seed: int) -> float:
    """Lowest at the centre, different at every point and seed."""
    return 0.1 * (1 + 0.2 * (i * i + i * j + j * j) + 0.03 * i + 0.01 * j + 0.004 * (seed % 3))


def speed(spec: RunSpec) -> dict[str, Any]:
    """Return made figures of a run: 10 ms a step and 10 more a seed; neural-tangent runs wait for data."""
    step_s, waits = 0.01 * (1 + spec.seed), spec.strategy.s == 0.0
    told = {"utilisation": None if waits else 0.5, "data_wait": 0.34 if waits else 0.04, "memory_gib": 11.25}
    return {"step_s": step_s, "samples_per_s": spec.batch_size / step_s, **told}


def finish(results: Path, spec: RunSpec, best_loss: float, diverged: bool = False) -> RunDir:
    """Write a finished run: losses halve their distance to `best_loss`, accuracy is 1 - loss / 4."""
    run, every = RunDir.create(results, spec), spec.schedule.eval_every
    losses = [best_loss + 2.0**-k for k in range(EVALUATIONS - 1)] + [best_loss]
    losses = losses[:2] if diverged else losses
    history: list[dict[str, Any]] = []
    for step, loss in zip(range(every, every * EVALUATIONS + 1, every), losses, strict=False):
        history.append({"step": step, "loss": loss, "grad_norm": 1.0, "lr": spec.lr})
        history.append({"step": step, "val_loss": loss, "val_accuracy": 1 - loss / 4})
    accuracy = 1 - losses[-1] / 4
    score = losses[-1] if isinstance(spec.task, DigitsTask) else accuracy
    none_of = ("accuracy_spikes", "eval_loss_spikes", "unrecovered", "overflow_steps")
    result = {
        "status": "diverged" if diverged else "done",
        "score": None if diverged else score,
        **{"best_accuracy": accuracy, "final_accuracy": accuracy, "best_loss": losses[-1], "final_loss": losses[-1]},
        **{"best_bits": None, "final_bits": None, "loss_spikes": spec.seed % 3, "grad_spikes": 1},
        **dict.fromkeys(none_of, 0),
        **{"nonfinite_steps": int(diverged), "diverged_step": 2 * every + 1 if diverged else None, "spike_events": []},
        **{"steps": len(losses) * every, "wall_s": 2.0, "device_s": 1.5, "steps_per_s": 120.0, **speed(spec)},
        **{"execution": {"processes": 2}, "corrupt_images": 3, "weights_sha256": "0" * 64},
    }
    assert run.finish(result, history)
    return run


def search(base: RunSpec, wd_fixed: bool = False, seeds: tuple[int, ...] = SEEDS) -> Study:
    axes = {"lr": Axis(low=-1, high=1), "wd": Axis(fixed=True) if wd_fixed else Axis(low=-1, high=1)}
    return Study(base=base, axes=axes, seeds=seeds, grid_points=tuple(expand(base.point, axes)))


def searched(base: RunSpec, proposed: Iterable[tuple[int, int]], reach: int = 2, wd_fixed: bool = False) -> Study:
    """Return the search of a family whose ranges go that many steps from its centre, with proposals in steps from it."""
    study, wd_reach = replace(search(base, wd_fixed, seeds=(0,)), grid_points=()), 0 if wd_fixed else reach
    axes = study.axes | {name: Axis(low=-reach, high=reach) for name in study.free}
    box = (moved(base.point, -reach, -wd_reach), moved(base.point, reach, wd_reach))
    return replace(study, axes=axes, box=box, suggested_points=tuple(moved(base.point, *steps) for steps in proposed))


def finish_at(results: Path, study: Study, steps: tuple[int, int], score: float) -> RunDir:
    """Write a finished run of a search, so many steps from its centre."""
    return finish(results, study.base.with_point(moved(study.centre, *steps), 0), score)


def changed(run: Run, **values: Any) -> Run:
    """Return a run with another folder, spec, status or result."""
    return Run(**{"folder": run.dir, "spec": run.spec, "status": run.status, "result": run.result} | values)


def strategy_of(run: Run) -> str:
    """Return the name of a run's strategy."""
    return strategy_name(run.base.strategy.s)


@dataclass(frozen=True, eq=False)
class Made:
    """A results folder and what was read from it."""

    results: Path
    runs: list[Run]
    verdicts: list[Verdict]

    @property
    def studies_by_family(self) -> StudiesByFamily:
        return StudiesByFamily(verdict.study for verdict in self.verdicts)

    def verdict(self, strategy: str) -> Verdict:
        return next(v for v in self.verdicts if v.strategy == strategy)


def read(results: Path, studies: list[Study]) -> Made:
    run_index = load_run_index(results)
    verdicts = [evaluate(s, run_index.family_runs(s.base, s.axes)).verdict() for s in studies]
    return Made(results, list(run_index.runs.values()), verdicts)
