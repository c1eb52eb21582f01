"""Cross-entropy of a linear head over a large vocabulary, with the logits of a few tokens at a time.

N tokens, C tokens of a chunk, D width, V vocabulary; P the columns that are multiplied, V or some more.
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
"""What the fp32 logits of a chunk may take; gradients and probabilities of a chunk come to about as much again."""

LARGE_CHUNK_BYTES = 2**31
"""The same on a large GPU, of whose memory a chunk has a 128th."""

MULTIPLE = {"cuda": 64}
"""Of which the number of columns is made a multiple, by kind of device: cuBLAS has its fast kernels for such alone."""


def linear_cross_entropy(
    h_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, ignored: int, chunk: int | None = None
) -> Tensor:
    """Return the sum over tokens of the cross-entropy of softmax(h weight^T), in nats, a scalar.

    Products are computed in the precision of autocast, everything else in fp32 (fp64 where the weight is). Gradients
    are computed along with the loss, without the factor that the backward pass comes with, and multiplied by it in
    fp32: they underflow for no loss scale. The backward pass can be taken once. Tokens whose target is `ignored` do not
    count; `chunk` are taken at a time, by default as many as CHUNK_BYTES allow.
    On a GPU the weight that is multiplied has some columns more, which are the logits of nothing.
    """
    if h_ND.device.type == "cpu":  # elsewhere the host would have to wait for the device to know how many are left
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
        V, weight_PD = len(weight_VD), _padded(weight_VD, dtype)
        gradients = tuple(torch.zeros_like(x, dtype=sum_dtype) for x in ((h_ND, weight_PD) if needs_gradients else ()))
        with _without_autocast(h_ND.device.type):
            for low, high in _chunks(len(h_ND), chunk):
                targets_C1 = targets_N[low:high, None]
                is_counted_C1 = targets_C1 != ignored
                h_CD = h_ND[low:high].to(dtype)
                logits_CP = _product(h_CD, weight_PD.T, sum_dtype)
                logits_CP[:, V:] = -math.inf
                log_CP = logits_CP.log_softmax(1)
                del logits_CP
                at_target_C1 = log_CP.gather(1, targets_C1)
                loss -= (at_target_C1 * is_counted_C1).sum()
                if needs_gradients:
                    # Of the loss by the logits: probabilities, less one at the target.
                    d_CP = log_CP.exp_().scatter_(1, targets_C1, at_target_C1.expm1()).to(dtype)
                    gradients[0][low:high] = _product(d_CP, weight_PD, sum_dtype) * is_counted_C1
                    _add_product(gradients[1], d_CP.T, h_CD * is_counted_C1)
                    del d_CP
                del log_CP  # before the next chunk's
        ctx.save_for_backward(*(gradient[:size] for gradient, size in zip(gradients, (len(h_ND), V), strict=False)))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        # In place: a second pass is refused by torch, since what was saved has changed.
        d_h_ND, d_weight_VD = (
            gradient.mul_(d_loss).to(dtype) for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return d_h_ND, d_weight_VD, None, None, None, None, None


def _padded(weight_VD: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight in a dtype, with as many columns of logits, here rows, as the device multiplies fast."""
    multiple = MULTIPLE.get(weight_VD.device.type, 1)
    missing_rows = -len(weight_VD) % multiple
    return F.pad(weight_VD.to(dtype), (0, 0, 0, missing_rows)) if missing_rows else weight_VD.to(dtype)


def _chunk_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return CHUNK_BYTES
    return min(LARGE_CHUNK_BYTES, max(CHUNK_BYTES, torch.cuda.get_device_properties(device).total_memory // 128))


def _chunks(count: int, max_size: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of chunks, as few and as alike as can be."""
    if count:
        size = math.ceil(count / math.ceil(count / max_size))
        yield from ((low, min(low + size, count)) for low in range(0, count, size))


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a b in a dtype that its sums do not leave, where the device can."""
    if a.dtype is dtype:
        return torch.mm(a, b)
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=dtype)
    return torch.mm(a, b).to(dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to a sum."""
    if a.dtype is total.dtype:
        torch.addmm(total, a, b, out=total)
    else:
        total += _product(a, b, total.dtype)


def _autocast_dtype(device_type: str) -> torch.dtype | None:
    available = torch.amp.is_autocast_available(device_type)
    return torch.get_autocast_dtype(device_type) if available and torch.is_autocast_enabled(device_type) else None


def _without_autocast(device_type: str) -> contextlib.AbstractContextManager[object]:
    available = torch.amp.is_autocast_available(device_type)
    return torch.autocast(device_type, enabled=False) if available else contextlib.nullcontext()
