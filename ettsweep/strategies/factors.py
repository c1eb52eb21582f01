"""Parameter groups, init std and relative factors of each, and what they contribute to the tangent kernel, as numbers.

n is the width, M the MLP ratio, n_patch = patch * patch * channels, n_out the number of classes. n_patch and
n are both 768 in ViT-B/16, by accident: they scale differently. s is the meta-parameter of a strategy, None
for standard.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Optimizer = Literal["adamw", "sgd"]
MlpFactor = Literal["ignore", "include"]
Distribution = Literal["normal", "uniform"]
Domain = Literal["vision", "language"]

PE_STD = 0.02
"""Std of positional embeddings, in all strategies (the paper's experiments)."""
LANGUAGE_STD = 0.02
"""Std of all of a language model in the standard strategy (table:SLUDGE); the family has C_WE = 1 instead."""

C_QKV, C_U, C_W, C_X = 1 / 2, 1 / 3, 2 / 5, 8 / 5
"""Order-one init hyperparameters of the bulk, as the paper's vision experiments choose them."""


class Group(StrEnum):
    """Set of parameters with one init std and one relative learning-rate factor."""

    PATCH = "patch"
    """Patchify weight, n x n_patch."""
    WE = "we"
    """Word embedding, n_vocab x n, tied to the head."""
    PE = "pe"
    """Positional embedding, T x n."""
    Q = "q"
    K = "k"
    V = "v"
    U = "u"
    """Attention out-projection."""
    W = "w"
    """MLP in."""
    X = "x"
    """MLP out."""
    HEAD = "head"
    """Classifier weight, n_out x n."""
    HEAD_BIAS = "head_bias"


BULK = frozenset({Group.Q, Group.K, Group.V, Group.U, Group.W, Group.X})
"""Groups inside the residual blocks; `map_point` maps (lr, wd) so that their step size stays."""


@dataclass(frozen=True)
class Dims:
    """What the scalings depend on; of language, n_patch is None and n_out the vocabulary."""

    domain: Domain
    width: int
    n_patch: int | None
    n_out: int
    mlp_ratio: int


def init_std(group: Group, dims: Dims, s: float | None) -> float:
    """Return the std of a group's initial values; 0 for the head bias.

    Vision: eq:init-preview-stem .. eq:init-preview-head; the head with s is eq:init-preview-Meta-head; standard has
    the stds of s = 0. Language: table:SLUDGE; the row of [pad] is zero whatever the std.
    """
    if group is Group.WE:
        return LANGUAGE_STD if s is None else 1.0
    if dims.domain == "language":
        return LANGUAGE_STD
    n = dims.width
    match group:
        case Group.PATCH:
            assert dims.n_patch is not None
            return 1 / math.sqrt(dims.n_patch)
        case Group.PE:
            return PE_STD
        case Group.Q | Group.K | Group.V:
            return math.sqrt(C_QKV / n)
        case Group.U:
            return math.sqrt(C_U / n)
        case Group.W:
            return math.sqrt(C_W / n)
        case Group.X:
            return math.sqrt(C_X / (dims.mlp_ratio * n))
        case Group.HEAD:
            return math.pow(n, -(1 + (s or 0.0)) / 2)
        case Group.HEAD_BIAS:
            return 0.0


def init_distribution(group: Group, domain: Domain) -> Distribution:
    """Return which distribution a group's initial values follow."""
    return "uniform" if domain == "vision" and group in BULK else "normal"


def output_rescale(width: int, s: float | None) -> float:
    """Return N, which multiplies the logits of a tied head; 1 in the standard strategy.

    n^(-(1+s)/2): what the std of a head of its own is (eq:init-preview-Meta-head), since the word embedding's is 1.
    """
    return 1.0 if s is None else math.pow(width, -(1 + s) / 2)


def lr_factor(group: Group, dims: Dims, s: float | None, optimizer: Optimizer, mlp_factor: MlpFactor) -> float:
    """Return the relative learning-rate factor Lambda_G; 1 in the standard strategy.

    eq:AdamWlambdaG-preview-stem .. eq:AdamWlambdaG-preview-head, which differ by the size of the gradient from
    eq:SGDlambdaG-preview-stem .. eq:SGDlambdaG-preview-head; s is foot:Meta2. `mlp_factor`: `ignore` takes M = 1, as
    the paper's experiments do (table:ViT-NTK).
    """
    if s is None:
        return 1.0
    n, adamw = dims.width, optimizer == "adamw"
    mlp_ratio = dims.mlp_ratio if mlp_factor == "include" else 1
    # One power of n per formula: groups that share it get the same float, and so one optimizer group.
    embedding = math.pow(n, (s - 1) / 2 if adamw else s)
    bulk = math.pow(n, (s - 3) / 2 if adamw else s - 1)
    match group:
        case Group.PATCH:
            assert dims.n_patch is not None
            return embedding / dims.n_patch
        case Group.WE | Group.PE:
            return embedding
        case Group.Q | Group.K | Group.V | Group.U:
            return bulk
        case Group.W:
            return bulk / math.sqrt(mlp_ratio) if adamw else bulk
        case Group.X:
            return bulk / mlp_ratio
        case Group.HEAD:
            return 1 / (n * math.sqrt(dims.n_out)) if adamw else 1 / n
        case Group.HEAD_BIAS:
            return 1 / math.sqrt(dims.n_out) if adamw else 1.0


def wd_factor(group: Group, factor: float, decay_pe: bool = True) -> float:
    """Return what multiplies wd in an optimizer that multiplies the decay by the group's lr.

    eq:AdamW4 decays every parameter by eta_t * wd, without Lambda_G; torch decays by the group's lr, which is
    eta_t * Lambda_G, times weight_decay. `factor` is the group's `lr_factor`. The head bias never decays.
    """
    if group is Group.HEAD_BIAS or (group is Group.PE and not decay_pe):
        return 0.0
    return 1 / factor


# --- contributions to the tangent kernel ------------------------------------------------------------------------------


def tangent_contribution(raw: float, factor: float, optimizer: Optimizer, count: int) -> float:
    """Return a group's contribution to the tangent kernel that an optimizer moves the function by.

    eq:NTK-SGD, or eq:NTK-AdamW with |g| as the paper estimates it: the root mean square of df/dtheta over the group.

    Args:
        raw: the sum over the group's parameters of df_i/dtheta df_i/dtheta.
        factor: its learning-rate factor.
        optimizer: whose steps.
        count: the number of parameters that have a gradient; of a word embedding, those of one word.
    """
    return factor * raw if optimizer == "sgd" else factor * math.sqrt(count * raw)


def adamw_order_one(group: Group, order_one: float, dims: Dims, count: int, mlp_factor: MlpFactor) -> float:
    """Return what `tangent_contribution` is under AdamW with the paper's factors, from `Kernels.order_one`.

    The factors are those of SGD times the paper's estimate of |g|, so that no power of the width is left here either,
    but the square root of how many tensors or tokens share the group, and the M that the factors ignore. `count` is as
    in `tangent_contribution`.
    """
    ratio = count // _estimated_count(group, dims)
    if mlp_factor == "ignore":
        ratio *= {Group.W: dims.mlp_ratio, Group.X: dims.mlp_ratio**2}.get(group, 1)
    return math.sqrt(ratio * order_one)


def _estimated_count(group: Group, dims: Dims) -> int:
    """Return the parameters that the paper counts in its estimate of |g|: those of one tensor, or of one token."""
    match group:
        case Group.PATCH:
            assert dims.n_patch is not None
            return dims.n_patch * dims.width
        case Group.WE | Group.PE:
            return dims.width
        case Group.Q | Group.K | Group.V | Group.U:
            return dims.width**2
        case Group.W | Group.X:
            return dims.mlp_ratio * dims.width**2
        case Group.HEAD:
            return dims.n_out * dims.width
        case Group.HEAD_BIAS:
            return dims.n_out
