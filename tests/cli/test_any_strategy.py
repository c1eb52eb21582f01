"""Any s between 0 and 1 is a strategy like those with a name: in options, grid files, tables, figures and file names."""

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from support.commandline import Call, ettsweep, keep, write_grid

from ettsweep import cli
from ettsweep.report.formats import STRATEGY_COLOURS, strategy_colour, strategy_rank
from ettsweep.runs.folder import RunDir
from ettsweep.strategies.strategy import parse_strategy
from ettsweep.study.grid_file import load_sweep_spec

WIDTH = 8
LR, WD = 0.25, 0.25
"""The small grid's width, and its centre under standard."""

ODD = "s=.250"
"""A spelling that nothing prints."""


@pytest.fixture
def call(call: Call) -> Call:
    """Return a function that runs a command, whatever its exit code."""
    return partial(call, code=None)


@pytest.fixture
def finished(tmp_path: Path, results: Path) -> Path:
    """Return a results folder with the finished runs of ntk and of s = 0.25; every score is another."""
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "small.yaml", strategies=["ntk", "s=0.25"]))
    keep(results, sweep_spec)
    for score, spec in enumerate(sweep_spec.specs(), start=1):
        run = RunDir.create(results, spec)
        assert run.claim({}, after=0)
        assert run.finish({"status": "done", "score": float(score)}, [])
    return results


# --- spelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [("s=.25", "s=0.25"), ("s=0.250", "s=0.25"), ("s=25e-2", "s=0.25"), ("s=0", "ntk"), ("s=0.5", "hybrid"), ("s=1.", "mup")],
)  # fmt: skip
def test_one_strategy_has_one_name_however_it_is_spelt(call: Call, text: str, name: str) -> None:
    for option in (["--strategy", text], [f"--strategy={text}"]):
        result = call("scales", "--model", "vit-digits", *option, "--format", "json")
        assert json.loads(result.out)["strategy"] == name


@pytest.mark.parametrize("text", ["s=1/4", "s=1.5", "s=-0.1", "s=0,25", "s=25%", "s=0_1", "s= 0.25", "s=\u0661", "s="])
def test_what_is_no_number_from_0_to_1_is_refused(call: Call, text: str) -> None:
    result = call("scales", "--model", "vit-digits", "--strategy", text)
    assert result.code == 2
    assert result.err == f"ettsweep: strategy {text!r}: s must be a number from 0 to 1, such as s=0.25\n"


@pytest.mark.parametrize("text", ["S=0.25", "0.25", "s:0.25", "NTK", ""])
def test_what_is_no_strategy_is_refused_with_what_works(call: Call, text: str) -> None:
    result = call("scales", "--model", "vit-digits", "--strategy", text)
    assert result.code == 2
    assert f"unknown strategy {text!r}" in result.err
    assert "s=<number from 0 to 1>" in result.err


# --- options --------------------------------------------------------------------------------------------------------

OTHERS: dict[str, tuple[str, ...]] = {
    "grid": ("small.yaml", "--dry-run", "--results", "results"),
    "search": ("small.yaml", "--dry-run", "--results", "results"),
    "try": ("small.yaml", "--results", "results"),
    "verify-optimum": ("--dry-run", "--results", "results"),
    "seeds": ("--dry-run", "--results", "results"),
    "report": ("--results", "results"),
    "status": ("--results", "results"),
    "watch": ("--results", "results"),
    "cancel": ("--yes", "--results", "results"),
    "retry": ("--yes", "--results", "results"),
    "train": ("small.yaml", "--results", "results"),
    "scales": ("--model", "vit-digits"),
    "check-scaling": ("--model", "vit-digits"),
}
"""What each command with --strategy is given beside it."""


def commands_with(option: str) -> list[str]:
    """Return the commands that have an option, as the command line itself knows them."""
    items_result = typer.main.get_command(cli.make_app()).commands.items()  # type: ignore[attr-defined]
    return [name for name, command in items_result if any(option in p.opts for p in command.params)]


def test_no_command_with_a_strategy_is_left_out() -> None:
    assert {"grid", "train", "scales"} <= set(commands_with("--strategy")) <= set(OTHERS)


@pytest.mark.parametrize("command", commands_with("--strategy"))
def test_every_command_refuses_an_s_out_of_range(call: Call, finished: Path, command: str) -> None:
    result = call(command, "--strategy", "s=1.5", *OTHERS[command])
    assert result.code == 2
    assert "'s=1.5': s must be a number from 0 to 1, such as s=0.25" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("command", ["verify-optimum", "seeds", "report", "status", "watch", "cancel", "retry"])
def test_commands_on_runs_narrow_to_any_s(call: Call, finished: Path, command: str) -> None:
    """Under s = 0.25 are runs, and under s = 0.75 none."""
    result = call(command, "--strategy", ODD, *OTHERS[command])
    assert result.code in (0, 1), result
    if command in ("verify-optimum", "report", "status"):
        assert "s=0.25" in result.out
        assert "ntk" not in result.out
    none = call(command, "--strategy", "s=0.75", *OTHERS[command])
    assert "s=0.25" not in none.out
    if command in ("verify-optimum", "seeds", "report"):
        assert none.code == 2
        assert "--strategy s=0.75: no study matches; available: " in none.err


def test_grid_and_train_start_from_the_mapped_centre(call: Call, finished: Path) -> None:
    exponent = 1.5 - 0.3 / 2
    centre = {"lr": LR * WIDTH**exponent, "wd": WD / WIDTH**exponent}
    rows = json.loads(call("grid", *OTHERS["grid"], "--strategy", "s=.3", "--format", "json").out)
    assert {row["strategy"] for row in rows} == {"s=0.3"}
    assert {key: rows[1][key] for key in centre} == pytest.approx(centre)
    sets = ("--set", "schedule.total_steps=5", "--launch-set", "devices=cpu")
    result = call("train", *OTHERS["train"], "--strategy", "s=.3", *sets)
    assert result.code == 0, result
    (row,) = json.loads(call("status", "--results", finished, "--strategy", "s=0.30", "--format", "json").out)
    assert (row["strategy"], row["state"]) == ("s=0.3", "done")
    assert {key: row[key] for key in centre} == pytest.approx(centre)


def test_the_map_goes_from_and_to_any_s(call: Call) -> None:
    options = ("--lr", 2.0, "--wd", 0.5, "--width", 256, "--format", "json")
    data = json.loads(call("map", *options, "--from", "s=.25", "--to", "s=0.75").out)
    assert data == pytest.approx({"lr": 2.0 * 256**-0.25, "wd": 0.5 * 256**0.25})
    for option in ("--from", "--to"):
        mapping = {"--from": "ntk", "--to": "ntk", option: "s=1/4"}
        result = call("map", *options, *itertools.chain(*mapping.items()))
        assert (result.code, "'s=1/4': s must be a number" in result.err) == (2, True)


# --- grid files, tables, figures ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("process", "warm")
def test_a_grid_file_leads_to_a_report_of_several_s(tmp_path: Path, results: Path) -> None:
    """Two that have no name, stated and mapped, are searched, judged, drawn and written apart."""
    path = write_grid(
        tmp_path / "small.yaml", strategies=["s=.75", "s=0.25"], centre={"s=0.250": {"lr": 2.0, "wd": 0.015625}}
    )

    def command(*arguments: object, code: int = 0) -> Any:
        result = ettsweep(*arguments, "--results", results, "--format", "json", code=code, cwd=tmp_path)
        return json.loads(result.stdout) if result.stdout else result.stderr

    sets = ("--launch-set", "slots=1", "--launch-set", "threads=1", "--follow")
    command("grid", path, "--lr-range=0:1", *sets)
    verdicts = {verdict["strategy"]: verdict for verdict in command("verify-optimum", "--dry-run", code=1)}
    assert set(verdicts) == {"s=0.25", "s=0.75"}
    lrs = {lr * k for lr in (2.0, 2.0 * WIDTH**-0.25) for k in (1, 2)}
    assert sorted(row["lr"] for row in command("status")) == pytest.approx(sorted(lrs))
    command("report")
    report = results / "report"
    stems = {figure.stem for figure in (report / "figures").iterdir()}
    ends = [f"-{name}-{kind}" for name in ("s0p25", "s0p75") for kind in ("map", "curves")]
    assert all(any(stem.endswith(end) for stem in stems) for end in [*ends, "-seeds"])
    assert all(c.isalnum() or c == "-" for stem in stems for c in stem), "LaTeX includes them as they are"
    page = (report / "report.html").read_text()
    for name in ("s=0.25", "s=0.75"):
        assert f">{name}</a>" in page
        assert f"background: {strategy_colour(name)}" in page
        assert all(name in (report / "tables" / f"optima.{kind}").read_text() for kind in ("csv", "md", "tex"))
    assert page.index(">s=0.25</a>") < page.index(">s=0.75</a>")


def test_no_two_strategies_share_a_colour_and_the_named_ones_keep_theirs() -> None:
    names = ["standard", *(f"s={i / 100}" for i in range(101))]
    assert len({strategy_colour(name) for name in names}) == len(names)
    assert all(strategy_colour(name) == colour for name, colour in STRATEGY_COLOURS.items())
    assert [strategy_colour(name) for name in ("s=0", "s=0.5", "s=1")] == [
        STRATEGY_COLOURS[name] for name in ("ntk", "hybrid", "mup")
    ]
    tenths = [channels(f"s={i / 10}") for i in range(11)]
    assert min(max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in itertools.combinations(tenths, 2)) > 16


def channels(strategy: str) -> list[int]:
    """Return red, green and blue of a strategy's colour, each up to 255."""
    colour = strategy_colour(strategy)
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def test_strategies_are_sorted_by_s() -> None:
    names = ["mup", "s=0.75", "hybrid", "s=0.25", "ntk", "standard"]
    assert sorted(names, key=strategy_rank) == list(reversed(names))
    assert parse_strategy("s=0.25") == strategy_rank("s=0.25")[0]
