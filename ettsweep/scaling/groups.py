"""Parameter groups of a Transformer, named as in the paper."""

from enum import StrEnum


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
"""Groups inside the residual blocks; `hyperparameters` maps (lr, wd) so that their step size stays."""
