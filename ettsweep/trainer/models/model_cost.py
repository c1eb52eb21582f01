"""FLOPs and memory of training, and peak FLOP/s of GPUs, without importing torch."""

import re

from ettsweep.errors import InputError
from ettsweep.processes import GIB
from ettsweep.strategies.optimizers import OPTIMIZERS, OptimizerSpec
from ettsweep.trainer.models.registry import architecture, parameter_count
from ettsweep.trainer.specs import ModelSpec


def train_flops_per_sample(model: ModelSpec) -> int:
    """Return the FLOPs of one sample in a training step: three times those of its forward pass.

    The backward pass takes as many again for the gradients of weights, and as many for those of inputs. Recomputation
    by activation checkpointing is not counted, as is usual for model FLOP utilisation.
    """
    return 3 * architecture(model).forward_flops(model)


def activation_bytes(model: ModelSpec, *, recompute: bool) -> int:
    """Estimate the bytes that one sample's activations take in fp32 on the CPU until the backward pass.

    With `recompute`, every block keeps only its input, and one block at a time keeps all. Memory that does not grow
    with the batch is left out.
    """
    return architecture(model).activation_bytes(model, recompute)


def min_training_bytes(model: ModelSpec, optimizer: OptimizerSpec) -> int:
    """Return a lower bound of the bytes that training takes: a checkpoint's, and fp32 gradients."""
    # Activations, buffers and copies come on top.
    return checkpoint_bytes(model, optimizer) + 4 * parameter_count(model)


def checkpoint_bytes(model: ModelSpec, optimizer: OptimizerSpec) -> int:
    """Return the bytes of a checkpoint: fp32 weights and the optimizer's moments."""
    return 4 * (1 + OPTIMIZERS[optimizer.kind].moments(optimizer)) * parameter_count(model)


def check_size(model: ModelSpec, optimizer: OptimizerSpec, max_bytes: int = 2**52, owner: str = "any machine") -> None:
    """Check that a machine, named by the last argument, has enough memory to train a model.

    The default is more memory than the largest machine has.

    Raises:
        InputError: training needs more memory than that, even without activations.
    """
    if (required_bytes := min_training_bytes(model, optimizer)) > max_bytes:
        raise InputError(
            f"model: width {model.width} at depth {model.depth} has {parameter_count(model):,} parameters, which "
            f"take {required_bytes / GIB:,.0f} GiB with gradients and {optimizer.kind} state: more than the "
            f"{max_bytes / GIB:,.0f} GiB of {owner}"
        )


# Dense peaks in TFLOP/s from the vendors' data sheets: without sparsity, with fp32 accumulation, at boost clock. None:
# the card does not support the precision. Cards without TF32 units compute it as fp32.
_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
_PEAKS: dict[str, tuple[float | None, ...]] = {
    # Key: words that must all occur in the device's name. The first match counts, so longer keys come first.
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
    "MI250X": (47.9, 47.9, 191.5, 191.5),  # one of its two dies, each of which is a device
    "MI300X": (163.4, 653.7, 1307.4, 1307.4),
}

_VARIANT_WORDS = {"MIG", "LAPTOP", "MOBILE", "TI", "SUPER", "D"}
"""Words that mark a different card of the same name, or a part of a card (MIG)."""


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return a GPU's peak FLOP/s, or None if the device is unknown or does not support the precision.

    Args:
        device_name: as reported by the driver, such as `NVIDIA A100-SXM4-80GB`.
        precision: `fp32`, `tf32`, `fp16` or `bf16`.
    """
    name = set(re.split(r"[^A-Z0-9]+", device_name.upper()))
    if name & _VARIANT_WORDS:  # no peak is better than that of another card
        return None
    for card, peaks in _PEAKS.items():
        if name.issuperset(card.split()):
            tflops = peaks[_PRECISIONS.index(precision)]
            return None if tflops is None else tflops * 1e12
    return None
