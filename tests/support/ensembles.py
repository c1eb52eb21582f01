"""Ensembles of real networks at initialisation: their activations, kernels and tangent kernels.

N networks, B samples, T tokens, P = B T positions with the token running fastest, S tokens that are read from, n width,
H heads, C channels per head, K outputs, R = P K rows, X numbers that a weight reads and Y that it gives.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import Group
from ettsweep.trainer.models.build import build_model, initialise
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import parameter_shapes
from ettsweep.trainer.specs import ModelSpec

Array = NDArray[np.float64]
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Ensemble:
    """Networks that differ in their seeds alone.

    Attributes:
        spec: their model.
        s: their strategy's.
        values: of each parameter, its initial values, (N, ...).
    """

    spec: ModelSpec
    s: float | None
    values: dict[str, Tensor]

    def parts(self) -> Iterator[tuple[Group, Tensor]]:
        """Yield each group's values in each tensor, (N, ...); views, so that fused groups can be told apart."""
        for parameter in parameter_shapes(self.spec):
            yield from zip(parameter.groups, self.values[parameter.name].chunk(len(parameter.groups), 1), strict=True)


def drawn(spec: ModelSpec, s: float | None, count: int, first_seed: int = 0) -> Ensemble:
    """Return so many networks of the package, initialised as runs with consecutive seeds are."""
    strategy = StrategySpec(s=s)
    model = build_model(spec, strategy)
    values = {name: torch.empty(count, *tensor.shape) for name, tensor in model.named_parameters()}
    for network in range(count):
        initialise(model, spec, strategy, first_seed + network)
        for name, tensor in model.named_parameters():
            values[name][network] = tensor.detach()
    return Ensemble(spec, s, values)


@dataclass(frozen=True)
class Pass:
    """What a forward pass of all networks shows.

    Attributes:
        outputs: logits, (N, B, K) or (N, B, T, K).
        streams: the residual stream after each stage of the forward pass, as LayerNorm gets it, (N, B, T, n).
        normalised: the same after LayerNorm.
    """

    outputs: Tensor
    streams: dict[str, Tensor]
    normalised: dict[str, Tensor]


class Recorder(TorchFunctionMode):
    """Keeps what LayerNorms are called with, and what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[Tensor] = []
        self.normalised: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.layer_norm:
            self.streams.append(args[0])
            self.normalised.append(result)
        return result


class _Logits(nn.Module):
    """A network as a module that is called for its logits, as `functional_call` wants it."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.network = build_model(ensemble.spec, StrategySpec(s=ensemble.s))

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = getattr(self.network, "logits", self.network)(*inputs)
        return logits


def stage_names(spec: ModelSpec) -> list[str]:
    """Return a name for what each LayerNorm gets, in the order of the forward pass."""

    def blocks(prefix: str, *parts: str) -> list[str]:
        return [f"{prefix}.{block}.{section}" for block in range(spec.depth) for section in parts]

    if not isinstance(spec, EncDecSpec):
        return ["stem", *blocks("blocks", "attention", "mlp")]
    return [
        *("encoder.words", "encoder.stem", *blocks("encoder", "attention", "mlp")),
        *("decoder.words", "decoder.stem", *blocks("decoder", "attention", "cross", "mlp")),
    ]


def forward(ensemble: Ensemble, inputs: Inputs) -> Pass:
    """Return what all networks make of the same inputs."""
    model, names = _Logits(ensemble), stage_names(ensemble.spec)

    def one(values: dict[str, Tensor]) -> tuple[Any, ...]:
        with Recorder() as recorder:
            outputs = _call(model, values, inputs)
        return outputs, recorder.streams, recorder.normalised

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the other ways have no rule for many networks at once
        outputs, streams, normalised = vmap(one)(ensemble.values)
    streams, normalised = (dict(zip(names, tensors, strict=True)) for tensors in (streams, normalised))
    return Pass(outputs, streams, normalised)


def _call(model: _Logits, values: dict[str, Tensor], inputs: Inputs) -> Tensor:
    logits: Tensor = functional_call(model, {f"network.{name}": value for name, value in values.items()}, inputs)
    return logits


def tangent_kernels(ensemble: Ensemble, inputs: Inputs, outputs: list[int]) -> dict[Group, Array]:
    """Return the sum over each group's parameters of df_i/dtheta df_j/dtheta, by automatic differentiation.

    Args:
        ensemble: the networks.
        inputs: what they are called with.
        outputs: the components i and j, K of them.

    Returns:
        (N, K, K, P, P) of each of the model's groups; P = B of a Vision Transformer.
    """
    model, parameters, K = _Logits(ensemble), parameter_shapes(ensemble.spec), len(outputs)

    def one(values: dict[str, Tensor]) -> dict[Group, Tensor]:
        slopes = jacrev(lambda values: _call(model, values, inputs)[..., outputs].reshape(-1))(values)
        collected: dict[Group, Tensor] = {}
        for parameter in parameters:
            parts = slopes[parameter.name].chunk(len(parameter.groups), 1)
            for group, part in zip(parameter.groups, parts, strict=True):
                part_RX = part.flatten(1)
                collected[group] = collected.get(group, 0.0) + part_RX @ part_RX.T
        return collected

    chunk = max(1, 2**22 // sum(parameter.size for parameter in parameters))  # what fits into a cache
    with sdpa_kernel(SDPBackend.MATH):
        collected = vmap(one, chunk_size=chunk)(ensemble.values)
    return {
        group: array(gram.unflatten(2, (-1, K)).unflatten(1, (-1, K)).permute(0, 2, 4, 1, 3))
        for group, gram in collected.items()
    }


def kernel(x_NBTn: Tensor) -> Array:
    """Return the mean over the width of products, (N, P, P)."""
    x_NPn = x_NBTn.flatten(1, 2)
    return array(x_NPn @ x_NPn.mT / x_NPn.shape[-1])


def array(tensor: Tensor) -> Array:
    """Return a tensor's values as numpy's doubles."""
    return tensor.detach().double().numpy()
