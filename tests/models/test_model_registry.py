import subprocess
import sys

import pytest

from ettsweep.errors import InputError
from ettsweep.models.registry import MODELS, model_name, model_spec
from ettsweep.spec import VitSpec


def test_every_preset_is_found_under_its_name() -> None:
    for name in MODELS:
        assert model_name(model_spec(name)) == name


def test_vit_b16_is_the_papers() -> None:
    assert model_spec("vit-b16") == VitSpec(
        width=768,
        depth=12,
        heads=12,
        mlp_ratio=4,
        patch_size=16,
        image_size=224,
        channels=3,
        classes=1000,
        ln_eps=1e-6,
    )


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown model 'vit-b61'; did you mean 'vit-b16'"):
        model_spec("vit-b61")


def test_a_model_without_a_name_is_described() -> None:
    def vit_b16(**update: object) -> str:
        return model_name(model_spec("vit-b16").model_copy(update=update))

    assert vit_b16(width=512, heads=8) == "vit-n512-l12-h8"
    assert vit_b16(depth=6, mlp_ratio=2) == "vit-n768-l6-h12-m2"
    digits = model_spec("vit-digits").model_copy(update={"width": 64})
    assert model_name(digits) == "vit-n64-l2-h4-p4-i8-c1-k10"


def test_no_two_models_share_a_description() -> None:
    unnamed = model_spec("vit-b16").model_copy(update={"width": 1536})
    changes = {
        "width": 96,
        "depth": 3,
        "heads": 8,
        "mlp_ratio": 2,
        "patch_size": 32,
        "image_size": 64,
        "channels": 1,
        "classes": 2,
        "ln_eps": 1e-5,
    }
    assert changes.keys() | {"kind"} == VitSpec.model_fields.keys()
    names = {model_name(unnamed.model_copy(update={field: value})) for field, value in changes.items()}
    assert len(names | {model_name(unnamed)}) == len(changes) + 1
    assert names.isdisjoint(MODELS)


def test_what_the_planner_reads_of_models_imports_no_torch() -> None:
    code = (
        "import sys, ettsweep.models.registry, ettsweep.models.shapes, ettsweep.models.scales;"
        "sys.exit('torch' if 'torch' in sys.modules else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
