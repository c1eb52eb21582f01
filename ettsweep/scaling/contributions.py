"""What a parameter group contributes to the tangent kernel that an optimizer moves the function by."""

import math

from ettsweep.scaling.factors import Dims, Group, MlpFactor, Optimizer


def tangent_contribution(raw: float, factor: float, optimizer: Optimizer, count: int) -> float:
    """Return a group's contribution to the tangent kernel that an optimizer moves the function by.

    eq:NTK-SGD, or eq:NTK-AdamW with |g| as the paper estimates it: the root mean square of df/dtheta over the group.

    Args:
        raw: the sum over the group's parameters of df_i/dtheta df_i/dtheta.
        factor: its learning-rate factor.
        optimizer: what trains.
        count: the number of parameters that have a gradient; of a word embedding, those of one word.
    """
    return factor * raw if optimizer == "sgd" else factor * math.sqrt(count * raw)


def adamw_order_one(group: Group, order_one: float, dims: Dims, count: int, mlp_factor: MlpFactor) -> float:
    """Return what `tangent_contribution` is under AdamW with the paper's factors, from `Kernels.order_one`.

    The factors are those of SGD times the paper's estimate of |g|, so that no power of the width is left here either,
    but the square root of how many tensors or tokens share the group, and the M that the factors ignore.

    Args:
        group: parameter group.
        order_one: its entry there, at one position or as a mean.
        dims: sizes of the model.
        count: as in `tangent_contribution`.
        mlp_factor: whether M enters the factors.
    """
    more = count // _estimated_count(group, dims)
    if mlp_factor == "ignore":
        more *= {Group.W: dims.mlp_ratio, Group.X: dims.mlp_ratio**2}.get(group, 1)
    return math.sqrt(more * order_one)


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
