"""The recipe of a Transformer; `kinds.transformer` has its facts for planner and views."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from ettsweep.runs.spec import BUILT_IN, Recipe, RunSpec, StrategySpec
from ettsweep.schema import OmitFromIdAt, Positive, Registered
from ettsweep.strategies.optimizers import DEFAULT_OPTIMIZER, OptimizerSpec
from ettsweep.trainer.specs import ModelSpec, Precision, ScheduleSpec, TaskSpec

AnyModelSpec = Annotated[
    SerializeAsAny[ModelSpec], Registered("ettsweep.trainer.models.registry:ARCHITECTURES", default="vit")
]
AnyTaskSpec = Annotated[SerializeAsAny[TaskSpec], Registered("ettsweep.trainer.tasks.registry:TASKS")]
AnyOptimizerSpec = Annotated[
    SerializeAsAny[OptimizerSpec], Registered("ettsweep.strategies.optimizers:OPTIMIZERS", default=DEFAULT_OPTIMIZER)
]


class TransformerRecipe(Recipe):
    """A model trained on a task; strategies scale its initial values and learning rates by its width."""

    trainable: Annotated[Literal["transformer"], OmitFromIdAt(BUILT_IN)] = "transformer"
    model: AnyModelSpec
    task: AnyTaskSpec
    # validate_default turns the name into a spec with all its defaults, which are part of the id.
    optimizer: AnyOptimizerSpec = Field(default=DEFAULT_OPTIMIZER, validate_default=True)
    schedule: ScheduleSpec
    batch_size: Positive
    precision: Precision = "fp32"


class TransformerRun(TransformerRecipe, RunSpec):
    """A run of this trainer."""

    @model_validator(mode="before")
    @classmethod
    def _muon_has_one_mlp_factor(cls, data: Any) -> Any:
        """Drop `mlp_factor` for Muon, whose factors follow from shapes of matrices: equal runs must have one id."""
        if isinstance(data, dict) and {"optimizer", "strategy"} <= data.keys():
            optimizer, strategy = data["optimizer"], StrategySpec.model_validate(data["strategy"])
            kind = optimizer.get("kind") if isinstance(optimizer, dict) else getattr(optimizer, "kind", optimizer)
            if kind == "muon":
                return data | {"strategy": StrategySpec(s=strategy.s)}
        return data
