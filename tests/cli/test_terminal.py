"""What people read in the terminal: numbers alike in all tables, each hint once, whose a message is."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from support.commandline import GRID, Call, keep, write_grid

from ettsweep.launch.monitor import Monitor, picture
from ettsweep.runs.folder import RunDir
from ettsweep.spec import RunSpec
from ettsweep.sweep.gridfile import load_request

Ask = Callable[..., list[RunSpec]]
OTHER = {"model": {**GRID["model"], "width": 4}}
"""Another model."""


@pytest.fixture
def ask(results: Path, tmp_path: Path) -> Ask:
    """Return a function that makes a sweep of the small grid, whose best point is the middle one."""

    def asked(name: str, spikes: int = 0, **changes: object) -> list[RunSpec]:
        request = load_request(write_grid(tmp_path / f"{name}.yaml", **changes))
        keep(results, request)
        specs = request.specs()
        for spec in specs:
            run = RunDir.create(results, spec)
            assert run.claim({}, after=0)
            score = 1 + abs(spec.lr - 0.25)
            assert run.finish({"status": "done", "score": score, "steps": 24, "loss_spikes": spikes}, [])
        return specs

    return asked


TABLES = {
    "status": 0,
    "verify-optimum --dry-run": 0,
    "seeds --dry-run": 0,
    "grid --grid w8.yaml --lr-range -2:1 --dry-run": 0,
    "map --lr 2^-2 --wd 2^-2 --from standard --to standard --width 8": 0,
}


@pytest.mark.parametrize("command", TABLES)
def test_lr_and_wd_are_powers_of_two_in_every_table(command: str, call: Call, ask: Ask, results: Path) -> None:
    ask("w8")
    words = [*command.split(), *([] if command.startswith("map") else ["--results", results])]
    for form in ("table", "markdown"):
        head, *rows = (
            re.split(r"\s*\| | \|$|\s{2,}", line.strip()) for line in call(*words, "--format", form).out.splitlines()
        )
        values = {row[head.index(name)] for row in rows if "---" not in row[1:2] for name in ("lr", "wd")}
        assert "2^-2" in values
        assert {value for value in values if not re.fullmatch(r"2\^-[1-4]", value)} == set(), form
    (first, *_) = csv.DictReader(io.StringIO(call(*words, "--format", "csv").out))
    assert {first["lr"], first["wd"]} <= {"0.0625", "0.125", "0.25"}, "programs read numbers"


def test_lr_and_wd_are_powers_of_two_where_they_are_shown_otherwise(call: Call, ask: Ask, results: Path) -> None:
    spec = ask("w8")[1]
    shown = call("show", spec.run_id, "--results", results).out
    assert re.findall(r"^(?:spec\.)?[lw][rd] +(\S+)$", shown, re.MULTILINE) == ["2^-2"] * 4
    attempt = RunDir.create(results, other := spec.at(0.125, 0.0, 3)).claim({}, after=0)
    assert attempt
    attempt.fail("error", "RuntimeError: out of luck")
    monitor = Monitor(results, [other], {})
    (console := Console(file=io.StringIO(), width=200)).print(picture(monitor, monitor.look(), "all"))
    assert re.search(r"2\^-3 +0 +3 ", console.file.getvalue())
    told = call("verify-optimum", "--at", "2^-1,2^-2", "--dry-run", "--results", results, code=1)
    assert re.search(r"refuted +2\^-1 +2\^-2", told.out)
    done = call("verify-optimum", "--at", "2^-1.5,2^-2", "--dry-run", "--results", results, code=2)
    assert "--at: lr 2^-1.5 is no point of w8 standard; the nearest is 2^-" in done.err


@pytest.mark.parametrize("option", ["--lr", "--wd"])
def test_what_is_neither_a_number_nor_a_power_is_refused(option: str, call: Call) -> None:
    given = {"--lr": "1", "--wd": "1", "--from": "ntk", "--to": "mup", "--width": "8"} | {option: "2^x"}
    done = call("map", *(word for pair in given.items() for word in pair), code=2)
    assert f"Invalid value for '{option}': '2^x' is no number, such as 0.01 or 2^-6" in done.err


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures empty: drawing takes most of a report's time, and is tested where it is done."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: Path(path).touch())


@pytest.mark.usefixtures("undrawn")
def test_report_prints_the_spikes_of_the_candidates(call: Call, ask: Ask, results: Path) -> None:
    ask("w8")
    assert "no spikes at the candidates: 1 run, 24 steps" in call("report", "--results", results).err
    ask("w4", seeds=[0, 1], spikes=3, **OTHER)
    done = call("report", "--results", results)
    assert re.findall(r"^(w.) .* (\d+) +(\d+) +(\d \(.*\))$", done.out, re.MULTILINE) == [
        ("w4", "2", "48", "6 (3 a run, 125 per 1,000 steps)"),
        ("w8", "1", "24", "0 (0 a run, 0 per 1,000 steps)"),
    ]


@pytest.mark.parametrize("out", [None, "file", "file/below", "/proc/none", "taken"])
@pytest.mark.usefixtures("undrawn")
def test_report_suggests_out_where_it_cannot_write(
    out: str | None, call: Call, ask: Ask, results: Path, tmp_path: Path
) -> None:
    ask("w8")
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "tables" / "runs.csv").mkdir(parents=True)
    (results / "report").touch()
    done = call("report", "--results", results, *(["--out", out] if out else []), code=1)
    told = rf"ettsweep: {re.escape(out or str(results / 'report'))}: cannot be written \(.+\); choose another folder with --out\n"
    assert re.fullmatch(told, done.err)
