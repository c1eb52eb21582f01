"""Shell completion: functions that typer calls for the values of an option. Imports are lazy: the shell waits."""

import os
import re
import sys
from pathlib import Path

import typer

from ettsweep.errors import InputError
from ettsweep.files import expand_home
from ettsweep.shipped_files import grid_model, own_grids, prefer_named, shipped, shipped_grids

COMPLETE_VARIABLE = "_ETTSWEEP_COMPLETE"
"""Environment variable that the shell's completion script sets, with the name of the shell."""

_RUN_ID = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names that need no quotes in a shell; all sweep names are like this."""


def skip_slow_imports() -> None:
    """Keep typer from importing rich, for markup in help texts, and from checking values, which imports pydantic."""
    from typer.core import TyperArgument, TyperOption

    sys.modules["rich"] = None  # type: ignore[assignment]  # `import rich` fails now, and typer does without
    # Completers need only the text of the options that were typed.
    for kind in (TyperOption, TyperArgument):
        kind.process_value = lambda parameter, context, value: value  # type: ignore[assignment, method-assign]


def sweeps(context: typer.Context) -> list[str]:
    """Return the names of the sweeps in the results folder."""
    return _names(context, "sweeps", _NAME)


def runs(context: typer.Context) -> list[str]:
    """Return the ids of the runs in the results folder."""
    return _names(context, "runs", _RUN_ID)


def _names(context: typer.Context, kind: str, pattern: re.Pattern[str]) -> list[str]:
    # The shell passes --results as typed: "$HOME/x" and "~/x" are not expanded yet.
    try:
        results = Path(expand_home(os.path.expandvars(context.params["results"])))
        with os.scandir(results / kind) as entries:
            # Skip temporary and foreign files.
            return sorted(entry.name for entry in entries if pattern.fullmatch(entry.name) and entry.is_dir())
    except (OSError, InputError):
        return []


def models() -> list[str]:
    """Return the named models."""
    from ettsweep.runs.trainable import BUILT_IN
    from ettsweep.runs.trainables import trainable_class

    return list(trainable_class(BUILT_IN).model_names())


def tasks() -> list[str]:
    """Return the names of the tasks."""
    from ettsweep.runs.trainable import BUILT_IN
    from ettsweep.runs.trainables import trainable_class

    return list(trainable_class(BUILT_IN).task_names())


def grid_models() -> list[str]:
    """Return what `--model` finds a grid file by: models with one, of the user's or else shipped, and shipped names."""
    grids: dict[str, list[Path]] = {}
    for paths in (own_grids(), shipped_grids()):
        # The user's grid files hide the shipped ones of the same model.
        models = {path: grid_model(path) for path in paths}
        grids |= {
            model: [path for path in paths if models[path] == model] for model in models.values() if model not in grids
        }
    # With several grid files for a model, none of which has its name, --model is refused as ambiguous.
    clear = [model for model, paths in grids.items() if model and len(prefer_named(model, paths)) == 1]
    return [*clear, *(path.stem for path in shipped_grids() if path.stem not in grids)]


def profiles() -> list[str]:
    """Return the launch profiles in ./launch and those shipped."""
    names = {path.stem for folder in (Path("launch"), shipped("launch")) for path in folder.glob("*.yaml")}
    return sorted(name for name in names if _NAME.fullmatch(name) and not name.endswith((".yaml", ".yml")))


def strategies() -> list[str]:
    """Return the named strategies."""
    from ettsweep.strategies.strategy import STRATEGIES

    return list(STRATEGIES)


def states() -> list[str]:
    """Return the states of runs."""
    from ettsweep.runs.state import State

    return [state.value for state in State]


def metric_loggers() -> list[str]:
    """Return the names of the metric loggers."""
    from ettsweep.runs.metric_loggers import METRIC_LOGGERS

    return list(METRIC_LOGGERS)


def samplers() -> list[str]:
    """Return the samplers, as the help of --sampler lists them."""
    # Written out, since importing the samplers would take too long.
    return ["surface", "tpe", "gp", "cmaes", "random", "qmc"]


def readers() -> list[str]:
    """Return the readers that ship."""
    # By their files, without a YAML parser, nor the packages that are installed.
    return sorted(path.stem for path in (Path(__file__).parents[1] / "readers" / "data").glob("*.yaml"))
