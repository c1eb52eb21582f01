"""Residual blocks of a Transformer, and the base class of all models.

Shapes: B batch, T query tokens, S key tokens, D width, H heads, C channels per head, F = M D hidden units of the MLP.
Weights are named after the paper's groups and have shape (out, in). They are uninitialised until
`build.initialise`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

MASKED_ATTENTION_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Backends for attention with a mask on a GPU; MATH only if the efficient kernel does not support the inputs. cuDNN's
may return NaN gradients with a mask (PyTorch 196678), and flash attention takes no mask."""


class Network(nn.Module, ABC):
    """Base class of models: uninitialised parameters, no buffers, and residual blocks.

    Attributes:
        recompute: whether to use activation checkpointing: the backward pass recomputes each block's activations.
        draws_randomly: whether blocks draw random numbers in training (dropout).
        compiled: whether all blocks are compiled.
    """

    recompute = False
    draws_randomly = False
    compiled = False

    @abstractmethod
    def residual_blocks(self) -> Iterator[nn.Module]:
        """Yield the residual blocks, each once, in the order in which they are called.

        They are the units of compilation, sharding and activation checkpointing.
        """

    def call_block(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        """Call a block; with `recompute`, only its inputs are kept for the backward pass."""
        x_BTD: Tensor
        if self.recompute:
            # Saving the state of random generators takes time, so only if dropout must repeat its mask.
            x_BTD = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=self.draws_randomly)
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
        mask_B11S: Tensor | None,
        dropout: float,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Return the heads' outputs, (B, H, T, C); tokens attend to those where `mask_B11S` is true (None: all).

        Keys and values may have fewer heads than queries, which then share them in groups.
        """
        grouped = {"enable_gqa": True} if k_BHSC.shape[1] != q_BHTC.shape[1] else {}
        if mask_B11S is None or not q_BHTC.is_cuda:
            return F.scaled_dot_product_attention(q_BHTC, k_BHSC, v_BHSC, mask_B11S, dropout, causal, **grouped)
        # Otherwise torch may choose cuDNN's kernel.
        with sdpa_kernel(MASKED_ATTENTION_BACKENDS):
            return F.scaled_dot_product_attention(q_BHTC, k_BHSC, v_BHSC, mask_B11S, dropout, causal, **grouped)


class Attention(AttentionBase):
    """Multi-head self-attention without biases; if causal, tokens attend only to themselves and earlier ones."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.u = nn.Parameter(torch.empty(width, width))

    def forward(self, x_BTD: Tensor, mask_B11T: Tensor | None = None) -> Tensor:
        """Return the branch's output, (B, T, D); tokens attend to those where `mask_B11T` is true (None: all)."""
        B, T, D = x_BTD.shape
        qkv_BTSHC = F.linear(x_BTD, self.qkv).view(B, T, 3, self.heads, D // self.heads)
        # unbind before transpose: autograd then stacks the gradients in the layout of the matrix product.
        q_BHTC, k_BHTC, v_BHTC = (part_BTHC.transpose(1, 2) for part_BTHC in qkv_BTSHC.unbind(2))
        dropout = self.dropout if self.training else 0.0
        z_BHTC = self.attend(q_BHTC, k_BHTC, v_BHTC, mask_B11T, dropout, causal=self.causal)
        return F.linear(z_BHTC.transpose(1, 2).reshape(B, T, D), self.u)


class CrossAttention(AttentionBase):
    """Multi-head cross-attention without biases: the tokens of one sequence attend to another sequence."""

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.q = nn.Parameter(torch.empty(width, width))
        self.kv = nn.Parameter(torch.empty(2 * width, width))
        self.u = nn.Parameter(torch.empty(width, width))

    def forward(self, x_BTD: Tensor, source_BSD: Tensor, mask_B11S: Tensor) -> Tensor:
        """Return the branch's output, (B, T, D); tokens attend to source tokens where `mask_B11S` is true."""
        (B, T, D), S = x_BTD.shape, source_BSD.shape[1]
        q_BHTC = F.linear(x_BTD, self.q).view(B, T, self.heads, D // self.heads).transpose(1, 2)
        kv_BS2HC = F.linear(source_BSD, self.kv).view(B, S, 2, self.heads, D // self.heads)
        k_BHSC, v_BHSC = (part_BSHC.transpose(1, 2) for part_BSHC in kv_BS2HC.unbind(2))
        dropout = self.dropout if self.training else 0.0
        z_BHTC = self.attend(q_BHTC, k_BHSC, v_BHSC, mask_B11S, dropout)
        return F.linear(z_BHTC.transpose(1, 2).reshape(B, T, D), self.u)


class Mlp(nn.Module):
    """Two linear layers without biases, with the exact GELU between them."""

    def __init__(self, width: int, mlp_ratio: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(mlp_ratio * width, width))
        self.x = nn.Parameter(torch.empty(width, mlp_ratio * width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the branch's output, (B, T, D)."""
        h_BTF = F.gelu(F.linear(x_BTD, self.w))
        return F.linear(h_BTF, self.x)


class Block(nn.Module):
    """Pre-norm Transformer block: attention and MLP.

    Args:
        attention: called with the normalised stream, (B, T, D), and further arguments of the block.
        mlp: called with the normalised stream.
        ln_eps: eps of LayerNorms.
        dropout: dropout of both branches.
        gain_width: the width, if norms are RMSNorms with a gain, which starts from 0 and is added to 1; None for
            LayerNorms without parameters.
    """

    def __init__(
        self,
        attention: nn.Module,
        mlp: nn.Module,
        ln_eps: float,
        *,
        dropout: float = 0.0,
        gain_width: int | None = None,
    ) -> None:
        super().__init__()
        self.ln_eps = ln_eps
        self.dropout = dropout
        self.attention_gain, self.mlp_gain = gain_parameter(gain_width), gain_parameter(gain_width)
        self.attention = attention
        self.mlp = mlp

    def forward(self, x_BTD: Tensor, *context: Tensor) -> Tensor:
        """Return the residual stream after the block, (B, T, D); attention gets `context` too, such as a mask."""
        update_BTD = self.attention(normalise(x_BTD, self.attention_gain, self.ln_eps), *context)
        x_BTD = x_BTD + F.dropout(update_BTD, self.dropout, self.training)
        update_BTD = self.mlp(normalise(x_BTD, self.mlp_gain, self.ln_eps))
        return x_BTD + F.dropout(update_BTD, self.dropout, self.training)


def gain_parameter(size: int | None) -> nn.Parameter | None:
    """Return the gain of an RMSNorm; None without a size."""
    return None if size is None else nn.Parameter(torch.empty(size))


def normalise(x_BTD: Tensor, gain_D: Tensor | None, eps: float) -> Tensor:
    """Normalise each token: by `layer_norm`, or with a gain by RMSNorm, to mean square 1 times (1 + gain)^2."""
    if gain_D is None:
        return layer_norm(x_BTD, eps)
    device_type = gain_D.device.type
    if torch.is_autocast_enabled(device_type):
        # In the dtype of weights, as a sharded model gathers them; added before, 1 would round away a small gain.
        gain_D = gain_D.to(torch.get_autocast_dtype(device_type))
    return F.rms_norm(x_BTD, gain_D.shape, 1 + gain_D.to(x_BTD.dtype), eps)


def layer_norm(x_BTD: Tensor, eps: float) -> Tensor:
    """Normalise each token to mean 0 and variance 1; no affine parameters."""
    return F.layer_norm(x_BTD, x_BTD.shape[-1:], eps=eps)
