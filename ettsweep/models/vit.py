"""Pre-norm Vision Transformer: no class token, no biases but the head's, mean pooling.

B batch, C channels, H and W height and width of an image, T tokens (patches), P = n_patch numbers of a patch,
D width, K classes.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ettsweep.models.blocks import Attention, Mlp, layer_norm
from ettsweep.models.shapes import dims
from ettsweep.spec import VitSpec


class Block(nn.Module):
    """Attention and MLP, each on normalised tokens and added to the residual stream."""

    def __init__(self, spec: VitSpec) -> None:
        super().__init__()
        self.ln_eps = spec.ln_eps
        self.attention = Attention(spec.width, spec.heads)
        self.mlp = Mlp(spec.width, spec.mlp_ratio)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the residual stream after the block, (B, T, D)."""
        x_BTD = x_BTD + self.attention(layer_norm(x_BTD, self.ln_eps))
        update_BTD: Tensor = self.mlp(layer_norm(x_BTD, self.ln_eps))
        return x_BTD + update_BTD


class Vit(nn.Module):
    """Vision Transformer; its parameters hold no values before `initialise`.

    Attributes:
        recompute: whether the backward pass computes each block's activations again.
    """

    def __init__(self, spec: VitSpec) -> None:
        super().__init__()
        self.patch_size = spec.patch_size
        self.ln_eps = spec.ln_eps
        self.recompute = False
        tokens = (spec.image_size // spec.patch_size) ** 2
        self.patch = nn.Parameter(torch.empty(spec.width, dims(spec).n_patch))
        self.pe = nn.Parameter(torch.empty(tokens, spec.width))
        self.head = nn.Parameter(torch.empty(spec.classes, spec.width))
        self.head_bias = nn.Parameter(torch.empty(spec.classes))
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.depth))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Return the logits, (B, K)."""
        x_BTD = F.linear(patchify(images_BCHW, self.patch_size), self.patch) + self.pe
        for block in self.blocks:
            # Nothing in a block is drawn at random.
            again = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
            x_BTD = again(x_BTD) if self.recompute else block(x_BTD)
        x_BD = layer_norm(x_BTD, self.ln_eps).mean(1)
        return F.linear(x_BD, self.head, self.head_bias)


def patchify(images_BCHW: Tensor, patch_size: int) -> Tensor:
    """Cut images into patches row by row, (B, T, P); a patch holds its channels one after another."""
    B, C, H, W = images_BCHW.shape
    rows, columns = H // patch_size, W // patch_size
    x = images_BCHW.reshape(B, C, rows, patch_size, columns, patch_size)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(B, rows * columns, C * patch_size**2)
