"""Optimizers: one table, an entry says everything of one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ettsweep.runs.spec import OptimizerSpec
from ettsweep.schema import Fraction, PositiveFloat
from ettsweep.strategies.factors import Optimizer


class AdamWSpec(OptimizerSpec):
    """AdamW of eq:AdamW1 .. eq:AdamW4. `decay_pe`: whether positional embeddings decay."""

    kind: Literal["adamw"] = "adamw"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: PositiveFloat = 1e-8
    clip_norm: PositiveFloat | None = None
    decay_pe: bool = True


class SgdSpec(OptimizerSpec):
    """Stochastic gradient descent; decay shrinks all groups alike, as AdamW's does."""

    kind: Literal["sgd"] = "sgd"
    momentum: Fraction = 0.0
    clip_norm: PositiveFloat | None = None
    decay_pe: bool = True


@dataclass(frozen=True)
class OptimizerKind:
    """All that is to be said of an optimizer.

    Attributes:
        spec: its schema.
        factors: whose relative learning-rate factors hold for it.
        moments: numbers that it keeps of each parameter.
        build: `module:function` that returns the torch.optim.Optimizer, given the network, its parameter groups and
            the spec.
    """

    spec: type[OptimizerSpec]
    factors: Optimizer
    moments: Callable[[Any], int]
    build: str


OPTIMIZERS: dict[str, OptimizerKind] = {
    "adamw": OptimizerKind(AdamWSpec, "adamw", lambda adamw: 2, "ettsweep.trainer.training.optimizer:adamw"),
    "sgd": OptimizerKind(SgdSpec, "sgd", lambda sgd: int(sgd.momentum > 0), "ettsweep.trainer.training.optimizer:sgd"),
}


def factors_of(optimizer: OptimizerSpec) -> Optimizer:
    """Return whose relative learning-rate factors hold for an optimizer."""
    return OPTIMIZERS[optimizer.kind].factors
