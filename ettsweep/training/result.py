"""What result.json says of a run."""

from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.tasks.kinds import task_kind
from ettsweep.training.loop import LoopEnd
from ettsweep.training.spikes import count_spikes
from ettsweep.training.trainer import Trainer


def summarise(trainer: Trainer, history: list[Json], end: LoopEnd, attempt: Attempt) -> Json:
    """Return what result.json says of a run, but for how it was trained."""
    spec = trainer.spec
    evaluations = [line for line in history if "val_loss" in line]
    result: Json = {"status": "diverged" if end.diverged else "done"}
    for name, best in (("accuracy", max), ("loss", min), ("bits", min)):
        values = [line.get(f"val_{name}") for line in evaluations]
        result[f"best_{name}"] = best((value for value in values if value is not None), default=None)
        result[f"final_{name}"] = values[-1] if values and not end.diverged else None
    result["score"] = None if end.diverged else result[task_kind(spec.task).score.metric]
    if end.diverged:
        result["diverged_step"] = end.step
    wall_s = max(trainer.wall_s, 1e-9)
    return {
        **result,
        **count_spikes(history, spec),
        "steps": end.step,
        "wall_s": trainer.wall_s,
        "device_s": trainer.wall_s * trainer.group.world,
        "steps_per_s": end.step / wall_s,
        "corrupt_images": len(attempt.skipped()),
        "attempts": attempt.number,
    }
