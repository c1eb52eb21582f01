"""Apply a strategy to a model: a table of scales by parameter group, and the optimizer's factors by parameter."""

from typing import Any

from ettsweep.errors import InputError
from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import (
    BULK,
    Group,
    MlpFactor,
    init_std,
    lr_factor,
    output_rescale,
    spectral_factor,
    wd_factor,
)
from ettsweep.strategies.optimizers import MuonSpec, OptimizerSpec, factor_rule
from ettsweep.strategies.strategy import check_strategy, parse_strategy, strategy_name
from ettsweep.trainer.models.registry import architecture, dims, model_name, parameter_count, parameter_shapes
from ettsweep.trainer.models.transformer import Parameter
from ettsweep.trainer.specs import ModelSpec


def scale_table(
    model: ModelSpec, strategy: StrategySpec, optimizer: OptimizerSpec, lr: float | None
) -> list[dict[str, Any]]:
    """Return one row per parameter group of the model, from stem to head.

    Keys: group, shape (of one tensor), parameters (in all tensors), init_std, lr_factor, wd_factor, effective_lr
    (lr * lr_factor; None without an lr).
    """
    rows = []
    for group in Group:
        parameters = [parameter for parameter in parameter_shapes(model) if group in parameter.groups]
        if not parameters:
            continue
        # Groups that share a tensor have a row each, with their own slice's shape and size.
        factor, decay = _group_factors(group, parameters[0], model, strategy, optimizer)
        rows.append(
            {
                "group": group.value,
                "shape": list(parameters[0].group_shape),
                "parameters": sum(parameter.size // len(parameter.groups) for parameter in parameters),
                "init_std": init_std(group, dims(model), strategy.s),
                "lr_factor": factor,
                "wd_factor": decay,
                "effective_lr": None if lr is None else lr * factor,
            }
        )
    return rows


def describe_scales(
    model: ModelSpec, strategy: str, optimizer: OptimizerSpec, mlp_factor: MlpFactor, lr: float | None
) -> dict[str, Any]:
    """Return the scale table of a model under a named strategy, with the model's name, width and size.

    `output_rescale` is None unless the head is tied to the word embedding. `beyond_theory` lists, in words, parts that
    the theory does not cover.

    Raises:
        InputError: unknown strategy, or one that the optimizer does not have.
    """
    s = parse_strategy(strategy)
    return {
        "model": model_name(model),
        "strategy": strategy_name(s),
        "width": model.width,
        "output_rescale": output_rescale(model.width, s) if dims(model).tied_head else None,
        "parameters": parameter_count(model),
        "beyond_theory": list(architecture(model).beyond_theory(model)),
        "groups": scale_table(model, StrategySpec(s=s, mlp_factor=mlp_factor), optimizer, lr),
    }


def parameter_factors(
    model: ModelSpec, strategy: StrategySpec, optimizer: OptimizerSpec
) -> dict[str, tuple[float, float]]:
    """Return (lr_factor, wd_factor) of every parameter by name, in the model's order.

    Raises:
        InputError: the optimizer does not have the strategy, or nothing to train in the model.
    """
    check_matrices(model, optimizer)
    result = {}
    for parameter in parameter_shapes(model):
        group_factors = {_group_factors(group, parameter, model, strategy, optimizer) for group in parameter.groups}
        # An optimizer has one factor per tensor, so groups that share a tensor must agree.
        assert len(group_factors) == 1, f"{parameter.name} fuses groups with different factors"
        result[parameter.name] = group_factors.pop()
    return result


def matrices(model: ModelSpec) -> dict[str, int]:
    """Return the names of the parameters that Muon trains, with how many matrices each fuses."""
    shapes = parameter_shapes(model)
    return {p.name: len(p.groups) * p.matrices for p in shapes if BULK.issuperset(p.groups) and len(p.shape) == 2}


def check_matrices(model: ModelSpec, optimizer: OptimizerSpec) -> None:
    """Check that a model has parameters for its optimizer.

    Raises:
        InputError: the optimizer is Muon, and the model has no matrices between its first layer and its head.
    """
    if isinstance(optimizer, MuonSpec) and not matrices(model.model_copy(update={"depth": 1})):
        raise InputError(
            f"optimizer.kind: muon trains the matrices of residual blocks, and {model_name(model)} has none; "
            "give adamw or sgd"
        )


def _group_factors(
    group: Group, parameter: Parameter, model: ModelSpec, strategy: StrategySpec, optimizer: OptimizerSpec
) -> tuple[float, float]:
    rule = factor_rule(optimizer)
    check_strategy(strategy.s, rule)
    if rule == "muon" and group in BULK and len(parameter.shape) == 2:
        fan_out, fan_in = parameter.matrix_shape
        factor = spectral_factor(fan_out, fan_in, strategy.s)
    else:
        factor = lr_factor(group, dims(model), strategy.s, rule, strategy.mlp_factor)
        if isinstance(optimizer, MuonSpec):
            factor *= optimizer.adamw_lr_ratio
    return factor, wd_factor(group, factor, optimizer.decay_pe)
