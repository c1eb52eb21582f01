"""What a training step costs, in floating-point operations and memory, and what devices could do; without torch."""

import re

from ettsweep.errors import InputError
from ettsweep.processes import GIB
from ettsweep.runs.spec import ModelSpec, OptimizerSpec
from ettsweep.strategies.optimizers import OPTIMIZERS
from ettsweep.trainer.models.registry import architecture, parameter_count


def train_flops_per_sample(model: ModelSpec) -> int:
    """Return the FLOPs that one sample needs in a training step: three times those of its forward pass.

    The backward pass multiplies as often for the weights' gradients, and once more for the inputs'. What
    activation checkpointing computes again is not counted, as is the custom for model FLOP utilisation.
    """
    return 3 * architecture(model).forward_flops(model)


def activation_bytes(model: ModelSpec, *, recompute: bool) -> int:
    """Return about how many bytes one sample's activations take in fp32 on the CPU until the backward pass.

    With recomputation a block keeps its input, and one block at a time keeps the rest. What does not grow with the
    samples is left out.
    """
    return architecture(model).activation_bytes(model, recompute)


def least_bytes(model: ModelSpec, optimizer: OptimizerSpec) -> int:
    """Return the bytes that training takes at the very least: what is saved, and gradients in fp32."""
    return saved_bytes(model, optimizer) + 4 * parameter_count(model)


def saved_bytes(model: ModelSpec, optimizer: OptimizerSpec) -> int:
    """Return the bytes of a checkpoint: fp32 weights, and the optimizer's moments."""
    return 4 * (1 + OPTIMIZERS[optimizer.kind].moments(optimizer)) * parameter_count(model)


def check_size(model: ModelSpec, optimizer: OptimizerSpec, most_bytes: int = 2**52, of: str = "any machine") -> None:
    """Check that a model is not too large to be trained by so many bytes, which something has, in words.

    By default these are more than all devices of the largest machine together have.

    Raises:
        InputError: it is.
    """
    if (required_bytes := least_bytes(model, optimizer)) > most_bytes:
        raise InputError(
            f"model: width {model.width} at depth {model.depth} makes {parameter_count(model):,} parameters, which "
            f"take {required_bytes / GIB:,.0f} GiB with gradients and what {optimizer.kind} keeps: more than the "
            f"{most_bytes / GIB:,.0f} GiB of {of}"
        )


# Dense peaks in TFLOP/s from the makers' data sheets: without sparsity, fp32 accumulation, boost clock. None: there
# are no units for it. Cards whose matrix units know no TF32 compute it as fp32.
_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
_PEAKS: dict[str, tuple[float | None, ...]] = {
    # words of the device's name, all of them; the first line that fits counts
    "GB200": (80.0, 1250.0, 2500.0, 2500.0),
    "B200": (75.0, 1125.0, 2250.0, 2250.0),
    "GH200": (67.0, 494.7, 989.4, 989.4),
    "H200 NVL": (60.0, 417.7, 835.5, 835.5),
    "H200": (67.0, 494.7, 989.4, 989.4),
    "H100 NVL": (60.0, 417.7, 835.5, 835.5),
    "H100 PCIE": (51.2, 378.0, 756.0, 756.0),
    "H100": (67.0, 494.7, 989.4, 989.4),
    "H20": (44.0, 74.0, 148.0, 148.0),
    "A100": (19.5, 156.0, 312.0, 312.0),
    "A40": (37.4, 74.8, 149.7, 149.7),
    "A10": (31.2, 62.5, 125.0, 125.0),
    "A10G": (31.5, 35.0, 70.0, 70.0),
    "L40S": (91.6, 183.0, 362.0, 362.0),
    "L40": (90.5, 90.5, 181.0, 181.0),
    "L4": (30.3, 60.0, 121.0, 121.0),
    "V100S": (16.4, 16.4, 130.0, None),
    "V100 PCIE": (14.0, 14.0, 112.0, None),
    "V100": (15.7, 15.7, 125.0, None),
    "T4": (8.1, 8.1, 65.0, None),
    "RTX 3090": (35.6, 35.6, 71.2, 71.2),
    "RTX 4090": (82.6, 82.6, 165.2, 165.2),
    "RTX 5090": (104.8, 104.8, 209.5, 209.5),
    "RTX A6000": (38.7, 77.4, 154.8, 154.8),
    "RTX 6000 ADA": (91.1, 182.1, 364.2, 364.2),
    "MI250X": (47.9, 47.9, 191.5, 191.5),  # of one of its two dies, each a device of its own
    "MI300X": (163.4, 653.7, 1307.4, 1307.4),
}

_OTHER_CARDS = {"MIG", "LAPTOP", "MOBILE", "TI", "SUPER", "D"}
"""Words that make another card of a name in the table, or a part of one."""


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the FLOP/s that a device can reach at most in a precision, by the name that its driver gives.

    None where the device is not known, or has no units for the precision.
    """
    name = set(re.split(r"[^A-Z0-9]+", device_name.upper()))
    if name & _OTHER_CARDS:
        return None
    for card, peaks in _PEAKS.items():
        if name.issuperset(card.split()):
            tflops = peaks[_PRECISIONS.index(precision)]
            return None if tflops is None else tflops * 1e12
    return None
