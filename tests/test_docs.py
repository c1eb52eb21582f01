"""Pages and messages say what is so: commands with their options, fields of JSON, words, variables, keys, output."""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from support.commandline import ettsweep
from test_frozen import paths, recorded
from test_prose import texts

from ettsweep import cli
from ettsweep.errors import EttsweepError
from ettsweep.kinds.command import CommandRecipe
from ettsweep.kinds.own_code import block_schema
from ettsweep.kinds.template import PLACEHOLDERS
from ettsweep.readers.reader import Reader
from ettsweep.runs.data_location import data_env
from ettsweep.runs.spec import RESUME_PLACEHOLDERS
from ettsweep.runs.state import State
from ettsweep.study.reason import Code
from ettsweep.study.verdict import VerdictWord
from ettsweep.trainer.tasks.registry import TASKS

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "ettsweep"
AGENTS = "docs/agents.md"
PAGES = ["README.md", "ettsweep/llms.txt", *(f"docs/{path.name}" for path in sorted((CHECKOUT / "docs").glob("*.md")))]
ROOT = typer.main.get_command(cli.make_app())


# --- pages ----------------------------------------------------------------------------------------------------------


@cache
def page(name: str) -> str:
    return (CHECKOUT / name).read_text()


@dataclass
class Section:
    """What stands below a heading: its tables, which are rows of cells without the head, and its list."""

    heading: str
    tables: list[list[list[str]]] = field(default_factory=list)
    items: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[list[str]]:
        return [row for table in self.tables for row in table]


@cache
def sections(name: str) -> list[Section]:
    """Return the sections of a page, from one heading to the next of any level."""
    found, in_head = [Section("")], False
    for line in page(name).splitlines():
        if match := re.match(r"#+ (.*)", line):
            found.append(Section(match[1]))
        if not line.startswith("|"):
            in_head = True
        elif re.fullmatch(r"[|\- ]+", line):
            in_head = False
            found[-1].tables.append([])
        elif not in_head:
            found[-1].tables[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        if line.startswith("- "):
            found[-1].items.append(line.removeprefix("- "))
        elif line.startswith("  ") and found[-1].items:
            found[-1].items[-1] += f" {line.strip()}"
    return found


def section(name: str, heading: str) -> Section:
    (found,) = [each for each in sections(name) if each.heading == heading]
    return found


def code_words(text: str) -> list[str]:
    """Return what stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def expanded(word: str) -> list[str]:
    """Return the names that `a.{b,c}` stands for, as in a shell."""
    head, brace, rest = word.partition("{")
    return [f"{head}{name}" for name in rest.removesuffix("}").split(",")] if brace else [word]


def first_words(name: str, heading: str) -> list[str]:
    """Return what the first column of a table has in backticks."""
    return [each for row in section(name, heading).rows for word in code_words(row[0]) for each in expanded(word)]


def assert_same(documented: Iterable[str], real: Iterable[str]) -> None:
    documented = list(documented)
    assert sorted(documented) == sorted(set(real)), "each once, and no other"


# --- fields of JSON -------------------------------------------------------------------------------------------------


def fields(heading: str) -> dict[str, str]:
    """Return what is said of each field by its path: of each type a line, such as "- text: `name` (about it)"."""
    listed = [
        re.findall(r"`([^`]+)`(?: \((.*?)\))?(?:, |$)", item.partition(": ")[2])
        for item in section(AGENTS, heading).items
    ]
    return {path: about for each in listed for word, about in each for path in expanded(word)}


OF_VERDICTS, OF_PLANS = "`verify-optimum`, `search`, `seeds`, `report`", "`grid --dry-run`, `seeds --dry-run`"
PRINTED = {
    OF_VERDICTS: ["verify-optimum --dry-run"],
    OF_PLANS: ["grid --dry-run", "seeds --dry-run"],
    "`verdict SCORES`": ["verdict"],
    "`status`": ["status"],
    "`show RUN`": ["show"],
    "`sweeps`": ["sweeps"],
    "`compare A B`": ["compare", "compare of sweeps"],
    "`read FOLDER_OR_LOG`": ["read"],
    "`clean`": ["clean --dry-run"],
    "`doctor`": ["doctor"],
    "`data text`": ["data text"],
    "`map`": ["map"],
    "`scales`": ["scales", "scales --lr"],
    "`check-scaling`": ["check-scaling"],
}
"""Heading of each command's fields, and records of what it prints: `test_frozen.py` has it print them."""

BASES = {"`show RUN`": "`status`", "`verdict SCORES`": OF_VERDICTS}
"""Lists that go on with an element of another one."""

UNRECORDED = {"[].last change"}


def related(path: str, other: str) -> bool:
    """Say whether two paths are one, or one is within the other: what is null or empty has nothing below."""
    return path == other or path.startswith((f"{other}.", f"{other}[")) or other.startswith((f"{path}.", f"{path}["))


@pytest.mark.parametrize("heading", PRINTED)
def test_json_has_the_documented_fields(heading: str) -> None:
    documented = {*fields(heading)}
    if heading in BASES:
        documented |= {path.removeprefix("[].") for path in fields(BASES[heading])}
    printed = set[str]()
    for name in PRINTED[heading]:
        columns = recorded("columns").get(name)
        printed |= {*columns["json"]} if columns else {*paths(recorded("commands")[name][0])}
    printed = {path for path in printed if not re.search(r"\bwhy\.(?!code|stuck|next)", path)}  # facts: see below
    unknown = {path for path in printed if not any(related(path, each) for each in documented)}
    absent = {path for path in documented - UNRECORDED if not any(related(path, each) for each in printed)}
    assert (unknown, absent) == (set(), set())


def test_each_command_with_json_has_a_list_of_fields_and_others_are_named() -> None:
    def with_json(command: Any, name: str) -> Iterator[str]:
        if any("--format" in parameter.opts for parameter in command.params):
            yield name
        for sub, each in getattr(command, "commands", {}).items():
            yield from with_json(each, f"{name} {sub}".strip())

    headings = [each.heading for each in sections(AGENTS) if each.heading.startswith("`")]
    named = {re.split(r" [A-Z-]", word)[0] for heading in headings for word in code_words(heading)}
    assert_same(named, with_json(ROOT, ""))
    (names,) = re.findall(r"Commands not named here \((.*?)\) have no JSON", page(AGENTS))
    assert_same(code_words(names), cli.COMMANDS.keys() - {name.partition(" ")[0] for name in named})


def test_reasons_have_the_documented_facts() -> None:
    _, codes = section(AGENTS, "Verdicts").tables
    documented = {code: set(code_words(row[1])) for row in codes for code in code_words(row[0])}
    assert documented.keys() == set(get_args(Code))
    verdicts = [row for key, rows in recorded("readings").items() for row in rows if "verify-optimum" in key]
    whys = [row["why"] for row in verdicts if isinstance(row, dict)]
    assert whys
    for why in whys:
        assert why.keys() - {"code", "stuck", "next"} == documented[why["code"]], why["code"]


# --- words, codes, variables ------------------------------------------------------------------------------------------


def test_words_of_verdicts_states_readers_and_placeholders() -> None:
    for words in (section(AGENTS, "Verdicts").tables[0], section("docs/verdicts.md", "The words").tables[0]):
        assert_same([word for row in words for word in code_words(row[0])], get_args(VerdictWord))
    for name, heading in ((AGENTS, "States of runs"), ("docs/runs.md", "States")):
        assert_same(first_words(name, heading), [state.value for state in State])
    shipped = [path.stem for path in (PACKAGE / "readers" / "data").glob("*.yaml")]
    assert_same(first_words("docs/readers.md", "Readers: the metrics that your script already writes"), shipped)
    (text,) = re.findall(r"^Placeholders are (.*?); `\{lr\*0\.1\}`", page("docs/own-code.md"), re.DOTALL | re.MULTILINE)
    assert_same(re.findall(r"`\{(\w+)\}`", text), [*PLACEHOLDERS, *RESUME_PLACEHOLDERS])


def test_exit_codes_are_those_of_errors() -> None:
    def codes(error: type[EttsweepError]) -> Iterator[int]:
        yield error.exit_code
        for each in error.__subclasses__():
            yield from codes(each)

    (paragraph,) = re.findall(r"## Exit codes\n\n(.*?)\n\n", page(AGENTS), re.DOTALL)
    assert {int(code) for code in re.findall(r"(\d+) is ", paragraph)} == {0, *codes(EttsweepError)}


INTERNAL = {
    *("ETTSWEEP_STEP", "ETTSWEEP_DATA", "ETTSWEEP_STATES", "ETTSWEEP_HISTORY", "ETTSWEEP_LOSSES", "ETTSWEEP_OUTPUT"),
    *("ETTSWEEP_ARGUMENTS", "ETTSWEEP_FOLDERS", "ETTSWEEP_MODULE"),
    *("ETTSWEEP_SPEC", "ETTSWEEP_SETTINGS", "ETTSWEEP_REPLY"),
}
"""Variables that modules of ettsweep pass to each other: no program needs them."""


def test_environment_variables() -> None:
    items = [item for whose in ("a run", "commands") for item in section(AGENTS, f"Variables of {whose}").items]
    documented = [each for item in items for word in code_words(item.partition(": ")[0]) for each in expanded(word)]
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"(?<!\w)ETTSWEEP_[A-Z]+(?:_[A-Z]+)*(?!\w)", text)}
    data = {data_env(data) for kind in TASKS.values() if (data := kind.data_kind(kind.spec()))}
    assert_same([*documented, *INTERNAL], named | data)


# --- commands and keys ------------------------------------------------------------------------------------------------


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


def wrong_words(words: list[str]) -> list[str]:
    """Return what of a command does not exist: it, or its options."""
    wrong, command = [], ROOT
    options = {option for parameter in ROOT.params for option in parameter.opts} | {"--help", "-h"}
    for word in words:
        if word in getattr(command, "commands", {}):
            command = command.commands[word]  # type: ignore[attr-defined]
            options |= {o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)}
        elif command is ROOT and not word.startswith("-") and re.fullmatch(r"[a-z][a-z-]+", word):
            wrong.append(f"{' '.join(words)}: no command {word}")
    stated = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return wrong + [f"{' '.join(words)}: no option {each}" for each in stated if each not in options]


@pytest.mark.parametrize("name", PAGES)
def test_commands_on_pages_have_their_options(name: str) -> None:
    assert [wrong for words in commands(name) for wrong in wrong_words(words)] == []


def test_commands_that_messages_propose_have_their_options() -> None:
    hole = "VALUE"  # what a message fills in
    said = [text for path in PACKAGE.rglob("*.py") for text in texts(ast.parse(path.read_text()), hole)]
    proposed = {command for text in said for command in re.findall(r"`ettsweep ([^`]+)`", text)}
    assert {"grid --model vit-digits", f"init --model {hole}", "data text --input FILES --out DIR"} <= proposed
    splits = [[word.removesuffix(hole) or hole for word in command.split()] for command in proposed]
    assert [wrong for words in splits for wrong in wrong_words(words)] == []


def test_keys_of_a_command_and_of_a_reader() -> None:
    keys = {str(each.alias) for each in block_schema(CommandRecipe).model_fields.values()}
    documented = [
        word.partition(":")[0]
        for row in section("docs/own-code.md", "Keys of `run:`").rows
        for word in code_words(row[0])
    ]
    beside = {"seeds", *(key for key in keys if key.startswith("_"))}  # such as `seeds: none`
    assert_same(documented, keys - beside)
    of_those_that_ship = {"name", "about", "repository", "commit", "beware"}
    words = [word for row in section("docs/readers.md", "One of your own").rows for word in code_words(row[0])]
    assert_same(words, Reader.model_fields.keys() - of_those_that_ship)


def shown_output(name: str) -> list[tuple[str, list[str]]]:
    """Return the commands on a page that are shown with what they print, and its lines."""
    found = re.findall(r"^    \$ ettsweep (.*)\n((?:    (?!\$).+\n)+)", page(name), re.MULTILINE)
    return [(command, [line[4:] for line in lines.splitlines()]) for command, lines in found]


@pytest.mark.parametrize(("command", "lines"), shown_output("docs/verdicts.md"), ids=lambda each: str(each)[:16])
def test_commands_print_what_their_page_shows(command: str, lines: list[str], tmp_path: Path) -> None:
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
