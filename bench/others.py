"""Train the same runs through other tools, for `make bench-beside`: each way is called in a process of its own.

Torch is imported where a run is trained, so that no driver has to.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ettsweep.runs.point import Point
from ettsweep.trainer.recipe import TransformerRun

AT_ONCE = 2
"""Runs that train at the same time."""

Row = dict[str, Any]
"""The id of a run, and the best of its metrics: None where none was finite."""


def train_one(spec_json: str) -> Row:
    """Train a run on one thread and return the best of its metrics."""
    import torch

    from ettsweep.trainer.training.run import prepare
    from ettsweep.trainer.training.schedule import lr_at

    torch.set_num_threads(1)
    spec = TransformerRun.model_validate_json(spec_json)
    trainer, schedule = prepare(spec, torch.device("cpu")), spec.schedule
    batches, evaluations = trainer.task.batches(1), list[dict[str, float]]()
    for step in range(1, schedule.last_step + 1):
        trainer.train_step(lr_at(step, spec.lr, schedule), batches)
        trainer.step = step
        if step % schedule.eval_every == 0 or step == schedule.last_step:
            evaluations.append(trainer.evaluate())
    best: Row = {"run": spec.run_id}
    for name, improved in (("accuracy", max), ("loss", min)):
        values = [line[f"val_{name}"] for line in evaluations]
        best[f"best_{name}"] = improved(filter(math.isfinite, values), default=None)
    return best


def train_list(specs: Sequence[str]) -> list[Row]:
    """Train some runs, one after the other."""
    return [train_one(spec) for spec in specs]


def through_submitit(specs: Sequence[str], in_lists: bool = False) -> list[Row]:
    import submitit

    runs_a_job = math.ceil(len(specs) / AT_ONCE) if in_lists else 1

    executor = submitit.LocalExecutor("jobs")
    executor.update_parameters(timeout_min=600)
    lists = [specs[first : first + runs_a_job] for first in range(0, len(specs), runs_a_job)]
    going_kept, ended = list[Any](), list[Any]()
    while lists or going_kept:
        while lists and len(going_kept) < AT_ONCE:  # it would start them all
            going_kept.append(executor.submit(train_list, lists.pop(0)))
        time.sleep(0.02)
        ended += [job for job in going_kept if job.done()]
        going_kept = [job for job in going_kept if job not in ended]
    return [row for job in ended for row in job.result()]


def through_optuna(specs: Sequence[str]) -> list[Row]:
    import optuna

    rows = list[Row]()
    points = [TransformerRun.model_validate_json(spec) for spec in specs]

    def objective(trial: optuna.Trial) -> float:
        log2_lr, log2_wd = (trial.suggest_float(name, -30.0, 10.0) for name in ("log2_lr", "log2_wd"))
        seed = trial.suggest_int("seed", 0, len(specs))
        row = train_one(points[0].with_point(Point.of(lr=2.0**log2_lr, wd=2.0**log2_wd), seed).model_dump_json())
        rows.append(row)
        return math.inf if row["best_loss"] is None else float(row["best_loss"])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())  # which has nothing to draw
    for point in points:
        study.enqueue_trial({"log2_lr": math.log2(point.lr), "log2_wd": math.log2(point.wd), "seed": point.seed})
    study.optimize(objective, n_trials=len(points), n_jobs=AT_ONCE)
    return rows


def through_ray(specs: Sequence[str], reuse_actors: bool = False) -> list[Row]:
    import ray
    from ray import tune

    def trial(config: Row) -> Row:
        return train_one(specs[config["number"]])

    ray.init(num_cpus=AT_ONCE, include_dashboard=False, log_to_driver=False, _temp_dir=str(Path.cwd() / "ray"))
    results = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"number": tune.grid_search(list(range(len(specs))))},
        tune_config=tune.TuneConfig(max_concurrent_trials=AT_ONCE, reuse_actors=reuse_actors),
        run_config=tune.RunConfig(storage_path=str(Path.cwd() / "trials"), verbose=0),
    ).fit()
    ray.shutdown()
    if results.errors:
        raise results.errors[0]
    return [{name: result.metrics[name] for name in ("run", "best_accuracy", "best_loss")} for result in results]


OTHERS: dict[str, Callable[[Sequence[str]], list[Row]]] = {
    "submitit": through_submitit,
    "submitit-lists": partial(through_submitit, in_lists=True),
    "optuna": through_optuna,
    "ray": through_ray,
    "ray-reuse": partial(through_ray, reuse_actors=True),
}


def drive(method: str) -> None:
    """Train the runs of specs.json through another tool, and write found.json: a fresh process does this."""
    Path("found.json").write_text(json.dumps(OTHERS[method](json.loads(Path("specs.json").read_text()))))
