import pytest

from ettsweep.errors import InputError
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import ARCHITECTURES, model_name, model_spec, named_models, short_form
from ettsweep.trainer.models.vit_spec import VitSpec


def test_named_models_are_those_of_the_papers() -> None:
    assert all(model_name(model_spec(name)) == name for name in named_models())
    vit = {"mlp_ratio": 4, "patch_size": 16, "image_size": 224, "channels": 3, "classes": 1000, "ln_eps": 1e-6}
    assert model_spec("vit-b16") == VitSpec(width=768, depth=12, heads=12, **vit)  # type: ignore[arg-type]
    text = {"vocabulary": 50265, "tokens": 514, "ln_eps": 1e-5, "dropout": 0.1, "attention_dropout": 0.1}
    bart = EncDecSpec(width=1024, depth=12, heads=16, mlp_ratio=4, **text)  # type: ignore[arg-type]
    assert model_spec("bart-large") == bart
    assert model_spec("r2c2") == bart.model_copy(update={"width": 2048, "depth": 22, "heads": 32})


@pytest.mark.parametrize(
    ("name", "like", "fields"),
    [
        ("64x4", "vit-digits", {"width": 64, "depth": 4, "heads": 8, "image_size": 8, "channels": 1}),
        ("96x3", "vit-b16", {"width": 96, "depth": 3, "heads": 1, "image_size": 224, "classes": 1000}),
        ("10x1", "vit-digits", {"width": 10, "depth": 1, "heads": 1}),  # 8 channels a head leave one head
        ("128x2", "encdec-tiny", {"width": 128, "depth": 2, "heads": 8, "vocabulary": 2048}),
    ],
)
def test_a_model_of_a_size_is_otherwise_like_another(name: str, like: str, fields: dict[str, int]) -> None:
    model = model_spec(name, like)
    assert {field: getattr(model, field) for field in fields} == fields
    assert short_form(model) == name


def test_what_is_no_name_is_refused_with_the_nearest() -> None:
    for name in ("0x4", "64x", "64x4x2", "64x4.0"):
        with pytest.raises(InputError, match=r"unknown model .* WIDTHxDEPTH"):
            model_spec(name)
    with pytest.raises(InputError, match=r"unknown model 'vit-b61'; did you mean 'vit-b16'"):
        model_spec("vit-b61")


def test_a_model_without_a_name_is_described() -> None:
    def vit_b16(**update: object) -> str:
        return model_name(model_spec("vit-b16").model_copy(update=update))

    assert vit_b16(depth=6, mlp_ratio=2) == "vit-n768-l6-h12-m2"
    digits = model_spec("vit-digits").model_copy(update={"width": 64})
    assert model_name(digits) == "vit-n64-l2-h4-p4-i8-c1-k10"
    assert model_name(model_spec("r2c2").model_copy(update={"depth": 2})) == "encdec-n2048-l2-h32"
    tiny = model_spec("encdec-tiny").model_copy(update={"dropout": 0.1})
    assert model_name(tiny) == "encdec-n64-l2-h4-v2048-t64-a0.0"


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_descriptions_know_every_field_of_a_model(kind: str) -> None:
    entry = ARCHITECTURES[kind]
    assert {"kind", "width", "depth", "heads", *entry.name_letters} == set(entry.spec.model_fields)
