"""Compile a model's blocks with torch.compile; blocks that fail to compile run eagerly."""

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ettsweep.errors import error_line
from ettsweep.trainer.models.blocks import Network

MAX_VERSIONS = 64
"""Compiled versions of a function that a process may keep, one for each set of shapes. Torch's default is 8, beyond
which it stops compiling."""


def compile_blocks(model: Network, kind: Hashable, warn: Callable[[str], None]) -> None:
    """Compile the blocks of a model; identical blocks share their compiled code, one version for each set of shapes.

    Compilation happens at the first call. A block that fails to compile runs eagerly: `compiled` becomes False, and
    `warn` is called once with the reason.

    Args:
        model: model whose blocks are compiled in place.
        kind: of runs that share compiled code; code of another kind is discarded.
        warn: receives the warning.
    """
    raise_recompile_limits()
    _reset_unless(kind)
    # DDPOptimizer splits graphs to send gradients during the backward pass. Single blocks are small enough.
    torch._dynamo.config.optimize_ddp = False
    _compile_backward_with_forward()

    def give_up(error: Exception) -> None:
        if model.compiled:
            cause = getattr(error, "inner_exception", error)  # the backend's own error, if it raised one
            warn(f"some blocks of the model run uncompiled: {error_line(cause)}")
        model.compiled = False

    model.compiled = True
    for block in model.residual_blocks():
        # On the instance, where nn.Module.__call__ finds it after running the hooks.
        block.forward = _CompiledForward(block, give_up)


class _CompiledForward:
    """A block's compiled `forward`. The block's hooks, such as those that gather a sharded block, still run eagerly."""

    def __init__(self, block: nn.Module, give_up: Callable[[Exception], None]) -> None:
        self._block, self._eager_forward = block, block.forward
        # fullgraph: a graph break would silently run part of the block eagerly.
        self._compiled_forward = torch.compile(block.forward, fullgraph=True, dynamic=False)
        self._give_up = give_up

    def __call__(self, *inputs: Tensor) -> Any:
        try:
            return self._compiled_forward(*inputs)
        except _compiler_errors() as error:
            vars(self._block).pop("forward")  # not the others: a recomputing backward pass needs their compiled code
            self._give_up(error)
            return self._eager_forward(*inputs)


@cache
def _compiler_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a failed compilation, as opposed to those that a compiled block raises."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    return TorchDynamoException, FailOnRecompileLimitHit


def raise_recompile_limits() -> None:
    """Let the compiler keep `MAX_VERSIONS` versions of a function, for many shapes."""
    import torch._dynamo  # takes seconds

    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MAX_VERSIONS)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 8 * MAX_VERSIONS)


def _compile_backward_with_forward() -> None:
    """Compile the backward pass along with the forward pass, while a failing block can still fall back to eager."""
    import torch._functorch.config as config

    if hasattr(config, "force_non_lazy_backward_lowering"):  # missing in torch 2.8
        config.force_non_lazy_backward_lowering = True


_LAST_KIND: list[Hashable] = []
"""Kind of the last compiled run, if any: torch's cache of compiled code is one per process, and so is this."""


def _reset_unless(kind: Hashable) -> None:
    """Discard all compiled code unless it is of this kind: versions of old runs must not fill the limit."""
    if _LAST_KIND and _LAST_KIND[0] != kind:
        torch._dynamo.reset()
    _LAST_KIND[:] = [kind]


@cache
def obstacle(device: torch.device) -> str:
    """Compile a toy block with its gradients on a device; return the reason for a failure, or ""."""
    raise_recompile_limits()
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU()).to(device)
    x = torch.ones(2, 8, device=device)
    try:
        torch.compile(block, fullgraph=True, dynamic=False)(x).sum().backward()
    except Exception as error:  # a missing compiler, driver or header each raises something else
        return error_line(error)
    return ""
