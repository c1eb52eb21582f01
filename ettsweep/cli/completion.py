"""What a shell offers while a command is typed: names that are there, and none where they cannot be read.

A shell waits for the answer, so nothing heavy is imported: not what validates, and not what reads YAML.
"""

import ast
import contextlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperArgument, TyperOption

from ettsweep.resources import shipped

VARIABLE = "_ETTSWEEP_COMPLETE"
"""In which a shell's script says which shell it is, and so that it asks."""

_RUN = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names that no shell needs quotes for; sweeps have no others."""

_MODEL = re.compile(r"""^model:[ \t]*["']?([\w.-]+)""", re.MULTILINE)


# --- names ------------------------------------------------------------------------------------------------------------


def sweeps(context: typer.Context) -> list[str]:
    """Offer the sweeps of the results folder."""
    return sorted(name for name in _listed(_results(context) / "sweeps", os.DirEntry.is_dir) if _NAME.fullmatch(name))


def runs(context: typer.Context) -> list[str]:
    """Offer the runs of the results folder."""
    return sorted(name for name in _listed(_results(context) / "runs") if _RUN.fullmatch(name))


def models() -> list[str]:
    """Offer the models that have a name, read off the source of their table: importing it takes too long."""
    table = Path(__file__).parents[1] / "models" / "architectures.py"
    return [
        str(ast.literal_eval(name))
        for node in ast.walk(ast.parse(table.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "sizes" and isinstance(node.value, ast.Dict)
        for name in node.value.keys
        if name
    ]


def tasks() -> list[str]:
    """Offer the tasks, read off the source of their table: importing it takes too long."""
    table = Path(__file__).parents[1] / "tasks" / "kinds.py"
    return [
        str(ast.literal_eval(name))
        for node in ast.parse(table.read_text()).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TASKS" and isinstance(node.value, ast.Dict)
        for name in node.value.keys
        if name
    ]


def grid_models() -> list[str]:
    """Offer the models with one grid file, in ./grids or else among those shipped."""
    known, grids = models(), Counter[str]()
    for folder in (Path("grids"), shipped("grids")):
        grids += Counter(model for model in map(_model_of, folder.glob("*.yaml")) if model not in grids)
    return [model for model in known if grids[model] == 1]


def profiles() -> list[str]:
    """Offer the launch profiles in ./launch and those shipped."""
    found = {path.stem for folder in (Path("launch"), shipped("launch")) for path in folder.glob("*.yaml")}
    return sorted(name for name in found if _NAME.fullmatch(name) and not name.endswith((".yaml", ".yml")))


def strategies() -> list[str]:
    """Offer the strategies that have a name."""
    from ettsweep.scaling.strategies import STRATEGIES

    return list(STRATEGIES)


def states() -> list[str]:
    """Offer the states of runs."""
    from ettsweep.runs.state import State

    return [state.value for state in State]


def sinks() -> list[str]:
    """Offer where metrics may go."""
    from ettsweep.training.sinks import SINKS

    return list(SINKS)


def samplers() -> list[str]:
    """Offer the proposers of a search, as the help of their option lists them."""
    return ["surface", "tpe", "gp", "cmaes", "random", "qmc"]


def pruners() -> list[str]:
    """Offer what may stop runs of a search, as the help of its option lists it."""
    return ["none", "median", "hyperband", "wilcoxon"]


def _results(context: typer.Context) -> Path:
    """Return the results folder, which a shell gives as it was typed."""
    return Path(os.path.expandvars(context.params["results"])).expanduser()


def _listed(folder: Path, chosen: "Callable[[os.DirEntry[str]], bool]" = lambda entry: True) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if chosen(entry)]
    except OSError:
        return []


def _model_of(grid: Path) -> str:
    """Return the model that a grid file names; nothing for one that describes it, or cannot be read."""
    try:
        found = _MODEL.search(grid.read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


# --- the answer -------------------------------------------------------------------------------------------------------


def answer(app: typer.Typer) -> NoReturn:
    """Print what fits, for the shell and the words that are in the environment, and end.

    Nothing is said of what goes wrong: it would appear amid the line that is being typed.
    """
    code: object = 1  # fish offers files then
    sys.modules["rich"] = None  # type: ignore[assignment]  # typer has it read markup in help texts; there is none
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        contextlib.suppress(Exception, KeyboardInterrupt),
    ):
        if "=" in os.environ.get("COMP_WORDS", "").split("\n"):
            _join_at_equals()
        for kind in (TyperOption, TyperArgument):
            kind.process_value = _as_typed  # type: ignore[assignment, method-assign]
        try:
            _meant(app)()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 0)  # Python's own end takes a sixth of the time


def _as_typed(parameter: object, context: object, value: Any) -> Any:
    """Stand in for the check of a value, for which typer imports pydantic."""
    return value


def _join_at_equals() -> None:
    """Undo that bash makes three words of --option=value and of key=value; an option and its value stay two."""
    words: list[str] = []
    for word in os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]:
        if word == "=" and words[-1].startswith("--"):
            words.append("")
        elif words and (word == "=" or words[-1] == "" or words[-1].endswith("=")):
            words[-1] += word
        else:
            words.append(word)
    os.environ.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))


def _meant(app: typer.Typer) -> typer.Typer:
    """Return the app with no command but the one that was typed, if one was: typer builds all that there are."""
    typed = os.environ.get("COMP_WORDS") or os.environ["_TYPER_COMPLETE_ARGS"]
    words = re.split(r"\s+", typed)
    name = words[1] if len(words) > 2 else None  # the last one is being typed
    commands = [command for command in app.registered_commands if command.name == name]
    groups = [
        group for group in app.registered_groups if group.typer_instance and group.typer_instance.info.name == name
    ]
    if not commands and not groups:
        return app
    meant = copy(app)
    meant.registered_commands, meant.registered_groups = commands, groups
    return meant
