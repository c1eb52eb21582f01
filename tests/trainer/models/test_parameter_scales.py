import pytest
from support.smallest import SMALLEST

from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.optimizers import AdamWSpec, SgdSpec
from ettsweep.trainer.models.parameter_scales import describe_scales, parameter_factors, scale_table
from ettsweep.trainer.models.registry import model_spec, parameter_count, parameter_shapes
from ettsweep.trainer.specs import ModelSpec

VIT_B16 = model_spec("vit-b16")
DIGITS = model_spec("vit-digits")
NTK = StrategySpec(s=0.0)


def test_table_of_vit_b16_under_ntk() -> None:
    bulk, embedding = 768**-1.5, 768**-0.5
    uniform = 768 * 768 * 12
    expected = [
        ("patch", [768, 768], 768 * 768, 768**-0.5, embedding / 768),
        ("pe", [196, 768], 196 * 768, 0.02, embedding),
        ("q", [768, 768], uniform, (1 / 1536) ** 0.5, bulk),
        ("k", [768, 768], uniform, (1 / 1536) ** 0.5, bulk),
        ("v", [768, 768], uniform, (1 / 1536) ** 0.5, bulk),
        ("u", [768, 768], uniform, (1 / 2304) ** 0.5, bulk),
        ("w", [3072, 768], 4 * uniform, (1 / 1920) ** 0.5, bulk),
        ("x", [768, 3072], 4 * uniform, (1 / 1920) ** 0.5, bulk),
        ("head", [1000, 768], 768_000, 768**-0.5, 1 / 768 / 1000**0.5),
        ("head_bias", [1000], 1000, 0.0, 1000**-0.5),
    ]
    table = scale_table(VIT_B16, NTK, AdamWSpec(), lr=20.0)
    for row, (group, shape, parameters, std, factor) in zip(table, expected, strict=True):
        assert row == {
            "group": group,
            "shape": shape,
            "parameters": parameters,
            "init_std": pytest.approx(std),
            "lr_factor": pytest.approx(factor),
            "wd_factor": 0 if group == "head_bias" else pytest.approx(1 / factor),
            "effective_lr": pytest.approx(20 * factor),
        }


def test_what_the_theory_does_not_cover_is_said() -> None:
    plain, untied = model_spec("gpt-tiny"), model_spec("gpt-tiny").model_copy(update={"head": "untied"})
    modern = plain.model_copy(update={"norm": "rms", "positions": "rotary", "mlp": "swiglu"})
    said = [describe_scales(m, "ntk", AdamWSpec(), "ignore", None)["beyond_theory"] for m in (DIGITS, plain, untied)]
    assert said == [[], [], []]
    first, second, third = describe_scales(modern, "ntk", AdamWSpec(), "ignore", None)["beyond_theory"]
    assert (first.split()[0], second, third.split()[0]) == ("RMSNorm", "rotary positions", "SwiGLU")
    rescales = [describe_scales(m, "mup", AdamWSpec(), "ignore", None)["output_rescale"] for m in (plain, untied)]
    assert rescales == [1 / 64, None], "a tied head has no initial std of its own"


@pytest.mark.parametrize("model", SMALLEST.values(), ids=SMALLEST)
@pytest.mark.parametrize("optimizer", [AdamWSpec(decay_pe=False), SgdSpec()])
def test_factors_of_parameters_are_those_of_their_groups(model: ModelSpec, optimizer: AdamWSpec | SgdSpec) -> None:
    strategy = StrategySpec(s=0.25, mlp_factor="include")
    table = scale_table(model, strategy, optimizer, lr=None)
    assert sum(row["parameters"] for row in table) == parameter_count(model)
    by_group = {row["group"]: (row["lr_factor"], row["wd_factor"]) for row in table}
    by_name = parameter_factors(model, strategy, optimizer)
    assert list(by_name) == [parameter.name for parameter in parameter_shapes(model)]
    for parameter in parameter_shapes(model):
        assert {by_group[group] for group in parameter.groups} == {by_name[parameter.name]}
