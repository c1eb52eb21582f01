"""Cross-entropy of a linear head over a large vocabulary, computed in chunks of tokens to bound memory.

Shapes: N tokens, C tokens of a chunk, D width, V vocabulary, P vocabulary with padding for fast matrix products.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CHUNK_BYTES = 2**28
"""Bytes for the fp32 logits of a chunk; its probabilities and gradients take about as much again."""

LARGE_CHUNK_BYTES = 2**31
"""Upper limit on a GPU, where a chunk gets 1/128 of the memory."""

COLUMN_MULTIPLE = {"cuda": 64}
"""The vocabulary is padded to a multiple of this, by device type: cuBLAS's fast kernels need such sizes."""


def linear_cross_entropy(
    h_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, ignored: int, chunk: int | None = None
) -> Tensor:
    """Return the cross-entropy of softmax(h weight^T), summed over tokens, in nats, a scalar.

    Products use autocast's precision, everything else fp32 (fp64 if the weight is fp64). Gradients are computed along
    with the loss and multiplied by the incoming gradient in fp32, so they do not underflow at any loss scale. The
    backward pass can run only once.

    Args:
        h_ND: inputs of the head.
        weight_VD: weight of the head.
        targets_N: target tokens.
        ignored: target that does not count, such as [pad].
        chunk: tokens per chunk; by default as many as CHUNK_BYTES allow.
    """
    if h_ND.device.type == "cpu":  # on a GPU, the new size would make the host wait for the device
        is_counted_N = targets_N != ignored
        h_ND, targets_N = h_ND[is_counted_N], targets_N[is_counted_N]
    chunk = chunk or max(1, _chunk_bytes(h_ND.device) // (4 * len(weight_VD)))
    needs_gradients = torch.is_grad_enabled() and (h_ND.requires_grad or weight_VD.requires_grad)
    dtype = _autocast_dtype(h_ND.device.type) or weight_VD.dtype
    loss: Tensor = _LinearCrossEntropy.apply(h_ND, weight_VD, targets_N, ignored, chunk, dtype, needs_gradients)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        ignored: int,
        chunk: int,
        dtype: torch.dtype,
        needs_gradients: bool,
    ) -> Tensor:
        ctx.dtypes = h_ND.dtype, weight_VD.dtype
        sum_dtype = torch.float64 if dtype is torch.float64 else torch.float32
        loss = h_ND.new_zeros((), dtype=sum_dtype)
        # weight_PD is at most `multiple - 1` rows longer than the weight; the extra gradients are cut off below.
        V, weight_PD = len(weight_VD), _padded(weight_VD, dtype)
        # The first chunk sets them: a gradient as large as the head takes long to fill and to add to.
        empty = torch.empty_like if len(h_ND) else torch.zeros_like
        gradients = tuple(empty(x, dtype=sum_dtype) for x in ((h_ND, weight_PD) if needs_gradients else ()))
        with _without_autocast(h_ND.device.type):
            # Logits of all tokens would take N x V numbers, which is more than the model for a large batch.
            for low, high in _chunks(len(h_ND), chunk):
                targets_C1 = targets_N[low:high, None]
                is_counted_C1 = targets_C1 != ignored
                h_CD = h_ND[low:high].to(dtype)
                logits_CP = _product(h_CD, weight_PD.T, sum_dtype)
                logits_CP[:, V:] = -math.inf  # padding has probability 0
                log_CP = logits_CP.log_softmax(1)
                del logits_CP  # at most two chunk-sized tensors at a time
                at_target_C1 = log_CP.gather(1, targets_C1)
                loss -= (at_target_C1 * is_counted_C1).sum()
                if needs_gradients:
                    # Gradient by the logits: probabilities, minus 1 at the target. exp_ reuses the memory, and expm1
                    # keeps the digits of p - 1 when p is close to 1.
                    d_CP = log_CP.exp_().scatter_(1, targets_C1, at_target_C1.expm1()).to(dtype)
                    gradients[0][low:high] = _product(d_CP, weight_PD, sum_dtype) * is_counted_C1
                    _add_product(gradients[1], d_CP.T, h_CD * is_counted_C1, is_first=low == 0)
                    del d_CP
                del log_CP  # before the next chunk's
        # Gradients by h and by the weight, the latter without padding; nothing if no gradient is needed. Not as views:
        # to a view autograd adds a tied head's other gradient by making a third one as large.
        for gradient, x in zip(gradients, (h_ND, weight_VD), strict=False):
            gradient.resize_(x.shape)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        # In place: torch then refuses a second backward pass, since saved tensors have changed.
        d_h_ND, d_weight_VD = (
            gradient.mul_(d_loss).to(dtype) for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return d_h_ND, d_weight_VD, None, None, None, None, None


def _padded(weight_VD: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert the weight to a dtype and pad its rows (the vocabulary) to the device's preferred multiple."""
    multiple = COLUMN_MULTIPLE.get(weight_VD.device.type, 1)
    missing_rows = -len(weight_VD) % multiple
    return F.pad(weight_VD.to(dtype), (0, 0, 0, missing_rows)) if missing_rows else weight_VD.to(dtype)


def _chunk_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return CHUNK_BYTES
    return min(LARGE_CHUNK_BYTES, max(CHUNK_BYTES, torch.cuda.get_device_properties(device).total_memory // 128))


def _chunks(count: int, max_size: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of as few chunks as possible, of nearly equal sizes."""
    if count:
        size = math.ceil(count / math.ceil(count / max_size))
        yield from ((low, min(low + size, count)) for low in range(0, count, size))


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a b in `dtype`, accumulated in it without rounding to the inputs' dtype if the device supports that."""
    if a.dtype is dtype:
        return torch.mm(a, b)
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=dtype)
    return torch.mm(a, b).to(dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, is_first: bool) -> None:
    """Add a b to `total` in place; if it is the first, set it."""
    if a.dtype is total.dtype:
        torch.addmm(total, a, b, beta=0.0 if is_first else 1.0, out=total)
    elif is_first and a.device.type != "cuda":
        total.copy_(torch.mm(a, b))  # as below, without a copy of all of it in the dtype of `total`
    elif is_first:
        total.copy_(_product(a, b, total.dtype))
    else:
        total += _product(a, b, total.dtype)


def _autocast_dtype(device_type: str) -> torch.dtype | None:
    available = torch.amp.is_autocast_available(device_type)
    return torch.get_autocast_dtype(device_type) if available and torch.is_autocast_enabled(device_type) else None


def _without_autocast(device_type: str) -> contextlib.AbstractContextManager[object]:
    available = torch.amp.is_autocast_available(device_type)
    return torch.autocast(device_type, enabled=False) if available else contextlib.nullcontext()
