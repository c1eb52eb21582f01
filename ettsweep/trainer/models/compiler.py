"""torch's compiler: blocks of a model compiled once for each shape, or a word that they are not."""

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ettsweep.errors import error_line
from ettsweep.trainer.models.blocks import Network

VERSIONS = 64
"""Versions of a function that a process keeps compiled, one for each set of shapes; torch would keep 8, and then go on
without a compiler."""


def compile_blocks(model: Network, kind: Hashable, warn: Callable[[str], None]) -> None:
    """Compile the blocks of a model, once for all that are alike and for each of their shapes.

    A block that cannot be compiled after all goes on without: `compiled` is then false, and `warn` is told why. (With
    torch 2.8, a backward pass that cannot be fails.) What was compiled for a run of another `kind` is forgotten.
    """
    keep_versions()
    _forget_unless(kind)
    # Blocks are compiled one by one, so that gradients travel while earlier blocks compute: no need to cut them more.
    torch._dynamo.config.optimize_ddp = False
    _compile_backward_too()

    def give_up(error: Exception) -> None:
        if model.compiled:
            cause = getattr(error, "inner_exception", error)  # what a backend raised, where it is that
            warn(f"not all blocks of the model are compiled after all: {error_line(cause)}")
        model.compiled = False

    model.compiled = True
    for block in model.residual_blocks():
        block.forward = _Compiled(block, give_up)


class _Compiled:
    """What a block computes, compiled; its hooks, such as those that fetch a sharded block, are called as ever."""

    def __init__(self, block: nn.Module, give_up: Callable[[Exception], None]) -> None:
        self._block, self._plain = block, block.forward
        self._compiled = torch.compile(block.forward, fullgraph=True, dynamic=False)
        self._give_up = give_up

    def __call__(self, *inputs: Tensor) -> Any:
        try:
            return self._compiled(*inputs)
        except _compiler_errors() as error:
            vars(self._block).pop("forward")  # this one alone: others may compute again, backwards, what they have
            self._give_up(error)
            return self._plain(*inputs)


@cache
def _compiler_errors() -> tuple[type[Exception], ...]:
    """Return what the compiler raises where it fails; what a compiled block itself raises is none of it."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    return TorchDynamoException, FailOnRecompileLimitHit


def keep_versions() -> None:
    """Have the compiler keep as many versions of a function as there may be shapes."""
    import torch._dynamo  # seconds

    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VERSIONS)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 8 * VERSIONS)


def _compile_backward_too() -> None:
    """Have the compiler make the backward pass with the forward pass: where it cannot, a block can still go without."""
    import torch._functorch.config as config

    if hasattr(config, "force_non_lazy_backward_lowering"):  # torch 2.8 has it later: a run would fail
        config.force_non_lazy_backward_lowering = True


_LAST: list[Hashable] = []


def _forget_unless(kind: Hashable) -> None:
    """Have the compiler forget what it has compiled for runs of another kind."""
    if _LAST and _LAST[0] != kind:
        torch._dynamo.reset()
    _LAST[:] = [kind]


@cache
def obstacle(device: torch.device) -> str:
    """Return why nothing can be compiled for a device here, or "": a toy block is, with its gradients."""
    keep_versions()
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU()).to(device)
    x = torch.ones(2, 8, device=device)
    try:
        torch.compile(block, fullgraph=True, dynamic=False)(x).sum().backward()
    except Exception as error:  # compilers fail in all ways
        return error_line(error)
    return ""
