"""Registry of architectures, with a preset for each named model."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from ettsweep.errors import unknown_name
from ettsweep.strategies.factors import Dims
from ettsweep.trainer.models import encdec_spec, gpt_spec, vit_spec
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.models.transformer import Parameter
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import ModelSpec


@dataclass(frozen=True)
class Architecture:
    """An architecture that can be trained. Functions take a model, an instance of `spec`.

    Functions that need torch are given as `module:name` and imported on use, which keeps planning fast.

    Attributes:
        spec: pydantic class of its models.
        presets: named models. `model_name` describes other models by their differences from the first.
        name_letters: letters by which `model_name` abbreviates fields; width, depth and heads are always included.
        dims: model -> dimensions that scaling strategies depend on.
        parameters: model -> all parameters, in the order of the torch module's `named_parameters()`. All blocks must
            have the same ones.
        forward_flops: model -> FLOPs of one sample's forward pass, counting matrix products only, and a multiplication
            with an addition as two.
        activation_bytes: (model, recompute) -> bytes of one sample's activations in fp32.
        build: `module:function`; (model, StrategySpec) -> torch module.
        example_inputs: `module:function`; (model, batch size, generator, device) -> inputs of the torch module.
        check: `module:name` of the `Checkable` for `check-scaling`; None if it cannot be checked.
        draws_randomly: model -> whether a training step draws random numbers.
        can_stack: whether several runs can train as one ensemble (trainer/ensemble/stack.py). Requires that strategies
            do not change the forward pass, and that training draws no random numbers.
        beyond_theory: model -> its parts beyond the theory, in words.
        grids: shipped grid that `init` starts from, by preset; that of the preset's name unless given.
    """

    spec: type[ModelSpec]
    presets: Mapping[str, ModelSpec]
    name_letters: Mapping[str, str]
    dims: Callable[[Any], Dims]
    parameters: Callable[[Any], tuple[Parameter, ...]]
    forward_flops: Callable[[Any], int]
    activation_bytes: Callable[[Any, bool], int]
    build: str
    example_inputs: str
    check: str | None = None
    draws_randomly: Callable[[Any], bool] = lambda model: False
    can_stack: bool = False
    beyond_theory: Callable[[Any], tuple[str, ...]] = lambda model: ()
    grids: Mapping[str, str] = field(default_factory=dict)


_vit16 = partial(VitSpec, depth=12, patch_size=16, image_size=224, classes=1000)
_vit_cifar = partial(VitSpec, width=192, depth=12, heads=3, patch_size=4, image_size=32)
_encdec = partial(EncDecSpec, vocabulary=50265, tokens=514)
_encdec_small = partial(EncDecSpec, depth=2, vocabulary=2048, tokens=64, dropout=0.0, attention_dropout=0.0)

TEXT_LETTERS = {
    "mlp_ratio": "m",
    "vocabulary": "v",
    "tokens": "t",
    "ln_eps": "eps",
    "dropout": "d",
    "attention_dropout": "a",
}
"""Letters of the fields that all models of text have."""

ARCHITECTURES: dict[str, Architecture] = {
    "vit": Architecture(
        spec=VitSpec,
        presets={
            "vit-b16": _vit16(width=768, heads=12),
            "vit-s16": _vit16(width=384, heads=6),
            "vit-ti16": _vit16(width=192, heads=3),
            "vit-mini": VitSpec(width=64, depth=4, heads=4, patch_size=8, image_size=64, classes=2),
            "vit-cifar10": _vit_cifar(classes=10),
            "vit-cifar100": _vit_cifar(classes=100),
            "vit-digits": VitSpec(width=32, depth=2, heads=4, patch_size=4, image_size=8, channels=1, classes=10),
        },
        name_letters={
            "mlp_ratio": "m",
            "patch_size": "p",
            "image_size": "i",
            "channels": "c",
            "classes": "k",
            "ln_eps": "eps",
        },
        dims=vit_spec.dims,
        parameters=vit_spec.parameters,
        forward_flops=vit_spec.forward_flops,
        activation_bytes=vit_spec.activation_bytes,
        build="ettsweep.trainer.models.vit:build",
        example_inputs="ettsweep.trainer.models.vit:example_inputs",
        check="ettsweep.theory.vit_probe:CHECKABLE",
        can_stack=True,
        grids={"vit-s16": "vit-b16", "vit-ti16": "vit-b16"},
    ),
    "encdec": Architecture(
        spec=EncDecSpec,
        presets={
            "bart-large": _encdec(width=1024, depth=12, heads=16),
            "r2c2": _encdec(width=2048, depth=22, heads=32),
            "encdec-tiny": _encdec_small(width=64, heads=4),
            "encdec-small": _encdec_small(width=128, heads=8),
        },
        name_letters=TEXT_LETTERS,
        dims=encdec_spec.dims,
        parameters=encdec_spec.parameters,
        forward_flops=encdec_spec.forward_flops,
        activation_bytes=encdec_spec.activation_bytes,
        build="ettsweep.trainer.models.encdec:build",
        example_inputs="ettsweep.trainer.models.encdec:example_inputs",
        check="ettsweep.theory.text_probe:ENCODER_DECODER",
        draws_randomly=encdec_spec.draws_randomly,
        grids={"encdec-tiny": "encdec-pydoc", "encdec-small": "encdec-pydoc"},
    ),
    "gpt": Architecture(
        spec=GptSpec,
        presets={
            "gpt2": GptSpec(width=768, depth=12, heads=12, vocabulary=50265, tokens=1024),
            "gpt-tiny": GptSpec(width=64, depth=2, heads=4, vocabulary=512, tokens=64),
        },
        name_letters=TEXT_LETTERS
        | {
            # Values that are words need no letter.
            "head": "",
            "norm": "",
            "positions": "",
            "mlp": "",
            "kv_heads": "kv",
            "qk_norm": "qknorm",
        },
        dims=gpt_spec.dims,
        parameters=gpt_spec.parameters,
        forward_flops=gpt_spec.forward_flops,
        activation_bytes=gpt_spec.activation_bytes,
        build="ettsweep.trainer.models.gpt:build",
        example_inputs="ettsweep.trainer.models.gpt:example_inputs",
        check="ettsweep.theory.text_probe:DECODER",
        draws_randomly=gpt_spec.draws_randomly,
        beyond_theory=gpt_spec.beyond_theory,
    ),
}


def architecture(model: ModelSpec) -> Architecture:
    """Return the registry entry of a model's architecture."""
    return ARCHITECTURES[model.kind]


def parameter_shapes(model: ModelSpec) -> tuple[Parameter, ...]:
    """Return name, groups and shape of all parameters, in the order of the torch module's `named_parameters()`."""
    return architecture(model).parameters(model)


def parameter_count(model: ModelSpec) -> int:
    """Return the number of parameters, extrapolated from depths 1 and 2, since it is linear in the depth."""
    # Counting all blocks would take forever if a typo made the depth huge.
    one_block, two_blocks = (
        sum(parameter.size for parameter in parameter_shapes(model.model_copy(update={"depth": depth})))
        for depth in (1, 2)
    )
    return one_block + (model.depth - 1) * (two_blocks - one_block)


def dims(model: ModelSpec) -> Dims:
    """Return the dimensions that scaling strategies depend on."""
    return architecture(model).dims(model)


def named_models() -> dict[str, ModelSpec]:
    """Return all presets by name."""
    return {name: model for entry in ARCHITECTURES.values() for name, model in entry.presets.items()}


_SHORT_FORM = re.compile(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})")


def short_form(model: ModelSpec) -> str:
    """Return WIDTHxDEPTH, such as 64x4."""
    return f"{model.width}x{model.depth}"


def model_spec(name: str, like: str = "vit-digits") -> ModelSpec:
    """Return a model by name: a preset, or WIDTHxDEPTH, such as 64x4, which is otherwise like the preset `like`.

    Its number of heads divides its width; if wide enough, heads have at least as many channels as those of `like`.

    Raises:
        InputError: there is no model of that name.
    """
    models = named_models()
    if name in models:
        return models[name]
    if not (size := _SHORT_FORM.fullmatch(name)):
        raise unknown_name("model", name, [*models, "WIDTHxDEPTH"])
    width, depth = map(int, size.groups())
    channels = models[like].width // models[like].heads
    heads = next(heads for heads in range(max(1, width // channels), 0, -1) if width % heads == 0)
    return models[like].model_copy(update={"width": width, "depth": depth, "heads": heads})


@lru_cache(maxsize=1024)
def model_name(spec: ModelSpec) -> str:
    """Return a preset's name, or a description such as `vit-n512-l12-h8`.

    Descriptions contain width, depth and heads, and every other field that differs from the architecture's first
    preset, so different models have different names.
    """
    entry = architecture(spec)
    for name, preset in entry.presets.items():
        if preset == spec:
            return name
    # Differences are taken from the first preset, so presets must never be reordered: names would change.
    reference = next(iter(entry.presets.values()), None)
    components = [spec.kind, f"n{spec.width}", f"l{spec.depth}", f"h{spec.heads}"]
    for name, letter in entry.name_letters.items():
        # Fields that the reference lacks are always included.
        if (value := getattr(spec, name)) != getattr(reference, name, None):
            components.append(f"{letter}{value}")
    return "-".join(components)
