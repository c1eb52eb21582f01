"""Registry of optimizers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ettsweep.schema import Fraction, PositiveFloat, StrictModel
from ettsweep.strategies.factors import Optimizer

DEFAULT_OPTIMIZER = "adamw"


class OptimizerSpec(StrictModel):
    """Fields of all optimizers; each (strategies/optimizers.py) adds its own.

    Attributes:
        clip_norm: maximal global norm of the gradient; None does not clip.
        decay_pe: whether weight decay applies to positional embeddings.
    """

    kind: str
    if TYPE_CHECKING:  # subclasses declare them last, since spec.json lists fields in the order of declaration
        clip_norm: PositiveFloat | None = None
        decay_pe: bool = True


class AdamWSpec(OptimizerSpec):
    """AdamW, eq:AdamW1 .. eq:AdamW4. `decay_pe`: whether weight decay applies to positional embeddings."""

    kind: Literal["adamw"] = "adamw"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: PositiveFloat = 1e-8
    clip_norm: PositiveFloat | None = None
    decay_pe: bool = True


class SgdSpec(OptimizerSpec):
    """Stochastic gradient descent with decoupled weight decay, equal for all groups, like AdamW's."""

    kind: Literal["sgd"] = "sgd"
    momentum: Fraction = 0.0
    clip_norm: PositiveFloat | None = None
    decay_pe: bool = True


class MuonSpec(OptimizerSpec):
    """Muon for the matrices of the residual blocks, AdamW for the rest.

    Muon's step is the nearest orthogonal matrix to the momentum, by `ns_steps` iterations of Newton and Schulz
    (torch.optim.Muon). Defaults are those of Jordan's Muon (kellerjordan.github.io/posts/muon) and its repository, but
    for `adamw_lr_ratio`, which is 3e-4 / 0.02 there: see docs/theory.md.

    Attributes:
        momentum: of the matrices.
        nesterov: whether the momentum is Nesterov's.
        ns_steps: iterations; five bring singular values to about 0.7 to 1.2.
        adamw_lr_ratio: lr of the rest, over lr; each is multiplied by the group's factor.
        beta1, beta2, eps: of the rest.
    """

    kind: Literal["muon"] = "muon"
    momentum: Fraction = 0.95
    nesterov: bool = True
    ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5
    adamw_lr_ratio: PositiveFloat = 1.0
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: PositiveFloat = 1e-8
    clip_norm: PositiveFloat | None = None
    decay_pe: bool = True


@dataclass(frozen=True)
class OptimizerKind:
    """Registry entry of an optimizer.

    Attributes:
        spec: pydantic class of its settings.
        factor_rule: the optimizer, `adamw`, `sgd` or `muon`, whose learning-rate factors apply to it.
        moments: spec -> numbers that it keeps for each parameter, or for most of them.
        build: `module:function`; (network, parameter groups, spec) -> torch.optim.Optimizer.
    """

    spec: type[OptimizerSpec]
    factor_rule: Optimizer
    moments: Callable[[Any], int]
    build: str


# Builders are named by string, so that planning does not import torch.
OPTIMIZERS: dict[str, OptimizerKind] = {
    "adamw": OptimizerKind(AdamWSpec, "adamw", lambda adamw: 2, "ettsweep.trainer.training.optimizer:adamw"),
    "muon": OptimizerKind(MuonSpec, "muon", lambda muon: 1, "ettsweep.trainer.training.optimizer:muon"),
    "sgd": OptimizerKind(SgdSpec, "sgd", lambda sgd: int(sgd.momentum > 0), "ettsweep.trainer.training.optimizer:sgd"),
}


def factor_rule(optimizer: OptimizerSpec) -> Optimizer:
    """Return the optimizer, `adamw`, `sgd` or `muon`, whose learning-rate factors apply."""
    return OPTIMIZERS[optimizer.kind].factor_rule
