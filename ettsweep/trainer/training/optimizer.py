"""AdamW and SGD with the learning-rate factors of a strategy, as few parameter groups of torch.optim."""

from collections import defaultdict
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn

from ettsweep.strategies.optimizers import OPTIMIZERS, AdamWSpec, SgdSpec
from ettsweep.trainer.models.parameter_scales import parameter_factors
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.training.distributed import is_sharded, parameters


def build_optimizer(model: nn.Module, spec: TransformerRun) -> torch.optim.Optimizer:
    """Return the optimizer of eq:AdamW4.

    torch multiplies a group's weight_decay by its lr. A group with lr = eta_t * factor and the constant
    weight_decay = wd / factor therefore shrinks by eta_t * wd, which does not depend on the group, as in the
    equation. Parameters with equal (factor, decay) share a group, so that fused kernels see few groups. The optimizer
    state exists from the start, so that every checkpoint has the same tensors.

    Args:
        model: already on its device, and sharded if it will be.
        spec: gives optimizer, lr, wd and strategy.
    """
    shared: dict[tuple[float, float], list[nn.Parameter]] = defaultdict(list)
    by_name = parameter_factors(spec.model, spec.strategy, spec.optimizer)
    for name, parameter in parameters(model).items():
        shared[by_name[name]].append(parameter)
    groups = [
        {"params": members, "lr": spec.lr * lr_factor, "weight_decay": spec.wd * wd_factor, "lr_factor": lr_factor}
        for (lr_factor, wd_factor), members in shared.items()
    ]
    optimizer: torch.optim.Optimizer = resolve_name(OPTIMIZERS[spec.optimizer.kind].build)(
        model, groups, spec.optimizer
    )
    return optimizer


Groups = list[dict[str, Any]]
"""The parameter groups of an optimizer."""


def adamw(model: nn.Module, groups: Groups, spec: AdamWSpec) -> torch.optim.AdamW:
    """Return torch's AdamW with zero moments."""
    fused = _has_fused(model)
    result = torch.optim.AdamW(groups, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=fused)
    for parameter in model.parameters():
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        # Where torch would create it: fused kernels read the step count on the device, others on the host.
        step_device = parameter.device if fused else "cpu"
        result.state[parameter] = {"step": torch.zeros((), dtype=torch.float32, device=step_device), **moments}
    return result


def sgd(model: nn.Module, groups: Groups, spec: SgdSpec) -> torch.optim.SGD:
    """Return torch's SGD with zero momentum."""
    # torch has no fused SGD kernel for sharded parameters.
    implementation = {"foreach": True} if is_sharded(model) else {"fused": _has_fused(model)}
    result = torch.optim.SGD(groups, momentum=spec.momentum, **implementation)
    if spec.momentum:
        # Equals torch's own first step, which copies the gradient. torch would leave the buffers uninitialised if the
        # loss scaler skips that step.
        for parameter in model.parameters():
            result.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return result


def _has_fused(model: nn.Module) -> bool:
    return next(model.parameters()).device.type in ("cpu", "cuda", "mps", "xpu")


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of a step times each group's factor; weight_decay stays constant."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
