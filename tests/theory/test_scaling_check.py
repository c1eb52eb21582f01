"""Checks of small models: what is right passes, and what cannot be checked is refused."""

from typing import Any

import pytest
from support.smallest import SMALLEST_OF_TEXT

from ettsweep.console import Format
from ettsweep.errors import DeviceMemoryError, InputError
from ettsweep.strategies.factors import Group
from ettsweep.theory.check_tables import show_check
from ettsweep.theory.exponents import ExponentTest
from ettsweep.theory.scaling_check import CheckPlan, check_scaling, make_check_plan
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import architecture, model_spec
from ettsweep.trainer.specs import ModelSpec

GIB = 2**30


def planned(model: ModelSpec, strategy: str = "ntk", free_bytes: int = 64 * GIB, **fields: Any) -> CheckPlan:
    return make_check_plan(model, strategy, free_bytes, **fields)


# --- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "strategy", "fields"),
    [
        ("vit-digits", "hybrid", {"steps": 2}),
        *(
            pytest.param(name, "ntk", {"steps": 2, "depth": 1}, marks=pytest.mark.slow)
            for name, model in SMALLEST_OF_TEXT.items()
            if architecture(model).check
        ),
        pytest.param("vit-digits", "mup", {"optimizer": "muon", "steps": 2}, marks=pytest.mark.slow),
        pytest.param("vit-digits", "hybrid", {"optimizer": "sgd", "steps": 2, "seeds": 8}, marks=pytest.mark.slow),
    ],
)
def test_a_right_scaling_passes(name: str, strategy: str, fields: dict[str, Any]) -> None:
    judgement = check_scaling(planned(model_spec(name), strategy, **{"seeds": 4, **fields})).judgement
    assert (judgement.verdict, judgement.findings) == (ExponentTest.OK, ())


def test_of_a_model_beyond_the_theory_only_what_it_covers_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"norm": "rms", "positions": "rotary", "mlp": "swiglu", "kv_heads": 2, "qk_norm": True, "head": "untied"}
    model = model_spec("gpt-tiny").model_copy(update={"depth": 1, **parts})
    result = check_scaling(planned(model, "mup", widths=(32, 64, 128), seeds=2, steps=1, optimizer="muon"))
    assert result.judgement.verdict is ExponentTest.OK, result.judgement.findings
    assert (result.judgement.by_name("block"), result.judgement.contact) == ({}, None)
    judged = {"initial std", "learning-rate factor", "decay"}
    assert all(rows.keys() - {"initial shape"} == judged for rows in result.judgement.by_name("group").values())
    show_check(result, Format.MARKDOWN)
    assert capsys.readouterr().out.count("| not covered |") == len(result.judgement.by_name("group"))


@pytest.mark.parametrize(
    ("optimizer", "missed"),
    [
        ("adamw", {Group.PATCH: -1.0, Group.PE: -1.0, Group.HEAD: -0.5, Group.HEAD_BIAS: -1.5}),
        ("muon", {Group.HEAD: 0.5, Group.HEAD_BIAS: -0.5}),
    ],
)
def test_standard_is_off_by_known_powers_outside_the_bulk(optimizer: str, missed: dict[Group, float]) -> None:
    plan = planned(model_spec("vit-digits"), "standard", optimizer=optimizer, seeds=2, steps=1)
    judgement = check_scaling(plan).judgement
    rows = judgement.by_name("group")
    assert {row.name for row in judgement.rows if row.verdict is ExponentTest.OFF and row.kind == "group"} == set(
        missed
    )
    for group, power in missed.items():
        row = rows[group]["tangent contribution"]
        assert row.power_error is not None
        assert row.off_by == pytest.approx(power, abs=3 * row.power_error)
        assert f"{group}: steps {'fall' if power < 0 else 'grow'} as width^" in "\n".join(judgement.findings)


# --- what can be asked for --------------------------------------------------------------------------------------------


def test_defaults_follow_from_the_model() -> None:
    plan = planned(model_spec("vit-b16"), "ntk")
    assert plan.widths == (96, 192, 384, 768)
    assert plan.seeds == (0, 1, 2)
    assert plan.model.depth == 12
    assert plan.folder_name == "vit-b16-ntk-adamw"
    assert len(planned(model_spec("vit-digits"), "ntk").seeds) == 12, "more of a small model"
    text = planned(model_spec("bart-large"), "s=0.25", optimizer="sgd")
    assert isinstance(text.model, EncDecSpec)
    assert (text.model.depth, text.widths, text.folder_name) == (4, (128, 256, 512, 1024), "bart-large-s=0.25-sgd")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"widths": (32, 34, 64)}, "--widths: width 34 is not divisible by heads 4; nearest width: 32, 36"),
        ({"widths": (16, 32, 64)}, "--widths: 16, 32, 64 determine a power to 0.14 at best"),
        ({"lr": 1e20}, "--lr 1e+20: a step at width 32 moves the outputs by"),
        ({"lr": 1e-30}, "which is too little to measure powers (0.0001 to 0.3 do); 0.00"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_what_can(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        check_scaling(planned(model_spec("vit-digits"), "ntk", **{"seeds": 2, **fields}))
    assert message in str(refused.value)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    model = model_spec("vit-b16")
    with pytest.raises(DeviceMemoryError, match=r"1.0 GiB are free; --widths up to (\d+) or a smaller") as refused:
        planned(model, "ntk", free_bytes=GIB)
    fits = int(str(refused.value).split("up to ")[1].split()[0])
    assert planned(model, "ntk", free_bytes=GIB, widths=(96, 192, fits)).widths[-1] == fits
    with pytest.raises(DeviceMemoryError):
        planned(model, "ntk", free_bytes=GIB, widths=(96, 192, fits + 12))
