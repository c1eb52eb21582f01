"""Checks of small models: what is right passes, and each planted fault is found and named."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.smallest import SMALLEST

from ettsweep.errors import DeviceMemoryError, InputError
from ettsweep.strategies.factors import BULK, Dims, Group
from ettsweep.theory.check_plan import CheckPlan, CheckRequest, make_check_plan
from ettsweep.theory.check_tables import _group_rows
from ettsweep.theory.exponents import ExponentTest
from ettsweep.theory.scaling_check import CheckResult, check_scaling
from ettsweep.trainer.models import build, encdec, parameter_scales
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import architecture, model_spec
from ettsweep.trainer.training import optimizer, trainer

WIDTHS = (32, 64, 128, 256)
GIB = 2**30


def planned(request: CheckRequest, free_bytes: int = 64 * GIB) -> CheckPlan:
    return make_check_plan(request, free_bytes)


def check(strategy: str = "ntk", model: str = "vit-digits", **fields: Any) -> CheckResult:
    """Check a small model, text with one block each in encoder and decoder."""
    small = {"seeds": 3} if model.startswith("vit") else {"depth": 1, "widths": (16, 32, 64, 128), "seeds": 4}
    return check_scaling(planned(CheckRequest(model_spec(model), strategy, **{**small, **fields})))


def off(result: CheckResult) -> dict[str, set[str]]:
    """Return the names of the groups that are off, by what is."""
    rows: dict[str, set[str]] = {}
    for row in result.judgement.groups:
        for label, quantity in row.quantities.items():
            if quantity.verdict is ExponentTest.OFF:
                rows.setdefault(label, set()).add(row.name)
    return rows


# --- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "strategy", "optimizer"),
    [
        pytest.param("vit-digits", "mup", "muon", marks=pytest.mark.slow),
        pytest.param("encdec-tiny", "mup", "muon", marks=pytest.mark.slow),
        pytest.param("vit-digits", "hybrid", "sgd", marks=pytest.mark.slow),
        pytest.param("vit-digits", "mup", "sgd", marks=pytest.mark.slow),
        pytest.param("vit-digits", "s=0.25", "adamw", marks=pytest.mark.slow),
        pytest.param("encdec-tiny", "mup", "adamw", marks=pytest.mark.slow),
    ],
)
def test_a_right_scaling_passes(model: str, strategy: str, optimizer: str) -> None:
    check_result = check(strategy, model, optimizer=optimizer, seeds=4 if model == "encdec-tiny" else 8)
    assert check_result.verdict is ExponentTest.OK, check_result.findings
    assert check_result.findings == ()


@pytest.mark.parametrize("name", [name for name, model in SMALLEST.items() if architecture(model).check])
def test_each_architectures_smallest_model_passes(name: str) -> None:
    result = check_scaling(planned(CheckRequest(model_spec(name), "ntk", seeds=4, steps=2)))
    assert result.verdict is ExponentTest.OK, result.findings


@pytest.mark.parametrize(
    ("head", "strategy", "widths"),
    [
        ("untied", "ntk", (32, 64, 128, 256)),
        pytest.param("tied", "mup", (64, 128, 256), marks=pytest.mark.slow),
    ],
)
def test_a_right_decoder_passes(head: str, strategy: str, widths: tuple[int, ...]) -> None:
    """Not narrower: at a width of 16, with 32 trained tokens, powers are off by 0.2 to 0.4."""
    model = model_spec("gpt-tiny").model_copy(update={"head": head, "depth": 1})
    result = check_scaling(planned(CheckRequest(model, strategy, widths=widths, seeds=4, steps=2)))
    assert result.verdict is ExponentTest.OK, result.findings
    assert (result.judgement.contact is None) == (head == "untied")


GROUPED = {"kv_heads": 2, "qk_norm": True, "head": "untied"}


@pytest.mark.parametrize(
    ("fields", "strategy", "optimizer"),
    [
        ({"norm": "rms", "positions": "rotary", "mlp": "swiglu"}, "ntk", "adamw"),
        pytest.param(GROUPED, "ntk", "adamw", marks=pytest.mark.slow),
        (GROUPED | {"mlp": "swiglu"}, "mup", "muon"),
        pytest.param(GROUPED | {"mlp": "swiglu"}, "standard", "muon", marks=pytest.mark.slow),
    ],
)
def test_of_a_model_beyond_the_theory_only_what_it_covers_is_judged(
    fields: dict[str, Any], strategy: str, optimizer: str
) -> None:
    model = model_spec("gpt-tiny").model_copy(update={"depth": 1, **fields})
    request = CheckRequest(model, strategy, widths=(32, 64, 128), seeds=6, steps=1, optimizer=optimizer)
    result = check_scaling(planned(request))
    assert result.verdict is ExponentTest.OK, result.findings
    assert (result.judgement.stages, result.judgement.contact) == ((), None)
    judged = {"initial std", "learning-rate factor", "decay"}
    assert all(row.quantities.keys() - {"initial shape"} == judged for row in result.judgement.groups)
    assert {group["tangent"] for group in _group_rows(result)} == {"not covered"}


def test_a_wrong_factor_of_gains_is_found_although_no_theory_covers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_spec("gpt-tiny").model_copy(update={"depth": 1, "norm": "rms"})
    monkeypatch.setattr(parameter_scales, "lr_factor", times_width(parameter_scales.lr_factor, Group.GAIN, 0.5))
    result = check_scaling(planned(CheckRequest(model, "ntk", widths=(32, 64, 128), seeds=3, steps=1)))
    assert off(result) == {"learning-rate factor": {Group.GAIN}}
    assert result.findings[0].startswith("gain: the learning-rate factor scales as width^")


def test_widths_that_the_model_cannot_have_are_refused() -> None:
    model = model_spec("gpt-tiny").model_copy(update={"positions": "rotary"})
    with pytest.raises(InputError) as error:
        planned(CheckRequest(model, "ntk", widths=(32, 60, 130)))
    assert str(error.value).splitlines() == [
        "--widths: positions rotary needs an even number of channels a head, and width 60 has 15 in each of 4 heads; "
        "nearest width: 56, 64",
        "--widths: width 130 is not divisible by heads 4; nearest width: 128, 132",
    ]


@pytest.mark.usefixtures("statistics")
def test_the_contact_term_is_reported_and_not_judged() -> None:
    check_result = check("ntk", "encdec-tiny", optimizer="sgd")
    assert check_result.verdict is not ExponentTest.OFF, check_result.findings
    assert check_result.judgement.contact is not None
    predicted, measured = check_result.judgement.contact
    assert predicted == pytest.approx(128**0.5, rel=0.05)  # sqrt(n) at s = 0, but for what little the blocks add
    assert measured == pytest.approx(predicted, rel=0.05)


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_m_may_enter_the_factors(optimizer: str) -> None:
    check_result = check(mlp_factor="include", optimizer=optimizer)
    assert check_result.verdict is not ExponentTest.OFF, check_result.findings


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
    check_result = check("standard", optimizer=optimizer)
    rows = {row.name: row for row in check_result.judgement.groups}
    assert {group for group, row in rows.items() if row.verdict is ExponentTest.OFF} == set(missed)
    for group, power in missed.items():
        quantity = rows[group].quantities["tangent contribution"]
        assert quantity.power is not None
        assert quantity.off_by == pytest.approx(power, abs=3 * quantity.power.error)
        assert f"{group}: steps {'fall' if power < 0 else 'grow'} as width^" in "\n".join(check_result.findings)
    assert not any(rows[group].verdict is ExponentTest.OFF for group in BULK)


@pytest.mark.usefixtures("statistics")
def test_standard_text_moves_words_and_places_less_than_the_bulk() -> None:
    check_result = check("standard", "encdec-tiny")
    rows = {row.name: row for row in check_result.judgement.groups}
    assert {group for group, row in rows.items() if row.verdict is ExponentTest.OFF} == {Group.WE, Group.PE}
    assert [rows[group].off_by for group in (Group.WE, Group.PE)] == pytest.approx([-1.0, -1.0], abs=0.15)


# --- faults -----------------------------------------------------------------------------------------------------------


def times_width(function: Callable[..., float], wrong: Group, power: float) -> Callable[..., float]:
    """Return a function of (group, dims, ...) that is wrong by a power of the width for one group."""

    def planted(group: Group, dims: Dims, *rest: Any) -> float:
        value = function(group, dims, *rest)
        return value * (dims.width / WIDTHS[0]) ** power if group is wrong else value

    return planted


@pytest.mark.parametrize(
    ("model", "trained_by", "wrong"),
    [
        ("vit-digits", "adamw", Group.PE),
        pytest.param("vit-digits", "sgd", Group.X, marks=pytest.mark.slow),
        pytest.param("encdec-tiny", "adamw", Group.WE, marks=pytest.mark.slow),
    ],
)
def test_a_wrong_exponent_of_a_factor_is_found(
    monkeypatch: pytest.MonkeyPatch, model: str, trained_by: str, wrong: Group
) -> None:
    monkeypatch.setattr(parameter_scales, "lr_factor", times_width(parameter_scales.lr_factor, wrong, 0.5))
    check_result = check(model=model, optimizer=trained_by)
    assert check_result.verdict is ExponentTest.OFF
    behaviour = off(check_result)
    assert behaviour["learning-rate factor"] == {wrong}
    assert behaviour["tangent contribution"] == behaviour["function change"] == {wrong}
    assert check_result.findings[0].startswith(f"{wrong}: the learning-rate factor scales as width^")
    assert "off by +0.50" in check_result.findings[0]


@pytest.mark.usefixtures("statistics")
def test_a_wrong_exponent_of_one_of_a_groups_tensors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(model: Any, *rest: Any) -> dict[str, tuple[float, float]]:
        right = parameter_scales.parameter_factors(model, *rest)
        factor, decay = right["decoder_pe"]
        return right | {"decoder_pe": (factor * math.sqrt(model.width), decay / math.sqrt(model.width))}

    monkeypatch.setattr(optimizer, "parameter_factors", planted)
    check_result = check(model="encdec-tiny")
    assert off(check_result)["learning-rate factor"] == {Group.PE}
    assert check_result.findings[0].startswith("pe: the learning-rate factor scales as width^+0.00, not width^-0.50")


@pytest.mark.usefixtures("statistics")
def test_steps_without_the_factors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(optimizer: Any, lr: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr

    monkeypatch.setattr(trainer, "set_lr", planted)
    check_result = check(steps=1)
    assert off(check_result)["learning-rate factor"] == {*BULK, Group.PATCH, Group.PE, Group.HEAD, Group.HEAD_BIAS}


@pytest.mark.slow
@pytest.mark.parametrize("power", [-0.5, 0.5])
def test_a_wrong_exponent_of_initial_values_is_found(monkeypatch: pytest.MonkeyPatch, power: float) -> None:
    monkeypatch.setattr(build, "init_std", times_width(build.init_std, Group.V, power))
    check_result = check()
    behaviour = off(check_result)
    assert behaviour["initial std"] == {Group.V}
    assert Group.U in behaviour["tangent contribution"] & behaviour["function change"]  # which reads what v makes
    assert check_result.findings[0].startswith("v: the std of initial values scales as width^")
    assert f"off by {power:+.2f}" in check_result.findings[0]


@pytest.mark.usefixtures("statistics")
def test_a_head_that_starts_too_large_is_named_before_all_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "init_std", times_width(build.init_std, Group.HEAD, 0.5))
    check_result = check("mup")
    assert check_result.findings[0].startswith("head: the std of initial values scales as width^-0.5")
    assert off(check_result)["tangent contribution"] == {*BULK, Group.PATCH, Group.PE}
    assert check_result.findings[1].startswith("also off, possibly as a consequence: patch, pe, q, k, v, u, w, x, head")


def test_decay_that_the_factor_multiplies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_scales, "wd_factor", lambda group, factor, decay_pe=True: 1.0)
    check_result = check(seeds=2)
    assert off(check_result)["decay"] == {*BULK, Group.PATCH, Group.PE, Group.HEAD, Group.HEAD_BIAS}
    assert any(
        line.startswith("u: the decay of a step, divided by lr wd, scales as width^-1.50")
        for line in check_result.findings
    )
    assert "head_bias: the decay of a step, divided by lr wd, is 0.316 at the widest, not 0" in check_result.findings


@pytest.mark.usefixtures("statistics")
def test_a_missing_output_rescale_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encdec, "output_rescale", lambda width, s: 1.0)
    check_result = check(model="encdec-tiny")
    assert check_result.verdict is ExponentTest.OFF
    assert check_result.findings[0].startswith("we: the outputs' kernel (output rescale) scales as width^+1.0")
    assert "hidden kernels are right" in check_result.findings[0]


# --- what can be asked for --------------------------------------------------------------------------------------------


def test_defaults_follow_from_the_model() -> None:
    plan = planned(CheckRequest(model_spec("vit-b16"), "ntk"))
    assert plan.widths == (96, 192, 384, 768)
    assert plan.seeds == (0, 1, 2)
    assert plan.model.depth == 12
    assert plan.name == "vit-b16-ntk-adamw"
    assert len(planned(CheckRequest(model_spec("vit-digits"), "ntk")).seeds) == 12
    text = planned(CheckRequest(model_spec("bart-large"), "s=0.25", "sgd"))
    assert isinstance(text.model, EncDecSpec)
    assert (text.model.depth, text.widths, text.name) == (4, (128, 256, 512, 1024), "bart-large-s=0.25-sgd")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"widths": (32, 34, 64)}, "--widths: width 34 is not divisible by heads 4; nearest width: 32, 36"),
        ({"widths": (32, 64, 64)}, "--widths: fitting a power takes at least three different widths, got 2"),
        ({"widths": (0, 32, 64)}, "--widths: width 0 is below the model's 4 heads"),
        ({"widths": (16, 32, 64)}, "--widths: 16, 32, 64 determine a power to 0.14 at best"),
        ({"lr": 1e20}, "--lr 1e+20: a step at width 32 moves the outputs by"),
        ({"lr": 1e-30}, "which is too little to measure powers (0.0001 to 0.3 do); 0.00"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_what_can(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        check_scaling(planned(CheckRequest(model_spec("vit-digits"), "ntk", **{"seeds": 2, **fields})))
    assert message in str(refused.value)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(
        DeviceMemoryError, match=r"and 1.0 GiB are free; --widths up to (\d+) or a smaller --depth"
    ) as raises_result:
        planned(CheckRequest(model_spec("vit-b16"), "ntk"), GIB)
    fits = int(str(raises_result.value).split("up to ")[1].split()[0])
    assert planned(CheckRequest(model_spec("vit-b16"), "ntk", widths=(96, 192, fits)), GIB).widths[-1] == fits
    with pytest.raises(DeviceMemoryError):
        planned(CheckRequest(model_spec("vit-b16"), "ntk", widths=(96, 192, fits + 12)), GIB)


def test_a_given_learning_rate_is_taken() -> None:
    check_result = check(lr=0.01, seeds=2, widths=(32, 64, 128), depth=1)
    assert [curves.lr for curves in check_result.curves] == [pytest.approx(0.01 * 128**-1.5), 0.01]
    assert check_result.settings["lr"] == 0.01
