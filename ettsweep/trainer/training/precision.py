"""Mixed precision: weights and optimizer state stay fp32, autocast casts the operations."""

import contextlib

import torch

from ettsweep.trainer.specs import Precision

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return the autocast context of a forward pass; no effect in fp32 and tf32."""
    if precision not in DTYPES:
        return contextlib.nullcontext()
    # No cache of casts: a forward pass uses each weight once, and evaluation uses this context too.
    return torch.autocast(device.type, dtype=DTYPES[precision], cache_enabled=False)


def set_matmul_precision(precision: Precision) -> None:
    """Let fp32 matrix products round their factors to TF32 (10 bits of mantissa) in tf32, and not otherwise."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def loss_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Return the loss scaler, which is disabled except in fp16."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
