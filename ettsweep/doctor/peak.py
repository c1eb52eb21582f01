"""What the device of a profile really reaches in each precision, beside what its data sheet says."""

from collections.abc import Iterator, Sequence
from functools import partial

from ettsweep.doctor.checks import Check, check
from ettsweep.errors import StorageError, first_line
from ettsweep.launch.profiles import LocalProfile, load_profile
from ettsweep.models.cost import peak_flops
from ettsweep.output import count
from ettsweep.spec import Precision
from ettsweep.worker.devices import prepare_device


def examine_peak(name: str, launch_set: Sequence[str]) -> Iterator[Check]:
    """Yield what matrix products reach in each precision on the first device of a profile; keep it where that is a GPU.

    With a profile for SLURM it is the first device of this machine: on the login node, start it with srun.
    """
    profile = load_profile(name, launch_set)
    slot = (profile if isinstance(profile, LocalProfile) else LocalProfile()).resolve()[0]
    device, facts = prepare_device(slot)
    from ettsweep.training.peak import keep_peaks, measurable, measure

    gpu, reached = device.type == "cuda", dict[Precision, float]()
    where = facts["device_name"] if gpu else f"{count(slot.threads, 'thread')} of this machine's CPU"

    def told(precision: Precision) -> str:
        best = measure(precision, device)
        reached[precision] = best.flops
        sheet = peak_flops(facts["device_name"], precision) if gpu else None
        beside = f", {_tflops(sheet)} by the data sheet ({best.flops / sheet:.0%})" if sheet else ""
        return f"{_tflops(best.flops)} TFLOP/s measured{beside}, in products of {best.size}; {where}"

    for precision in measurable(device):
        yield check(f"{precision} peak", partial(told, precision), "warning")
    if not isinstance(profile, LocalProfile):
        cure = "`srun` before the command measures on one"
        yield Check("peak", "warning", f"measured on this machine, not on a node of {name}; {cure}")
    if gpu and reached:
        try:
            path = keep_peaks(facts["device_name"], reached)
            yield Check("peaks kept", "ok", f"{path}: runs on such a device tell their utilisation of these too")
        except StorageError as error:
            yield Check("peaks kept", "warning", first_line(error))


def _tflops(flops: float) -> str:
    return f"{flops / 1e12:.3g}"
