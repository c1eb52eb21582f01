"""Init std, learning-rate factor and tangent-kernel contribution of each parameter group, as numbers.

Symbols: n is the width, M the MLP ratio, n_patch = patch * patch * channels, n_out the number of classes. n_patch and n
are both 768 in ViT-B/16, but only by accident: they scale differently. s is the meta-parameter of a strategy, None for
standard.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Optimizer = Literal["adamw", "sgd", "muon"]
MlpFactor = Literal["ignore", "include"]
Distribution = Literal["normal", "uniform"]
Domain = Literal["vision", "language"]

PE_STD = 0.02
"""Std of positional embeddings, in all strategies (the paper's experiments)."""
LANGUAGE_STD = 0.02
"""Std of all groups of a language model (table:SLUDGE), except for the family's word embedding, whose std is 1."""

C_QKV, C_U, C_W, C_X = 1 / 2, 1 / 3, 2 / 5, 8 / 5
"""Init hyperparameters C_G of the bulk in the paper's vision experiments, all of order one."""


class Group(StrEnum):
    """A set of parameters that share an init std and a learning-rate factor.

    Ordered from stem to head, as tables list them.
    """

    PATCH = "patch"
    """Patchify weight, n x n_patch."""
    WE = "we"
    """Word embedding, n_vocab x n; with a tied head, the head as well."""
    PE = "pe"
    """Positional embedding, T x n."""
    GAIN = "gain"
    """Gains of RMSNorms, less 1: vectors that start from 0."""
    Q = "q"
    K = "k"
    V = "v"
    U = "u"
    """Attention output projection."""
    W = "w"
    """MLP input layer; of SwiGLU, with the gate."""
    X = "x"
    """MLP output layer."""
    HEAD = "head"
    """Weight of classifier or untied language head, n_out x n."""
    HEAD_BIAS = "head_bias"


BULK = frozenset({Group.Q, Group.K, Group.V, Group.U, Group.W, Group.X})
"""Groups inside the residual blocks; `map_point` keeps the size of their steps."""


@dataclass(frozen=True)
class Dims:
    """Dimensions of a model that scalings depend on; for language, n_patch is None and n_out the vocabulary.

    With a tied head, which is the word embedding, strategies rescale the outputs. Keys, and values, have `kv_share` of
    the width.
    """

    domain: Domain
    width: int
    n_patch: int | None
    n_out: int
    mlp_ratio: int
    tied_head: bool = False
    kv_share: float = 1.0


def init_std(group: Group, dims: Dims, s: float | None) -> float:
    """Return the std of a group's initial values; 0 for the head bias and gains.

    Vision: eq:init-preview-stem .. eq:init-preview-head, and eq:init-preview-Meta-head for the head with s; standard
    has the stds of s = 0. Language: table:SLUDGE; the [pad] row of the word embedding is zero whatever the std. An
    untied language head has the head's std in the family, and that of all else under standard.
    """
    n = dims.width
    if group in (Group.HEAD_BIAS, Group.GAIN):
        return 0.0
    if group is Group.WE:
        return LANGUAGE_STD if s is None else 1.0
    if dims.domain == "language":
        return LANGUAGE_STD if group is not Group.HEAD or s is None else math.pow(n, -(1 + s) / 2)
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
            return math.pow(n, -(1 + (s or 0.0)) / 2)  # standard: the std of s = 0


def init_distribution(group: Group, domain: Domain) -> Distribution:
    """Return the distribution of a group's initial values."""
    return "uniform" if domain == "vision" and group in BULK else "normal"


def output_rescale(width: int, s: float | None) -> float:
    """Return N, the factor of the logits of a tied head; 1 for standard.

    N = n^(-(1+s)/2) is the std of an untied head (eq:init-preview-Meta-head), since the word embedding has std 1.
    """
    return 1.0 if s is None else math.pow(width, -(1 + s) / 2)


def lr_factor(group: Group, dims: Dims, s: float | None, optimizer: Optimizer, mlp_factor: MlpFactor) -> float:
    """Return the relative learning-rate factor Lambda_G; 1 for standard.

    eq:AdamWlambdaG-preview-stem .. eq:AdamWlambdaG-preview-head, which differ by the size of the gradient from
    eq:SGDlambdaG-preview-stem .. eq:SGDlambdaG-preview-head; s is foot:Meta2. The paper has no gains: they
    are vectors beside activations of order one, and get an embedding's factor.

    Args:
        group: the parameter group.
        dims: dimensions of the model.
        s: meta-parameter of the strategy; None for standard.
        optimizer: whose factors; those of Muon outside the bulk, whose matrices have `spectral_factor`, are AdamW's.
        mlp_factor: `ignore` sets M = 1, as the paper's experiments do (table:ViT-NTK).
    """
    if s is None:
        return 1.0
    n, adamw = dims.width, optimizer != "sgd"
    mlp_ratio = dims.mlp_ratio if mlp_factor == "include" else 1
    # One power of n per formula: groups that share it get the same float, and so one optimizer group.
    embedding = math.pow(n, (s - 1) / 2 if adamw else s)
    bulk = math.pow(n, (s - 3) / 2 if adamw else s - 1)
    match group:
        case Group.PATCH:
            assert dims.n_patch is not None
            return embedding / dims.n_patch
        case Group.WE | Group.PE | Group.GAIN:
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


def spectral_factor(fan_out: int, fan_in: int, s: float | None) -> float:
    """Return the factor of a matrix whose step is orthogonalised: the spectral norm of a step over lr.

    A step must have a spectral norm of order sqrt(fan_out / fan_in) to change activations of order one by order lr at
    every width (Yang, Simon, Bernstein, arXiv 2310.17813, eq. 1; for Muon arXiv 2512.05620). That is maximal update.
    Standard has the max(1, fan_out / fan_in) under the root that Jordan's Muon and torch have, which is the same but
    where a matrix narrows.
    """
    ratio = fan_out / fan_in
    return math.sqrt(max(1.0, ratio) if s is None else ratio)


def wd_factor(group: Group, factor: float, decay_pe: bool = True) -> float:
    """Return the factor of wd for an optimizer that decays by (group's lr) * weight_decay, as torch's do.

    eq:AdamW4 decays every parameter by eta_t * wd, without Lambda_G. Torch decays by eta_t * Lambda_G * weight_decay,
    so Lambda_G (`factor`) is divided out. The head bias never decays.
    """
    if group is Group.HEAD_BIAS or (group is Group.PE and not decay_pe):
        return 0.0
    return 1 / factor  # so that factor * wd_factor = 1


# --- contributions to the tangent kernel ------------------------------------------------------------------------------


def tangent_contribution(raw: float, factor: float, optimizer: Optimizer, count: int) -> float:
    """Return a group's contribution to the tangent kernel of an optimizer.

    eq:NTK-SGD, or eq:NTK-AdamW with the paper's estimate of |g|, the rms of df/dtheta over the group. A step of Muon
    has no tangent kernel; what stands for it is factor * |df/dtheta|, by which a step of spectral norm `factor` moves
    the output if its gradient has rank one.

    Args:
        raw: sum over the group's parameters of df_i/dtheta df_i/dtheta.
        factor: learning-rate factor of the group.
        optimizer: whose steps the group takes, see `steps_of`.
        count: number of parameters with a gradient; for a word embedding, those of one token.
    """
    match optimizer:
        case "sgd":
            return factor * raw
        case "adamw":
            return factor * math.sqrt(count * raw)
        case "muon":
            return factor * math.sqrt(raw)


def steps_of(group: Group, optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose steps a group takes: outside the bulk, those of a run with Muon are AdamW's."""
    return "adamw" if optimizer == "muon" and group not in BULK else optimizer


def adamw_order_one(group: Group, order_one: float, dims: Dims, count: int, mlp_factor: MlpFactor) -> float:
    """Return `tangent_contribution` under AdamW with the paper's factors, given `Kernels.order_one`.

    AdamW's factors are SGD's times the paper's estimate of |g|, so no power of the width is left here either. What
    remains is the square root of how many tensors or tokens share the group, and M if the factors ignore it. `count` is
    that of `tangent_contribution`.
    """
    # Exact: a group has a whole number of equal tensors, or of tokens.
    ratio = count // _estimated_count(group, dims)
    if mlp_factor == "ignore":
        # Factors with M divide by sqrt(M) for w and by M for x; under the root these are M and M^2.
        ratio *= {Group.W: dims.mlp_ratio, Group.X: dims.mlp_ratio**2}.get(group, 1)
    return math.sqrt(ratio * order_one)


def _estimated_count(group: Group, dims: Dims) -> int:
    """Return the number of parameters in the paper's estimate of |g|: those of one tensor, or of one token."""
    match group:
        case Group.PATCH:
            assert dims.n_patch is not None
            return dims.n_patch * dims.width
        case Group.WE | Group.PE | Group.GAIN:
            return dims.width
        case Group.Q | Group.K | Group.V | Group.U:
            return dims.width**2
        case Group.W | Group.X:
            return dims.mlp_ratio * dims.width**2
        case Group.HEAD:
            return dims.n_out * dims.width
        case Group.HEAD_BIAS:
            return dims.n_out
