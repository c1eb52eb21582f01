"""Residual blocks of a Transformer, before normalisation and residual sum.

B batch, T tokens, D width, H heads, C channels per head, F = M D hidden units of the MLP. Weights are named
as the paper's groups, have shape (out, in), and hold no values before `initialise`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head self-attention without biases: each token reads from all."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.u = nn.Parameter(torch.empty(width, width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the new tokens, (B, T, D)."""
        B, T, D = x_BTD.shape
        qkv_BTSHC = F.linear(x_BTD, self.qkv).view(B, T, 3, self.heads, D // self.heads)
        # Cut before they are transposed: the gradients are then put together in the layout that the product wants.
        q_BHTC, k_BHTC, v_BHTC = (part_BTHC.transpose(1, 2) for part_BTHC in qkv_BTSHC.unbind(2))
        z_BHTC = F.scaled_dot_product_attention(q_BHTC, k_BHTC, v_BHTC)
        return F.linear(z_BHTC.transpose(1, 2).reshape(B, T, D), self.u)


class Mlp(nn.Module):
    """Two layers without biases around the exact GELU."""

    def __init__(self, width: int, mlp_ratio: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(mlp_ratio * width, width))
        self.x = nn.Parameter(torch.empty(width, mlp_ratio * width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the new tokens, (B, T, D)."""
        h_BTF = F.gelu(F.linear(x_BTD, self.w))
        return F.linear(h_BTF, self.x)


def layer_norm(x_BTD: Tensor, eps: float) -> Tensor:
    """Normalise each token to mean 0 and variance 1; no affine parameters."""
    return F.layer_norm(x_BTD, x_BTD.shape[-1:], eps=eps)
