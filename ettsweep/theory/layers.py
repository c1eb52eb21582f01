"""Observe a forward pass, and check each layer against the equations that the theory starts from.

Inputs and outputs of each matrix product are recorded, and the residual stream. The checked properties (`LayerCheck`)
hold at every width, exactly but for rounding.

Shapes: B batch, T tokens, S key tokens, D width, H heads, C channels per head, F hidden units of an MLP, N elements of
a tensor, R regressors, K outputs of one position.
"""

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from ettsweep.strategies.factors import Group
from ettsweep.theory.expectations import HEAD
from ettsweep.theory.gaussian import GELU
from ettsweep.theory.probe import LayerCheck, LayerMeasurement, Probe, load_checkable
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.registry import architecture, parameter_shapes

SHRUNK = 1e-3
"""Scale of the residual stream, in units of eps, that shows the eps of LayerNorms: its variance, and that of text's
normalised stems, eps * SHRUNK^2, are far below eps."""

WRITERS = (Group.PATCH, Group.WE, Group.PE, Group.U, Group.X)
"""Groups whose weights write to the residual stream."""

NEWTON_STEPS = 6
"""Gauss-Newton steps to fit the scale of the logits: enough for five digits if the scale is off by a half."""


# --- the forward pass -------------------------------------------------------------------------------------------------


def logits(network: Network, probe: Probe) -> Tensor:
    """Return the network's outputs for the probe batch: (B, K) for images, (B, T, K) for text."""
    return load_checkable(probe.model).logits(network, probe.batch.inputs)


@torch.no_grad()
def observe(network: Network, probe: Probe) -> dict[str, Tensor]:
    """Run a forward pass; return the residual stream after each branch, (B, T, D), and the outputs, by stage."""
    activations: dict[str, Tensor] = {}
    # A model with one stack of blocks names its stem "stem", one with several "encoder.stem" and so on.
    stacks = {name: module for name, module in network.named_children() if isinstance(module, nn.ModuleList)}
    with ExitStack() as hooks:
        for name, blocks in stacks.items():
            for hook in _hook_blocks(blocks, name, "stem" if len(stacks) == 1 else f"{name}.stem", activations):
                # The handles are context managers: hooks go again, also if the forward pass fails.
                hooks.enter_context(hook)
        activations[HEAD] = logits(network, probe)
    return activations


def _hook_blocks(
    blocks: nn.ModuleList, stack: str, stem: str, activations: dict[str, Tensor]
) -> Iterator[RemovableHandle]:
    """Register hooks that record the residual stream at the stem and after each branch of each block.

    Blocks are numbered by call, so layers that share one count separately.
    """
    calls: list[list[str]] = []  # stages of each block that was called

    def enter(block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        stages = [f"{stack}.{len(calls)}.{branch}" for branch, _ in block.named_children()]
        names = stages if calls else [stem, *stages]
        activations.update(dict.fromkeys(names, inputs[0]))  # a branch that is never called adds nothing
        calls.append(stages)

    # Stages after a branch accumulate its update: each has the stream up to its own branch.
    def add(module: nn.Module, inputs: object, update: Tensor, *, branch: int) -> None:
        activations.update({name: activations[name] + update for name in calls[-1][branch:]})

    def leave(block: nn.Module, inputs: object, output: Tensor) -> None:
        activations[calls[-1][-1]] = output

    for block in dict.fromkeys(blocks):
        yield block.register_forward_pre_hook(enter)
        for branch, module in enumerate(block.children()):
            yield module.register_forward_hook(partial(add, branch=branch))
        # The block's own output overrides the computed sum, to show a fault in the residual connection.
        yield block.register_forward_hook(leave)


def kernel(x: Tensor) -> tuple[float, float]:
    """Return (1/D) sum_i z_i z_i averaged over tokens, and over pairs of tokens from different samples.

    `x` is (B, T, D) or (B, D).
    """
    x_BTD = x.double() if x.dim() == 3 else x.double()[:, None]
    B, T, D = x_BTD.shape
    sums_BD = x_BTD.sum(1)
    # Pairs of different samples: all pairs less those within a sample.
    pairs = sums_BD.sum(0).square().sum() - sums_BD.square().sum()
    return x_BTD.square().mean().item(), pairs.item() / (D * B * (B - 1) * T**2)


def mean_contact_logit(outputs: Tensor, probe: Probe) -> float | None:
    """Return the mean logit of the token that the decoder reads at each position; None unless the head is tied."""
    if probe.read_BT is None:
        return None
    return outputs.gather(-1, probe.read_BT[..., None]).mean().item()


def rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()


# --- exact properties -------------------------------------------------------------------------------------------------


class MatrixProducts(TorchFunctionMode):
    """Context manager that records input and output of F.linear for each parameter.

    A function mode rather than module hooks, since weights here are plain parameters without a module of their own.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.names = {id(parameter): name for name, parameter in network.named_parameters()}
        self.by_parameter: dict[str, tuple[Tensor, Tensor]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function, and record it if it is F.linear with a named parameter."""
        result = func(*args, **(kwargs or {}))
        if func is F.linear and (name := self.names.get(id(args[1]))):
            self.by_parameter[name] = (args[0], result)
        return result


@dataclass(frozen=True)
class _Branch:
    """A residual branch with the recorded inputs and outputs of its weights, by group; empty if never called."""

    name: str
    groups: set[Group]
    inputs: dict[Group, Tensor]
    products: dict[Group, Tensor]

    @property
    def update(self) -> Tensor | None:
        """The branch's output, before it is added to the residual stream; None if never called."""
        return self.products.get(Group.U, self.products.get(Group.X))


@torch.no_grad()
def measure_layers(network: Network, probe: Probe) -> dict[LayerCheck, dict[str, float]]:
    """Run a forward pass and measure the exact properties of all layers, by property and location.

    For models beyond the theory, only those of their architecture.
    """
    values_by_layer: dict[LayerCheck, dict[str, float]] = defaultdict(dict)
    for layer, location, value in (
        *(() if architecture(probe.model).beyond_theory(probe.model) else _measure_equations(network, probe)),
        *load_checkable(probe.model).properties(network, probe.batch),
    ):
        values_by_layer[layer][location] = value
    return dict(values_by_layer)


def _measure_equations(network: Network, probe: Probe) -> Iterator[LayerMeasurement]:
    """Yield the properties of LayerNorms and blocks by the theory's equations."""
    matrix_products, streams = _record(network, probe)
    yield from _measure_layer_norms(network, probe, matrix_products, streams)
    for block, branches in _branches_by_block(probe, matrix_products).items():
        yield from _measure_block(block, branches, streams, probe)


def _record(network: Network, probe: Probe) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """Run a forward pass; return inputs and outputs of matrix products by parameter, and the streams by stage."""
    with MatrixProducts(network) as products:
        streams = observe(network, probe)
    return products.by_parameter, streams


def _branches_by_block(probe: Probe, matrix_products: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, list[_Branch]]:
    """Group recorded products into the branches of each block, in the order in which they are called."""
    branches: dict[str, _Branch] = {}
    for parameter in parameter_shapes(probe.model):
        name = parameter.name.rpartition(".")[0]
        if not name:
            continue  # stem and head are outside blocks
        branch = branches.setdefault(name, _Branch(name, set(), {}, {}))
        branch.groups.update(parameter.groups)
        if parameter.name in matrix_products:
            inputs, product = matrix_products[parameter.name]
            # A fused product has its groups side by side in the last dimension.
            branch.inputs.update(dict.fromkeys(parameter.groups, inputs))
            branch.products.update(zip(parameter.groups, product.chunk(len(parameter.groups), -1), strict=True))
    # Parameters come in the order of the forward pass within a block, and so do branches.
    blocks: dict[str, list[_Branch]] = defaultdict(list)
    for name, branch in branches.items():
        blocks[name.rpartition(".")[0]].append(branch)
    return blocks


# --- LayerNorm ------------------------------------------------------------------------------------------------------


def _measure_layer_norms(
    network: Network, probe: Probe, matrix_products: Mapping[str, tuple[Tensor, Tensor]], streams: Mapping[str, Tensor]
) -> Iterator[LayerMeasurement]:
    """Yield mean, variance and eps of each LayerNorm."""
    # A tied head reads tokens times the output rescale, so their variance is unknown here.
    rescaled = {parameter.name for parameter in parameter_shapes(probe.model) if parameter.groups == (Group.WE,)}
    shrunk = _shrink(network, probe)
    shrunk_norms = _layer_norms(shrunk, probe, *_record(shrunk, probe))
    for location, (mean, variance) in _layer_norms(network, probe, matrix_products, streams).items():
        values = {LayerCheck.MEAN: mean} | ({} if location in rescaled else {LayerCheck.VARIANCE: variance})
        for layer, value in values.items():
            yield layer, location, value
        if all(layer.is_right(value) for layer, value in values.items()):  # otherwise it has no eps
            # Variances of shrunk tokens are v / eps; dividing by those of the others takes out the output rescale.
            yield LayerCheck.LAYER_NORM_EPS, location, variance / shrunk_norms[location][1]


def _ln_eps(model: Any) -> float:
    eps: float = model.ln_eps
    return eps


def _shrink(network: Network, probe: Probe) -> Network:
    """Return a copy of the network whose residual stream is so small that eps dominates in every LayerNorm."""
    shrunk, eps = copy.deepcopy(network), _ln_eps(probe.model)
    for parameter in parameter_shapes(probe.model):
        if parameter.groups[0] in WRITERS:
            shrunk.get_parameter(parameter.name).mul_(SHRUNK * eps)
    return shrunk


def _layer_norms(
    network: Network, probe: Probe, matrix_products: Mapping[str, tuple[Tensor, Tensor]], streams: Mapping[str, Tensor]
) -> dict[str, tuple[float, float]]:
    """Return `_compare_layer_norm` of each LayerNorm, taken from the inputs of the weights that follow it."""
    stages, eps = list(streams), _ln_eps(probe.model)
    norms = {
        stem: _compare_layer_norm(embedded_BTD, streams[stem], eps)
        for stem, embedded_BTD in load_checkable(probe.model).stems(network, probe.batch).items()
    }
    for parameter in parameter_shapes(probe.model):
        module = parameter.name.rpartition(".")[0]
        if parameter.name not in matrix_products or parameter.groups[0] in (Group.PATCH, Group.U, Group.X):
            continue  # inputs of these are not normalised
        normalised, stage = matrix_products[parameter.name][0], module or stages[-1]
        if module and Group.K in parameter.groups and Group.Q not in parameter.groups:
            # Cross-attention reads the encoder's last stage, which comes just before the decoder's stem.
            stage = f"{module.split('.')[0]}.stem"
        # The branch's own stage is the stream after it; the one before is what its LayerNorm reads.
        norms[parameter.name] = _compare_layer_norm(streams[stages[stages.index(stage) - 1]], normalised, eps)
    return norms


def _compare_layer_norm(inputs_BTD: Tensor, normalised: Tensor, eps: float) -> tuple[float, float]:
    """Return mean, relative to the rms, and variance, relative to v / (v + eps), of normalised tokens.

    `normalised` is (B, T, D), or its average over tokens, (B, D).
    """
    x_BTD, normalised = inputs_BTD.double(), normalised.double()
    centred_BTD = x_BTD - x_BTD.mean(-1, keepdim=True)
    expected = centred_BTD / (centred_BTD.square().mean(-1, keepdim=True) + eps).sqrt()
    if normalised.dim() < expected.dim():
        expected = expected.mean(1)  # the head of images reads the mean over tokens
    variance = normalised.var(-1, correction=0).mean() / expected.square().mean()
    return rms(normalised.mean(-1)) / rms(normalised), variance.item()


# --- blocks ---------------------------------------------------------------------------------------------------------


def _measure_block(
    block: str, branches: list[_Branch], streams: Mapping[str, Tensor], probe: Probe
) -> Iterator[LayerMeasurement]:
    """Yield the checks of a block's branches, and the coefficients of input and branches in the block's output."""
    stages = list(streams)
    input_BTD = streams[stages[stages.index(branches[0].name) - 1]]
    # A branch that was never called gets the coefficient 0, which is judged off.
    updates = [torch.zeros_like(input_BTD) if branch.update is None else branch.update for branch in branches]
    # Regress the block's output on its input and its branches: all coefficients should be 1, and nothing should remain.
    (skip_weight, *weights), remainder = _least_squares(streams[branches[-1].name], input_BTD, *updates)
    yield LayerCheck.WEIGHT, block, skip_weight
    yield LayerCheck.BLOCK_REMAINDER, block, remainder
    for branch, weight in zip(branches, weights, strict=True):
        if Group.U in branch.products:
            attention_weight, scale, attention_remainder = _fit_attention(
                branch, probe.model.heads, causal=load_checkable(probe.model).is_causal(branch.name)
            )
            yield LayerCheck.ATTENTION_REMAINDER, branch.name, attention_remainder
            if LayerCheck.ATTENTION_REMAINDER.is_right(attention_remainder):  # else weight and scale are meaningless
                # A factor on attention's output before u is part of the branch's weight.
                weight *= attention_weight
                yield LayerCheck.LOGITS, branch.name, scale
        elif Group.X in branch.products:
            yield LayerCheck.ACTIVATION, branch.name, _activation_error(branch)
        yield LayerCheck.WEIGHT, branch.name, weight


def _fit_attention(branch: _Branch, heads: int, *, causal: bool) -> tuple[float, float, float]:
    """Fit the input of u by weight * softmax(scale * q k / sqrt(C)) v.

    Returns:
        Weight, scale, and the rms of the residual relative to the input of u; nan if q, k or v was not recorded.
    """
    if not branch.products.keys() >= {Group.Q, Group.K, Group.V}:
        return math.nan, math.nan, math.nan  # nan is judged off

    def split_heads(x_BTD: Tensor) -> Tensor:
        return x_BTD.double().view(*x_BTD.shape[:2], heads, -1).transpose(1, 2)

    q_BHTC, k_BHSC, v_BHSC = (split_heads(branch.products[group]) for group in (Group.Q, Group.K, Group.V))
    logits_BHTS = q_BHTC @ k_BHSC.transpose(-1, -2) / math.sqrt(q_BHTC.shape[-1])
    masked_TS = torch.ones(logits_BHTS.shape[-2:], dtype=torch.bool).triu(1) & causal
    scale, weight, remainder = 1.0, math.nan, math.nan
    for _ in range(NEWTON_STEPS):
        omega_BHTS = (scale * logits_BHTS).masked_fill(masked_TS, -math.inf).softmax(-1)
        centred_BHTS = logits_BHTS - (omega_BHTS * logits_BHTS).sum(-1, keepdim=True)
        # Gauss-Newton: regress on the attention and its derivative by the scale.
        slope_BHTC = (omega_BHTS * centred_BHTS) @ v_BHSC
        (weight, correction), remainder = _least_squares(
            split_heads(branch.inputs[Group.U]), omega_BHTS @ v_BHSC, slope_BHTC
        )
        scale += correction / weight if weight else math.nan  # the slope's coefficient is weight * (change of scale)
    return weight, scale, remainder


def _activation_error(branch: _Branch) -> float:
    """Return the rms difference between activations and the exact GELU, relative to the rms of the GELU."""
    if Group.W not in branch.products:
        return math.nan
    gelu_BTF = torch.from_numpy(GELU.sigma(branch.products[Group.W].double().numpy()))
    return rms(branch.inputs[Group.X].double() - gelu_BTF) / rms(gelu_BTF)


def _least_squares(y: Tensor, *regressors: Tensor) -> tuple[list[float], float]:
    """Return the coefficients of a least-squares fit, and the rms of the residual relative to that of y.

    A regressor that vanishes gets the coefficient 0.
    """
    y_N, x_NR = y.double().flatten(), torch.stack([x.double().flatten() for x in regressors], 1)
    if not (y_N.isfinite().all() and x_NR.isfinite().all()):
        return [math.nan for _ in regressors], math.nan
    # pinv, since branches that are never called make the normal equations singular.
    weights_R = torch.linalg.pinv(x_NR.T @ x_NR, hermitian=True) @ x_NR.T @ y_N
    return weights_R.tolist(), rms(y_N - x_NR @ weights_R) / rms(y_N)
