"""The largest micro-batch of a grid's model that fits into a device here, and how fast it goes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ettsweep.doctor.checks import Check
from ettsweep.launch.profiles import AnyProfile, LocalProfile
from ettsweep.models.architectures import model_name
from ettsweep.sweep.gridfile import find_grid, load_request
from ettsweep.sweep.search import ANYWHERE
from ettsweep.tasks.kinds import task_kind
from ettsweep.worker.device import execution, prepare_device


def examine_fit(model: str | None, grid: Path | None, sets: Sequence[str], profile: AnyProfile) -> Iterator[Check]:
    """Yield a row without and one with activation checkpointing.

    A profile for SLURM is tried on the first device of this machine: on the login node, start it with srun.

    Raises:
        InputError: there is no such grid.
    """
    from ettsweep.training.fit import largest_batches

    request = load_request(grid or find_grid(str(model)), overrides=sets, start=ANYWHERE)
    spec = request.searches()[0].base
    here = profile if isinstance(profile, LocalProfile) else LocalProfile()
    slot = here.resolve()[0]
    device, facts = prepare_device(slot)
    where = facts["device_name"] if device.type == "cuda" else "this machine"
    local = -(-spec.batch_size // profile.devices_per_run)
    how = execution(profile, slot)
    sample = task_kind(spec.task).sample
    for fit in largest_batches(spec, local, device, how):
        name = f"fit {model_name(spec.model)} {spec.precision}"
        more = " with activation_checkpointing=true" if fit.activation_checkpointing else ""
        if not fit.micro_batch:
            yield Check(name, "failed", f"not even one {sample} fits into {where}{more}")
            continue
        tried = "" if fit.tried else "about "
        speed = f"{fit.samples_per_s:,.1f} {sample}s/s in the largest step tried"
        yield Check(
            name,
            "ok",
            f"micro_batch={fit.micro_batch} of {local}{more}: {tried}{fit.memory_gib:.1f} GiB of {where}; {speed}",
        )
