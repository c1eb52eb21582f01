"""Measurements as theory has them pass; each that is spoilt is judged off, and said to be."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.perfect import DECODER, HEADS, IMAGES, SAMPLES, TEXT, expectations, perfect

from ettsweep.strategies.factors import Group
from ettsweep.theory.expectations import Expectations
from ettsweep.theory.exponents import ExponentTest
from ettsweep.theory.judge import Judgement, judge_measurements
from ettsweep.theory.measure import Measurement
from ettsweep.trainer.specs import ModelSpec

Spoil = Callable[[Measurement], Measurement]


def judged(expected: Expectations, spoil: Spoil = lambda m: m) -> Judgement:
    return judge_measurements(expected, [spoil(m) for m in perfect(expected)], HEADS, SAMPLES)


def scaled(field: str, key: Any, power: float = 0.0, factor: float = 1.0, add: float = 0.0) -> Spoil:
    """Return what multiplies one number of each network, or all of one tuple, by a power of the width and a constant,
    and adds another."""

    def spoil(m: Measurement) -> Measurement:
        values, by = dict(getattr(m, field)), factor * m.width**power
        value = values[key]
        values[key] = tuple(v * by + add for v in value) if isinstance(value, tuple) else value * by + add
        return replace(m, **{field: values})

    return spoil


def is_off(judgement: Judgement) -> set[str]:
    return {f"{row.name}: {row.quantity}" for row in judgement.rows if row.verdict is ExponentTest.OFF}


@pytest.mark.parametrize(("s", "optimizer"), [(0.0, "adamw"), (0.25, "sgd"), (1.0, "adamw")])
@pytest.mark.parametrize("model", [IMAGES, TEXT, DECODER], ids=["images", "text", "untied decoder"])
def test_what_follows_the_theory_passes(s: float, optimizer: str, model: ModelSpec) -> None:
    expected = expectations(s, optimizer, model)  # type: ignore[arg-type]
    judgement = judged(expected)
    assert judgement.verdict is ExponentTest.OK
    assert judgement.findings == ()


FACTOR, TANGENT, CHANGE = ("learning-rate factor",), ("tangent contribution",), ("function change",)
STD, SHAPE = ("initial std",), ("initial shape",)


@pytest.mark.parametrize(
    ("field", "group", "change", "off", "line"),
    [
        ("factors", Group.PE, {"power": 0.5}, FACTOR + TANGENT, "scales as width^+0.00, not width^-0.50"),
        ("factors", Group.HEAD, {"factor": 1.00001}, FACTOR, "is 0.001235"),
        ("factors", Group.U, {"power": 0.1, "factor": 256**-0.1}, FACTOR, "scales as width^-1.40, not width^-1.50"),
        ("stds", Group.V, {"power": -0.5}, STD, "scales as width^-1.00, not width^-0.50 (off by -0.50)"),
        ("stds", Group.PE, {"factor": 1.2}, STD, "is 0.024 at the widest, not 0.02"),
        ("stds", Group.HEAD_BIAS, {"add": 0.01}, STD, "is 0.01 at the widest, not 0"),
        ("stated_stds", Group.PE, {"factor": 1.0001}, STD, "is 0.020002 at the widest, not 0.02"),
        ("mean_magnitudes", Group.Q, {"factor": 0.9213}, SHAPE, "is 0.798 at the widest, not 0.866 (uniform)"),
        ("gradients", Group.W, {"power": 1.0}, TANGENT, "scales as width^+0.50, not width^+0.00 (off by +0.50)"),
        ("gradients", Group.W, {"factor": 2.0}, TANGENT, "is "),
        ("function_changes", Group.U, {"power": -0.5}, CHANGE, "scales as width^-0.50, not width^+0.00"),
    ],
)
def test_a_spoilt_group_is_named(
    field: str, group: Group, change: dict[str, float], off: tuple[str, ...], line: str
) -> None:
    words = {
        FACTOR: "the learning-rate factor",
        STD: "the std of initial values",
        SHAPE: "the mean magnitude of initial values, over their rms,",
        TANGENT: "the contribution to the tangent kernel",
        CHANGE: "the change of the outputs in training",
    }
    judgement = judged(expectations(0.0), scaled(field, group, **change))
    assert is_off(judgement) == {f"{group}: {quantity}" for quantity in off}
    assert judgement.findings[0].startswith(f"{group}: {words[off[:1]]} {line}")


def test_a_std_may_be_off_by_what_so_many_numbers_leave() -> None:
    expected = expectations(0.0)
    size = expected.predictions[-1].sizes[Group.PE]["pe"]  # of each of three networks
    allowed = 1 + 5 / math.sqrt(2 * size * 3)
    for factor, off in ((allowed - 0.001, set()), (allowed + 0.001, {"pe: initial std"})):
        assert is_off(judged(expected, scaled("stds", Group.PE, 0.0, factor))) == off


def test_decay_must_be_right_at_every_width_and_zero_for_the_bias() -> None:
    def one_width(m: Measurement) -> Measurement:
        return scaled("decay", Group.X, 0.0, 1.1)(m) if m.width == 64 and m.decay else m

    assert is_off(judged(expectations(0.0), one_width)) == {"x: decay"}

    def bias(m: Measurement) -> Measurement:
        return replace(m, decay={**m.decay, Group.HEAD_BIAS: (1.0,)}) if m.decay else m

    judgement = judged(expectations(0.0), bias)
    assert judgement.findings == ("head_bias: the decay of a step, divided by lr wd, is 1 at the widest, not 0",)


def test_a_kernel_is_judged_by_its_power_its_value_and_between_samples() -> None:
    def spoil(own: Callable[[int], float], between: float) -> Spoil:
        def change(m: Measurement) -> Measurement:
            a, b = m.kernels["blocks.0.mlp"]
            return replace(m, kernels={**m.kernels, "blocks.0.mlp": (a * own(m.width), b * between)})

        return change

    expected = expectations(0.0)
    grows = judged(expected, spoil(lambda n: (n / 256) ** 0.5, 1.0))
    assert is_off(grows) == {"blocks.0.mlp: kernel"}
    assert grows.findings == ("blocks.0.mlp: the kernel scales as width^+0.50, not width^+0.00 (off by +0.50)",)
    assert is_off(judged(expected, spoil(lambda n: 1.2, 1.0))) == {"blocks.0.mlp: kernel"}
    assert is_off(judged(expected, spoil(lambda n: 1.05, 1.0))) == set()  # within 5/C at C = 64
    assert is_off(judged(expected, spoil(lambda n: 1.0, 1.2))) == {"blocks.0.mlp: kernel between samples"}


def test_outputs_of_a_wrong_scale_are_put_down_to_the_head() -> None:
    def rescaled(m: Measurement) -> Measurement:
        own_part, between = m.kernels["head"]
        gradients = {group: value * m.width for group, value in m.gradients.items()}
        kernels = {**m.kernels, "head": (own_part * m.width, between * m.width)}
        return replace(m, kernels=kernels, gradients=gradients)

    judgement = judged(expectations(0.5, model=TEXT), rescaled)
    first, second = judgement.findings
    assert first == (
        "we: the outputs' kernel (output rescale) scales as width^+0.50, not width^-0.50 (off by +1.00), "
        "while hidden kernels are right"
    )
    assert second.startswith("also off, possibly as a consequence: pe, q, k, v, u, w, x, head")


def test_activations_that_change_otherwise_are_named() -> None:
    def faster(m: Measurement) -> Measurement:
        return replace(m, changes=[{stage: value * m.width**0.5 for stage, value in m.changes[0].items()}])

    judgement = judged(expectations(0.0), faster)
    (line,) = judgement.findings
    assert line.startswith("stem, blocks.0.attention, blocks.0.mlp, head: the change of activations in training scales")
    # Of text, where a C_G that grows is upstream, the change is shown and not judged.
    assert is_off(judged(expectations(0.0, model=TEXT), faster)) == {
        "encoder.stem: activation change",
        "decoder.stem: activation change",
    }


def test_scatter_that_hides_half_a_power_is_unclear() -> None:
    def scattered(m: Measurement) -> Measurement:
        return scaled("function_changes", Group.Q, 0.0, factor=(0.4, 1.0, 1.6)[m.seed])(m)

    judgement = judged(expectations(0.0), scattered)
    assert judgement.verdict is ExponentTest.UNCLEAR
    line = "too noisy to judge: q (function change); use more --seeds, or --widths farther apart"
    assert judgement.findings == (line,)
