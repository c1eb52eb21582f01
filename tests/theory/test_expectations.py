import numpy as np
import pytest
from support.perfect import IMAGES, SAMPLES, TEXT, WIDTHS, counts, expectations, kernels

from ettsweep.strategies.factors import BULK, Group, lr_factor, tangent_contribution
from ettsweep.theory.expectations import mean_between_samples, mean_over_positions
from ettsweep.trainer.models.registry import dims
from ettsweep.trainer.specs import ModelSpec

NARROW = (8, 16, 32)
"""Widths at which the C_G of a language model, 0.0004 n, are so small that only their leading powers count."""


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("s", [0.0, 0.25, 1.0])
def test_in_the_family_vision_has_no_power_of_the_width_but_the_outputs_scale(s: float, optimizer: str) -> None:
    expected = expectations(s, optimizer)  # type: ignore[arg-type]
    for group in expected.groups:
        assert expected.contribution(group).implied_power(WIDTHS) == pytest.approx(0, abs=1e-9)
    powers = {stage: expected.kernel(stage, mean_over_positions).implied_power(WIDTHS) for stage in expected.stages}
    assert powers == pytest.approx({"stem": 0, "blocks.0.attention": 0, "blocks.0.mlp": 0, "head": -s}, abs=1e-9)
    changes = {stage: expected.change(stage) for stage in expected.stages}
    hidden = -(1 - s) / 2
    assert [change.power for change in changes.values() if change] == pytest.approx([hidden] * 3 + [0], abs=1e-9)


@pytest.mark.parametrize(("optimizer", "bulk", "hidden"), [("adamw", 1.5, 1.0), ("sgd", 1.0, 0.5)])
def test_standard_has_the_power_of_the_bulk_everywhere(optimizer: str, bulk: float, hidden: float) -> None:
    expected = expectations(None, optimizer)  # type: ignore[arg-type]
    assert {g: expected.contribution(g).implied_power(WIDTHS) for g in BULK} == pytest.approx(dict.fromkeys(BULK, bulk))
    assert expected.contribution(Group.PE).implied_power(WIDTHS) == pytest.approx(bulk)
    changes = [expected.change(stage) for stage in expected.stages]
    assert [change.power for change in changes if change] == pytest.approx([hidden] * 3 + [bulk])
    assert expected.kernel("head", mean_over_positions).implied_power(WIDTHS) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(("model", "s"), [(IMAGES, None), (IMAGES, 0.5), (TEXT, 0.5)])
def test_a_predicted_contribution_has_the_factor_that_models_train_with(
    model: ModelSpec, s: float | None, optimizer: str
) -> None:
    expected = expectations(s, optimizer, model)  # type: ignore[arg-type]
    for group, count in counts(model).items():
        assert expected.predictions[-1].count(group) == count
        raw = mean_over_positions(kernels(model, s).tangent[group].value)
        factor = lr_factor(group, dims(model), s, optimizer, "ignore")  # type: ignore[arg-type]
        value = tangent_contribution(raw, factor, optimizer, count)  # type: ignore[arg-type]
        assert expected.contribution(group).value == pytest.approx(value)


@pytest.mark.parametrize(("optimizer", "root"), [("adamw", 0.5), ("sgd", 1.0)])
def test_text_has_the_powers_of_its_growing_variances(optimizer: str, root: float) -> None:
    expected = expectations(0.0, optimizer, TEXT, NARROW)  # type: ignore[arg-type]
    implied = {group: expected.contribution(group).implied_power(NARROW) for group in counts(TEXT)}
    # u has C_V, v has C_U, q has C_K C_U C_V, all of them 0.0004 n; the GELU of little is half of it.
    mapping = {Group.WE: 0, Group.PE: 0, Group.U: 1, Group.V: 1, Group.W: 1, Group.X: 1, Group.Q: 3, Group.K: 3}
    assert implied == pytest.approx({group: root * order for group, order in mapping.items()}, abs=0.05)


def test_text_under_standard_has_a_power_more_by_the_outputs_scale() -> None:
    for optimizer in ("adamw", "sgd"):
        expected = expectations(None, optimizer, TEXT, NARROW)  # type: ignore[arg-type]
        assert expected.contribution(Group.PE).implied_power(NARROW) == pytest.approx(2.0, abs=0.02)
        assert expected.kernel("head", mean_over_positions).implied_power(NARROW) == pytest.approx(1.0, abs=0.02)
        assert expected.hidden_power == pytest.approx(1.0)
    hybrid = expectations(0.5, "adamw", TEXT, NARROW)
    by_stage = {stage: change.power for stage in hybrid.stages if (change := hybrid.change(stage))}
    assert by_stage == {"encoder.stem": -0.25, "decoder.stem": -0.25}, "what is known of text"


def test_means_of_a_kernel_are_over_positions_and_over_pairs_of_samples() -> None:
    kernel = np.arange(16.0).reshape(4, 4)  # two samples of two tokens
    assert mean_over_positions(kernel) == (0 + 5 + 10 + 15) / 4
    assert mean_between_samples(SAMPLES)(kernel) == np.mean([2, 3, 6, 7, 8, 9, 12, 13])
