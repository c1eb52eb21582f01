"""The recipe of a Transformer: what planner and views know of runs that this trainer trains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from ettsweep.config import options_by_key
from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.trainable import BUILT_IN, Labels, Settings, Size, Trainable
from ettsweep.schema import Key, OmitFromIdAt, Positive, Registered, Source, locating
from ettsweep.strategies.optimizers import DEFAULT_OPTIMIZER, OptimizerSpec, SgdSpec, factor_rule
from ettsweep.trainer.grid_recipe import recipe_problems, resolve_recipe
from ettsweep.trainer.models.model_cost import check_size
from ettsweep.trainer.models.parameter_scales import check_matrices
from ettsweep.trainer.models.registry import model_name, model_spec, short_form
from ettsweep.trainer.schedule_check import check_schedule
from ettsweep.trainer.settings import TrainerSettings
from ettsweep.trainer.specs import EPOCH_KEYS, ModelSpec, Precision, ScheduleSpec, TaskSpec, TextModel
from ettsweep.trainer.tasks.registry import (
    bind_to_data,
    check_compatible,
    check_data,
    located_data,
    steps_per_epoch,
    task_kind,
    task_spec,
)

AnyModelSpec = Annotated[
    SerializeAsAny[ModelSpec], Registered("ettsweep.trainer.models.registry:ARCHITECTURES", default="vit")
]
AnyTaskSpec = Annotated[SerializeAsAny[TaskSpec], Registered("ettsweep.trainer.tasks.registry:TASKS")]
AnyOptimizerSpec = Annotated[
    SerializeAsAny[OptimizerSpec], Registered("ettsweep.strategies.optimizers:OPTIMIZERS", default=DEFAULT_OPTIMIZER)
]


TRIAL_STEPS = 100
"""Steps of a run of `ettsweep try`: enough for a few checkpoints, few enough for a large model."""


class TransformerRecipe(Trainable):
    """A model trained on a task; strategies scale its initial values and learning rates by its width."""

    trainable: Annotated[Literal["transformer"], OmitFromIdAt(BUILT_IN)] = "transformer"
    model: AnyModelSpec
    task: AnyTaskSpec
    # validate_default turns the name into a spec with all its defaults, which are part of the id.
    optimizer: AnyOptimizerSpec = Field(default=DEFAULT_OPTIMIZER, validate_default=True)
    schedule: ScheduleSpec
    batch_size: Positive
    precision: Precision = "fp32"

    # --- in a grid file ---

    @classmethod
    def from_block(cls, block: dict[str, Any], overrides: Sequence[str], location: str, folder: Path) -> Self:
        recipe = resolve_recipe(cls, block, overrides, location)
        with locating(Source(location, options_by_key(overrides))):
            check_matrices(recipe.model, recipe.optimizer)
            check_size(recipe.model, recipe.optimizer)
            check_compatible(recipe.task, recipe.model, recipe.batch_size)
        return recipe

    @classmethod
    def block_problems(cls, block: dict[str, Any], overrides: Sequence[str], location: str) -> list[str]:
        return recipe_problems(cls, block, overrides, location)

    block_keys: ClassVar[Sequence[Key]] = EPOCH_KEYS

    @classmethod
    def check_name(cls, field: str, name: str) -> None:
        model_spec(name) if field == "model" else task_spec(name)

    # --- what it is ---

    def for_trial(self) -> Self:
        if self.schedule.last_step <= TRIAL_STEPS:
            return self
        quarter = TRIAL_STEPS // 4
        warmup_steps, eval_every = min(self.schedule.warmup_steps, quarter), min(self.schedule.eval_every, quarter)
        changes = {
            "total_steps": TRIAL_STEPS,
            "stop_step": None,
            "warmup_steps": warmup_steps,
            "eval_every": eval_every,
        }
        return self.model_copy(update={"schedule": self.schedule.model_copy(update=changes)})

    @property
    def metric(self) -> Metric:
        return task_kind(self.task).metric

    def summary(self, history: Sequence[Json], *, diverged: bool) -> Json:
        evaluations = [line for line in history if "val_loss" in line]
        result: Json = {}
        for name, select in (("accuracy", max), ("loss", min), ("bits", min), ("bits_per_byte", min)):
            if name == "bits_per_byte" and not any(f"val_{name}" in line for line in evaluations):
                continue  # of text alone, and not recorded from its first day on
            values = [line.get(f"val_{name}") for line in evaluations]
            result[f"best_{name}"] = select((value for value in values if value is not None), default=None)
            result[f"final_{name}"] = values[-1] if values and not diverged else None
        return result

    records_every_step: ClassVar[bool] = True

    @property
    def labels(self) -> Labels:
        data = getattr(self.task, "corpus", None) or ""
        return Labels(model_name(self.model), self.task.kind, data, self.optimizer.kind, self.precision)

    @property
    def steps(self) -> int:
        return self.schedule.last_step

    @property
    def eval_every(self) -> int:
        return self.schedule.eval_every

    @property
    def warmup_steps(self) -> int:
        return self.schedule.warmup_steps

    @property
    def steps_per_epoch(self) -> int | None:
        return None if task_kind(self.task).train_size is None else steps_per_epoch(self.task, self.batch_size)

    @property
    def tokens_per_step(self) -> int | None:
        # A source and its target are padded, by how much only the data tell; windows of decoders are full.
        if not isinstance(self.model, TextModel) or self.model.reads_source:
            return None
        return self.batch_size * self.model.tokens

    @property
    def momentum_gain(self) -> float:
        # torch adds the decay to the gradient of SGD. Adam and Muon take averages, and decay apart from them.
        return 1 / (1 - self.optimizer.momentum) if isinstance(self.optimizer, SgdSpec) else 1.0

    @property
    def samples_name(self) -> str:
        return f"{task_kind(self.task).sample}s"

    @property
    def size(self) -> Size:
        return Size(self.model.width, factor_rule(self.optimizer))

    def matches_model(self, name: str) -> bool:
        return name in (model_name(self.model), short_form(self.model))

    @property
    def data_kind(self) -> str:
        return task_kind(self.task).data_kind(self.task)

    @property
    def no_data_reason(self) -> str:
        own = {"pydoc": "task=text", "next_token": "task.text=tokens"}.get(self.task.kind)
        hint = f"; for your own text: --set {own}" if own else ""
        return f"task {self.task.kind} has its data from a package, and reads no other{hint}"

    def check_data(self, data: str | None, *, count: bool = False) -> None:
        check_data(self.task, self.model, data)
        if count:
            task_kind(self.task).check_counts(self.task, self.model, located_data(self.task, data))

    def bound_to(self, data: str | None) -> Self:
        return self.model_copy(update={"task": bind_to_data(self.task, data)})

    def check_axes(self, lrs: Sequence[float], wds: Sequence[float], strategies: Sequence[str]) -> str:
        return check_schedule(self.schedule, lrs)

    def check_resources(self, devices: int, memory_bytes: int, owner: str) -> None:
        if self.batch_size < devices:
            raise InputError(f"devices_per_run: {devices} devices cannot share a batch of {self.batch_size}")
        check_size(self.model, self.optimizer, memory_bytes, owner)

    settings: ClassVar[type[Settings]] = TrainerSettings

    runner: ClassVar[str] = "ettsweep.worker.trainer_runner:Runner"

    processes_together: ClassVar[bool] = True


class TransformerRun(TransformerRecipe, RunSpec):
    """A run of this trainer."""

    @model_validator(mode="before")
    @classmethod
    def _muon_has_one_mlp_factor(cls, data: Any) -> Any:
        """Drop `mlp_factor` of Muon, whose factors are of the shapes of matrices: equal training must have one id."""
        if isinstance(data, dict) and {"optimizer", "strategy"} <= data.keys():
            optimizer, strategy = data["optimizer"], StrategySpec.model_validate(data["strategy"])
            kind = optimizer.get("kind") if isinstance(optimizer, dict) else getattr(optimizer, "kind", optimizer)
            if kind == "muon":
                return data | {"strategy": StrategySpec(s=strategy.s)}
        return data


def as_transformer(recipe: Trainable) -> TransformerRecipe:
    """Return a recipe of this trainer.

    Raises:
        InputError: it is another trainable's.
    """
    if isinstance(recipe, TransformerRecipe):
        return recipe
    raise InputError(f"{recipe.labels.title} is no model of the built-in trainer")
