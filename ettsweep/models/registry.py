"""Models that have a name."""

from ettsweep.errors import unknown_name
from ettsweep.spec import ModelSpec, VitSpec


def _vit16(width: int, heads: int) -> VitSpec:
    return VitSpec(width=width, depth=12, heads=heads, patch_size=16, image_size=224, classes=1000)


def _vit_cifar(classes: int) -> VitSpec:
    return VitSpec(width=192, depth=12, heads=3, patch_size=4, image_size=32, classes=classes)


MODELS: dict[str, ModelSpec] = {
    "vit-b16": _vit16(width=768, heads=12),
    "vit-s16": _vit16(width=384, heads=6),
    "vit-ti16": _vit16(width=192, heads=3),
    "vit-cifar10": _vit_cifar(classes=10),
    "vit-cifar100": _vit_cifar(classes=100),
    "vit-digits": VitSpec(width=32, depth=2, heads=4, patch_size=4, image_size=8, channels=1, classes=10),
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

    A description states width, depth and heads, and all else in which the model is not like vit-b16, so that
    two models never share one.
    """
    for name, known in MODELS.items():
        if known == spec:
            return name
    usual = MODELS["vit-b16"]
    parts = [spec.kind, f"n{spec.width}", f"l{spec.depth}", f"h{spec.heads}"]
    rest = {
        "mlp_ratio": "m",
        "patch_size": "p",
        "image_size": "i",
        "channels": "c",
        "classes": "k",
        "ln_eps": "eps",
    }
    for field, letter in rest.items():
        if (value := getattr(spec, field)) != getattr(usual, field):
            parts.append(f"{letter}{value}")
    return "-".join(parts)
