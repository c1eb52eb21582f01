"""What a shell is offered while a command is typed: completers that typer asks. A shell waits, so each is lazy."""

import os
import re
import sys
from collections import Counter
from pathlib import Path

import typer

from ettsweep.shipped_files import shipped

VARIABLE = "_ETTSWEEP_COMPLETE"
"""In which a shell's script says which shell it is, and so that it asks."""

_RUN = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names that no shell needs quotes for; sweeps have no others."""

_MODEL = re.compile(r"""^model:[ \t]*["']?([\w.-]+)""", re.MULTILINE)


def quicken() -> None:
    """Spare typer two imports while it completes: pydantic, to check values, and rich, to read markup in help texts."""
    from typer.core import TyperArgument, TyperOption

    sys.modules["rich"] = None  # type: ignore[assignment]
    for kind in (TyperOption, TyperArgument):
        kind.process_value = lambda parameter, context, value: value  # type: ignore[assignment, method-assign]


def sweeps(context: typer.Context) -> list[str]:
    """Offer the sweeps of the results folder."""
    return _names(context, "sweeps", _NAME)


def runs(context: typer.Context) -> list[str]:
    """Offer the runs of the results folder."""
    return _names(context, "runs", _RUN)


def _names(context: typer.Context, kind: str, pattern: re.Pattern[str]) -> list[str]:
    """Return what lies in a folder of the results folder, which a shell gives as it was typed."""
    results = Path(os.path.expandvars(context.params["results"])).expanduser()
    try:
        with os.scandir(results / kind) as entries:
            return sorted(entry.name for entry in entries if pattern.fullmatch(entry.name) and entry.is_dir())
    except OSError:
        return []


def models() -> list[str]:
    """Offer the models that have a name."""
    from ettsweep.trainer.models.registry import named_models

    return list(named_models())


def tasks() -> list[str]:
    """Offer the tasks."""
    from ettsweep.trainer.tasks.registry import TASKS

    return list(TASKS)


def grid_models() -> list[str]:
    """Offer the models with one grid file, in ./grids or else among those shipped."""
    grids = Counter[str]()
    for folder in (Path("grids"), shipped("grids")):
        grids += Counter(model for model in map(_model_of, sorted(folder.glob("*.yaml"))) if model not in grids)
    return [model for model, count in grids.items() if model and count == 1]


def _model_of(grid: Path) -> str:
    """Return the model that a grid file names; nothing for one that describes it, or cannot be read."""
    try:
        match = _MODEL.search(grid.read_text(errors="replace"))
    except OSError:
        return ""
    return match[1] if match else ""


def profiles() -> list[str]:
    """Offer the launch profiles in ./launch and those shipped."""
    names = {path.stem for folder in (Path("launch"), shipped("launch")) for path in folder.glob("*.yaml")}
    return sorted(name for name in names if _NAME.fullmatch(name) and not name.endswith((".yaml", ".yml")))


def strategies() -> list[str]:
    """Offer the strategies that have a name."""
    from ettsweep.strategies.strategy import STRATEGIES

    return list(STRATEGIES)


def states() -> list[str]:
    """Offer the states of runs."""
    from ettsweep.runs.state import State

    return [state.value for state in State]


def sinks() -> list[str]:
    """Offer where metrics may go."""
    from ettsweep.trainer.training.loggers import METRIC_LOGGERS

    return list(METRIC_LOGGERS)


def samplers() -> list[str]:
    """Offer the proposers of a search, as the help of their option lists them."""
    return ["surface", "tpe", "gp", "cmaes", "random", "qmc"]


def pruners() -> list[str]:
    """Offer what may stop runs of a search, as the help of its option lists it."""
    return ["none", "median", "hyperband"]
