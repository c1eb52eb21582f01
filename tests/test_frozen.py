"""Goldens: ids, scores, readings, verdicts, columns, the demo's numbers, and the JSON of each command that reads.

They are compared with the records in tests/frozen, on results folders that `support/recorded_folder.py` writes through
the code as it is today. `ETTSWEEP_FREEZE=1` records them anew, for a change of columns, or of a number on purpose.
`test_exact_resume.py` has those of interrupted runs.
"""

import csv
import io
import json
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ettsweep, left_as_before, undisturbed
from support.recorded_folder import BROKEN, HERE, write_recorded

from ettsweep import cli
from ettsweep.study.grid_file import load_sweep_spec

FROZEN = Path(__file__).with_name("frozen")
GRIDS = Path(__file__).parent.parent / "grids"
FORMATS = ("json", "csv", "markdown", "table")

Json = Any
Call = Callable[..., "Done"]


def recorded(name: str) -> dict[str, Json]:
    """Return what is recorded in tests/frozen/NAME.json."""
    path = FROZEN / f"{name}.json"
    record: dict[str, Json] = json.loads(path.read_text()) if path.exists() else {}
    return record


def assert_frozen(name: str, result: dict[str, Json]) -> None:
    """Compare with what is recorded under these keys."""
    record = recorded(name)
    if os.environ.get("ETTSWEEP_FREEZE"):
        (FROZEN / f"{name}.json").write_text(readable(record | result))
        return
    for key, value in result.items():
        assert key in record, f"{name}.json has no {key}: ETTSWEEP_FREEZE=1 adds it"
        assert value == record[key], f"{name}.json: {key}"


def readable(record: dict[str, Json]) -> str:
    """Return JSON with a line for each item of each entry: a change is a line of a diff."""
    entries = []
    for key, value in record.items():
        if isinstance(value, dict):
            items = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
        else:
            items = [json.dumps(item) for item in value]
        left, right = "{}" if isinstance(value, dict) else "[]"
        entries.append(f"{json.dumps(key)}: {left}\n" + ",\n".join(items) + f"\n{right}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str

    @property
    def json(self) -> Json:
        return json.loads(self.out)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Return a function that runs a command in this process, where nothing of this machine is seen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))  # no SLURM answers
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["ettsweep", *map(str, arguments)])
        with left_as_before(), pytest.raises(SystemExit) as end:
            cli.main()
        return Done(int(end.value.code or 0), capsys.readouterr().out)

    return run


# --- ids ------------------------------------------------------------------------------------------------------------


def test_run_ids_and_family_ids_of_the_shipped_grids() -> None:
    collected: dict[str, Json] = {}
    for path in sorted(GRIDS.glob("*.yaml")):
        kinds = [[], ["optimizer=sgd"]] if "\ncentre_sgd:" in path.read_text() else [[]]
        for overrides in kinds:
            sweep_spec = load_sweep_spec(path, overrides=overrides)  # of text, no corpus: it depends on the Python
            collected[" ".join([path.stem, *overrides])] = {
                study.strategy: {
                    "family": study.family,
                    "points": [[point["lr"], point["wd"]] for point in study.grid_points],
                    "runs": [spec.run_id for spec in sweep_spec.specs() if spec.strategy == study.base.strategy],
                }
                for study in sweep_spec.studies()
            }
    assert_frozen("ids", collected)


# --- columns --------------------------------------------------------------------------------------------------------


def columns(text: str, form: str) -> list[str]:
    """Return the columns of what a command printed; those of JSON are paths to its values, such as neighbours[].lr."""
    blocks = text.split("\n\n")
    head = blocks[1 if blocks[0].endswith(".") else 0].partition("\n")[0]  # below the answers, which are sentences
    match form:
        case "json":
            return list(dict.fromkeys(paths(json.loads(text))))
        case "csv":
            return next(csv.reader([head]))
        case "markdown":
            return [cell.strip() for cell in head.strip("|").split(" | ")]
    return re.split(r"\s{2,}", head.strip())


def paths(data: Json, prefix: str = "") -> Iterable[str]:
    """Yield the path to each value; what is in a provenance depends on the machine."""
    if isinstance(data, dict) and data and not prefix.endswith("provenance"):
        for key, value in data.items():
            yield from paths(value, f"{prefix}.{key}".strip("."))
    elif isinstance(data, list) and data:
        for value in data:
            yield from paths(value, f"{prefix}[]")
    else:
        yield prefix


TABLES = {
    "status": "status --results results",
    "grid --dry-run": "grid {grids}/vit-digits.yaml --dry-run --results other",
    "verify-optimum --dry-run": "verify-optimum --dry-run --results results",
    "verify-optimum --dry-run, one family": "verify-optimum --dry-run --strategy ntk --results results",
    "seeds --dry-run": "seeds --dry-run --results results",
    "show": "show {run} --results results",
    "show, broken": "show {broken} --results results",
    "clean --dry-run": "clean --dry-run --results results",
    "doctor": "doctor --launch-set slots=1 --results other",
    "map": "map --lr 0.01 --wd 0.5 --from standard --to ntk --width 48",
    "scales": "scales --model vit-digits",
    "scales --lr": "scales --model encdec-tiny --lr 0.5",
}
CHECK = "check-scaling --model vit-digits --widths 64,128,256 --seeds 3 --steps 1 --depth 1"
DATA = "data text --input a.txt --out tokens --bpe-tokens 300 --val-fraction 0.2 --workers 1"
DONE = "a86cc2981aa4"
"""A run of the recorded folder."""


@pytest.fixture
def torchless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands that ask another Python about torch be told that there is none, which takes no seconds."""
    monkeypatch.setattr(sys, "executable", "/bin/false")


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_the_commands_tables(name: str, call: Call, earlier: Path, torchless: None) -> None:
    command = TABLES[name].format(grids=GRIDS, run=DONE, broken=BROKEN).split()
    forms = [form for form in FORMATS if form != "table" or not name.startswith("show")]  # for a person, and no table
    assert_frozen("columns", {name: {form: columns(call(*command, "--format", form).out, form) for form in forms}})


def test_columns_of_data_text(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"{number} is a number of this text." for number in range(200)))
    by_form = {form: columns(call(*DATA.split(), "--format", form).out, form) for form in ("json", "csv")}
    manifest = json.loads((tmp_path / "tokens" / "manifest.json").read_text())
    assert_frozen("columns", {"data text": by_form | {"manifest": list(manifest)}})


@pytest.mark.slow
def test_columns_of_check_scaling(call: Call) -> None:
    by_form = {form: columns(call(*CHECK.split(), "--format", form).out, form) for form in FORMATS}
    assert_frozen("columns", {"check-scaling": by_form})


# --- the recorded results folders -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the two recorded results folders, for all tests here: they only read."""
    folder = tmp_path_factory.mktemp("earlier")
    write_recorded(folder)
    return folder


@pytest.fixture
def earlier(unpacked: Path, tmp_path: Path) -> Path:
    """Have `results` and `near` in this test's folder; return the first."""
    for name in ("results", "near"):
        (tmp_path / name).symlink_to(unpacked / name)
    return tmp_path / "results"


def tidy(data: Json) -> Json:
    """Return data with floats cut to 9 digits: the last bits of logarithms and powers differ between C libraries and Pythons."""
    if isinstance(data, dict):
        return {key: tidy(value) for key, value in data.items()}
    if isinstance(data, list):
        return [tidy(value) for value in data]
    return float(f"{data:.9g}") if isinstance(data, float) else data


def numbers(row: dict[str, str]) -> dict[str, Json]:
    """Return a row of a CSV file with its numbers as such, and without what is missing."""
    collected: dict[str, Json] = {}
    for key, text in row.items():
        try:
            collected[key] = tidy(float(text))
        except ValueError:
            collected[key] = text
    return {key: value for key, value in collected.items() if value != ""}


@pytest.mark.parametrize("folder", ["results", "near"])
@pytest.mark.parametrize("command", ["status", "verify-optimum --dry-run", "seeds --dry-run", "clean --dry-run"])
def test_an_earlier_results_folder_is_read_as_before(folder: str, command: str, call: Call, earlier: Path) -> None:
    result = call(*command.split(), "--results", folder, "--format", "json")
    assert_frozen("readings", {f"{folder}: {command}": tidy(result.json), f"{folder}: {command}: code": [result.code]})


def test_an_earlier_folder_is_gone_on_with(call: Call, unpacked: Path, tmp_path: Path) -> None:
    results = tmp_path / "mine"
    shutil.copytree(unpacked / "near", results)
    result = call("verify-optimum", "--follow", "--max-runs", 0, "--results", results, "--format", "json")
    assert [(row["sweep"], row["verdict"]) for row in result.json] == [("grid", "unresolved")]
    assert [path.name for path in (results / "sweeps").iterdir()] == ["grid.yaml"]


def test_a_run_of_each_kind_of_an_earlier_folder_is_shown_as_before(call: Call, earlier: Path) -> None:
    rows = call("status", "--results", "results", "--format", "json").json
    attempts = {row["run"]: len([*(earlier / "runs" / row["run"]).glob("attempts/*")]) for row in rows}
    kinds = {(row["strategy"], row["state"], row["reason"], attempts[row["run"]]): row["run"] for row in rows}
    collected = {}
    for run in (*kinds.values(), BROKEN):
        output = call("show", run, "--results", "results", "--format", "json").json
        for attempt in output.get("attempts", []):
            attempt["host"] = HERE if attempt["host"] == socket.gethostname() else attempt["host"]
        collected[run] = tidy(output)
    assert_frozen("readings", {"results: show": collected})


@pytest.mark.parametrize("folder", ["results", "near"])
def test_an_earlier_folder_is_reported_as_before(folder: str, call: Call, earlier: Path, undrawn: None) -> None:
    result = call("report", "--results", folder, "--out", "report", "--format", "json")
    out = earlier.parent / "report"
    mapping = {f"{folder}: report": tidy(result.json)}
    for name in ("optima", "points", "runs"):
        rows = csv.DictReader(io.StringIO((out / "tables" / f"{name}.csv").read_text()))
        mapping[f"{folder}: report: {name}.csv"] = [numbers(row) for row in rows]
    assert_frozen("readings", mapping)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*.*"))
    tables = {path.name: columns_of_file(path) for path in sorted((out / "tables").iterdir())}
    assert_frozen("columns", {f"{folder}: report": tables | {"files": files}})


def columns_of_file(path: Path) -> list[str]:
    """Return the columns of a table of the report; with their types where the file says so."""
    from pyarrow.parquet import read_schema

    match path.suffix:
        case ".parquet":
            return [f"{field.name}: {field.type}" for field in read_schema(path)]
        case ".tex":
            return next(line for line in path.read_text().splitlines() if " & " in line).split(" & ")
        case ".csv":
            return columns(path.read_text(), "csv")
    return columns(path.read_text(), "markdown")


@pytest.mark.parametrize("at", ["1.2990381957", "1.299"])
def test_a_typed_point_means_the_one_nearby(at: str, call: Call, earlier: Path) -> None:
    result = call("verify-optimum", "--at", f"{at},0.01203", "--dry-run", "--results", "near", "--format", "json")
    assert_frozen("readings", {f"near: verify-optimum --at {at}": tidy(result.json)})


def test_scores_by_run_id(earlier: Path) -> None:
    """Scores, spikes and ends are made of the recorded metrics as the worker makes them."""
    collected = {}
    for folder in ("results", "near"):
        for path in sorted((earlier.parent / folder / "runs").glob("*/result.json")):
            result = json.loads(path.read_text())
            collected[f"{folder}: {path.parent.name}"] = {key: result[key] for key in SCORES}
    assert_frozen("scores", {"scores": {run: list(values.values()) for run, values in collected.items()}})


SCORES = ("status", "score", "best_accuracy", "final_loss", "loss_spikes", "grad_spikes", "eval_loss_spikes", "steps")

SCORES_CSV = "lr,wd,seed,loss\n" + "".join(
    f"{2.0**-i},{2.0**-j},{seed},{0.1 * (1 + 0.2 * ((i - 5) ** 2 + (j - 2) ** 2) + 0.03 * (seed % 3) + 0.01 * i)}\n"
    for i in (4, 5, 6)
    for j in (1, 2, 3)
    for seed in (0, 1, 2)
)
LOG = "".join(f"step {step} train_loss={4 / step} val_loss={5 / step}\n" for step in range(1, 5))
READ = {
    "verdict": "verdict scores.csv --score loss --min",
    "compare": "compare a.csv b.csv --min --score loss",
    "compare of sweeps": "compare grid/ntk grid-2 --results results",
    "read": "read train.log",
    "sweeps": "sweeps --results results",
    "search --dry-run": "search {grids}/vit-digits.yaml --strategy ntk --sampler qmc --trials 5 --dry-run --results other",
    "map": "map --lr 0.01 --wd 0.5 --from standard --to ntk --width 48",
    "scales": "scales --model vit-digits --lr 0.5",
}


@pytest.mark.parametrize("name", READ)
def test_what_commands_that_read_print(name: str, call: Call, earlier: Path, tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text(SCORES_CSV)
    (tmp_path / "a.csv").write_text("seed,loss\n0,3.1\n1,3.2\n2,3.0\n")
    (tmp_path / "b.csv").write_text("seed,loss\n0,3.2\n1,3.3\n2,3.4\n")
    (tmp_path / "train.log").write_text(LOG)
    result = call(*READ[name].format(grids=GRIDS).split(), "--format", "json")
    output = result.json
    for row in output if isinstance(output, list) else [output]:
        row.pop("last change", None)
    assert_frozen("commands", {name: [tidy(output)], f"{name}: code": [result.code]})


def without(row: dict[str, Json], *keys: str) -> dict[str, Json]:
    return {key: value for key, value in row.items() if key not in keys}


# --- the demo -------------------------------------------------------------------------------------------------------

VARIES = {
    *("run", "sha256", "attempts", "environment", "wall_s", "device_s", "steps_per_s", "start_s"),
    *("step_s", "samples_per_s", "utilisation", "data_wait", "memory_gib"),
}
"""What of a result is not the same whenever, and wherever, a run is trained."""


def lasting(path: Path) -> dict[str, Json]:
    """Read what of a result is the same whenever a run is trained on one kind of machine; of digests, the start."""
    result = {key: value for key, value in json.loads(path.read_text()).items() if key not in VARIES}
    return {key: value[:16] if key.endswith("_sha256") else value for key, value in result.items()}


def machine() -> dict[str, str]:
    """Return what the last bits of a run on the CPU depend on."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return {
        "torch": torch.__version__,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "cpu": names[0] if names else platform.machine(),
    }


LAST_BITS = 1e-4
"""Share by which a loss may differ where torch or the CPU is another: there, kernels add in another order.

With the kernels of AVX2 in place of AVX-512, and with those that any CPU can run, losses after these 240 steps differ by
4e-8 to 5e-6 of themselves, and no accuracy differs.
"""


@pytest.mark.parametrize(
    "strategy", ["mup", *(pytest.param(name, marks=pytest.mark.slow) for name in ("standard", "ntk", "hybrid"))]
)
def test_a_run_of_the_demo_has_the_numbers_that_it_had(strategy: str) -> None:
    record = recorded("demo")
    (study,) = load_sweep_spec(GRIDS / "vit-digits.yaml", [strategy]).studies()
    run = undisturbed(study.spec_at())
    result, expected = lasting(run.result_path), dict(zip(record["fields"], record["runs"][run.id], strict=True))
    assert list(result) == list(expected)
    if machine() == record["machine"]:
        assert result == expected
    for key in ("best_loss", "final_loss", "score"):
        assert result[key] == pytest.approx(expected[key], rel=LAST_BITS)
    for key in ("status", "steps", "nonfinite_steps", "overflow_steps", "execution"):
        assert result[key] == expected[key]


def test_fields_of_a_runs_files() -> None:
    (study,) = load_sweep_spec(GRIDS / "vit-digits.yaml", ["mup"]).studies()
    run = undisturbed(study.spec_at())
    files = [
        run.spec_path,
        run.result_path,
        run.metrics_path,
        *sorted((run.path / "attempts" / "0001").glob("*.json*")),
    ]
    collected = {}
    for path in files:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        collected[str(path.relative_to(run.path))] = columns(f"[{','.join(lines)}]", "json")
    assert_frozen("columns", {"files of a run": collected})


@pytest.mark.slow
@pytest.mark.usefixtures("process", "warm")
def test_the_demo_gives_the_results_and_verdicts_that_it_gave(results: Path) -> None:
    if machine() != recorded("demo").get("machine", machine()):
        pytest.skip("the record is of another torch or CPU, and a step of a climb may hang on the last bits")

    def follow(command: str, *options: object) -> Json:
        options = (*options, "--model", "vit-digits", "--follow", "--format", "json", "--results", results)
        out = ettsweep(command, *options).stdout
        rows = json.loads(out) if out else None
        return [without(row, "versions") for row in rows] if rows else None  # of the code as it is now

    follow(
        "grid", "--seeds", "0,1,2", "--rule", "paper"
    )  # which runs a race takes depends on how long those before it took
    mapping = {"verify-optimum": follow("verify-optimum"), "seeds": follow("seeds", "--count", 3)}
    ettsweep("report", "--results", results)
    assert (results / "report" / "report.html").exists()
    lasted = {path.parent.name: lasting(path) for path in sorted(results.glob("runs/*/result.json"))}
    fields = {tuple(result) for result in lasted.values()}
    assert len(fields) == 1
    runs = {run: list(result.values()) for run, result in lasted.items()}
    assert_frozen("demo", {"machine": machine(), **mapping, "fields": list(fields.pop()), "runs": runs})
