"""Parts of today's decoders beyond the paper's models: rotary positions, grouped keys and values, SwiGLU.

Shapes: B batch, T tokens, D width, H heads, G heads of keys and values, C channels per head, F hidden units of the MLP.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ettsweep.trainer.models.blocks import AttentionBase, gain_parameter, normalise

ROTARY_BASE = 10_000.0
"""Base of the wavelengths of rotary positions (arXiv 2104.09864)."""


class GroupedAttention(AttentionBase):
    """Causal self-attention without biases, whose keys and values have `kv_heads` heads for groups of query heads.

    Args:
        width: D.
        heads: H.
        kv_heads: G, which divides H.
        norm_eps: eps of the RMSNorm that each head's queries and keys go through; None for none.
        dropout: dropout of attention weights.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, *, norm_eps: float | None, dropout: float) -> None:
        super().__init__()
        self.channels = width // heads
        self.norm_eps = norm_eps
        self.dropout = dropout
        self.q = nn.Parameter(torch.empty(width, width))
        self.kv = nn.Parameter(torch.empty(2 * kv_heads * self.channels, width))
        self.u = nn.Parameter(torch.empty(width, width))
        size = None if norm_eps is None else self.channels
        self.q_gain, self.k_gain = gain_parameter(size), gain_parameter(size)

    def forward(self, x_BTD: Tensor, rotation_2TC: Tensor | None = None) -> Tensor:
        """Return the branch's output, (B, T, D); queries and keys are rotated unless `rotation_2TC` is None."""
        B, T, D = x_BTD.shape
        q_BHTC = F.linear(x_BTD, self.q).view(B, T, -1, self.channels).transpose(1, 2)
        kv_BT2GC = F.linear(x_BTD, self.kv).view(B, T, 2, -1, self.channels)
        k_BGTC, v_BGTC = (part_BTGC.transpose(1, 2) for part_BTGC in kv_BT2GC.unbind(2))
        if self.norm_eps is not None:
            q_BHTC = normalise(q_BHTC, self.q_gain, self.norm_eps)
            k_BGTC = normalise(k_BGTC, self.k_gain, self.norm_eps)
        if rotation_2TC is not None:
            q_BHTC, k_BGTC = rotate(q_BHTC, rotation_2TC), rotate(k_BGTC, rotation_2TC)
        dropout = self.dropout if self.training else 0.0
        z_BHTC = self.attend(q_BHTC, k_BGTC, v_BGTC, None, dropout, causal=True)
        return F.linear(z_BHTC.transpose(1, 2).reshape(B, T, D), self.u)


def rotation(tokens: int, channels: int, device: torch.device) -> Tensor:
    """Return cosine and sine of the angle of each position and channel, (2, T, C), in fp32.

    Channels c and c + C/2 are a pair with one angle, as in Llama's released weights.
    """
    exponents_C = torch.arange(0, channels, 2, device=device).float() / channels
    angles_TC = torch.outer(torch.arange(tokens, device=device).float(), 1.0 / ROTARY_BASE**exponents_C).repeat(1, 2)
    return torch.stack((angles_TC.cos(), angles_TC.sin()))


def rotate(x_BHTC: Tensor, rotation_2TC: Tensor) -> Tensor:
    """Rotate each pair of channels (see `rotation`) by the angle of its position."""
    cosine_TC, sine_TC = rotation_2TC.to(x_BHTC.dtype).unbind(0)
    first, second = x_BHTC.chunk(2, -1)
    return x_BHTC * cosine_TC + torch.cat((-second, first), -1) * sine_TC


class SwiGlu(nn.Module):
    """MLP whose hidden units are gated: x (silu(gate) * w), without biases (arXiv 2002.05202)."""

    def __init__(self, width: int, mlp_ratio: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(2 * mlp_ratio * width, width))
        self.x = nn.Parameter(torch.empty(width, mlp_ratio * width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the branch's output, (B, T, D)."""
        gate_BTF, h_BTF = F.linear(x_BTD, self.w).chunk(2, -1)
        return F.linear(F.silu(gate_BTF) * h_BTF, self.x)
