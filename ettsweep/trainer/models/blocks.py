"""Residual blocks of a Transformer, and what all models have in common.

B batch, T tokens, S tokens that are read from, D width, H heads, C channels per head, F = M D hidden units of the
MLP. Weights are named as the paper's groups, have shape (out, in), and hold no values before `initialise`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

MASKED_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""What attention with a mask takes on a GPU: plain products only where there is no efficient kernel. cuDNN's may return
NaN gradients with a mask (PyTorch 196678), and flash attention knows none."""


class Network(nn.Module, ABC):
    """A model: parameters without values before `initialise`, no buffers, and residual blocks.

    Attributes:
        recompute: whether the backward pass computes each block's activations again.
        draws: whether blocks draw at random in training (dropout).
        compiled: whether blocks are compiled.
    """

    recompute = False
    draws = False
    compiled = False

    @abstractmethod
    def residual_blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks in the order in which they are called; nearly all parameters are in them."""

    def through(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        """Return what a block makes of its inputs; with `recompute`, those alone are kept for the backward pass."""
        x_BTD: Tensor
        if self.recompute:
            x_BTD = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=self.draws)
        else:
            x_BTD = block(*inputs)
        return x_BTD


class AttentionBase(nn.Module):
    """Scaled dot-product attention of several heads."""

    def attend(
        self,
        q_BHTC: Tensor,
        k_BHSC: Tensor,
        v_BHSC: Tensor,
        read_B11S: Tensor | None,
        dropout: float,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Return the heads' new tokens, (B, H, T, C), each from those that `read_B11S` is true for."""
        if read_B11S is None or not q_BHTC.is_cuda:
            return F.scaled_dot_product_attention(q_BHTC, k_BHSC, v_BHSC, read_B11S, dropout, causal)
        with sdpa_kernel(MASKED_KERNELS):
            return F.scaled_dot_product_attention(q_BHTC, k_BHSC, v_BHSC, read_B11S, dropout, causal)


class Attention(AttentionBase):
    """Multi-head self-attention without biases; if causal, each token reads from itself and those before it alone."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.u = nn.Parameter(torch.empty(width, width))

    def forward(self, x_BTD: Tensor, read_B11T: Tensor | None = None) -> Tensor:
        """Return the new tokens, (B, T, D), each from those tokens that `read_B11T` is true for."""
        B, T, D = x_BTD.shape
        qkv_BTSHC = F.linear(x_BTD, self.qkv).view(B, T, 3, self.heads, D // self.heads)
        # Cut before they are transposed: the gradients are then put together in the layout that the product wants.
        q_BHTC, k_BHTC, v_BHTC = (part_BTHC.transpose(1, 2) for part_BTHC in qkv_BTSHC.unbind(2))
        dropout = self.dropout if self.training else 0.0
        z_BHTC = self.attend(q_BHTC, k_BHTC, v_BHTC, read_B11T, dropout, causal=self.causal)
        return F.linear(z_BHTC.transpose(1, 2).reshape(B, T, D), self.u)


class CrossAttention(AttentionBase):
    """Multi-head attention without biases: tokens of one sequence read from those of another."""

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.q = nn.Parameter(torch.empty(width, width))
        self.kv = nn.Parameter(torch.empty(2 * width, width))
        self.u = nn.Parameter(torch.empty(width, width))

    def forward(self, x_BTD: Tensor, source_BSD: Tensor, read_B11S: Tensor) -> Tensor:
        """Return the new tokens, (B, T, D), each from those tokens of the source that `read_B11S` is true for."""
        (B, T, D), S = x_BTD.shape, source_BSD.shape[1]
        q_BHTC = F.linear(x_BTD, self.q).view(B, T, self.heads, D // self.heads).transpose(1, 2)
        kv_BS2HC = F.linear(source_BSD, self.kv).view(B, S, 2, self.heads, D // self.heads)
        k_BHSC, v_BHSC = (part_BSHC.transpose(1, 2) for part_BSHC in kv_BS2HC.unbind(2))
        dropout = self.dropout if self.training else 0.0
        z_BHTC = self.attend(q_BHTC, k_BHSC, v_BHSC, read_B11S, dropout)
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


class Block(nn.Module):
    """Self-attention and MLP, each on normalised tokens and added to the residual stream."""

    def __init__(
        self,
        width: int,
        heads: int,
        mlp_ratio: int,
        ln_eps: float,
        *,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.ln_eps = ln_eps
        self.dropout = dropout
        self.attention = Attention(width, heads, dropout=attention_dropout)
        self.mlp = Mlp(width, mlp_ratio)

    def forward(self, x_BTD: Tensor, read_B11T: Tensor | None = None) -> Tensor:
        """Return the residual stream after the block, (B, T, D), where tokens read from those of `read_B11T`."""
        update_BTD = self.attention(layer_norm(x_BTD, self.ln_eps), read_B11T)
        x_BTD = x_BTD + F.dropout(update_BTD, self.dropout, self.training)
        update_BTD = self.mlp(layer_norm(x_BTD, self.ln_eps))
        return x_BTD + F.dropout(update_BTD, self.dropout, self.training)


def layer_norm(x_BTD: Tensor, eps: float) -> Tensor:
    """Normalise each token to mean 0 and variance 1; no affine parameters."""
    return F.layer_norm(x_BTD, x_BTD.shape[-1:], eps=eps)
