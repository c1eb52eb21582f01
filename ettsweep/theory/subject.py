"""The subject of commands on theory: a model, its optimizer, and whether factors depend on the MLP's ratio."""

from pathlib import Path
from typing import NamedTuple

from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.kinds.transformer import as_transformer
from ettsweep.strategies.factors import MlpFactor
from ettsweep.strategies.optimizers import OPTIMIZERS, OptimizerSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.lattice import PLACEHOLDER_CENTRE
from ettsweep.trainer.models.parameter_scales import describe_scales
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.specs import ModelSpec


class Subject(NamedTuple):
    """A model with its optimizer and factors."""

    model: ModelSpec
    optimizer: OptimizerSpec
    mlp_factor: MlpFactor

    def scales(self, strategy: str, lr: float | None) -> Json:
        """Return the scale table under a named strategy, see `describe_scales`."""
        return describe_scales(self.model, strategy, self.optimizer, self.mlp_factor, lr)


def load_subject(model: str | None, grid: Path | None, optimizer: str | None, mlp_factor: MlpFactor | None) -> Subject:
    """Return the subject that options name: a model by name, or that of a grid file.

    Raises:
        InputError: not exactly one of `model` and `grid` is given, or it is not valid.
    """
    if (model is None) == (grid is None):
        raise InputError("give a grid file, --model NAME, or --model WIDTHxDEPTH")
    if grid is None:
        kind = optimizer or "adamw"
        return Subject(model_spec(str(model)), OPTIMIZERS[kind].spec(kind=kind), mlp_factor or "ignore")
    # No starting point is needed: any will do.
    sweep_spec = load_sweep_spec(grid, start=PLACEHOLDER_CENTRE)
    if (recipe := as_transformer(sweep_spec.recipe)) is None:
        title = sweep_spec.recipe.info.labels.title
        raise InputError(f"{grid}: its runs are {title}, which the theory does not cover")
    own = recipe.optimizer
    if optimizer not in (None, own.kind):
        own = OPTIMIZERS[str(optimizer)].spec(kind=str(optimizer))
    return Subject(recipe.model, own, mlp_factor or sweep_spec.mlp_factor)
