"""Step 1: torch's attention by backend, forward and backward, and the products of a head over a large vocabulary."""

# B batch, T tokens, H heads, C channels of a head, N tokens of all texts, D width, V words

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.session import NotMeasuredError
from bench.session.environment import device
from ettsweep.models import cross_entropy
from ettsweep.training.peak import median_s

BACKENDS = {
    "default": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
Row = dict[str, Any]


def attention(shape: list[int], kind: str, backend: str, dropout: float, seconds: float) -> list[Row]:
    """Time forward and backward pass of one shape (B, T, H, C) in bf16.

    `kind` is full, key mask, as encoders have and decoders that read from them, or causal. The gradients have to be
    finite, and are compared with those of plain formulas in fp32, of the first texts and without dropout.
    """
    where, (B, T, H, C) = device(), shape
    # A leaf laid out as the model's projection is: the gradient of q, k and v is one tensor.
    qkv = torch.randn(B, T, 3, H, C, device=where, dtype=torch.bfloat16, requires_grad=True)
    lengths = T - (T // 2) * torch.arange(B, device=where) // B
    read_B11T = (torch.arange(T, device=where) < lengths[:, None])[:, None, None] if kind == "key mask" else None
    d_BHTC = torch.randn(B, H, T, C, device=where, dtype=torch.bfloat16)
    forced = BACKENDS[backend]

    def step(qkv: Tensor, count: int = B, p: float = dropout) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in qkv[:count].unbind(2))
        mask = None if read_B11T is None else read_B11T[:count]
        out = F.scaled_dot_product_attention(q, k, v, mask, p, kind == "causal")
        (gradient,) = torch.autograd.grad(out, qkv, d_BHTC[:count].to(out.dtype))
        return gradient

    with sdpa_kernel(forced) if forced else nullcontext():
        try:
            gradient = step(qkv)
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                raise NotMeasuredError(f"{backend} does not take this shape") from None
            raise
        finite = bool(gradient.isfinite().all())
        few = min(B, 4)
        ours = step(qkv, few, 0.0)[:few].float()
        step_s = median_s(lambda: step(qkv), where, seconds, seconds)
    with sdpa_kernel(SDPBackend.MATH):
        exact = step(qkv.detach().float().requires_grad_(), few, 0.0)[:few]
    flops = 3.5 * 4 * B * H * T * T * C * (0.5 if kind == "causal" else 1.0)
    row = {
        "ms": 1000 * step_s,
        "tflops": flops / step_s / 1e12,
        "finite": finite,
        "error": float((ours - exact).norm() / exact.norm()),
    }
    return [row | ({"chosen": chosen(qkv, read_B11T, dropout, kind == "causal")} if forced is None else {})]


def chosen(qkv: Tensor, mask: Tensor | None, dropout: float, causal: bool) -> str | None:
    """Return which backend torch takes by itself, where it can be asked."""
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    try:
        number = int(torch._fused_sdp_choice(q, k, v, mask, dropout, causal))
    except (AttributeError, RuntimeError):
        return None
    return next((name for name, kind in BACKENDS.items() if kind is not None and int(kind) == number), str(number))


def products(words: int, tokens: int, width: int, seconds: float) -> list[Row]:
    """Time the products of a head, one by one, for a number of columns."""
    where, V, N, D = device(), words, tokens, width
    dtype = torch.bfloat16
    h_ND, w_VD, d_NV = (torch.randn(*s, device=where, dtype=dtype) for s in ((N, D), (V, D), (N, V)))
    sum_VD = torch.zeros(V, D, device=where)
    sums = {"out_dtype": torch.float32} if where.type == "cuda" else {}
    ways: dict[str, Callable[[], object]] = {
        "logits": lambda: torch.mm(h_ND, w_VD.T, **sums),
        "dh": lambda: torch.mm(d_NV, w_VD, **sums),
        "dw, then added": lambda: sum_VD.add_(torch.mm(d_NV.T, h_ND, **sums)),
    }
    if sums:
        ways["dw, added by the product"] = lambda: torch.addmm(sum_VD, d_NV.T, h_ND, **sums)
    rows = []
    for way, work in ways.items():
        try:
            step_s = median_s(work, where, seconds, seconds)
            rows.append({"product": way, "ms": 1000 * step_s, "tflops": 2 * N * D * V / step_s / 1e12})
        except RuntimeError as error:
            if where.type == "cuda":
                torch.cuda.synchronize()  # raises where CUDA is broken for good
            rows.append({"product": way, "message": str(error).splitlines()[0]})  # not every torch has it
    return rows


def head(words: int, tokens: int, width: int, way: str, seconds: float) -> list[Row]:
    """Time loss and gradients of a head: our own, with columns rounded up or not, or with all logits at once."""
    where, V, N, D = device(), words, tokens, width
    h_ND = torch.randn(N, D, device=where, requires_grad=True)
    w_VD = (0.02 * torch.randn(V, D, device=where)).requires_grad_()
    targets_N = torch.randint(1, V, (N,), device=where)
    targets_N[::10] = 0

    def step() -> object:
        with torch.autocast(where.type, dtype=torch.bfloat16):
            if way == "all logits":
                loss = F.cross_entropy(F.linear(h_ND, w_VD).float(), targets_N, ignore_index=0, reduction="sum")
            else:
                loss = cross_entropy.linear_cross_entropy(h_ND, w_VD, targets_N, 0)
        return torch.autograd.grad(loss, (h_ND, w_VD))

    before = dict(cross_entropy.MULTIPLE)
    if way == "ours, columns as they are":
        cross_entropy.MULTIPLE.clear()
    try:
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        step_s = median_s(step, where, seconds, seconds)
    finally:
        cross_entropy.MULTIPLE.update(before)
    gib = torch.cuda.max_memory_allocated() / 2**30 if where.type == "cuda" else None
    return [{"ms": 1000 * step_s, "tflops": 3 * 2 * N * D * V / step_s / 1e12, "memory_gib": gib}]
