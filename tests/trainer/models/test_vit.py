from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ettsweep.runs.spec import StrategySpec
from ettsweep.trainer.models.build import build_model, initialise
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.models.vit_spec import VitSpec

NTK = StrategySpec(s=0.0)
DIGITS = model_spec("vit-digits")
SPEC = VitSpec(width=24, depth=2, heads=3, mlp_ratio=2, patch_size=4, image_size=12, channels=3, classes=5, ln_eps=0.01)


def double(spec: VitSpec) -> nn.Module:
    model = build_model(spec, NTK).double()
    initialise(model, spec, NTK, seed=0)
    return model


def images(spec: VitSpec, batch: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, spec.channels, spec.image_size, spec.image_size)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def timm_twin(model: nn.Module, spec: VitSpec) -> tuple[nn.Module, dict[str, str]]:
    """Return timm's Vision Transformer with the same weights, and its name of each of our parameters."""
    timm = pytest.importorskip("timm.models.vision_transformer")
    twin = timm.VisionTransformer(
        img_size=spec.image_size,
        patch_size=spec.patch_size,
        in_chans=spec.channels,
        num_classes=spec.classes,
        embed_dim=spec.width,
        depth=spec.depth,
        num_heads=spec.heads,
        mlp_ratio=spec.mlp_ratio,
        qkv_bias=False,
        class_token=False,
        global_pool="avg",
        fc_norm=False,
        norm_layer=partial(nn.LayerNorm, eps=spec.ln_eps),
    ).double()
    names = {"patch": "patch_embed.proj.weight", "pe": "pos_embed", "head": "head.weight", "head_bias": "head.bias"}
    for i in range(spec.depth):
        names |= {
            f"blocks.{i}.attention.qkv": f"blocks.{i}.attn.qkv.weight",
            f"blocks.{i}.attention.u": f"blocks.{i}.attn.proj.weight",
            f"blocks.{i}.mlp.w": f"blocks.{i}.mlp.fc1.weight",
            f"blocks.{i}.mlp.x": f"blocks.{i}.mlp.fc2.weight",
        }
    theirs = dict(twin.named_parameters())
    ours = dict(model.named_parameters())
    assert names.keys() == ours.keys()
    with torch.no_grad():
        for name, tensor in theirs.items():
            tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        for name, their_name in names.items():
            theirs[their_name].copy_(ours[name].reshape(theirs[their_name].shape))
    return twin, names


@pytest.mark.parametrize("spec", [SPEC, DIGITS])
def test_logits_and_gradients_equal_timms(spec: VitSpec) -> None:
    model = double(spec)
    with torch.no_grad():
        model.get_parameter("head_bias").copy_(torch.arange(spec.classes) / 7)
    twin, names = timm_twin(model, spec)
    x, labels = images(spec), torch.tensor([0, 1, 4])
    logits, expected = model(x), twin(x)
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    ours, theirs = dict(model.named_parameters()), dict(twin.named_parameters())
    gradients = torch.autograd.grad(F.cross_entropy(logits, labels), list(ours.values()))
    expected_gradients = torch.autograd.grad(F.cross_entropy(expected, labels), [theirs[names[name]] for name in ours])
    for name, gradient, other in zip(ours, gradients, expected_gradients, strict=True):
        other = other.reshape(gradient.shape)
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-13, msg=f"gradient of {name}")
