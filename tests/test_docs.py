"""The pages for people say what is so: commands with their options, keys, and what a command prints."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from support.commandline import ettsweep
from test_agents import CHECKOUT, assert_same, code_words, page, section

from ettsweep import cli
from ettsweep.kinds.command import CommandRecipe
from ettsweep.kinds.own_code import block_schema
from ettsweep.readers.reader import Reader

PAGES = ["README.md", "ettsweep/llms.txt", *(f"docs/{path.name}" for path in sorted((CHECKOUT / "docs").glob("*.md")))]
ROOT = typer.main.get_command(cli.make_app())

NOT_OF_A_PERSON = {"name", "about", "repository", "commit", "beware"}
"""Fields of a reader that say something of it, and that only those that ship have."""


def commands(name: str) -> Iterator[list[str]]:
    """Yield the words of each command on a page, in lines of code and in backticks, without what only stands for some."""
    text = page(name)
    blocks = re.findall(r"^    (?:\$ )?(ettsweep .*)$", text, re.MULTILINE)
    for line in [*blocks, *re.findall(r"`(ettsweep [^`]*)`", text)]:
        try:
            words = shlex.split(line.partition(" #")[0].partition(" | ")[0].partition(" && ")[0])
        except ValueError:  # a line that goes on
            continue
        yield words[1:]


@pytest.mark.parametrize("name", PAGES)
def test_commands_on_pages_have_their_options(name: str) -> None:
    wrong = []
    for words in commands(name):
        command = ROOT
        options = {option for parameter in ROOT.params for option in parameter.opts}
        for word in words:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]  # type: ignore[attr-defined]
                options |= {o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)}
            elif command is ROOT and not word.startswith("-") and re.fullmatch(r"[a-z][a-z-]+", word):
                wrong.append(f"{' '.join(words)}: no command {word}")
        stated = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        wrong += [f"{' '.join(words)}: no option {each}" for each in stated if each not in options | {"--help", "-h"}]
    assert wrong == []


def test_readme_has_all_commands() -> None:
    words = [word.partition(" ")[0] for row in section("README.md", "Commands").rows for word in code_words(row[0])]
    assert_same(dict.fromkeys(words), {*ROOT.commands} - {"read"} | {"sweeps", "data"})  # type: ignore[attr-defined]


def test_files_that_contributing_names_are_there() -> None:
    rows = section("CONTRIBUTING.md", "What to change where").rows
    words = {word for row in rows for cell in row for word in code_words(cell)}
    paths = {word for word in words if re.fullmatch(r"[a-z0-9_/]+\.(py|md|json)", word)}  # not those of a NAME
    assert len(paths) > 20
    assert {path for path in paths if not any((CHECKOUT / top / path).exists() for top in (".", "ettsweep"))} == set()


def test_keys_of_a_command() -> None:
    rows = section("docs/own-code.md", "The block").rows
    keys = {str(field.alias) for field in block_schema(CommandRecipe).model_fields.values()}
    # `seeds: none` stands beside the block.
    assert_same([word.partition(":")[0] for row in rows for word in code_words(row[0])], keys - {"seeds"})


def test_keys_of_a_reader() -> None:
    rows = section("docs/readers.md", "One of your own").rows
    words = [word for row in rows for word in code_words(row[0])]
    assert_same(words, Reader.model_fields.keys() - NOT_OF_A_PERSON)


# --- what commands print ----------------------------------------------------------------------------------------------


def shown_output(name: str) -> list[tuple[str, list[str]]]:
    """Return the commands on a page that are shown with what they print, and its lines."""
    found = re.findall(r"^    \$ ettsweep (.*)\n((?:    (?!\$).+\n)+)", page(name), re.MULTILINE)
    return [(command, [line[4:] for line in lines.splitlines()]) for command, lines in found]


@pytest.mark.parametrize(("command", "lines"), shown_output("docs/verdicts.md"), ids=lambda each: str(each)[:16])
def test_commands_print_what_their_page_shows(
    command: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [(i, j, seed) for i in range(-2, 3) for j in range(-1, 2) for seed in range(3)]
    rows = [
        f"{1e-3 * 2**i!r},{0.1 * 2**j!r},{seed},{2.98 + 0.09 * i * i + 0.06 * j * j + 0.01 * ((seed + i * j) % 3):.3f}"
        for i, j, seed in points
    ]
    (tmp_path / "scores.csv").write_text("\n".join(["lr,wd,seed,val_loss", *rows]) + "\n")
    (tmp_path / "old.csv").write_text("seed,val_loss\n0,3.10\n1,3.16\n2,3.22\n")
    (tmp_path / "new.csv").write_text("seed,val_loss\n0,3.00\n1,3.05\n2,3.12\n")
    result = ettsweep(*shlex.split(command), code=None, cwd=tmp_path)
    printed = [line.rstrip() for line in (result.stdout + result.stderr).splitlines()]
    assert [line for line in printed if line in lines] == lines, "\n".join(printed)
