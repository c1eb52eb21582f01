"""FLOPs and activations against torch's own account of them and published numbers; peaks against data sheets."""

import weakref

import pytest
import torch
from support.smallest import SMALLEST
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ettsweep.runs.spec import StrategySpec
from ettsweep.trainer.models.build import build_model, example_inputs
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.model_cost import activation_bytes, peak_flops, train_flops_per_sample
from ettsweep.trainer.models.registry import architecture, model_spec, named_models
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import ModelSpec

SHAPES: list[ModelSpec] = [
    *(model.model_copy(update={"depth": min(model.depth, 2)}) for model in named_models().values()),
    EncDecSpec(width=12, depth=3, heads=2, mlp_ratio=3, vocabulary=37, tokens=7),
    VitSpec(width=12, depth=3, heads=2, mlp_ratio=3, patch_size=5, image_size=15, channels=2, classes=7),
    VitSpec(width=64, depth=1, heads=8, patch_size=2, image_size=32, classes=10),
]
BATCH = 3


def forward_flops(spec: ModelSpec) -> int:
    return architecture(spec).forward_flops(spec)


def counted(spec: ModelSpec, backward: bool) -> int:
    """Return what torch counts for a batch; on the meta device, with attention as two matrix products."""
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        inputs = [x.to("meta") for x in example_inputs(spec, BATCH, torch.device("cpu"))]
        with torch.set_grad_enabled(backward):
            outputs = build_model(spec, StrategySpec(s=0.0))(*inputs)
        if backward:
            outputs.sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("spec", SHAPES)
def test_flops_are_those_that_torch_counts(spec: ModelSpec) -> None:
    """A training step is three forward passes, but for the gradient of the images."""
    patch = 0
    if isinstance(spec, VitSpec):
        patch = 2 * (spec.image_size // spec.patch_size) ** 2 * (spec.channels * spec.patch_size**2) * spec.width
    assert BATCH * forward_flops(spec) == counted(spec, backward=False)
    assert BATCH * (train_flops_per_sample(spec) - patch) == counted(spec, backward=True)


def test_vit_b16_is_the_published_one() -> None:
    # 196 tokens: 2*196*768*768 + 12 * (24*196*768^2 + 4*196^2*768) + 2*768*1000. Papers and fvcore give 17.6 G
    # multiplications and additions with the class token's 197, 0.6% more.
    assert forward_flops(model_spec("vit-b16")) == 34_943_299_584
    assert train_flops_per_sample(model_spec("vit-b16")) == 104_829_898_752
    assert forward_flops(model_spec("vit-b16")) / 2 == pytest.approx(17.58e9, rel=0.01)


@pytest.mark.parametrize(
    ("device_name", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H200 NVL", "tf32", 417.7),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156),
        ("NVIDIA L40S", "bf16", 362),
        ("Tesla V100-SXM2-32GB", "tf32", 15.7),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("x86_64", "fp32", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("Tesla V100-SXM2-32GB", "bf16", None),
    ],
)
def test_peaks_are_the_dense_ones_of_data_sheets(device_name: str, precision: str, tflops: float | None) -> None:
    assert peak_flops(device_name, precision) == (tflops and pytest.approx(tflops * 1e12))


# --- activations ----------------------------------------------------------------------------------------------------

LONG = EncDecSpec(width=32, depth=5, heads=2, mlp_ratio=2, vocabulary=50, tokens=96, dropout=0.1, attention_dropout=0.1)


def kept_bytes(spec: ModelSpec, samples: int, *, recompute: bool) -> int:
    """Return the bytes that autograd keeps of a forward pass, weights aside."""
    model = build_model(spec, StrategySpec(s=0.0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model.recompute = recompute
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    collected: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            collected[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs: list[weakref.ref[Tensor]] = []
    for block in model.residual_blocks():
        block.register_forward_pre_hook(lambda _, args: inputs.extend(map(weakref.ref, args)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(*example_inputs(spec, samples, torch.device("cpu")))
    for reference in inputs:
        if (tensor := reference()) is not None:  # recomputation may keep it where no hook sees it
            keep(tensor)
    assert outputs.requires_grad
    return sum(collected.values())


def per_sample(spec: ModelSpec, *, recompute: bool = False) -> float:
    return (kept_bytes(spec, 8, recompute=recompute) - kept_bytes(spec, 4, recompute=recompute)) / 4


TODAYS = {"norm": "rms", "positions": "rotary", "mlp": "swiglu", "kv_heads": 1, "qk_norm": True, "head": "untied"}
SMALL = SMALLEST | {
    "long": LONG,
    "gpt, long, with dropout": model_spec("gpt-tiny").model_copy(
        update={"tokens": 256, "dropout": 0.1, "attention_dropout": 0.1}
    ),
    "gpt of today": model_spec("gpt-tiny").model_copy(update=TODAYS | {"depth": 4}),
}


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL)
def test_activations_are_reckoned_as_autograd_keeps_them(spec: ModelSpec) -> None:
    """With recomputation, one block at a time keeps more than its input."""
    assert activation_bytes(spec, recompute=False) == pytest.approx(per_sample(spec), rel=0.1)
    kept = per_sample(spec, recompute=True)
    one, two = (per_sample(spec.model_copy(update={"depth": depth})) for depth in (1, 2))
    block = two - one  # or one of the encoder and one of the decoder
    assert kept + 0.5 * block < activation_bytes(spec, recompute=True) < kept + 1.05 * block
