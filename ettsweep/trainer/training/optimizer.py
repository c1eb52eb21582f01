"""AdamW, SGD and Muon with the learning-rate factors of a strategy, as few parameter groups of torch.optim."""

import math
from collections import defaultdict
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from ettsweep.strategies.optimizers import OPTIMIZERS, AdamWSpec, MuonSpec, SgdSpec
from ettsweep.trainer.models.parameter_scales import matrices, parameter_factors
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.training.distributed import full_tensor, is_sharded, parameters, set_full


def build_optimizer(model: nn.Module, spec: TransformerRun) -> torch.optim.Optimizer:
    """Return the optimizer of eq:AdamW4.

    torch multiplies a group's weight_decay by its lr. A group with lr = eta_t * factor and the constant
    weight_decay = wd / factor therefore shrinks by eta_t * wd, which does not depend on the group, as in the
    equation. Parameters with equal (factor, decay) share a group, so fused kernels see few groups. The optimizer state
    exists from the start, so every checkpoint has the same tensors.

    Args:
        model: already on its device, and sharded if it will be.
        spec: gives optimizer, lr, wd and strategy.
    """
    shared: dict[tuple[float, float, int], list[nn.Parameter]] = defaultdict(list)
    by_name = parameter_factors(spec.model, spec.strategy, spec.optimizer)
    fused = matrices(spec.model) if isinstance(spec.optimizer, MuonSpec) else {}
    for name, parameter in parameters(model).items():
        shared[(*by_name[name], fused.get(name, 0))].append(parameter)
    groups = [
        {"params": members, "lr": spec.lr * lr_factor, "weight_decay": spec.wd * wd_factor, "lr_factor": lr_factor}
        | ({"matrices": count} if count else {})
        for (lr_factor, wd_factor, count), members in shared.items()
    ]
    optimizer: torch.optim.Optimizer = resolve_name(OPTIMIZERS[spec.optimizer.kind].build)(
        model, groups, spec.optimizer
    )
    return optimizer


Groups = list[dict[str, Any]]
"""The parameter groups of an optimizer. With Muon, those with `matrices` are its own: so many in each parameter."""


def adamw(model: nn.Module, groups: Groups, spec: AdamWSpec | MuonSpec) -> torch.optim.AdamW:
    """Return torch's AdamW with zero moments."""
    fused = _has_fused(model)
    result = torch.optim.AdamW(groups, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=fused)
    for parameter in (parameter for group in result.param_groups for parameter in group["params"]):
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        # As in torch: fused kernels read the step count on the device, others on the host.
        step_device = parameter.device if fused else "cpu"
        result.state[parameter] = {"step": torch.zeros((), dtype=torch.float32, device=step_device), **moments}
    return result


def muon(model: nn.Module, groups: Groups, spec: MuonSpec) -> "MuonWithAdamW":
    """Return torch's Muon for the matrices and torch's AdamW for the rest, as one optimizer with zero moments."""
    rest = adamw(model, [group for group in groups if "matrices" not in group], spec)
    return MuonWithAdamW([group for group in groups if "matrices" in group], rest, spec)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for some parameter groups, AdamW for the others.

    A parameter that fuses matrices (qkv) is orthogonalised matrix by matrix. Sharded parameters are gathered for their
    step, one after the other, since a matrix is orthogonalised as a whole.
    """

    def __init__(self, groups: Groups, rest: torch.optim.AdamW, spec: MuonSpec) -> None:
        # The rest's groups are shared with its optimizer, so both have a new lr.
        super().__init__([*groups, *rest.param_groups], {})
        self.state = rest.state
        self._rest = rest
        self._groups = self.param_groups[: len(groups)]
        self._muons: dict[nn.Parameter, torch.optim.Muon] = {}
        for group in self._groups:
            for parameter in group["params"]:
                parts = [nn.Parameter(torch.empty(0, 0, device=parameter.device)) for _ in range(group["matrices"])]
                self._muons[parameter] = torch.optim.Muon(
                    parts, momentum=spec.momentum, nesterov=spec.nesterov, ns_steps=spec.ns_steps
                )
                self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take a step in all parameters with a gradient."""
        for group in self._groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_matrices(parameter, parameter.grad, group)
        self._rest.step()

    def _step_matrices(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        optimizer, momentum = self._muons[parameter], self.state[parameter]["momentum_buffer"]
        values, full_gradient, full_momentum = (full_tensor(x) for x in (parameter.detach(), gradient, momentum))
        (settings,) = optimizer.param_groups
        # New views at each step: a stack of runs moves parameters, and a sharded one is whole only here.
        parts = [x.chunk(group["matrices"]) for x in (values, full_gradient, full_momentum)]
        for matrix, part, part_gradient, part_momentum in zip(settings["params"], *parts, strict=True):
            matrix.data, matrix.grad = part, part_gradient
            optimizer.state[matrix]["momentum_buffer"] = part_momentum
        # torch multiplies only the step by this root, which the factor of the group has already.
        own_factor = math.sqrt(max(1.0, parts[0][0].shape[0] / parts[0][0].shape[1]))
        settings["lr"] = group["lr"] / own_factor
        settings["weight_decay"] = group["weight_decay"] * own_factor
        optimizer.step()  # type: ignore[no-untyped-call]
        set_full(parameter.data, values)
        set_full(momentum, full_momentum)
        for matrix in settings["params"]:
            matrix.data, matrix.grad = values.new_empty(0, 0), None  # the gathered tensor is freed
        optimizer.state.clear()


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
