"""Pre-norm Vision Transformer: no class token, mean pooling, no biases except the head's.

Shapes: B batch, C channels, H and W height and width of an image, T tokens (patches), P = n_patch numbers of a patch,
D width, K classes.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ettsweep.runs.spec import StrategySpec
from ettsweep.trainer.models.blocks import Attention, Block, Mlp, Network, layer_norm
from ettsweep.trainer.models.vit_spec import VitSpec, n_patch, patches


class Vit(Network):
    """Vision Transformer."""

    def __init__(self, spec: VitSpec) -> None:
        super().__init__()
        self.patch_size = spec.patch_size
        self.ln_eps = spec.ln_eps
        self.patch = nn.Parameter(torch.empty(spec.width, n_patch(spec)))
        self.pe = nn.Parameter(torch.empty(patches(spec), spec.width))
        self.head = nn.Parameter(torch.empty(spec.classes, spec.width))
        self.head_bias = nn.Parameter(torch.empty(spec.classes))
        self.blocks = nn.ModuleList(
            Block(Attention(spec.width, spec.heads), Mlp(spec.width, spec.mlp_ratio), spec.ln_eps)
            for _ in range(spec.depth)
        )

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Return the logits, (B, K)."""
        x_BTD = F.linear(patchify(images_BCHW, self.patch_size), self.patch) + self.pe
        for block in self.blocks:
            x_BTD = self.call_block(block, x_BTD)
        x_BD = layer_norm(x_BTD, self.ln_eps).mean(1)
        return F.linear(x_BD, self.head, self.head_bias)

    def residual_blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks, from first to last."""
        yield from self.blocks


def patchify(images_BCHW: Tensor, patch_size: int) -> Tensor:
    """Cut images into patches, row by row, (B, T, P); within a patch, channels come one after another."""
    B, C, H, W = images_BCHW.shape
    rows, columns = H // patch_size, W // patch_size
    x = images_BCHW.reshape(B, C, rows, patch_size, columns, patch_size)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(B, rows * columns, C * patch_size**2)


def build(spec: VitSpec, strategy: StrategySpec) -> Vit:
    """Return the module; its forward pass does not depend on the strategy."""
    return Vit(spec)


def example_inputs(spec: VitSpec, batch: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, ...]:
    """Return random images."""
    return (torch.randn(batch, spec.channels, spec.image_size, spec.image_size, generator=generator, device=device),)
