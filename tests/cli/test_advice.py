"""Commands that messages propose can be pasted: each is one that the command line accepts."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.commandline import Call, finish, keep, write_grid
from support.pictures import pictures, write_folders

import ettsweep
from ettsweep import cli
from ettsweep.runs.folder import RunDir
from ettsweep.study.grid_file import load_sweep_spec

PACKAGE = Path(ettsweep.__file__).parent
PROPOSAL = re.compile(r"`ettsweep ([^`]+)`")

HOLE = "VALUE"
"""Stands for what a message fills in."""


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that some words begin with, and the words after its name."""
    command: Any = typer.main.get_command(cli.make_app())
    while words and (commands := getattr(command, "commands", None)):
        # `ettsweep sweeps` lists sweeps, and is a group as well.
        if words[0] not in commands and command.name == "sweeps":
            break
        assert words[0] in commands, f"{words[0]} is no command"
        command, words = commands[words[0]], words[1:]
    return command, words


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


# --- in the sources -------------------------------------------------------------------------------------------------


def texts(path: Path) -> Iterator[str]:
    """Yield all texts of a module but docstrings, with holes in place of values."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def proposals() -> list[tuple[str, str]]:
    """Return (module, command) for each command that a text of the package proposes."""
    return [
        (str(path.relative_to(PACKAGE)), proposal)
        for path in sorted(PACKAGE.rglob("*.py"))
        for text in texts(path)
        for proposal in PROPOSAL.findall(text)
    ]


@pytest.mark.parametrize(("module", "proposal"), sorted(set(proposals())))
def test_each_command_of_a_text_exists_with_its_options(module: str, proposal: str) -> None:
    command, words = command_of([word.removesuffix(HOLE) or HOLE for word in proposal.split()])
    known = options_of(command)
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in known, f"{module}: `ettsweep {proposal}`"


def test_the_sources_are_searched() -> None:
    searched = {proposal for _, proposal in proposals()}
    assert {"grid --model vit-digits", f"init --model {HOLE}", "data text --input FILES --out DIR"} <= searched


# --- on the screen --------------------------------------------------------------------------------------------------


def accept(call: Call, proposal: str) -> None:
    """Run a proposed command: as it stands if it only reads, else its dry run; parse those that have none."""
    words = shlex.split(proposal)
    command, arguments = command_of(words)
    command.make_context(words[0], list(arguments))  # refuses unknown options and values, as with exit code 2
    if "--dry-run" in options_of(command):
        words = [word for word in words if word != "--follow"] + ["--dry-run"] * ("--dry-run" not in words)
    elif words[0] not in {"status", "show", "sweeps", "doctor", "init"}:
        return
    # 1 is a verdict that does not stand yet; 2 is a command that is refused.
    assert call(*words, code=None).code in (0, 1), proposal


@pytest.fixture
def situations(tmp_path: Path) -> Path:
    """Return a folder with sweeps in several states, a grid file, and images without validation images."""
    folder = tmp_path
    write_folders(folder / "my pets", {n.removeprefix("train/"): i for n, i in pictures(counts={"train": 12}).items()})
    sweep_spec = load_sweep_spec(write_grid(folder / "half done.yaml", criterion={}))
    keep(folder / "results", sweep_spec.model_copy(update={"grid": "half.yaml"}))
    first, second, third = sweep_spec.specs()
    finish(folder / "results", first, 1.0)
    RunDir.create(folder / "results", second).cancel()
    RunDir.create(folder / "results", third)
    return folder


SITUATIONS = (
    "verify-optimum --results empty",
    "sweeps --results empty",
    "watch --results empty",
    "init",
    "grid --model 64x4",
    "grid --model vit-ti16",
    "grid 'half done.yaml' --name half --dry-run",
    "grid 'half done.yaml' --name half --set batch_size=16",
    "verify-optimum --dry-run",
    "verify-optimum --sweep half --dry-run --margin 1%",
    "search --model vit-digits --dry-run",
    "status",
    "status --state missing",
    "sweeps",
    "clean --dry-run",
    "logs 000",
    "doctor --data 'my pets'",
    "grid 'half done.yaml' --data 'my pets' --set task=images --set model.channels=3",
)


@pytest.mark.usefixtures("situations")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_a_command_proposes_is_accepted(situation: str, call: Call) -> None:
    result = call(*shlex.split(situation), code=None)
    for proposal in PROPOSAL.findall(result.err + result.out):
        accept(call, proposal)


@pytest.mark.usefixtures("situations")
def test_the_situations_have_proposals(call: Call) -> None:
    said = "".join(call(*shlex.split(situation), code=None).err for situation in SITUATIONS[:8])
    assert {words.split()[0] for words in PROPOSAL.findall(said)} >= {"grid", "init"}
