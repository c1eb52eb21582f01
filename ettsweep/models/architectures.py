"""Models that have a name."""

from ettsweep.errors import unknown_name
from ettsweep.spec import EncDecSpec, ModelSpec, VitSpec


def _vit16(width: int, heads: int) -> VitSpec:
    return VitSpec(width=width, depth=12, heads=heads, patch_size=16, image_size=224, classes=1000)


def _vit_cifar(classes: int) -> VitSpec:
    return VitSpec(width=192, depth=12, heads=3, patch_size=4, image_size=32, classes=classes)


def _encdec(width: int, depth: int, heads: int) -> EncDecSpec:
    return EncDecSpec(width=width, depth=depth, heads=heads, vocabulary=50265, tokens=514)


def _encdec_small(width: int, heads: int) -> EncDecSpec:
    """Return a model for little text, without dropout."""
    return EncDecSpec(width=width, depth=2, heads=heads, vocabulary=2048, tokens=64, dropout=0.0, attention_dropout=0.0)


MODELS: dict[str, ModelSpec] = {
    "vit-b16": _vit16(width=768, heads=12),
    "vit-s16": _vit16(width=384, heads=6),
    "vit-ti16": _vit16(width=192, heads=3),
    "vit-cifar10": _vit_cifar(classes=10),
    "vit-cifar100": _vit_cifar(classes=100),
    "vit-digits": VitSpec(width=32, depth=2, heads=4, patch_size=4, image_size=8, channels=1, classes=10),
    "bart-large": _encdec(width=1024, depth=12, heads=16),
    "r2c2": _encdec(width=2048, depth=22, heads=32),
    "encdec-tiny": _encdec_small(width=64, heads=4),
    "encdec-small": _encdec_small(width=128, heads=8),
}


# Of each kind, what a description is compared with, and its letter for each other field.
_USUAL: dict[str, tuple[ModelSpec, dict[str, str]]] = {
    "vit": (
        MODELS["vit-b16"],
        {
            "mlp_ratio": "m",
            "patch_size": "p",
            "image_size": "i",
            "channels": "c",
            "classes": "k",
            "ln_eps": "eps",
        },
    ),
    "encdec": (
        MODELS["bart-large"],
        {
            "mlp_ratio": "m",
            "vocabulary": "v",
            "tokens": "t",
            "ln_eps": "eps",
            "dropout": "d",
            "attention_dropout": "a",
        },
    ),
}


def model_spec(name: str) -> ModelSpec:
    """Return the model of that name.

    Raises:
        InputError: there is none.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


def model_name(spec: ModelSpec) -> str:
    """Return the model's name, or a description such as `vit-n512-l12-h8`.

    A description states width, depth and heads, and all else in which the model is not like vit-b16 or bart-large,
    so that two models never share one.
    """
    for name, known in MODELS.items():
        if known == spec:
            return name
    usual, rest = _USUAL[spec.kind]
    parts = [spec.kind, f"n{spec.width}", f"l{spec.depth}", f"h{spec.heads}"]
    for field, letter in rest.items():
        if (value := getattr(spec, field)) != getattr(usual, field):
            parts.append(f"{letter}{value}")
    return "-".join(parts)
