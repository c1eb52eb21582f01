"""Kernels and tangent kernels of a Transformer at initialisation, at leading order in the width (the paper's Part I).

A kernel is an array over pairs of positions, (P, P). A position is a token of a sample: P = B T, tokens run fastest.
Vision: B samples of T patches. Language: B sources of S tokens (R = B S positions) and B targets of T tokens.

Nothing here reads the init stds or learning-rate factors that models are trained with (`factors`): what is predicted is
what the paper says that they achieve, so that `check-scaling` can hold them to it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ettsweep.scaling.attention import SampledAttention, sample_attention
from ettsweep.scaling.factors import BULK, C_QKV, C_U, C_W, C_X, LANGUAGE_STD, PE_STD, Group, MlpFactor, Optimizer
from ettsweep.scaling.gaussian import GELU, Activation, pair_expectations
from ettsweep.spec import EncDecSpec, VitSpec

Array = NDArray[np.float64]


REPLICAS = 5
"""Times that the whole recursion is sampled: errors are the scatter between them, which has all that adds up."""


DRAWS = 320
"""Samples of each attention's logits, in all: errors of some 1e-4 where C_Q C_K = 1/4, as in the vision experiments."""


@dataclass(frozen=True)
class Estimate:
    """A value, and its standard error from the sampling of attention; arrays of one shape."""

    value: Array
    error: Array


@dataclass(frozen=True)
class Stage:
    """A part of the forward pass.

    Attributes:
        name: such as `stem`, `blocks.0.attention`, `decoder.1.cross`, `head`.
        groups: what it is made of.
        kernel: G of the residual stream after it, E[(1/n) sum_i z_i z_i]; of the head, E[z_i z_i] of one output.
    """

    name: str
    groups: tuple[Group, ...]
    kernel: Estimate


@dataclass(frozen=True)
class Contact:
    """What tying the head to the word embedding adds for single components (foot:long, eq:LaT-grad-cross).

    Attributes:
        logit: mean logit of the very token that the decoder reads at a position, (P,).
        tangent: cross term of the gradients of stem and head, in the component of (token read at p2, token read at p1)
            of the tangent kernel at (p1, p2), (P, P); without a learning-rate factor.

    Tangent kernels in these components are also smaller than predicted by what LayerNorm projects away: kernels are to
    be compared in components that no position reads.
    """

    logit: Estimate
    tangent: Estimate


@dataclass(frozen=True)
class Kernels:
    """Predictions for one model, one strategy and one small batch.

    Attributes:
        stages: in the order of the forward pass. The outputs' kernel is (B, B), pooled over tokens, for vision, and
            (P, P) over the decoder's positions, without the contact term, for language.
        order_one: of each group, its contribution to the outputs' tangent kernel with the factors that the paper gives
            SGD (M included; those of s, for standard those of s = 0) and lambda_G = 1. No power of the width is left
            in it but through the C_G of a language model, whose stds are 0.02 at every width.
        tangent: the same without a factor: the sum over the group's parameters of df_i/dtheta df_i/dtheta.
        contact: of a tied head.
    """

    stages: tuple[Stage, ...]
    order_one: dict[Group, Estimate]
    tangent: dict[Group, Estimate]
    contact: Contact | None = None


def vit_kernels(
    model: VitSpec,
    s: float | None,
    inputs_PP: Array,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    activation: Activation = GELU,
) -> Kernels:
    """Return the kernels of a Vision Transformer.

    Args:
        model: gives depth, M, the number of tokens and, for `tangent` alone, width and n_patch.
        s: the strategy's; None for standard.
        inputs_PP: G0, the mean over the numbers of a patch of their products (eq:input-kernel-vision).
        draws: samples of each attention's logits.
        seed: of the sampling.
        activation: of the MLP.
    """
    variances, tokens = group_variances(model, s), (model.image_size // model.patch_size) ** 2
    samples = len(inputs_PP) // tokens

    def recurse(recursion: _Recursion) -> _Prediction:
        pe_PP = np.tile(np.eye(tokens), (samples, samples))
        stream = _Stream(
            variances[Group.PATCH] * inputs_PP + variances[Group.PE] * pe_PP,
            {Group.PATCH: inputs_PP, Group.PE: pe_PP},
        )
        stages = [("stem", stream.kernel)]
        for block in range(model.depth):
            stream = recursion.block(stream, f"blocks.{block}", stages)
        pooled = stream.normalised(model.ln_eps).pooled(samples)
        tangent = {group: variances[Group.HEAD] * kernel for group, kernel in pooled.tangent.items()}
        tangent |= {Group.HEAD: pooled.kernel, Group.HEAD_BIAS: np.ones((samples, samples))}
        stages.append(("head", model.width ** -(s or 0.0) * variances[Group.HEAD] * pooled.kernel))
        return _Prediction(dict(stages), tangent)

    recursion = _Recursion(model, variances, activation, samples)
    return _combine(model, s, _sampled(recursion, recurse, draws, seed))


def at_width(kernels: Kernels, model: VitSpec, s: float | None) -> Kernels:
    """Return the kernels of a Vision Transformer that differs in width and strategy alone, without another recursion.

    Args:
        kernels: those of the other one.
        model: the one that is wanted.
        s: its strategy's; None for standard.
    """
    head = _scaled(kernels.order_one[Group.HEAD], output_scale(model, s) * group_variances(model, s)[Group.HEAD])
    return replace(
        kernels,
        stages=(*kernels.stages[:-1], replace(kernels.stages[-1], kernel=head)),
        tangent=_tangent(kernels.order_one, model, s),
    )


def encdec_kernels(
    model: EncDecSpec,
    s: float | None,
    source_BS: NDArray[np.int64],
    previous_BT: NDArray[np.int64],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    activation: Activation = GELU,
) -> Kernels:
    """Return the kernels of an encoder-decoder.

    Args:
        model: gives depth, M and width, on which the C_G of a language model depend.
        s: the strategy's; None for standard.
        source_BS: tokens that the encoder reads, none of them [pad].
        previous_BT: tokens that the decoder reads, none of them [pad].
        draws: samples of each attention's logits.
        seed: of the sampling.
        activation: of the MLP.
    """
    variances, samples = group_variances(model, s), len(source_BS)
    head = output_scale(model, s)

    def stem(tokens_BT: NDArray[np.int64]) -> _Stream:
        tokens = tokens_BT.shape[1]
        words_PP = (tokens_BT.reshape(-1, 1) == tokens_BT.reshape(1, -1)).astype(np.float64)
        pe_PP = np.tile(np.eye(tokens), (samples, samples))
        kernel = variances[Group.WE] * words_PP + variances[Group.PE] * pe_PP
        return _Stream(kernel, {Group.WE: words_PP, Group.PE: pe_PP}).normalised(model.ln_eps)

    def recurse(recursion: _Recursion) -> _Prediction:
        stream = stem(source_BS)
        stages = [("encoder.stem", stream.kernel)]
        for block in range(model.depth):
            stream = recursion.block(stream, f"encoder.{block}", stages)
        source = stream.normalised(model.ln_eps)
        stream = decoder_stem = stem(previous_BT)
        stages.append(("decoder.stem", stream.kernel))
        for block in range(model.depth):
            stream = recursion.block(stream, f"decoder.{block}", stages, source)
        final = stream.normalised(model.ln_eps)
        tangent = {group: variances[Group.WE] * kernel for group, kernel in final.tangent.items()}
        tangent[Group.WE] = tangent[Group.WE] + final.kernel
        stages.append(("head", head * variances[Group.WE] * final.kernel))
        logit_P, cross_PP = _contact(previous_BT, variances, model.ln_eps, decoder_stem.kernel, stream.kernel)
        logit_P, cross_PP = math.sqrt(head * model.width) * logit_P, head * cross_PP
        return _Prediction(dict(stages), tangent, logit_P, cross_PP)

    recursion = _Recursion(model, variances, activation, samples)
    return _combine(model, s, _sampled(recursion, recurse, draws, seed))


def _contact(
    tokens_BT: NDArray[np.int64], variances: Mapping[Group, float], eps: float, stem_PP: Array, stream_PP: Array
) -> tuple[Array, Array]:
    """Return the contact terms of a tied head in units of N n and of N^2 n: (P,) and (P, P), as in `Contact`.

    On the skip path, a word's embedding W goes through two normalisations, to x = W / sqrt(G_stem + eps) and to
    h = x / sqrt(G + eps). Both also project gradients off x and h, which eq:LN-mnemonic leaves out, rightly but for W
    itself: it lies along them. For different tokens at both positions, eq:LaT-grad-cross is what remains.

    Args:
        tokens_BT: that the decoder reads.
        variances: C_G.
        eps: of LayerNorm.
        stem_PP: kernel of x.
        stream_PP: G of the residual stream at its end.
    """
    same_PP = tokens_BT.reshape(-1, 1) == tokens_BT.reshape(1, -1)
    stem_std = math.sqrt(variances[Group.WE] + variances[Group.PE] + eps)
    std_P = np.sqrt(np.diag(stream_PP) + eps)
    # Products over n, the first factor's position first: x W, h W, h x, h h.
    xw_PP = variances[Group.WE] * same_PP / stem_std
    hw_PP = xw_PP / std_P[:, None]
    hx_PP = stem_PP / std_P[:, None]
    hh_PP = stream_PP / np.outer(std_P, std_P)
    own_P = np.diag(hw_PP)
    # h_p, projected off x_q and h_q, with W_p.
    term_PP = own_P[:, None] - hh_PP * hw_PP.T - hx_PP * (xw_PP.T - np.diag(hx_PP) * hw_PP.T)
    term_PP = term_PP / (std_P * stem_std)
    return own_P, term_PP + term_PP.T


def group_variances(model: VitSpec | EncDecSpec, s: float | None) -> dict[Group, float]:
    """Return the C_G of each group: variance of the initial values times fan-in (eq:init-preview-stem and following).

    Of order one in the vision experiments; of language models, all stds but that of the family's word embedding are
    0.02 at every width (table:SLUDGE), so that C_G grows with the width. The head's is without n^-s.
    """
    if isinstance(model, VitSpec):
        attention = dict.fromkeys((Group.Q, Group.K, Group.V), C_QKV)
        stem_and_head = {Group.PATCH: 1.0, Group.PE: PE_STD**2, Group.HEAD: 1.0}
        return stem_and_head | attention | {Group.U: C_U, Group.W: C_W, Group.X: C_X}
    variance = LANGUAGE_STD**2
    bulk = dict.fromkeys(BULK, model.width * variance) | {Group.X: model.mlp_ratio * model.width * variance}
    return bulk | {Group.WE: variance if s is None else 1.0, Group.PE: variance}


def normalised(kernel_PP: Array, eps: float) -> Array:
    """Return F, the kernel of tokens after LayerNorm, from G, that before it (eq:LN-kernel)."""
    return _layer_norm_scale(kernel_PP, eps) * kernel_PP


def _layer_norm_scale(kernel_PP: Array, eps: float) -> Array:
    scale_P = 1 / np.sqrt(np.diag(kernel_PP) + eps)
    return np.outer(scale_P, scale_P)


def output_scale(model: VitSpec | EncDecSpec, s: float | None) -> float:
    """Return what the outputs' kernel has beside C F: n^-s in the family.

    Vision: eq:init-preview-Meta-head. Language: N^2 n, where N is the output rescale, 1 in the standard strategy.
    """
    if s is None:
        return float(model.width) if isinstance(model, EncDecSpec) else 1.0
    return float(model.width**-s)


def gradient_scale(group: Group, model: VitSpec | EncDecSpec) -> float:
    """Return the power of widths in a group's squared gradient: the inverse of its SGD factor at s = 0, with M.

    eq:NTK-vision-stem1 .. eq:additiveNTK-head; the inverse of eq:SGDlambdaG-preview-stem .. eq:SGDlambdaG-preview-head.
    """
    match group:
        case Group.PATCH:
            assert isinstance(model, VitSpec)
            return float(model.patch_size**2 * model.channels)
        case Group.WE | Group.PE | Group.HEAD_BIAS:
            return 1.0
        case Group.Q | Group.K | Group.V | Group.U | Group.W | Group.HEAD:
            return float(model.width)
        case Group.X:
            return float(model.mlp_ratio * model.width)


def tangent_contribution(raw: Array | float, factor: float, optimizer: Optimizer, count: int) -> Array | float:
    """Return a group's contribution to the tangent kernel that an optimizer moves the function by.

    eq:NTK-SGD, or eq:NTK-AdamW with |g| as the paper estimates it: the root mean square of df/dtheta over the group.

    Args:
        raw: the sum over the group's parameters of df_i/dtheta df_i/dtheta.
        factor: its learning-rate factor.
        optimizer: what trains.
        count: the number of parameters that have a gradient; of a word embedding, those of one word.
    """
    return factor * raw if optimizer == "sgd" else factor * np.sqrt(count * raw)


def adamw_order_one(group: Group, order_one: Array, model: VitSpec | EncDecSpec, mlp_factor: MlpFactor) -> Array:
    """Return what `tangent_contribution` is under AdamW with the paper's factors, from `Kernels.order_one`.

    The factors are those of SGD times the paper's estimate of |g|, so that no power of the width is left here either,
    but the square root of how many tensors or tokens share the group, and the M that the factors ignore.
    """
    result: Array = np.sqrt(_multiplicity(group, model, mlp_factor) * order_one)
    return result


def _multiplicity(group: Group, model: VitSpec | EncDecSpec, mlp_factor: MlpFactor) -> int:
    """Return by how much the parameters of a group are more than the paper counts in its estimate of |g|."""
    vision = isinstance(model, VitSpec)
    ignored = model.mlp_ratio if mlp_factor == "ignore" else 1
    match group:
        case Group.PE:
            return (model.image_size // model.patch_size) ** 2 if isinstance(model, VitSpec) else 2 * model.tokens
        case Group.W:
            return model.depth * (1 if vision else 2) * ignored
        case Group.X:
            return model.depth * (1 if vision else 2) * ignored**2
        case Group.Q | Group.K | Group.V | Group.U:
            return model.depth * (1 if vision else 3)
        case Group.PATCH | Group.WE | Group.HEAD | Group.HEAD_BIAS:
            return 1


# --- the recursion ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stream:
    """The residual stream: its kernel, and what each group has contributed to its tangent kernel, (P, P) each."""

    kernel: Array
    tangent: Mapping[Group, Array]

    def normalised(self, eps: float) -> "_Stream":
        """Return the stream after LayerNorm; its gradient is scaled as its kernel is (eq:LN-mnemonic)."""
        scale_PP = _layer_norm_scale(self.kernel, eps)
        return _Stream(scale_PP * self.kernel, {group: scale_PP * kernel for group, kernel in self.tangent.items()})

    def pooled(self, samples: int) -> "_Stream":
        """Return the mean over the tokens of each sample, (B, B); eq:mean-pool."""
        return _Stream(_pool(self.kernel, samples), {g: _pool(kernel, samples) for g, kernel in self.tangent.items()})

    def plus(self, kernel: Array, *tangents: Mapping[Group, Array]) -> "_Stream":
        """Return the stream with what a residual branch adds to it; skip and branch have no cross terms."""
        total = dict(self.tangent)
        for tangent in tangents:
            for group, added in tangent.items():
                total[group] = total.get(group, 0.0) + added
        return _Stream(self.kernel + kernel, total)


@dataclass(frozen=True)
class _Recursion:
    """What blocks do to a stream."""

    model: VitSpec | EncDecSpec
    variances: Mapping[Group, float]
    activation: Activation
    samples: int
    draws: int = 0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def block(
        self, stream: _Stream, name: str, stages: list[tuple[str, Array]], source: _Stream | None = None
    ) -> _Stream:
        """Return the stream after a block, and add what it is on the way to the stages; a decoder's with a source."""
        stream = self._attend(stream, causal=source is not None)
        stages.append((f"{name}.attention", stream.kernel))
        if source is not None:
            stream = self._attend(stream, source)
            stages.append((f"{name}.cross", stream.kernel))
        stream = self._mlp(stream)
        stages.append((f"{name}.mlp", stream.kernel))
        return stream

    def _attend(self, stream: _Stream, source: _Stream | None = None, *, causal: bool = False) -> _Stream:
        """Return the stream after attention: eq:MHSA-stats-101, eq:Uback .. eq:Qback, eq:promised-MHSA-1 and -2."""
        c, query = self.variances, stream.normalised(self.model.ln_eps)
        read = source or query
        attention = self._attention(query.kernel, read.kernel, causal)
        values = attention.read(read.kernel)
        turned = query.kernel * attention.turn(read.kernel)
        outer = c[Group.U] * c[Group.V]
        inner = outer * c[Group.Q] * c[Group.K]
        added = {
            Group.U: c[Group.V] * values,
            Group.V: c[Group.U] * values,
            Group.K: outer * c[Group.Q] * turned,
            Group.Q: outer * c[Group.K] * turned,
        }
        of_queries = {group: inner * attention.turn(read.kernel) * tangent for group, tangent in query.tangent.items()}
        of_source = {
            group: outer * attention.read(tangent) + inner * query.kernel * attention.turn(tangent)
            for group, tangent in read.tangent.items()
        }
        return stream.plus(outer * values, added, of_queries, of_source)

    def _attention(self, query: Array, source: Array, causal: bool) -> SampledAttention:
        variance = self.variances[Group.Q] * self.variances[Group.K]
        return sample_attention(query, source, variance, self.samples, causal=causal, draws=self.draws, rng=self.rng)

    def _mlp(self, stream: _Stream) -> _Stream:
        """Return the stream after an MLP: eq:GP, eq:promised-MLP."""
        c, hidden = self.variances, stream.normalised(self.model.ln_eps)
        preactivations = c[Group.W] * hidden.kernel
        activations = pair_expectations(self.activation.sigma, preactivations)
        slopes = c[Group.X] * pair_expectations(self.activation.derivative, preactivations)
        added = {Group.X: activations, Group.W: slopes * hidden.kernel}
        passed = {group: c[Group.W] * slopes * tangent for group, tangent in hidden.tangent.items()}
        return stream.plus(c[Group.X] * activations, added, passed)


@dataclass(frozen=True)
class _Prediction:
    """What one pass through the recursion gives: kernels by stage, order-one contributions by group, contact terms."""

    stages: dict[str, Array]
    tangent: dict[Group, Array]
    contact_logit: Array | None = None
    contact_tangent: Array | None = None


def _sampled(
    recursion: _Recursion, recurse: Callable[[_Recursion], _Prediction], draws: int, seed: int
) -> list[_Prediction]:
    """Return the recursion's results with independent samples of attention."""
    each = math.ceil(draws / REPLICAS)
    return [recurse(replace(recursion, draws=each, rng=np.random.default_rng((seed, i)))) for i in range(REPLICAS)]


def _combine(model: VitSpec | EncDecSpec, s: float | None, predictions: list[_Prediction]) -> Kernels:
    first = predictions[0]
    order_one = {group: _estimate(p.tangent[group] for p in predictions) for group in Group if group in first.tangent}
    contact = None
    if first.contact_logit is not None:
        contact = Contact(
            _estimate(p.contact_logit for p in predictions if p.contact_logit is not None),
            _estimate(p.contact_tangent for p in predictions if p.contact_tangent is not None),
        )
    return Kernels(
        tuple(
            Stage(name, _groups(name, model), _estimate(p.stages[name] for p in predictions)) for name in first.stages
        ),
        order_one,
        _tangent(order_one, model, s),
        contact,
    )


def _tangent(
    order_one: Mapping[Group, Estimate], model: VitSpec | EncDecSpec, s: float | None
) -> dict[Group, Estimate]:
    """Return contributions without the paper's SGD factors."""

    def scale(group: Group) -> float:
        through_head = group not in (Group.HEAD, Group.HEAD_BIAS)
        return gradient_scale(group, model) * (output_scale(model, s) if through_head else 1.0)

    return {group: _scaled(estimate, scale(group)) for group, estimate in order_one.items()}


def _estimate(values: Iterable[Array]) -> Estimate:
    stacked = np.stack(list(values))
    return Estimate(stacked.mean(0), stacked.std(0, ddof=1) / math.sqrt(len(stacked)))


def _scaled(estimate: Estimate, scale: float) -> Estimate:
    return Estimate(scale * estimate.value, scale * estimate.error)


def _groups(stage: str, model: VitSpec | EncDecSpec) -> tuple[Group, ...]:
    """Return the parameter groups that a stage's kernel is made with."""
    words = isinstance(model, EncDecSpec)
    match stage.rpartition(".")[2]:
        case "stem":
            return (Group.WE if words else Group.PATCH, Group.PE)
        case "head":
            return (Group.WE,) if words else (Group.HEAD,)
        case "mlp":
            return (Group.W, Group.X)
        case _:
            return (Group.Q, Group.K, Group.V, Group.U)


def _pool(kernel_PP: Array, samples: int) -> Array:
    tokens = len(kernel_PP) // samples
    pooled: Array = kernel_PP.reshape(samples, tokens, samples, tokens).mean((1, 3))
    return pooled
