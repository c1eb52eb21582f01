"""Architectures: one table, an entry says everything of one; and the models that have a name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ettsweep.errors import unknown_name
from ettsweep.runs.spec import ModelSpec
from ettsweep.strategies.factors import Dims
from ettsweep.trainer.models import encdec_spec, vit_spec
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.transformer import Parameter
from ettsweep.trainer.models.vit_spec import VitSpec


@dataclass(frozen=True)
class Architecture:
    """All that is to be said of an architecture. Functions are given a model: an instance of `spec`.

    Attributes:
        spec: its schema.
        sizes: the models that have a name. A description of another is compared with the first.
        letters: of the fields that a description names, with the letter that each is told by; width, depth and heads
            are always told.
        dims: what the scaling strategies depend on.
        parameters: all of them, in the order of the torch model's `named_parameters()`; blocks are alike.
        forward_flops: of all matrix products of one sample's forward pass, two a multiplication and addition. Norms,
            GELU and softmax are left out.
        activation_bytes: what one sample's activations take in fp32; told whether they are computed again.
        build: `module:function` that returns the torch model, given model and StrategySpec.
        example_inputs: `module:function` that returns what it is called with, given model, batch size, generator and
            device.
        check: `module:name` of what `check-scaling` needs of it; None where it cannot be checked.
        tied_head: whether the head is the word embedding, so that a strategy rescales the outputs.
        draws: whether a training step draws at random.
        stacks: whether runs can train at once as one ensemble (trainer/ensemble/stack.py): no strategy changes what it
            computes.
    """

    spec: type[ModelSpec]
    sizes: Mapping[str, ModelSpec]
    letters: Mapping[str, str]
    dims: Callable[[Any], Dims]
    parameters: Callable[[Any], tuple[Parameter, ...]]
    forward_flops: Callable[[Any], int]
    activation_bytes: Callable[[Any, bool], int]
    build: str
    example_inputs: str
    check: str | None = None
    tied_head: bool = False
    draws: Callable[[Any], bool] = lambda model: False
    stacks: bool = False


_vit16 = partial(VitSpec, depth=12, patch_size=16, image_size=224, classes=1000)
_vit_cifar = partial(VitSpec, width=192, depth=12, heads=3, patch_size=4, image_size=32)
_encdec = partial(EncDecSpec, vocabulary=50265, tokens=514)
_encdec_small = partial(EncDecSpec, depth=2, vocabulary=2048, tokens=64, dropout=0.0, attention_dropout=0.0)

ARCHITECTURES: dict[str, Architecture] = {
    "vit": Architecture(
        spec=VitSpec,
        sizes={
            "vit-b16": _vit16(width=768, heads=12),
            "vit-s16": _vit16(width=384, heads=6),
            "vit-ti16": _vit16(width=192, heads=3),
            "vit-cifar10": _vit_cifar(classes=10),
            "vit-cifar100": _vit_cifar(classes=100),
            "vit-digits": VitSpec(width=32, depth=2, heads=4, patch_size=4, image_size=8, channels=1, classes=10),
        },
        letters={
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
        stacks=True,
    ),
    "encdec": Architecture(
        spec=EncDecSpec,
        sizes={
            "bart-large": _encdec(width=1024, depth=12, heads=16),
            "r2c2": _encdec(width=2048, depth=22, heads=32),
            "encdec-tiny": _encdec_small(width=64, heads=4),
            "encdec-small": _encdec_small(width=128, heads=8),
        },
        letters={
            "mlp_ratio": "m",
            "vocabulary": "v",
            "tokens": "t",
            "ln_eps": "eps",
            "dropout": "d",
            "attention_dropout": "a",
        },
        dims=encdec_spec.dims,
        parameters=encdec_spec.parameters,
        forward_flops=encdec_spec.forward_flops,
        activation_bytes=encdec_spec.activation_bytes,
        build="ettsweep.trainer.models.encdec:build",
        example_inputs="ettsweep.trainer.models.encdec:example_inputs",
        check="ettsweep.theory.encdec_probe:CHECKABLE",
        tied_head=True,
        draws=encdec_spec.draws,
    ),
}


def architecture(model: ModelSpec) -> Architecture:
    """Return what there is to be said of a model's architecture."""
    return ARCHITECTURES[model.kind]


def parameter_shapes(model: ModelSpec) -> tuple[Parameter, ...]:
    """Return name, groups and shape of all parameters, in the order of the torch model's `named_parameters()`."""
    return architecture(model).parameters(model)


def parameter_count(model: ModelSpec) -> int:
    """Return the number of trainable numbers in the model, which grows evenly with its depth."""
    one_block, two_blocks = (
        sum(parameter.size for parameter in parameter_shapes(model.model_copy(update={"depth": depth})))
        for depth in (1, 2)
    )
    return one_block + (model.depth - 1) * (two_blocks - one_block)


def dims(model: ModelSpec) -> Dims:
    """Return what the scaling strategies depend on."""
    return architecture(model).dims(model)


def named_models() -> dict[str, ModelSpec]:
    """Return the models that have a name."""
    return {name: model for entry in ARCHITECTURES.values() for name, model in entry.sizes.items()}


def model_spec(name: str) -> ModelSpec:
    """Return the model of that name.

    Raises:
        InputError: there is none.
    """
    models = named_models()
    if name not in models:
        raise unknown_name("model", name, models)
    return models[name]


def model_name(spec: ModelSpec) -> str:
    """Return the model's name, or a description such as `vit-n512-l12-h8`.

    A description states width, depth and heads, and all else in which the model is not like vit-b16 or bart-large,
    so that two models never share one.
    """
    entry = architecture(spec)
    for name, preset in entry.sizes.items():
        if preset == spec:
            return name
    reference = next(iter(entry.sizes.values()), None)
    components = [spec.kind, f"n{spec.width}", f"l{spec.depth}", f"h{spec.heads}"]
    for field, letter in entry.letters.items():
        if (value := getattr(spec, field)) != getattr(reference, field, None):
            components.append(f"{letter}{value}")
    return "-".join(components)
