"""Commands that messages propose exist, with their options; `test_hints` pastes some."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import ettsweep
from ettsweep import cli

PACKAGE = Path(ettsweep.__file__).parent
PROPOSAL = re.compile(r"`ettsweep ([^`]+)`")

HOLE = "VALUE"
"""Stands for what a message fills in."""


@functools.cache
def everything() -> Any:
    """Return the whole command line, which takes a while to make."""
    return typer.main.get_command(cli.make_app())


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that some words begin with, and the words after its name."""
    command: Any = everything()
    while words and (commands := getattr(command, "commands", None)):
        # `ettsweep sweeps` lists sweeps, and is a group as well.
        if words[0] not in commands and command.name == "sweeps":
            break
        assert words[0] in commands, f"{words[0]} is no command"
        command, words = commands[words[0]], words[1:]
    return command, words


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


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


def test_each_command_of_a_text_exists_with_its_options() -> None:
    searched = sorted(set(proposals()))
    expected = {"grid --model vit-digits", f"init --model {HOLE}", "data text --input FILES --out DIR"}
    assert expected <= {proposal for _, proposal in searched}
    for module, proposal in searched:
        command, words = command_of([word.removesuffix(HOLE) or HOLE for word in proposal.split()])
        known = options_of(command)
        for word in words:
            if word.startswith("-"):
                assert word.partition("=")[0] in known, f"{module}: `ettsweep {proposal}`"
