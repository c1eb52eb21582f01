"""Which kernels attention takes: torch's choice without a mask, and with one, on a GPU, the fastest that is right.

B batch, T tokens, S tokens that are read from, H heads, C channels per head.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ettsweep.files import Json
from ettsweep.models.blocks import MASKED_KERNELS, AttentionBase, Network
from ettsweep.models.build import example_inputs
from ettsweep.spec import RunSpec
from ettsweep.training.distributed import rest
from ettsweep.training.precision import autocast
from ettsweep.training.timing import now_s
from ettsweep.training.trainer import Trainer

TRIES = 5
"""Passes through each kernel, of which the fastest counts: the first choose and load what they need."""

TRIED = 16
"""Samples of a trial at most: enough to fill a GPU, and plain products of many would fill its memory."""


@dataclass(frozen=True)
class Call:
    """A kind of attention in a model: its shapes for one sample, (H, T, C) and (H, S, C), and how it is asked for."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    dtype: torch.dtype
    masked: bool
    dropout: float
    causal: bool

    def tensors(self, samples: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return random queries, keys and values that lie in memory as a model's, and a mask of a quarter of [pad]."""
        q, k, v = (
            torch.randn(samples, tokens, heads, channels, device=device, dtype=self.dtype)
            .transpose(1, 2)
            .requires_grad_()
            for heads, tokens, channels in (self.query, self.key, self.key)
        )
        S = self.key[1]
        read_B11S = (torch.arange(S, device=device) < S - S // 4).expand(samples, 1, 1, S) if self.masked else None
        return q, k, v, read_B11S

    def choice(self, device: torch.device) -> SDPBackend:
        """Return the kernel that torch takes for it, of however many samples."""
        chosen: int = torch._fused_sdp_choice(*self.tensors(1, device), self.dropout, self.causal)
        return SDPBackend(chosen) if chosen >= 0 else SDPBackend.MATH


def settle_attention(trainer: Trainer, before: Json, warn: Callable[[str], None]) -> Json:
    """Have a model on a GPU take the kernel for attention with a mask that is fastest there; return what is recorded.

    A run goes on with the one that it had `before`, on a device of that name. All processes of the group come here.
    """
    spec, device, model = trainer.spec, trainer.device, trainer.model
    kernels = defaultdict[bool, set[SDPBackend]](set)
    calls = attention_calls(model, spec, device)
    for call in calls:
        kernels[call.masked].add(call.choice(device))
    if kernels[True] and device.type == "cuda":
        same_device = before.get("device_name") == torch.cuda.get_device_name(device)
        best = had_kernel(before) if same_device else None
        best = best or fastest_for(calls, spec, device)
        kernels[True] = {take(model, MASKED_KERNELS[max(trainer.group.agree(MASKED_KERNELS.index(best)))])}
        if SDPBackend.MATH in kernels[True]:
            warn("attention with a mask takes plain products: they are the fastest here of what is right")
    names = sorted(("masked " if masked else "") + kernel_name(one) for masked in kernels for one in kernels[masked])
    return {"attention": ", ".join(names)} if names else {}


def take_fastest(model: Network, spec: RunSpec, device: torch.device) -> None:
    """Have a model that only measures take the kernel that runs take which begin here."""
    if (calls := attention_calls(model, spec, device)) and any(call.masked for call in calls):
        take(model, fastest_for(calls, spec, device))


def take(model: Network, kernel: SDPBackend) -> SDPBackend:
    """Have a model take a kernel for attention with a mask; return it."""
    for module in model.modules():
        if isinstance(module, AttentionBase):
            module.masked_kernels = (kernel,)
    return kernel


def had_kernel(before: Json) -> SDPBackend | None:
    """Return the kernel that an earlier attempt took for attention with a mask, if it is known and right."""
    had = str(before.get("attention"))
    return next((kernel for kernel in MASKED_KERNELS if f"masked {kernel_name(kernel)}" in had), None)


def fastest_for(calls: Iterable[Call], spec: RunSpec, device: torch.device) -> SDPBackend:
    """Return the fastest kernel for those kinds of attention that have a mask; a process tries them once."""
    return fastest_kernel(tuple(call for call in calls if call.masked), min(spec.batch_size, TRIED), device)


def attention_calls(model: Network, spec: RunSpec, device: torch.device) -> list[Call]:
    """Return the kinds of attention that a model asks for in training, as one sample goes through it."""
    calls = _Calls()
    with torch.no_grad(), calls, autocast(spec.precision, device):
        model(*example_inputs(spec.model, 1, device))
    rest(model)
    return list(calls.found)


class _Calls(TorchFunctionMode):
    """Notes how attention is asked for."""

    NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")

    def __init__(self) -> None:
        super().__init__()
        self.found = dict[Call, None]()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Json | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            asked = dict(zip(self.NAMES, args, strict=False)) | kwargs
            q, k, masked = asked["query"], asked["key"], asked.get("attn_mask") is not None
            how = masked, asked.get("dropout_p", 0.0), asked.get("is_causal", False)
            self.found[Call(tuple(q.shape[1:]), tuple(k.shape[1:]), q.dtype, *how)] = None
        return function(*args, **kwargs)


@cache
def fastest_kernel(calls: tuple[Call, ...], samples: int, device: torch.device) -> SDPBackend:
    """Return the kernel that goes fastest through some kinds of attention, forward and backward, with sound gradients.

    Where none does, it is the last, which there always is.
    """
    seconds = {kernel: sum(kernel_s(kernel, call, samples, device) for call in calls) for kernel in MASKED_KERNELS}
    return min(reversed(seconds), key=seconds.__getitem__)


def kernel_s(kernel: SDPBackend, call: Call, samples: int, device: torch.device) -> float:
    """Return the seconds that a kernel takes forward and backward; infinity where it cannot, or returns no numbers."""
    best_s = math.inf
    try:
        q, k, v, read_B11S = call.tensors(samples, device)
        for _ in range(TRIES):
            q.grad = k.grad = v.grad = None
            started_s = now_s(device)
            with sdpa_kernel(kernel):
                z_BHTC = F.scaled_dot_product_attention(q, k, v, read_B11S, call.dropout, call.causal)
            z_BHTC.backward(torch.ones_like(z_BHTC))  # type: ignore[no-untyped-call]
            best_s = min(best_s, now_s(device) - started_s)
        sound = all(part.grad is not None and bool(part.grad.isfinite().all()) for part in (q, k, v))
    except RuntimeError:  # there is no such kernel for this, or no memory
        return math.inf
    return best_s if sound else math.inf


def kernel_name(kernel: SDPBackend) -> str:
    """Return what a kernel is called in records: flash, cudnn, efficient, math."""
    return kernel.name.lower().removesuffix("_attention")
