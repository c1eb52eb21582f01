"""AdamW for all members of a stack at once, on their stacked tensors.

Member by member, a GPU waits for Python to launch clipping, loss scaling and updates. Results differ in the last bits:
norms are summed in another order, and torch's fused kernel, which takes one learning rate, rounds differently.

Shapes: K members, P parameters.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.ensemble.vmapped import Parameters
from ettsweep.trainer.training.trainer import Trainer


class StackedAdamW:
    """Takes the optimizer steps of a stack's members as `Trainer.update` does, within rounding.

    The optimizer state of each member becomes views of stacked tensors, like its parameters. So checkpoints have every
    step, and a member that leaves the stack continues from there. Nothing waits for the device.

    Args:
        spec: of all members.
        trainers: the K members.
        parameters: of all members, (K, ...) by name; updated in place.
    """

    def __init__(self, spec: AdamWSpec, trainers: Sequence[Trainer], parameters: Parameters) -> None:
        self._spec = spec
        self._trainers = trainers
        self._parameters = parameters
        self._device = trainers[0].device
        states = {name: [t.optimizer.state[t.model.get_parameter(name)] for t in trainers] for name in parameters}
        self._steps_PK = torch.stack([_stacked(members, "step") for members in states.values()])
        for members, steps_K in zip(states.values(), self._steps_PK, strict=True):
            _set_views(members, "step", steps_K)
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        for name, members in states.items():
            self._moments[name] = _stacked(members, "exp_avg"), _stacked(members, "exp_avg_sq")
            for key, stacked in zip(("exp_avg", "exp_avg_sq"), self._moments[name], strict=True):
                _set_views(members, key, stacked)
        groups = [_groups_by_name(trainer) for trainer in trainers]
        self._lr_factors_PK, self._weight_decays_PK = (
            self._to_device([[by_name[name][key] for by_name in groups] for name in parameters])
            for key in ("lr_factor", "weight_decay")
        )

    @torch.no_grad()
    def update(
        self, gradients: Parameters, scales_K: Tensor, lrs: Mapping[Trainer, float]
    ) -> dict[Trainer, tuple[Tensor, Tensor]]:
        """Take the next step of some members; return their gradient norms before clipping, and loss scales.

        Args:
            gradients: of loss times loss scale, (K, ...) by name.
            scales_K: these loss scales.
            lrs: learning rates of the members that take a step; the others stay as they are, bit for bit.
        """
        lr_K, takes_K = self._to_device([[lrs.get(t, 0.0) for t in self._trainers], [t in lrs for t in self._trainers]])
        all_take = len(lrs) == len(self._trainers)
        norms_K = self._norms(gradients) / scales_K
        factors_K = torch.ones_like(norms_K) / scales_K
        if self._spec.clip_norm is not None:
            factors_K = factors_K * (self._spec.clip_norm / (norms_K + 1e-6)).clamp(max=1.0)  # as torch.nn.utils clips
        if self._trainers[0].scaler.is_enabled():
            overflows_K = ~norms_K.isfinite()
            takes_K, all_take = takes_K * ~overflows_K, False  # the host need not know who overflows
            self._update_scalers(overflows_K, lrs)
        self._take_steps(gradients, factors_K, lr_K, None if all_take else takes_K.bool())
        members = zip(self._trainers, norms_K.unbind(), scales_K.unbind(), strict=True)
        return {trainer: (norm, scale) for trainer, norm, scale in members if trainer in lrs}

    def _norms(self, gradients: Parameters) -> Tensor:
        """Return the norm of each member's gradient, (K,)."""
        norms = [torch.linalg.vector_norm(gradients[name].flatten(1), dim=1) for name in self._parameters]
        norms_K: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        return norms_K

    def _update_scalers(self, overflows_K: Tensor, trainers: Collection[Trainer]) -> None:
        """Have torch's own rule raise or lower the loss scales of some members."""
        for trainer, overflow in zip(self._trainers, overflows_K.float().unbind(), strict=True):
            if trainer in trainers:
                # State that unscale_() leaves for update(), without its gradients in parameters and its launches.
                state = trainer.scaler._per_optimizer_states[id(trainer.optimizer)]
                state["found_inf_per_device"] = {self._device: overflow}
                trainer.scaler.update()

    def _take_steps(self, gradients: Parameters, factors_K: Tensor, lr_K: Tensor, takes_K: Tensor | None) -> None:
        """Apply eq:AdamW1 .. eq:AdamW4, with gradients times `factors_K`, to the members in `takes_K`; None is all."""
        spec = self._spec
        self._steps_PK += 1 if takes_K is None else takes_K
        lr_PK, steps_PK = lr_K * self._lr_factors_PK, self._steps_PK.double()
        decays_PK = 1 - lr_PK * self._weight_decays_PK
        sizes_PK = lr_PK / (1 - spec.beta1**steps_PK)
        roots_PK = (1 - spec.beta2**steps_PK).sqrt()
        scalars = torch.stack([decays_PK, sizes_PK, roots_PK], dim=1).to(factors_K.dtype)
        # One parameter after the other is fast enough, and keeps temporary tensors small.
        for (name, parameter), scalars_3K in zip(self._parameters.items(), scalars, strict=True):
            shape = (-1, *[1] * (parameter.dim() - 1))
            decay, size, root = (scalar_K.view(shape) for scalar_K in scalars_3K)
            exp_avg, exp_avg_sq = self._moments[name]
            tensors = parameter, exp_avg, exp_avg_sq
            before = [] if takes_K is None else [tensor.clone() for tensor in tensors]
            gradient = gradients[name] * factors_K.view(shape)
            exp_avg.lerp_(gradient, 1 - spec.beta1)
            exp_avg_sq.mul_(spec.beta2).addcmul_(gradient, gradient, value=1 - spec.beta2)
            denominator = exp_avg_sq.sqrt().div_(root).add_(spec.eps)
            parameter.mul_(decay).addcdiv_(exp_avg * size, denominator, value=-1)
            if takes_K is not None:
                # Not by factors of 0, which would change the bits of members that have diverged.
                for tensor, old in zip(tensors, before, strict=True):
                    torch.where(takes_K.view(shape), tensor, old, out=tensor)

    def _to_device(self, values: Sequence[Sequence[float]]) -> Tensor:
        """Return numbers in float64, like learning rates of torch's optimizers, on the device."""
        pinned = self._device.type == "cuda"  # else the copy would block
        return torch.tensor(values, dtype=torch.float64, pin_memory=pinned).to(self._device, non_blocking=True)


def _stacked(states: Sequence[dict[str, Any]], key: str) -> Tensor:
    return torch.stack([state[key] for state in states])


def _set_views(states: Sequence[dict[str, Any]], key: str, stacked: Tensor) -> None:
    for state, view in zip(states, stacked.unbind(), strict=True):
        state[key] = view


def _groups_by_name(trainer: Trainer) -> dict[str, dict[str, Any]]:
    """Return the optimizer's parameter group of each parameter."""
    groups = {id(parameter): group for group in trainer.optimizer.param_groups for parameter in group["params"]}
    return {name: groups[id(parameter)] for name, parameter in trainer.model.named_parameters()}
