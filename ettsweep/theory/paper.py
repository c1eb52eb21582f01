"""The paper's initial values and learning-rate factors, stated independently of the code that trains models.

`check-scaling` tests models against this module, so it shares names with `strategies.factors`, but no number. s is the
meta-parameter of a strategy, None for standard; n the width, M the MLP ratio.
"""

import math

from ettsweep.strategies.factors import BULK, Dims, Distribution, Domain, Group, MlpFactor, Optimizer

VISION_VARIANCES = {
    Group.PATCH: 1.0,
    Group.PE: 0.02**2,
    Group.Q: 1 / 2,
    Group.K: 1 / 2,
    Group.V: 1 / 2,
    Group.U: 1 / 3,
    Group.W: 2 / 5,
    Group.X: 8 / 5,
    Group.HEAD: 1.0,
}
"""C_G of the vision experiments, of order one (the text above table:ViT-NTK). The head's does not include n^-s."""

TEXT_STD = 0.02
"""Std of all groups of a language model at every width, except the family's word embedding (table:SLUDGE)."""

MEAN_MAGNITUDE: dict[Distribution, float] = {"normal": math.sqrt(2 / math.pi), "uniform": math.sqrt(3 / 4)}
"""E|z| of a distribution of mean 0 and std 1: one number that tells shapes of equal variance apart."""

MEAN_MAGNITUDE_ERROR: dict[Distribution, float] = {"normal": math.sqrt(1 - 3 / math.pi), "uniform": math.sqrt(1 / 40)}
"""Standard error of the mean magnitude of N values over their rms, times sqrt(N): the delta method gives
Var|z| - E|z| (E|z|^3 - E|z|) + E|z|^2 (E z^4 - 1) / 4 for its square."""


def group_variances(dims: Dims, s: float | None) -> dict[Group, float]:
    """Return C_G of each group: variance of the initial values times fan-in (eq:init-preview-stem and following).

    C_G of a language model's bulk grow with the width, since its stds do not fall with it. C_WE is 1 in the family, and
    so is that of an untied head; under standard both have the std of all else.
    """
    if dims.domain == "vision":
        return VISION_VARIANCES
    variance = TEXT_STD**2
    grown = {group: fan_in(group, dims) * variance for group in (*BULK, Group.PE, Group.WE, Group.HEAD)}
    return grown if s is None else grown | {Group.WE: 1.0, Group.HEAD: 1.0}


def fan_in(group: Group, dims: Dims) -> float:
    """Return the divisor of C_G in eq:init-preview-stem .. eq:init-preview-head; 1 for embeddings and biases.

    A group's squared gradient is proportional to it, so it is also the inverse of the SGD factor at s = 0, including M:
    eq:NTK-vision-stem1 .. eq:additiveNTK-head, eq:SGDlambdaG-preview-stem .. eq:SGDlambdaG-preview-head.
    """
    match group:
        case Group.PATCH:
            # Only image models have this group.
            assert dims.n_patch is not None
            return float(dims.n_patch)
        case Group.WE | Group.PE | Group.GAIN | Group.HEAD_BIAS:
            return 1.0
        case Group.Q | Group.K | Group.V | Group.U | Group.W | Group.HEAD:
            return float(dims.width)
        case Group.X:
            return float(dims.mlp_ratio * dims.width)


def initial_std(group: Group, dims: Dims, s: float | None) -> float:
    """Return the std of initial values, sqrt(C_G / fan-in), times n^(-s/2) for the head; 0 for head bias and gains."""
    variance = group_variances(dims, s).get(group, 0.0) / fan_in(group, dims)
    return math.sqrt(variance * (output_scale(dims, s) if group is Group.HEAD else 1.0))


def initial_distribution(group: Group, domain: Domain) -> Distribution:
    """Return the distribution of initial values: uniform for the bulk of image models, otherwise normal."""
    return "uniform" if domain == "vision" and group in BULK else "normal"


def output_scale(dims: Dims, s: float | None) -> float:
    """Return the factor of C F in the outputs' kernel: n^-s in the family, 1 or (tied head) n for standard.

    A head of its own: eq:init-preview-Meta-head. A tied one: N^2 n, where N is the output rescale, 1 for standard.
    """
    if s is None:
        return float(dims.width) if dims.tied_head else 1.0
    return float(dims.width**-s)


def factor_power(group: Group, s: float | None, optimizer: Optimizer) -> float:
    """Return p, where a group's learning-rate factor scales as n^p; 0 for standard.

    eq:AdamWlambdaG-preview-*, eq:SGDlambdaG-preview-*, with s from foot:Meta2. Muon's matrices have ratios of widths.
    """
    if s is None or group is Group.HEAD_BIAS or (optimizer == "muon" and group in BULK):
        return 0.0
    if group is Group.HEAD:
        return -1.0
    # Under both optimizers, the bulk has one power of n less than the embeddings.
    embedding = s if optimizer == "sgd" else (s - 1) / 2
    return embedding - 1 if group in BULK else embedding


def learning_rate_factor(
    group: Group, dims: Dims, s: float | None, optimizer: Optimizer, mlp_factor: MlpFactor
) -> float:
    """Return a group's learning-rate factor Lambda_G: its power of the width and all else; 1 for standard.

    eq:AdamWlambdaG-preview-*, eq:SGDlambdaG-preview-*; M only if `mlp_factor` includes it (table:ViT-NTK). With Muon,
    the bulk's is the spectral norm of a step, sqrt(fan-out / fan-in) (arXiv 2310.17813), which standard does not let
    fall below 1; the other groups have AdamW's.
    """
    if optimizer == "muon":
        if group not in BULK:
            return learning_rate_factor(group, dims, s, "adamw", mlp_factor)
        fan_outs = {Group.W: float(dims.mlp_ratio), Group.K: dims.kv_share, Group.V: dims.kv_share}  # over the width
        ratio = 1 / dims.mlp_ratio if group is Group.X else fan_outs.get(group, 1.0)
        return math.sqrt(ratio if s is not None or ratio > 1 else 1.0)
    if s is None:
        return 1.0
    divisor = 1.0
    if group is Group.PATCH:
        divisor = fan_in(group, dims)
    elif group in (Group.HEAD, Group.HEAD_BIAS) and optimizer == "adamw":
        divisor = math.sqrt(dims.n_out)
    elif group is Group.X and mlp_factor == "include":
        divisor = float(dims.mlp_ratio)
    elif group is Group.W and mlp_factor == "include" and optimizer == "adamw":
        divisor = math.sqrt(dims.mlp_ratio)
    return float(dims.width ** factor_power(group, s, optimizer)) / divisor
