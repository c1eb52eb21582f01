"""Checks of small models: what is right passes, and what cannot be checked is refused."""

from typing import Any

import pytest
from support.smallest import SMALLEST

from ettsweep.console import Format
from ettsweep.errors import DeviceMemoryError, InputError
from ettsweep.strategies.factors import Dims, Group
from ettsweep.theory.check_tables import show_check
from ettsweep.theory.exponents import ExponentTest
from ettsweep.theory.scaling_check import CheckPlan, CheckResult, check_scaling, make_check_plan
from ettsweep.trainer.models import parameter_scales
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import architecture, model_spec
from ettsweep.trainer.specs import ModelSpec

GIB = 2**30


def planned(model: ModelSpec, strategy: str = "ntk", free_bytes: int = 64 * GIB, **fields: Any) -> CheckPlan:
    return make_check_plan(model, strategy, free_bytes, **fields)


def check(strategy: str = "ntk", model: str = "vit-digits", **fields: Any) -> CheckResult:
    """Check a small model, text with one block each in encoder and decoder."""
    small = {"seeds": 3} if model.startswith("vit") else {"depth": 1, "widths": (16, 32, 64, 128), "seeds": 4}
    return check_scaling(planned(model_spec(model), strategy, **{**small, **fields}))


def off(result: CheckResult) -> dict[str, set[str]]:
    """Return the names of the groups that are off, by what is."""
    rows: dict[str, set[str]] = {}
    for row in result.judgement.rows:
        if row.kind == "group" and row.verdict is ExponentTest.OFF:
            rows.setdefault(row.quantity, set()).add(row.name)
    return rows


# --- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy", "optimizer"),
    [("vit-digits", "mup", "muon"), ("vit-digits", "hybrid", "sgd"), ("encdec-tiny", "mup", "adamw")],
)
def test_a_right_scaling_passes(model: str, strategy: str, optimizer: str) -> None:
    judgement = check(strategy, model, optimizer=optimizer, seeds=4 if model == "encdec-tiny" else 8).judgement
    assert (judgement.verdict, judgement.findings) == (ExponentTest.OK, ())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name != "vit-digits" else name
        for name, model in SMALLEST.items()
        if architecture(model).check
    ],
)
def test_each_architectures_smallest_model_passes(name: str) -> None:
    fields = {} if name.startswith("vit") else {"depth": 1}
    result = check_scaling(planned(model_spec(name), "ntk", seeds=4, steps=2, **fields))
    assert result.judgement.verdict is ExponentTest.OK, result.judgement.findings


GROUPED = {"kv_heads": 2, "qk_norm": True, "head": "untied"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "strategy", "optimizer"),
    [
        ({"norm": "rms", "positions": "rotary", "mlp": "swiglu"}, "ntk", "adamw"),
        (GROUPED | {"mlp": "swiglu"}, "mup", "muon"),
    ],
)
def test_of_a_model_beyond_the_theory_only_what_it_covers_is_judged(
    fields: dict[str, Any], strategy: str, optimizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_spec("gpt-tiny").model_copy(update={"depth": 1, **fields})
    result = check_scaling(planned(model, strategy, widths=(32, 64, 128), seeds=6, steps=1, optimizer=optimizer))
    assert result.judgement.verdict is ExponentTest.OK, result.judgement.findings
    assert (result.judgement.by_name("block"), result.judgement.contact) == ({}, None)
    judged = {"initial std", "learning-rate factor", "decay"}
    assert all(rows.keys() - {"initial shape"} == judged for rows in result.judgement.by_name("group").values())
    show_check(result, Format.MARKDOWN)
    assert capsys.readouterr().out.count("| not covered |") == len(result.judgement.by_name("group"))


def test_a_wrong_factor_of_gains_is_found_although_no_theory_covers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_spec("gpt-tiny").model_copy(update={"depth": 1, "norm": "rms"})
    right = parameter_scales.lr_factor

    def planted(group: Group, dims: Dims, *rest: Any) -> float:
        return right(group, dims, *rest) * (dims.width**0.5 if group is Group.GAIN else 1.0)

    monkeypatch.setattr(parameter_scales, "lr_factor", planted)
    result = check_scaling(planned(model, "ntk", widths=(32, 64, 128), seeds=3, steps=1))
    assert off(result) == {"learning-rate factor": {Group.GAIN}}
    assert result.judgement.findings[0].startswith("gain: the learning-rate factor scales as width^")


def test_widths_that_the_model_cannot_have_are_refused() -> None:
    model = model_spec("gpt-tiny").model_copy(update={"positions": "rotary"})
    with pytest.raises(InputError) as error:
        planned(model, "ntk", widths=(32, 60, 130))
    assert str(error.value).splitlines() == [
        "--widths: positions rotary needs an even number of channels a head, and width 60 has 15 in each of 4 heads; "
        "nearest width: 56, 64",
        "--widths: width 130 is not divisible by heads 4; nearest width: 128, 132",
    ]


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize(
    ("optimizer", "missed"),
    [
        ("adamw", {Group.PATCH: -1.0, Group.PE: -1.0, Group.HEAD: -0.5, Group.HEAD_BIAS: -1.5}),
        ("sgd", {Group.PATCH: -1.0, Group.PE: -1.0, Group.HEAD_BIAS: -1.0}),
        ("muon", {Group.HEAD: 0.5, Group.HEAD_BIAS: -0.5}),
    ],
)
def test_standard_is_off_by_known_powers_outside_the_bulk(optimizer: str, missed: dict[Group, float]) -> None:
    result = check("standard", optimizer=optimizer)
    rows = result.judgement.by_name("group")
    assert {group for groups in off(result).values() for group in groups} == set(missed)
    for group, power in missed.items():
        row = rows[group]["tangent contribution"]
        assert row.power_error is not None
        assert row.off_by == pytest.approx(power, abs=3 * row.power_error)
        assert f"{group}: steps {'fall' if power < 0 else 'grow'} as width^" in "\n".join(result.judgement.findings)


# --- what can be asked for --------------------------------------------------------------------------------------------


def test_defaults_follow_from_the_model() -> None:
    plan = planned(model_spec("vit-b16"), "ntk")
    assert plan.widths == (96, 192, 384, 768)
    assert plan.seeds == (0, 1, 2)
    assert plan.model.depth == 12
    assert plan.folder_name == "vit-b16-ntk-adamw"
    assert len(planned(model_spec("vit-digits"), "ntk").seeds) == 12
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
    with pytest.raises(
        DeviceMemoryError, match=r"1.0 GiB are free; --widths up to (\d+) or a smaller --depth"
    ) as refused:
        planned(model_spec("vit-b16"), "ntk", free_bytes=GIB)
    fits = int(str(refused.value).split("up to ")[1].split()[0])
    assert planned(model_spec("vit-b16"), "ntk", free_bytes=GIB, widths=(96, 192, fits)).widths[-1] == fits
    with pytest.raises(DeviceMemoryError):
        planned(model_spec("vit-b16"), "ntk", free_bytes=GIB, widths=(96, 192, fits + 12))
