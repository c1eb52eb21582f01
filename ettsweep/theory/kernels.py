"""Kernels and tangent kernels of a Transformer at initialisation, at leading order in the width (the paper's Part I).

Shapes: a kernel is an array over pairs of positions, (P, P). A position is a token of a sample: P = B T, tokens run
fastest.
Vision: B samples of T patches. Language: B texts of T tokens, for encoder-decoders B sources of S tokens (R = B S
positions) as well.
s is the meta-parameter of a strategy, None for standard.

Nothing here uses the init stds or learning-rate factors of `strategies.factors`, with which models train: predictions
come from the paper's statements in `theory.paper`, which makes `check-scaling` an independent test.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ettsweep.strategies.factors import Dims, Group
from ettsweep.theory.paper import fan_in, group_variances, output_scale
from ettsweep.theory.recursion import BRANCHES, Array, Recursion, ResidualStream

REPLICAS = 5
"""Independent samples of the whole recursion. Their scatter gives standard errors that include accumulated errors."""

DRAWS = 320
"""Samples of each attention's logits, over all replicas: errors of about 1e-4 at C_Q C_K = 1/4 (vision models)."""


@dataclass(frozen=True)
class Estimate:
    """A predicted array, and its standard error due to sampling attention, of the same shape."""

    value: Array
    error: Array


@dataclass(frozen=True)
class Stage:
    """A stage of the forward pass: stem, residual branch or head.

    Attributes:
        name: such as `stem`, `blocks.0.attention`, `decoder.1.cross`, `head`.
        groups: its parameter groups.
        kernel: G of the residual stream after it, E[(1/n) sum_i z_i z_i]; for the head, E[z_i z_i] of one output.
    """

    name: str
    groups: tuple[Group, ...]
    kernel: Estimate


@dataclass(frozen=True)
class Contact:
    """Extra terms of single output components because the head is tied to the word embedding.

    See foot:long and eq:LaT-grad-cross. In these components tangent kernels are also smaller than predicted, by what
    LayerNorm projects away. Compare kernels only in components that no position reads.

    Attributes:
        logit: mean logit of the token that the decoder reads at each position, (P,).
        tangent: cross term between the gradients of stem and head in the tangent kernel at positions (p1, p2), of the
            component (token read at p2, token read at p1), (P, P); without a learning-rate factor.
    """

    logit: Estimate
    tangent: Estimate


@dataclass(frozen=True)
class Kernels:
    """Predictions for one model, one strategy and one small batch.

    Attributes:
        stages: in the order of the forward pass. The outputs' kernel is (B, B) for vision, pooled over tokens, and
            (P, P) for language, over the decoder's positions and without the contact term.
        order_one: each group's contribution to the outputs' tangent kernel, with the paper's SGD factors (including M;
            those of s, or of s = 0 for standard) and lambda_G = 1. It depends on the width only through C_G, which
            grow in language models, since their stds are 0.02 at every width.
        tangent: the same without factors: the sum over the group's parameters of df_i/dtheta df_i/dtheta.
        contact: extra terms of a tied head; None for other heads.
    """

    stages: tuple[Stage, ...]
    order_one: dict[Group, Estimate]
    tangent: dict[Group, Estimate]
    contact: Contact | None = None


class NetworkShape(Protocol):
    """The fields of a model that kernels depend on besides `Dims`."""

    @property
    def depth(self) -> int: ...
    @property
    def ln_eps(self) -> float: ...


def vit_kernels(
    model: NetworkShape,
    dims: Dims,
    s: float | None,
    inputs_PP: Array,
    samples: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Kernels:
    """Predict the kernels of a Vision Transformer; only `tangent` and the head depend on its width, n_patch and M.

    Args:
        model: depth and LayerNorm eps.
        dims: dimensions that the strategy depends on.
        s: meta-parameter of the strategy; None for standard.
        inputs_PP: G0, products of patches averaged over the numbers of a patch (eq:input-kernel-vision).
        samples: B.
        draws: samples of each attention's logits.
        seed: seed of the draws.
    """
    variances, tokens = group_variances(dims, s), len(inputs_PP) // samples

    def forward(recursion: Recursion) -> _Pass:
        # Samples share the embedding of a place: 1 wherever two tokens have the same place.
        pe_PP = np.tile(np.eye(tokens), (samples, samples))
        kernel = variances[Group.PATCH] * inputs_PP + variances[Group.PE] * pe_PP
        stem = ResidualStream(kernel, {Group.PATCH: inputs_PP, Group.PE: pe_PP})
        streams = {"stem": stem, **dict(recursion.run_blocks(stem, "blocks", model.depth, causal=False))}
        pooled = _last_stream(streams).normalised(model.ln_eps).pooled(samples)
        # Gradients by earlier weights pass through the head's, which have this variance.
        tangent = {group: variances[Group.HEAD] * kernel for group, kernel in pooled.tangent.items()}
        tangent |= {Group.HEAD: pooled.kernel, Group.HEAD_BIAS: np.ones((samples, samples))}
        # n^-s comes from the head's std; the tangent kernel of `order_one` is without it.
        outputs = dims.width ** -(s or 0.0) * variances[Group.HEAD] * pooled.kernel
        return _Pass(_kernels_by_stage(streams) | {"head": outputs}, tangent)

    recursion = Recursion(variances, model.ln_eps, samples)
    return _average_passes(
        forward, recursion, draws, seed, dims, s, {"stem": (Group.PATCH, Group.PE), "head": (Group.HEAD,)}
    )


def kernels_at_width(kernels: Kernels, dims: Dims, s: float | None) -> Kernels:
    """Convert a Vision Transformer's kernels to another width and strategy, without another recursion.

    Args:
        kernels: kernels at any width and strategy.
        dims: dimensions at the new width.
        s: meta-parameter of the new strategy.
    """
    head = _scale(kernels.order_one[Group.HEAD], output_scale(dims, s) * group_variances(dims, s)[Group.HEAD])
    return replace(
        kernels,
        stages=(*kernels.stages[:-1], replace(kernels.stages[-1], kernel=head)),
        tangent=_unscaled_tangent(kernels.order_one, dims, s),
    )


def encdec_kernels(
    model: NetworkShape,
    dims: Dims,
    s: float | None,
    source_BS: NDArray[np.int64],
    previous_BT: NDArray[np.int64],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Kernels:
    """Predict the kernels of an encoder-decoder, all of which depend on width and M through C_G.

    Args:
        model: depth of each stack and LayerNorm eps.
        dims: dimensions that the strategy depends on.
        s: meta-parameter of the strategy; None for standard.
        source_BS: tokens that the encoder reads, without [pad].
        previous_BT: tokens that the decoder reads, without [pad].
        draws: samples of each attention's logits.
        seed: seed of the draws.
    """
    variances, samples = group_variances(dims, s), len(source_BS)

    def forward(recursion: Recursion) -> _Pass:
        streams = {"encoder.stem": _embedded(source_BS, variances).normalised(model.ln_eps)}
        streams |= recursion.run_blocks(_last_stream(streams), "encoder", model.depth, causal=False)
        source = _last_stream(streams).normalised(model.ln_eps)
        streams["decoder.stem"] = stem = _embedded(previous_BT, variances).normalised(model.ln_eps)
        streams |= recursion.run_blocks(stem, "decoder", model.depth, causal=True, source=source)
        contact = _Contact(previous_BT, variances, model.ln_eps, stem.kernel)
        return _text_pass(streams, variances, model.ln_eps, dims, s, contact)

    return _text_kernels(forward, model, dims, s, samples, draws, seed)


def gpt_kernels(
    model: NetworkShape,
    dims: Dims,
    s: float | None,
    previous_BT: NDArray[np.int64],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Kernels:
    """Predict the kernels of a decoder-only Transformer, all of which depend on width and M through C_G.

    Args:
        model: depth and LayerNorm eps.
        dims: dimensions that the strategy depends on.
        s: meta-parameter of the strategy; None for standard.
        previous_BT: tokens that are read, without [pad].
        draws: samples of each attention's logits.
        seed: seed of the draws.
    """
    variances, samples = group_variances(dims, s), len(previous_BT)

    def forward(recursion: Recursion) -> _Pass:
        stem = _embedded(previous_BT, variances)
        streams = {"stem": stem, **dict(recursion.run_blocks(stem, "blocks", model.depth, causal=True))}
        contact = _Contact(previous_BT, variances, model.ln_eps) if dims.tied_head else None
        return _text_pass(streams, variances, model.ln_eps, dims, s, contact)

    return _text_kernels(forward, model, dims, s, samples, draws, seed)


def _embedded(tokens_BT: NDArray[np.int64], variances: Mapping[Group, float]) -> ResidualStream:
    """Return the embedded tokens."""
    samples, tokens = tokens_BT.shape
    # Rows of the embedding are independent: the kernel of two tokens is 1 if they are equal, and 0 otherwise.
    words_PP = (tokens_BT.reshape(-1, 1) == tokens_BT.reshape(1, -1)).astype(np.float64)
    pe_PP = np.tile(np.eye(tokens), (samples, samples))
    kernel = variances[Group.WE] * words_PP + variances[Group.PE] * pe_PP
    return ResidualStream(kernel, {Group.WE: words_PP, Group.PE: pe_PP})


def _text_pass(
    streams: Mapping[str, ResidualStream],
    variances: Mapping[Group, float],
    eps: float,
    dims: Dims,
    s: float | None,
    contact: "_Contact | None",
) -> "_Pass":
    """Return a pass that ends with a language head on the last stream; `contact` is that of a tied one."""
    decoded, scale = _last_stream(streams), output_scale(dims, s)
    final, head = decoded.normalised(eps), variances[Group.WE if dims.tied_head else Group.HEAD]
    tangent = {group: head * kernel for group, kernel in final.tangent.items()}
    if dims.tied_head:
        # The tied embedding has gradients both from the stem and as the head.
        tangent[Group.WE] = tangent[Group.WE] + final.kernel
    else:
        tangent[Group.HEAD] = final.kernel
    terms = None
    if contact:
        logit_P, cross_PP = contact.terms(decoded.kernel)
        terms = math.sqrt(scale * dims.width) * logit_P, scale * cross_PP
    return _Pass(_kernels_by_stage(streams) | {"head": scale * head * final.kernel}, tangent, terms)


def _text_kernels(
    forward: "Callable[[Recursion], _Pass]",
    model: NetworkShape,
    dims: Dims,
    s: float | None,
    samples: int,
    draws: int,
    seed: int,
) -> Kernels:
    recursion = Recursion(group_variances(dims, s), model.ln_eps, samples)
    head = Group.WE if dims.tied_head else Group.HEAD
    return _average_passes(forward, recursion, draws, seed, dims, s, {"stem": (Group.WE, Group.PE), "head": (head,)})


@dataclass(frozen=True)
class _Contact:
    """The contact terms of a tied head, as in `Contact`.

    On the skip path, a token's embedding W goes through a normalisation to h = x / sqrt(G + eps), and before that, in
    models whose stem is normalised, through another one to x = W / sqrt(G_stem + eps); otherwise x = W. Their gradients
    also project out x and h. eq:LN-mnemonic neglects this projection, which is right for all vectors but W itself,
    since W lies along x and h. For different tokens at the two positions, the result reduces to eq:LaT-grad-cross.

    Attributes:
        tokens_BT: tokens that the decoder reads.
        variances: C_G by group.
        eps: eps of LayerNorms.
        stem_PP: kernel of x if the stem is normalised.
    """

    tokens_BT: NDArray[np.int64]
    variances: Mapping[Group, float]
    eps: float
    stem_PP: Array | None = None

    def terms(self, stream_PP: Array) -> tuple[Array, Array]:
        """Return the terms in units of N n and of N^2 n, (P,) and (P, P); `stream_PP` is G after the last block."""
        ids_P = self.tokens_BT.reshape(-1)
        words, is_normalised = self.variances[Group.WE], self.stem_PP is not None
        stem_std = math.sqrt(words + self.variances[Group.PE] + self.eps) if is_normalised else 1.0
        std_P = np.sqrt(np.diag(stream_PP) + self.eps)
        # Scalar products divided by n; rows are positions of the first factor: x W, h W, h x, h h.
        xw_PP = words * np.equal.outer(ids_P, ids_P) / stem_std
        hw_PP = xw_PP / std_P[:, None]
        hh_PP = stream_PP / np.outer(std_P, std_P)
        own_P = np.diag(hw_PP)
        # Product of W_p with h_p after x_q and h_q are projected out.
        term_PP = own_P[:, None] - hh_PP * hw_PP.T
        if self.stem_PP is not None:
            hx_PP = self.stem_PP / std_P[:, None]
            term_PP = term_PP - hx_PP * (xw_PP.T - np.diag(hx_PP) * hw_PP.T)
        term_PP = term_PP / (std_P * stem_std)
        return own_P, term_PP + term_PP.T


# --- passes through the recursion, and their mean ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Pass:
    """Result of one pass: kernels by stage, order-one contributions by group, and contact terms (logit, tangent)."""

    stages: dict[str, Array]
    tangent: dict[Group, Array]
    contact: tuple[Array, Array] | None = None


def _last_stream(streams: Mapping[str, ResidualStream]) -> ResidualStream:
    return list(streams.values())[-1]


def _kernels_by_stage(streams: Mapping[str, ResidualStream]) -> dict[str, Array]:
    return {name: stream.kernel for name, stream in streams.items()}


def _average_passes(
    forward: Callable[[Recursion], _Pass],
    recursion: Recursion,
    draws: int,
    seed: int,
    dims: Dims,
    s: float | None,
    end_groups: Mapping[str, tuple[Group, ...]],
) -> Kernels:
    """Average passes with independent samples of attention; `end_groups` are the groups of stem and head."""
    # Each pass has a generator of its own, seeded by its number: independent passes, equal in every check.
    draws_per_pass = math.ceil(draws / REPLICAS)
    passes = [
        forward(replace(recursion, draws=draws_per_pass, rng=np.random.default_rng((seed, i)))) for i in range(REPLICAS)
    ]
    groups = {**BRANCHES, **end_groups}
    stages = (
        # The last component is the kind of stage: `encoder.stem` is a stem, `blocks.0.mlp` an MLP.
        Stage(name, groups[name.rpartition(".")[2]], _estimate(p.stages[name] for p in passes))
        for name in passes[0].stages
    )
    order_one = {group: _estimate(p.tangent[group] for p in passes) for group in Group if group in passes[0].tangent}
    contacts = [p.contact for p in passes if p.contact is not None]
    contact = Contact(*map(_estimate, zip(*contacts, strict=True))) if contacts else None
    return Kernels(tuple(stages), order_one, _unscaled_tangent(order_one, dims, s), contact)


def _unscaled_tangent(order_one: Mapping[Group, Estimate], dims: Dims, s: float | None) -> dict[Group, Estimate]:
    """Divide the paper's SGD factors out of order-one contributions."""

    def scale(group: Group) -> float:
        # Only gradients by the head itself do not pass through its weights, which carry the output scale.
        through_head = group not in (Group.HEAD, Group.HEAD_BIAS)
        return fan_in(group, dims) * (output_scale(dims, s) if through_head else 1.0)

    return {group: _scale(estimate, scale(group)) for group, estimate in order_one.items()}


def _estimate(values: Iterable[Array]) -> Estimate:
    stacked = np.stack(list(values))
    return Estimate(stacked.mean(0), stacked.std(0, ddof=1) / math.sqrt(len(stacked)))


def _scale(estimate: Estimate, scale: float) -> Estimate:
    return Estimate(scale * estimate.value, scale * estimate.error)
