"""The pages for agents and scripts say what is so: fields of JSON as commands print them, codes, words, variables."""

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from support.commandline import ettsweep, keep, write_fake_grid
from support.made_check import made_check
from support.recorded_folder import write_recorded

from ettsweep import cli
from ettsweep.doctor.checks import CheckState
from ettsweep.errors import EttsweepError
from ettsweep.kinds.template import PLACEHOLDERS, RESUME_PLACEHOLDERS
from ettsweep.runs.data_location import data_env
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.compare import Comparison
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.reason import Code
from ettsweep.study.study_state import REACH
from ettsweep.study.tried import ResumeClass, TrialState
from ettsweep.study.verdict import VerdictWord
from ettsweep.theory.check_tables import check_json
from ettsweep.theory.exponents import ExponentTest
from ettsweep.trainer.tasks.registry import TASKS

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "ettsweep"
FROZEN = Path(__file__).with_name("frozen")
AGENTS = "docs/agents.md"

Json = Any


# --- tables of the pages --------------------------------------------------------------------------------------------


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


# --- fields ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """The path to a value, its type, and what is said of it."""

    path: str
    type: str
    about: str


def fields(heading: str) -> dict[str, Field]:
    """Return the documented fields by their paths: of each type a line, such as "- text: `name` (about it)"."""
    found: dict[str, Field] = {}
    for item in section(AGENTS, heading).items:
        type_, _, listed = item.partition(": ")
        for word, about in re.findall(r"`([^`]+)`(?: \((.*?)\))?(?:, |$)", listed):
            for path in expanded(word):
                assert path not in found, path
                found[path] = Field(path, type_, about)
    return found


QUANTITY = {
    **dict.fromkeys(("measured", "error", "predicted", "power", "power_error", "implied", "off_by"), "number or null"),
    "verdict": "text",
}
NAMED = {"point": {"lr": "number", "wd": "number"}, "quantity": QUANTITY}
PLAIN: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "object": (dict,),
}


def is_of(value: Json, name: str) -> bool:
    """Say whether a value is of a type as the page has it."""
    if name.endswith(" or null"):
        return value is None or is_of(value, name.removesuffix(" or null"))
    if name.startswith("list of "):
        inner = name.removeprefix("list of ")
        inner = inner.replace("lists", "list", 1) if inner.startswith("lists") else inner.removesuffix("s")
        return isinstance(value, list) and all(is_of(each, inner) for each in value)
    if members := NAMED.get(name):
        if not isinstance(value, dict) or value.keys() != members.keys():
            return False
        return all(is_of(value[key], type_) for key, type_ in members.items())
    return isinstance(value, PLAIN[name]) and (name == "boolean" or not isinstance(value, bool))


def compared(value: Json, documented: dict[str, Field], path: str = "") -> Iterator[str]:
    """Yield the paths of fields of a value; it must have all that are documented, of their types, and no other."""
    below = {
        re.split(r"[.\[]", rest)[0]: None
        for each in documented
        if (rest := each.removeprefix(f"{path}.")) != each or not path
        if not rest.startswith("[")
    }
    if isinstance(value, list) and any(each.startswith(f"{path}[]") for each in documented):
        for item in value:
            yield from compared(item, documented, f"{path}[]")
        return
    known = documented.get(path)
    if known:
        yield path
    if isinstance(value, dict) and below:
        if known and known.type == "quantity":
            assert is_of({key: item for key, item in value.items() if key not in below}, "quantity"), path
        else:
            assert value.keys() == below.keys(), f"{path}: printed or documented, but not both"
        for key in below:
            yield from compared(value[key], documented, f"{path}.{key}".lstrip("."))
        return
    assert known, f"{path} is not documented"
    assert is_of(value, known.type), f"{path}: {value!r} is no {known.type}"


def without_facts(data: Json) -> Json:
    """Return verdicts without the facts of their reasons, which have a table of their own."""
    if isinstance(data, list):
        return [without_facts(each) for each in data]
    return data | {"why": {key: data["why"][key] for key in ("code", "stuck", "next")}}


# --- results --------------------------------------------------------------------------------------------------------


def done(results: Path, spec: RunSpec, score: float | None, **result: Json) -> None:
    """Have a run be finished with a made score, or diverged with None."""
    run = RunDir.create(results, spec)
    assert run.claim({}, after=0)
    if score is None:
        result |= {"status": "diverged", "diverged_step": 1}
    assert run.finish({"status": "done", "score": score, "device_s": 36.0} | result, [])


def write_command_grid(folder: Path, name: str, **changes: Json) -> Path:
    """Write a grid file of a program, which no test starts."""
    (folder / "train.sh").write_text("true\n")
    run = {
        "command": "sh train.sh {lr} {wd} {seed}",
        "score": {"name": "val_loss", "mode": "min"},
        "snapshot": False,
    }
    axes = {"lr": {"range": [-1, 1]}, "wd": {"range": [-1, 1]}, "centre": {"lr": 0.25, "wd": 0.25}}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"run": run, "seeds": [0, 1, 2], "criterion": {"margin": "30%"}} | axes | changes))
    return path


def write_scores(path: Path, rows: Iterable[tuple[object, ...]], head: str = "lr,wd,seed,score") -> Path:
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two results folders: `made`, of a program, and `results`, the recorded one."""
    folder = tmp_path_factory.mktemp("agents")
    write_recorded(folder)
    RunDir(folder / "results" / "runs" / RUN).attempt(1).record(
        "started", {"command": ["true"], "packages": {"torch": "2.9.0"}}
    )
    sweep_spec = load_sweep_spec(write_command_grid(folder, "made"))
    keep(folder / "made", sweep_spec)
    for spec in sweep_spec.specs():
        i, j = spec.point.log2()
        done(
            folder / "made",
            spec,
            1 + 0.1 * (i + 2) ** 2 + 0.1 * (j + 2) ** 2 + 0.003 * (spec.seed + i * j % 3),
            resumed_step=5,
            environment={"torch": "2.9.0" if spec.seed else "2.9.1"},
        )
    centre = next(iter(sweep_spec.specs())).with_point(0.25, 0.25, 7)
    done(folder / "made", centre, 1.0)
    (folder / "train.log").write_text("".join(f"step {k} train_loss={4 / k} val_loss={5 / k}\n" for k in range(1, 5)))
    (folder / "a.txt").write_text("\n\n".join(f"{number} is a number of this text." for number in range(200)))
    bowl = [
        (0.1 * 2**i, 0.1 * 2**j, seed, 1 + i * i + j * j + 0.01 * seed)
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
        for seed in (0, 1)
    ]
    write_scores(folder / "scores.csv", bowl[:-4])
    write_scores(folder / "a.csv", [(0, 3.1), (1, 3.2), (2, 3.0)], "seed,score")
    write_scores(folder / "b.csv", [(0, 3.2), (1, 3.3), (2, 3.4)], "seed,score")
    return folder


RUN = "a86cc2981aa4"
"""A run of the archive, trained by the trainer."""

OF_VERDICTS = "`verify-optimum`, `search`, `seeds`, `report`"
OF_PLANS = "`grid --dry-run`, `seeds --dry-run`"

COMMANDS: dict[str, tuple[str, list[str]]] = {
    "verify-optimum": (
        OF_VERDICTS,
        [f"verify-optimum --dry-run --results {results}" for results in ("made", "results")],
    ),
    "search": (OF_VERDICTS, ["search made.yaml --name searched --dry-run --results other"]),
    "seeds": (OF_VERDICTS, ["seeds --results results"]),
    "report": (OF_VERDICTS, ["report --results made --out report"]),
    "seeds --dry-run": (OF_PLANS, ["seeds --dry-run --results made"]),
    "grid --dry-run": (OF_PLANS, ["grid made.yaml --dry-run --results planned"]),
    "try": ("`try GRID`", ["try made.yaml --launch-set slots=1 --results tried"]),
    "verdict": ("`verdict SCORES`", ["verdict scores.csv --min"]),
    "status": ("`status`", ["status --results made", "status --results results"]),
    "show": ("`show RUN`", [f"show {RUN} --results results"]),
    "sweeps": ("`sweeps`", ["sweeps --results made"]),
    "compare": ("`compare A B`", ["compare a.csv b.csv --min"]),
    "read": ("`read FOLDER_OR_LOG`", ["read train.log"]),
    "read --reader": ("`read FOLDER_OR_LOG --reader NAME`", ["read train.log --reader stdout"]),
    "read, without a path": ("`read`, without a path", ["read"]),
    "clean": ("`clean`", ["clean --dry-run --results results"]),
    "doctor": ("`doctor`", ["doctor --launch-set slots=1 --results other"]),
    "data text": (
        "`data text`",
        ["data text --input a.txt --out tokens --bpe-tokens 300 --val-fraction 0.2 --workers 1"],
    ),
    "map": ("`map`", ["map --lr 0.01 --wd 0.5 --from standard --to ntk --width 48"]),
    "scales": ("`scales`", ["scales --model vit-digits --lr 0.5"]),
}
"""Heading of each command's table, and calls of it whose output has all fields together."""

BASES = {"`show RUN`": "`status`", "`verdict SCORES`": OF_VERDICTS}
"""Tables that go on with an element of another one."""


def documented_fields(heading: str) -> dict[str, Field]:
    base = fields(BASES[heading]) if heading in BASES else {}
    return {path.removeprefix("[]."): each for path, each in base.items()} | fields(heading)


def printed(folder: Path, command: str) -> Json:
    result = ettsweep(*command.split(), "--format", "json", code=None, cwd=folder)
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("undrawn")
def test_json_has_the_documented_fields(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")  # doctor asks it about torch, for seconds
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))  # no SLURM answers
    heading, calls = COMMANDS[name]
    documented, seen = documented_fields(heading), set[str]()
    for call in calls:
        data = printed(folder, call)
        assert data, call
        seen |= set(compared(without_facts(data) if "`verify" in heading or name == "verdict" else data, documented))
    if name in ("search", "seeds", "report", "grid --dry-run"):  # of the tables that others share, some of it will do
        return
    expected = fields(heading) if name == "verdict" else documented
    assert expected.keys() <= seen, f"not printed: {expected.keys() - seen}"


def test_check_scaling_has_the_documented_fields() -> None:
    heading = "`check-scaling`"
    frozen = json.loads((FROZEN / "columns.json").read_text())["check-scaling"]["json"]
    stated = {path.partition("[")[0].partition(".")[0] for path in frozen}
    documented = documented_fields(heading)
    assert {re.split(r"[.\[]", path)[0] for path in documented} == stated
    check = json.loads(json.dumps(check_json(made_check())))
    made = {path: each for path, each in documented.items() if re.split(r"[.\[]", path)[0] in check}
    assert set(compared(check, made)) == made.keys()


def test_what_a_broken_run_folder_has(folder: Path) -> None:
    data = printed(folder, "show 0123456789ab --results results")
    (sentence,) = re.findall(r"A folder that cannot be read has only (.*)\.", page(AGENTS))
    assert_same(code_words(sentence), data)


def test_each_command_with_json_has_a_table() -> None:
    def with_json(command: Json, name: str) -> Iterator[str]:
        if any("--format" in parameter.opts for parameter in command.params):
            yield name
        for sub, each in getattr(command, "commands", {}).items():
            yield from with_json(each, f"{name} {sub}".strip())

    commands = set(with_json(typer.main.get_command(cli.make_app()), ""))
    headings = [each.heading for each in sections(AGENTS) if each.heading.startswith("`")]
    assert {heading for heading, _ in COMMANDS.values()} | {"`check-scaling`"} == set(headings)
    named = {re.split(r" [A-Z-]", word)[0] for heading in headings for word in code_words(heading)}
    assert_same(named, commands)


def test_commands_without_json_are_named() -> None:
    (names,) = re.findall(r"Commands not named here \((.*?)\) have no JSON", page(AGENTS))
    headings = {re.split(r" ", word)[0] for heading, _ in COMMANDS.values() for word in code_words(heading)}
    assert_same(code_words(names), cli.COMMANDS.keys() - headings - {"check-scaling"})


def test_exit_codes_are_those_of_errors_and_commands() -> None:
    def codes(error: type[EttsweepError]) -> Iterator[int]:
        yield error.exit_code
        for each in error.__subclasses__():
            yield from codes(each)

    (paragraph,) = re.findall(r"## Exit codes\n\n(.*?)\n\n", page(AGENTS), re.DOTALL)
    assert {int(code) for code in re.findall(r"(\d+) is ", paragraph)} == {0, *codes(EttsweepError)}
    deciding = {name for name, command in cli.COMMANDS.items() if "typer.Exit(" in inspect.getsource(command)}
    named = [word.partition(" ")[0] for word in first_words(AGENTS, "Exit codes")]
    assert_same(named, deciding | {"logs", "read"})  # the last two by functions of theirs


# --- reasons --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Scores by lattice steps along lr from the centre, one for each seed; None diverged; and what it makes."""

    code: str
    scores: dict[int, list[float | None]] = field(default_factory=dict)
    at: int | None = None
    rule: str = "paper"
    margin: str = "10%"
    begun: int | None = None
    axes: dict[str, Json] = field(default_factory=dict)


CASES = [
    Case("candidate_to_come"),
    Case("candidate_to_come", at=0),
    Case("single_point", {0: [1.0]}, axes={"lr": "fixed"}),
    Case("points_to_come", {0: [1.0]}),
    Case("neighbours_to_come", {-1: [3.0], 0: [2.0], 1: [1.0]}, begun=2),
    Case("neighbours_not_requested", {-1: [3.0], 0: [2.0], 1: [1.0]}),
    Case("out_of_reach", {step: [10.0 - step] for step in range(-1, REACH + 2)}),
    Case("better_means", {-1: [3.0], 0: [2.0], 1: [1.0]}, at=0),
    Case("equal_mean", {-1: [3.0], 0: [2.0], 1: [2.0], 2: [3.0]}),
    Case("best_mean", {-1: [3.0], 0: [2.0], 1: [3.0]}),
    Case("all_diverged", {-1: [None], 0: [None], 1: [None]}, at=0),
    Case("diverged", {-1: [1.0, 1.1], 0: [None, None], 1: [None, None]}, at=0, rule="bound"),
    Case("better_neighbour", {-1: [1.0, 1.01, 1.0], 0: [2.0, 2.01, 2.02], 1: [3.0, 3.02, 3.01]}, at=0, rule="bound"),
    Case("within_margin", {-1: [2.0, 2.01, 2.0], 0: [1.0, 1.01, 1.02], 1: [2.0, 2.02, 2.01]}, rule="bound"),
    Case(
        "too_few_seeds", {step: [1.0 + step**2, 1.01 + step**2 + 0.002 * step] for step in range(-2, 3)}, rule="bound"
    ),
    Case("beyond_margin", {-1: [1.1, 1.2, 1.3], 0: [1.0, 1.3, 1.1], 1: [1.2, 1.1, 1.4]}, rule="bound", margin="0.1%"),
    Case(
        "edge_above",
        {-2: [1.3, 1.31, 1.32], -1: [1.04, 1.05, 1.06], 0: [1.0, 1.01, 1.02], 1: [None, None, None]},
        rule="bound",
        margin="2%",
    ),
    Case("noise_unknown", {-1: [1.1], 0: [1.0], 1: [1.2]}, rule="bound"),
]


def made_verdict(case: Case, folder: Path) -> Json:
    """Return the verdict on a case's runs."""
    seeds = list(range(max((len(each) for each in case.scores.values()), default=1)))
    criterion = {"rule": case.rule} | ({"margin": case.margin} if case.rule == "bound" else {})
    grid = write_fake_grid(folder / "line.yaml", seeds=seeds, criterion=criterion, **case.axes)
    sweep_spec = load_sweep_spec(grid)
    keep(folder / "line", sweep_spec)
    base = sweep_spec.specs()[0]
    for step, scores in case.scores.items():
        for seed, score in enumerate(scores):
            done(folder / "line", base.with_point(0.25 * 2.0**step, 0.25, seed), score)
    if case.begun is not None:
        RunDir.create(folder / "line", base.with_point(0.25 * 2.0**case.begun, 0.25, 0))
    at = "" if case.at is None else f" --at {0.25 * 2.0**case.at},0.25"
    (verdict,) = printed(folder, f"verify-optimum --dry-run --results line{at}")
    return verdict


def test_reasons_have_the_documented_facts(tmp_path: Path) -> None:
    verdicts = []
    for number, case in enumerate(CASES):
        (folder := tmp_path / str(number)).mkdir()
        verdicts.append(made_verdict(case, folder))
        assert verdicts[-1]["why"]["code"] == case.code
    zero = write_scores(tmp_path / "zero.csv", [(0.1 * 2**k, 0.1, 0, k * k) for k in (-1, 0, 1)])
    verdicts.append(printed(tmp_path, f"verdict {zero} --min"))
    apart = write_scores(tmp_path / "apart.csv", [(0.1 * 2**k, 0.1, k + 5, 1 + k * k) for k in (-1, 0, 1)])
    verdicts.append(printed(tmp_path, f"verdict {apart} --min"))
    assert verdicts[-1]["why"]["lack"] == "shared_seeds"
    seen: dict[str, set[str]] = {}
    for verdict in verdicts:
        why = verdict["why"]
        seen.setdefault(why["code"], set()).update(why.keys() - {"code", "stuck", "next"})
    _, codes = section(AGENTS, "Verdicts").tables
    documented = {code: set(code_words(row[1])) for row in codes for code in code_words(row[0])}
    assert documented == seen
    assert documented.keys() == set(get_args(Code))


# --- words, variables, placeholders, readers ------------------------------------------------------------------------


def test_words_of_verdicts() -> None:
    for words in (section(AGENTS, "Verdicts").tables[0], section("docs/verdicts.md", "The words").tables[0]):
        assert_same([word for row in words for word in code_words(row[0])], get_args(VerdictWord))


def test_states_of_runs() -> None:
    assert_same(first_words(AGENTS, "States of runs"), [state.value for state in State])
    assert_same(first_words("docs/runs.md", "States"), [state.value for state in State])


@pytest.mark.parametrize(
    ("heading", "path", "words"),
    [
        ("`compare A B`", "verdict", get_args(Comparison.__annotations__["verdict"])),
        ("`doctor`", "[].state", get_args(CheckState)),
        ("`check-scaling`", "verdict", [each.value for each in ExponentTest]),
        ("`try GRID`", "observations[].state", get_args(TrialState)),
        ("`try GRID`", "resume", get_args(ResumeClass)),
    ],
)
def test_words_of_other_commands(heading: str, path: str, words: list[str]) -> None:
    assert_same(code_words(fields(heading)[path].about), words)


INTERNAL = {
    *("ETTSWEEP_STEP", "ETTSWEEP_DATA", "ETTSWEEP_STATES", "ETTSWEEP_HISTORY", "ETTSWEEP_LOSSES", "ETTSWEEP_OUTPUT"),
    *("ETTSWEEP_ARGUMENTS", "ETTSWEEP_FOLDERS", "ETTSWEEP_MODULE"),
    *("ETTSWEEP_SPEC", "ETTSWEEP_SETTINGS", "ETTSWEEP_REPLY"),
}
"""Variables that modules of ettsweep pass to each other: no program needs them."""


def variables(whose: str) -> list[str]:
    """Return the documented variables of "a run" or of "commands"."""
    items = section(AGENTS, f"Variables of {whose}").items
    return [each for item in items for word in code_words(item.partition(": ")[0]) for each in expanded(word)]


def test_environment_variables() -> None:
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"(?<!\w)ETTSWEEP_[A-Z]+(?:_[A-Z]+)*(?!\w)", text)}
    data = {data_env(data) for kind in TASKS.values() if (data := kind.data_kind(kind.spec()))}
    assert_same([*variables("a run"), *variables("commands"), *INTERNAL], named | data)


def test_variables_of_a_run_are_named_where_a_program_is_described() -> None:
    text = (PACKAGE / "worker" / "commands.py").read_text().partition("# --- ")[0]
    given = {*re.findall(r'"(ETTSWEEP_[A-Z]+)": ', text), "ETTSWEEP_OUT"}
    assert_same(variables("a run"), given - INTERNAL)
    (line,) = re.findall(r"\*\*Environment\*\*: (.*?);", page("docs/own-code.md"))
    assert_same(
        [f"ETTSWEEP_{word.removeprefix('ETTSWEEP_').strip('_')}" for word in code_words(line)], variables("a run")
    )


def test_placeholders_of_commands() -> None:
    (text,) = re.findall(r"^Placeholders are (.*?); `\{lr\*0\.1\}`", page("docs/own-code.md"), re.DOTALL | re.MULTILINE)
    assert_same(re.findall(r"`\{(\w+)\}`", text), [*PLACEHOLDERS, *RESUME_PLACEHOLDERS])


def test_shipped_readers() -> None:
    shipped = [path.stem for path in (PACKAGE / "readers" / "data").glob("*.yaml")]
    assert_same(first_words("docs/readers.md", "Readers: metrics of a trainer that is left as it is"), shipped)


# --- the index that ships -------------------------------------------------------------------------------------------


def test_the_index_names_commands_and_pages_that_exist() -> None:
    text = (PACKAGE / "llms.txt").read_text()
    assert text.startswith("# ettsweep\n\n> ")
    for path, address in re.findall(r"^- \[(.*?)\]\((.*?)\)", text, re.MULTILINE):
        assert (CHECKOUT / path).is_file(), path
        assert address.endswith(f"/blob/main/{path}")
    commands = re.findall(r"`ettsweep ([a-z-]+)", text)
    assert set(commands) <= cli.COMMANDS.keys()
