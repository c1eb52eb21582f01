"""Apply a strategy to a model: a table of scales by parameter group, and the optimizer's factors by parameter."""

from typing import Any

from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import Group, MlpFactor, init_std, lr_factor, output_rescale, wd_factor
from ettsweep.strategies.optimizers import OptimizerSpec, factor_rule
from ettsweep.strategies.strategy import parse_strategy, strategy_name
from ettsweep.trainer.models.registry import architecture, dims, model_name, parameter_count, parameter_shapes
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
        factor, decay = _group_factors(group, model, strategy, optimizer)
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

    `output_rescale` is None unless the head is tied to the word embedding.

    Raises:
        InputError: unknown strategy.
    """
    s = parse_strategy(strategy)
    return {
        "model": model_name(model),
        "strategy": strategy_name(s),
        "width": model.width,
        "output_rescale": output_rescale(model.width, s) if architecture(model).tied_head else None,
        "parameters": parameter_count(model),
        "groups": scale_table(model, StrategySpec(s=s, mlp_factor=mlp_factor), optimizer, lr),
    }


def parameter_factors(
    model: ModelSpec, strategy: StrategySpec, optimizer: OptimizerSpec
) -> dict[str, tuple[float, float]]:
    """Return (lr_factor, wd_factor) of every parameter by name, in the model's order."""
    result = {}
    for parameter in parameter_shapes(model):
        group_factors = {_group_factors(group, model, strategy, optimizer) for group in parameter.groups}
        # An optimizer has one factor per tensor, so groups that share a tensor must agree.
        assert len(group_factors) == 1, f"{parameter.name} fuses groups with different factors"
        result[parameter.name] = group_factors.pop()
    return result


def _group_factors(
    group: Group, model: ModelSpec, strategy: StrategySpec, optimizer: OptimizerSpec
) -> tuple[float, float]:
    factor = lr_factor(group, dims(model), strategy.s, factor_rule(optimizer), strategy.mlp_factor)
    return factor, wd_factor(group, factor, optimizer.decay_pe)
