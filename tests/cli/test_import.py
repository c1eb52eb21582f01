"""Import of scores that exist: as runs of a program's family, or as a sweep of numbers alone; what compare reads."""

import csv
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from support.commandline import finish, keep, write_fake_grid
from support.trainers import write_walk
from support.watched import choose_all

from ettsweep.launch.resolve import LaunchOptions
from ettsweep.launch.submissions import submission_folders
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.index import load_run_index
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_store import load_sweep_store
from ettsweep.watch.panels import family_lines
from ettsweep.watch.watcher import Watcher

Call = Callable[..., Any]
Row = tuple[float, float, int, float | str]


def made_rows(lrs: int = 5, wds: int = 3, seeds: int = 3) -> list[Row]:
    draw = random.Random(0)
    return [
        (2.0 ** (i - 8), 0.1 * 2.0**j, seed, 3 + 0.1 * (i - lrs // 2) ** 2 + 0.1 * (j - 1) ** 2 + draw.gauss(0, 0.003))
        for i in range(lrs)
        for j in range(wds)
        for seed in range(seeds)
    ]


def table(path: Path, rows: list[Row], header: str = "lr,wd,seed,score") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def listed(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def counts(call: Call, *arguments: object) -> list[int]:
    data = json.loads(call("import", *arguments, "--format", "json").out)
    return [data[key] for key in ("new", "unchanged", "changed", "trained")]


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return write_fake_grid(tmp_path / "fake.yaml", seeds=[0, 1], lr={"range": [-1, 1]})


# --- numbers alone ----------------------------------------------------------------------------------------------------


def test_numbers_alone_have_the_verdict_that_they_have_unkept(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path / "scores.csv", made_rows()[:-1])  # points need not have the same seeds
    expected = json.loads(call("verdict", path, "--min", "--margin", "1%", "--format", "json", code=None).out)
    assert counts(call, path, "--min", "--margin", "1%") == [44, 0, 0, 0]
    (kept,) = json.loads(call("verify-optimum", "--dry-run", "--format", "json", code=None).out)
    for key in ("verdict", "lr", "wd", "score", "runs", "statement", "evidence", "neighbours"):
        assert kept[key] == expected[key], key
    assert len(kept["imported"]) == 21, "the candidate and its neighbours"
    assert "imported" not in expected


@pytest.mark.usefixtures("undrawn")
def test_imported_runs_are_marked_in_tables_json_and_on_the_page(call: Call, tmp_path: Path) -> None:
    call("import", table(tmp_path / "<b>scores.csv", made_rows()), "--min", "--name", "mine")
    origin = f"{tmp_path}/<b>scores.csv, line 2"
    (row,) = [row for row in json.loads(call("status", "--format", "json").out) if row.get("imported") == origin]
    shown = json.loads(call("show", row["run"], "--format", "json").out)
    assert shown["result"]["imported"]["place"] == "line 2"
    assert len(shown["result"]["imported"]["sha256"]) == 64
    assert (shown["attempts"], row["reason"]) == ([], f"imported from {origin}")
    assert "45 done (45 imported)" in call("sweeps").out
    assert "were imported from" in call("verify-optimum", "--dry-run").err
    call("report")
    page = (tmp_path / "results" / "report" / "report.html").read_text()
    assert "imported from" in page
    assert "<b>scores" not in page
    with (tmp_path / "results" / "report" / "tables" / "runs.csv").open() as file:
        assert {each["imported"] for each in csv.DictReader(file)} >= {origin}


@pytest.mark.usefixtures("undrawn")
def test_nothing_for_people_names_the_strategy_of_scores_that_have_one_alone(call: Call, tmp_path: Path) -> None:
    call("import", table(tmp_path / "scores.csv", made_rows()), "--min", "--name", "mine")
    run = json.loads(call("status", "--format", "json").out)[0]["run"]
    call("report")
    page = (tmp_path / "results" / "report" / "report.html").read_text()
    seen = [call(*words.split()).out for words in ("status", "sweeps", f"show {run}", "verify-optimum --dry-run")]
    text = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    for each in (*seen, text):
        assert re.findall("standard(?! (errors?|deviations?))", each) == []
    assert ">mine</a>" in text
    figures = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert any('"mine"' in figure for figure in figures)
    watched = Watcher(tmp_path / "results", choose_all, lambda: "").poll()
    assert [line.plain.split()[:2] for line in family_lines(watched, 130)] == [
        ["sweep", "runs"],
        ["mine", "\u2501" * 10],
    ]


def test_an_import_can_be_repeated_and_extended(call: Call, tmp_path: Path) -> None:
    rows = made_rows()
    path = table(tmp_path / "scores.csv", rows[:30])
    assert counts(call, path, "--min") == [30, 0, 0, 0]
    before = listed(tmp_path / "results")
    assert counts(call, path, "--min") == [0, 30, 0, 0]
    assert listed(tmp_path / "results") == before
    assert counts(call, table(path, rows), "--min") == [15, 30, 0, 0]
    further = [(2.0**-3, 0.1, 7, 3.9)]
    assert counts(call, table(tmp_path / "more.csv", further), "--min", "--name", "scores") == [1, 0, 0, 0]
    (verdict,) = json.loads(call("verify-optimum", "--dry-run", "--format", "json", code=None).out)
    assert verdict["verdict"] == "optimal"


def test_a_changed_score_is_refused_unless_it_is_to_replace(call: Call, tmp_path: Path) -> None:
    rows = made_rows()
    path = table(tmp_path / "scores.csv", rows)
    call("import", path, "--min")
    before = listed(tmp_path / "results")
    table(path, [(*rows[0][:3], 9.5), (*rows[1][:3], "diverged"), *rows[2:]])
    refused = call("import", path, "--min", code=2).err
    assert f"has the score {rows[0][3]:.6g}, imported from" in refused
    assert "here it is 9.5" in refused
    assert "here it is diverged" in refused
    assert "--replace takes the new scores; nothing was imported" in refused
    assert listed(tmp_path / "results") == before
    assert counts(call, path, "--min", "--replace", "--dry-run") == [0, 43, 2, 0]
    assert listed(tmp_path / "results") == before
    assert counts(call, path, "--min", "--replace") == [0, 43, 2, 0]
    scores = {run.score for run in load_run_index(tmp_path / "results").runs.values()}
    assert {9.5, None} <= scores


def test_a_kill_at_any_write_leaves_what_the_same_command_completes(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path / "scores.csv", made_rows(3, 1, 1))

    def finish_some(self: RunDir, *arguments: Any) -> bool:
        if len(list(runs_dir(tmp_path / "results").glob("*/result.json"))) == 2:
            raise KeyboardInterrupt
        return original(self, *arguments)

    original = RunDir.finish
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "finish", finish_some)
        call("import", path, "--min", code=130)
    assert {row["state"] for row in json.loads(call("status", "--format", "json").out)} == {"done", "missing"}
    assert counts(call, path, "--min") == [1, 2, 0, 0]


@pytest.mark.parametrize(
    "command", ["verify-optimum --follow", "verify-optimum", "seeds", "retry RUN"], ids=lambda text: text.split()[0]
)
def test_numbers_alone_are_not_trained(call: Call, tmp_path: Path, command: str) -> None:
    rows = made_rows(3)[9:] if command.startswith("verify") else made_rows()  # the former lack neighbours
    call("import", table(tmp_path / "scores.csv", rows), "--min")
    before = len(listed(tmp_path / "results"))
    run = next(iter(load_run_index(tmp_path / "results").runs))
    result = call(*command.replace("RUN", run).split(), code=1)
    assert "scores: its scores were imported, and no program is known that could train more runs" in result.err
    assert submission_folders(tmp_path / "results") == []
    assert len(listed(tmp_path / "results")) == before


def test_what_cannot_be_trained_is_not_advised(call: Call, tmp_path: Path) -> None:
    draw = random.Random(0)
    rows: list[Row] = [(*row[:3], float(row[3]) + draw.gauss(0, 0.1)) for row in made_rows()]
    call("import", table(tmp_path / "scores.csv", rows), "--min", "--name", "numbers")
    result = call("verify-optimum", "--dry-run", "--format", "json", code=1)
    assert json.loads(result.out)[0]["verdict"] == "unresolved"
    assert "--follow" not in result.err


def test_a_sweep_of_numbers_alone_says_nothing_of_where_others_train(call: Call, tmp_path: Path, grid: Path) -> None:
    results, launch = tmp_path / "results", LaunchOptions("local", ("slots=1",))
    keep(results, launch.resolve_grid(load_sweep_spec(grid), results, "fake"))
    call("import", table(tmp_path / "scores.csv", made_rows()), "--min")
    other = load_sweep_spec(write_fake_grid(tmp_path / "other.yaml", seeds=[0, 1]))
    assert LaunchOptions().resolve_grid(other, results, "other").launch_set == ("slots=1",)


def test_values_off_the_lattice_are_refused_with_the_nearest(call: Call, tmp_path: Path) -> None:
    odd = table(tmp_path / "odd.csv", [(0.1, 0.1, 0, 1.0), (0.3, 0.1, 0, 0.9), (1.0, 0.1, 0, 1.1)])
    assert "lr: 0.3 (nearest: 0.316228)" in call("import", odd, "--min", code=2).err
    assert not (tmp_path / "results").exists()
    printed = table(tmp_path / "printed.csv", [(0.1, 0.1, 0, 1.0), (0.3162, 0.1, 0, 0.9), (1.0, 0.1, 0, 1.1)])
    assert counts(call, printed, "--min") == [3, 0, 0, 0]
    between = table(tmp_path / "between.csv", [(0.5, 0.1, 0, 1.0), (2.0, 0.1, 0, 1.0), (1.0, 0.2, 0, 1.1)])
    refused = call("import", between, "--min", "--name", "printed", code=2).err
    assert "between.csv, line 2: lr 2^-1 is no point of printed; the nearest is " in refused
    assert "line 4: wd is fixed at 0.1 in printed, got 0.2" in refused


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "--min or --max says whether low or high scores are better"),
        (["--min", "--name", "a/b"], "--name 'a/b'"),
        (["--min", "--set", "a=1"], "--set: it is for --grid"),
        (["--min", "--strategy", "mup"], "--strategy: it is for --grid"),
        (["--min", "--take", "first"], "--take: best, last or the number of a step is expected, got first"),
        (["--min", "--reader", "stdout"], "scores.csv is no folder of runs"),
        (["--min", "--column", "score=loss"], "no column loss"),
        (["--min", "--grid", "none.yaml"], "none.yaml"),
    ],
)
def test_wrong_usage_is_told(call: Call, tmp_path: Path, arguments: list[str], problem: str) -> None:
    table(tmp_path / "scores.csv", made_rows())
    assert problem in call("import", "scores.csv", *arguments, code=2).err
    assert not (tmp_path / "results").exists()


# --- runs of a program ------------------------------------------------------------------------------------------------


def test_imported_runs_are_those_of_the_grid_which_trains_what_is_missing(
    call: Call, tmp_path: Path, grid: Path
) -> None:
    rows: list[Row] = [(0.25, 0.25, 0, 0.5), (0.25, 0.25, 1, 0.51), (0.125, 0.25, 0, "diverged")]
    assert counts(call, table(tmp_path / "scores.csv", rows), "--grid", grid) == [3, 0, 0, 0]
    planned = json.loads(call("grid", "--grid", grid, "--dry-run", "--format", "json").out)
    assert sorted(row["action"] for row in planned) == ["keep"] * 3 + ["submit"] * 3
    expected = {spec.run_id for spec in load_sweep_spec(grid).specs()}
    assert set(load_run_index(tmp_path / "results").runs) < expected
    call("grid", "--grid", grid, "--follow", "--launch-set", "slots=1")
    runs = load_run_index(tmp_path / "results").runs
    assert {run.state.value for run in runs.values()} == {"done", "diverged"}
    assert sum(run.origin is not None for run in runs.values()) == 3
    (verdict,) = json.loads(call("verify-optimum", "--dry-run", "--format", "json", code=None).out)
    assert len(verdict["imported"]) == 3
    assert sum(len(group["runs"]) for group in verdict["versions"]) == 3


def test_a_run_that_was_trained_here_keeps_its_score(call: Call, tmp_path: Path, grid: Path) -> None:
    results, sweep_spec = tmp_path / "results", load_sweep_spec(grid)
    keep(results, sweep_spec)
    finish(results, (spec := sweep_spec.specs()[0]), 0.7)
    claimed = sweep_spec.specs()[1]
    assert RunDir.create(results, claimed).claim({}, after=0)
    rows: list[Row] = [(each.lr, each.wd, each.seed, 0.1) for each in sweep_spec.specs()]
    path = table(tmp_path / "scores.csv", rows)
    result = call("import", path, "--grid", grid, "--replace")
    assert "2 runs trained here, or about to be: imported scores replace none of these" in result.err
    runs = load_run_index(results).runs
    assert (runs[spec.run_id].score, runs[claimed.run_id].state.finished) == (0.7, False)
    run = RunDir(runs_dir(results) / spec.run_id)
    assert not run.import_result({"status": "done", "score": 0.1}, [])


def test_retry_trains_an_imported_run(call: Call, tmp_path: Path, grid: Path) -> None:
    call("import", table(tmp_path / "scores.csv", [(0.25, 0.25, 0, 0.5)]), "--grid", grid)
    (run,) = load_run_index(tmp_path / "results").runs.values()
    call("retry", run.id, "--launch-set", "slots=1")
    call("grid", "--grid", grid, "--follow", "--launch-set", "slots=1")
    trained = load_run_index(tmp_path / "results").runs[run.id]
    assert trained.state.finished
    assert trained.origin is None


def test_an_existing_sweep_takes_scores_by_its_name(call: Call, tmp_path: Path, grid: Path) -> None:
    keep(tmp_path / "results", load_sweep_spec(grid))
    path = table(tmp_path / "fake.csv", [(0.25, 0.25, 0, 0.5), (0.5, 0.25, 0, 0.6)])
    assert "--name fake imports the scores into it" in call("import", path, "--min", code=2).err
    assert counts(call, path, "--name", "fake") == [2, 0, 0, 0]
    assert "--max: of" in call("import", path, "--name", "fake", "--max", code=2).err


def test_options_of_the_verdict_apply_to_a_sweep_by_its_name(call: Call, tmp_path: Path, grid: Path) -> None:
    keep(tmp_path / "results", load_sweep_spec(grid))
    path = table(tmp_path / "fake.csv", [(0.25, 0.25, 0, 0.5), (0.5, 0.25, 0, 0.6)])
    assert "margin 7% from now on" in call("import", path, "--name", "fake", "--margin", "7%").err
    assert load_sweep_store(tmp_path / "results").sweeps["fake"].criterion.margin == 0.07
    assert "from now on" not in call("import", path, "--name", "fake").err
    assert load_sweep_store(tmp_path / "results").sweeps["fake"].criterion.margin == 0.07


def test_runs_without_a_seed_have_no_bound_and_no_race(call: Call, tmp_path: Path) -> None:
    results, grid = tmp_path / "results", write_walk(tmp_path, seeds="none")
    spec = load_sweep_spec(grid)
    path = table(tmp_path / "s.csv", [(lr, 1 + abs(math.log2(lr / 0.25))) for lr in (0.125, 0.25, 0.5)], "lr,score")  # type: ignore[misc]
    for arguments in (["--grid", grid], ["--name", "walk"]):
        refused = call("import", path, *arguments, "--rule", "bound", code=2).err
        assert "rule: bound needs repeats, and `seeds: none` has one run a point" in refused
        call("import", path, *arguments)
    # As versions before have kept it.
    keep(results, spec.bound().model_copy(update={"criterion": CriterionOptions(rule="bound")}))
    before = len(load_run_index(results).runs)
    result = call("verify-optimum", "--follow", "--launch-set", "slots=1", code=1)
    assert len(load_run_index(results).runs) == before
    assert submission_folders(results) == []
    assert "seeds that decide most" not in result.err


# --- sources ----------------------------------------------------------------------------------------------------------


def curve(lr: float, seed: int) -> list[float]:
    """Return the losses of four steps, the third the lowest."""
    base = 1 + 0.1 * math.log2(lr / 0.25) ** 2 + 0.01 * seed
    return [base + 1, base + 0.5, base, base + 0.1]


RUNS = [(lr, seed) for lr in (0.125, 0.25, 0.5) for seed in (0, 1, 2)]


def write_log(path: Path, lr: float, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"step {k} val_loss={v!r}\n" for k, v in enumerate(curve(lr, seed), 1)))


def names_in_logs(folder: Path) -> None:
    for lr, seed in RUNS:
        write_log(folder / f"lr{lr}_seed{seed}.log", lr, seed)


def names_in_folders(folder: Path) -> None:
    for lr, seed in RUNS:
        write_log(folder / f"lr={lr}" / f"seed_{seed}" / "train.log", lr, seed)


def names_in_configurations(folder: Path) -> None:
    for number, (lr, seed) in enumerate(RUNS):
        write_log(folder / f"run{number}" / "train.log", lr, seed)
        (folder / f"run{number}" / "config.yaml").write_text(f"lr: {{value: {lr}}}\nseed: {{value: {seed}}}\n")


@pytest.mark.parametrize("write", [names_in_logs, names_in_folders, names_in_configurations])
def test_a_folder_of_runs_is_read_with_a_reader(call: Call, tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "runs")
    (tmp_path / "runs" / ".hidden").mkdir()
    options = ("runs", "--min", "--reader", "stdout", "--column", "score=val_loss")
    assert counts(call, *options) == [9, 0, 0, 0]
    runs = load_run_index(tmp_path / "results").runs.values()
    assert {(run.lr, run.seed): run.score for run in runs} == {(lr, seed): curve(lr, seed)[2] for lr, seed in RUNS}
    (first,) = [run for run in runs if (run.lr, run.seed) == RUNS[0]]
    assert [line["val_loss"] for line in first.dir.history()] == curve(*RUNS[0])
    refused = call("import", "runs", "--min", "--column", "score=val_loss", "--name", "b", code=2).err
    assert "which reader sees its runs? --reader NAME; val_loss is seen in" in refused
    assert "--take" in call("import", "runs", "--min", "--take", "x", code=2).err
    assert counts(call, *options, "--take", "4", "--name", "fourth") == [9, 0, 0, 0]


def test_runs_without_a_score_or_an_lr_are_told(call: Call, tmp_path: Path) -> None:
    names_in_logs(tmp_path / "runs")
    (tmp_path / "runs" / "lr0.5_seed9.log").write_text("started\n")
    options = ("runs", "--min", "--reader", "stdout", "--column", "score=val_loss")
    assert "1 run left out, without val_loss: lr0.5_seed9.log" in call("import", *options, "--dry-run").err
    write_log(tmp_path / "runs" / "other.log", 1.0, 0)
    assert "runs: lr of other.log is neither in the name of the run" in call("import", *options, code=2).err
    no_score = call("import", *options[:-1], "score=val_los", code=2).err
    assert "no run has val_los by the reader stdout" in no_score


@pytest.mark.parametrize("is_chart", [False, True], ids=["folder", "chart"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_curve_that_is_not_finite_is_kept_as_that_of_a_diverged_run(
    call: Call, tmp_path: Path, value: str, is_chart: bool
) -> None:
    if is_chart:
        source, options = exported_chart(tmp_path / "chart.csv", end=value), ["--min"]
    else:
        names_in_logs(source := tmp_path / "runs")
        with (source / "lr0.25_seed2.log").open("a") as log:
            log.write(f"step 5 val_loss={value} acc={value}\n")
        options = ["--min", "--reader", "stdout", "--column", "score=val_loss"]
    assert counts(call, source, *options) == [9, 0, 0, 0]
    runs = load_run_index(tmp_path / "results").runs.values()
    (diverged,) = [run for run in runs if run.state.value == "diverged"]
    assert (diverged.lr, diverged.seed) == (0.25, 2)
    assert [line["val_loss"] for line in diverged.dir.history()] == [*curve(0.25, 2)[: 3 if is_chart else 4], None]
    assert f": 1 run diverged: {'vit lr=' if is_chart else 'lr'}" in call("import", source, *options).err


@pytest.mark.parametrize("is_chart", [False, True], ids=["folder", "chart"])
def test_a_run_that_ended_before_the_step_to_take_is_left_out_and_has_not_diverged(
    call: Call, tmp_path: Path, is_chart: bool
) -> None:
    if is_chart:
        source, options, steps = exported_chart(tmp_path / "chart.csv", end=""), ["--min"], (30, 40)
    else:
        names_in_logs(source := tmp_path / "runs")
        log = source / "lr0.25_seed2.log"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]))
        options, steps = ["--min", "--reader", "stdout", "--column", "score=val_loss"], (4, 5)
    result = call("import", source, *options, "--take", steps[0])
    assert f"1 run left out, without val_loss at step {steps[0]}: " in result.err
    assert "diverged" not in result.err
    runs = load_run_index(tmp_path / "results").runs.values()
    expected = {(lr, seed): curve(lr, seed)[3] for lr, seed in RUNS if (lr, seed) != (0.25, 2)}
    assert {(run.lr, run.seed): run.score for run in runs} == expected
    assert f"val_loss at step {steps[1]}" in call("import", source, *options, "--take", steps[1], code=2).err


def test_an_exported_table_of_runs_of_wandb(call: Call, tmp_path: Path) -> None:
    rows = [(f"run-{k}", "finished", lr, seed, curve(lr, seed)[2]) for k, (lr, seed) in enumerate(RUNS)]
    rows += [("run-x", "crashed", 0.5, 7, ""), ("run-y", "running", 0.5, 8, 0.1)]
    path = tmp_path / "wandb.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("Name", "State", "lr", "seed", "val/loss"), *rows])
    result = call("import", path, "--min", "--column", "score=val/loss")
    assert "2 runs left out, not finished: run-x, run-y" in result.err
    assert len(load_run_index(tmp_path / "results").runs) == 9
    assert call("verdict", path, "--min", "--column", "score=val/loss", code=None).code in (0, 1)


def exported_chart(
    path: Path, runs: list[tuple[float, int]] = RUNS, spread: float = 0.0, end: str | None = None
) -> Path:
    """Write a chart; `end` takes the place of the last value of lr 0.25 with seed 2."""
    names = [f"vit lr={lr} seed={seed} - val_loss" for lr, seed in runs]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["Step", *(f"{name}{end}" for name in names for end in ("", "__MIN", "__MAX"))])
        for step in range(4):
            values = [curve(lr, seed)[step] for lr, seed in runs]
            cells = [[v, v - spread, v + spread] for v in values]
            if step == 3 and end is not None:
                cells[runs.index((0.25, 2))] = [end] * 3  # type: ignore[list-item]
            writer.writerow([10 * step, *(each for three in cells for each in three)])
            writer.writerow([10 * step + 5, *[""] * 3 * len(runs)])
    return path


def test_an_exported_chart_of_wandb(call: Call, tmp_path: Path) -> None:
    path = exported_chart(tmp_path / "chart.csv")
    result = call("import", path, "--min")
    assert "lr, seed: as the names of the runs have it" in result.err
    runs = load_run_index(tmp_path / "results").runs.values()
    assert {(run.lr, run.seed): run.score for run in runs} == {(lr, seed): curve(lr, seed)[2] for lr, seed in RUNS}
    assert [line["step"] for line in next(iter(runs)).dir.history()] == [0, 10, 20, 30]
    assert "MIN and MAX differ" in call("import", exported_chart(path, spread=0.1), "--min", "--dry-run").err
    assert "--column score=NAME" in call("import", path, "--min", "--column", "score=acc", code=2).err


def test_runs_of_a_chart_with_one_name_are_refused(call: Call, tmp_path: Path) -> None:
    path = exported_chart(tmp_path / "chart.csv", [*RUNS, RUNS[0]])
    refused = call("import", path, "--min", code=2).err
    assert "several columns are called vit lr=0.125 seed=0 - val_loss, vit" in refused
    lines = [dict(zip(("Step", "lr=1 - v", "lr=2 - v"), row, strict=False)) for row in ((0, 1.0, 1.5), (1, 0.5))]
    (tmp_path / "chart.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert counts(call, "chart.jsonl", "--min") == [2, 0, 0, 0]


def test_a_study_of_optuna_is_read_and_not_written(call: Call, tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {"lr": [0.125, 0.25, 0.5], "seed": [0, 1, 2]}
    (tmp_path / "100% mine").mkdir()
    address = f"sqlite:///{tmp_path}/100% mine/study.db"
    study = optuna.create_study(
        storage=address, study_name="mine", direction="maximize", sampler=optuna.samplers.GridSampler(space)
    )

    def objective(trial: optuna.Trial) -> float:
        lr, seed = trial.suggest_float("lr", 0.1, 1), trial.suggest_int("seed", 0, 2)
        return -curve(lr, seed)[2]

    study.optimize(objective, n_trials=9)
    study.ask()
    before = (tmp_path / "100% mine" / "study.db").read_bytes()
    result = call("import", address)
    assert "1 trial left out, not complete" in result.err
    assert (tmp_path / "100% mine" / "study.db").read_bytes() == before
    runs = load_run_index(tmp_path / "results").runs.values()
    assert {(run.lr, run.seed): run.score for run in runs} == {(lr, seed): -curve(lr, seed)[2] for lr, seed in RUNS}
    assert "the max is best" in call("import", address, "--min", code=2).err
    assert "unknown study" in call("import", address, "--study", "min", code=2).err
    assert "there is no file" in call("import", "sqlite:///other.db", code=2).err
    (tmp_path / "empty.db").write_bytes(b"")
    assert "cannot be read as a storage of Optuna" in call("import", "sqlite:///empty.db", code=2).err
    assert (tmp_path / "empty.db").read_bytes() == b""


@pytest.mark.usefixtures("undrawn")
def test_a_journal_that_report_wrote_is_read_back(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path / "scores.csv", made_rows(seeds=1))
    call("import", path, "--min")
    call("report", "--optuna", "journal.log")
    result = call("import", "journal.log", "--name", "back", "--dry-run", code=None)
    assert result.code == 0, result.err


# --- compare ----------------------------------------------------------------------------------------------------------


def test_sweeps_and_their_points_are_compared_by_seed(call: Call, tmp_path: Path) -> None:
    for name, worse in (("a", 0.0), ("b", 0.2)):
        rows: list[Row] = [(lr, 0.1, seed, curve(lr, seed)[2] + worse) for lr, seed in RUNS]
        call("import", table(tmp_path / f"{name}.csv", rows), "--min")
    data = json.loads(call("compare", "a", "b:best", "--format", "json").out)
    assert (data["verdict"], data["pairs"], data["advantage"]) == ("better", 3, pytest.approx(0.2))
    assert [(row["lr"], row["wd"]) for row in data["scores"]] == [(0.25, 0.1)] * 2
    assert json.loads(call("compare", "b/standard:0.25,0.1", "a", "--format", "json").out)["verdict"] == "worse"
    assert "flatter the point that they chose" in call("compare", "a", "b").err
    assert "flatter" not in call("compare", "a:0.25,0.1", "b:0.25,0.1").err
    assert json.loads(call("compare", "a:0.25,0.1", "a:0.5,0.1", "--format", "json").out)["verdict"] == "better"
    by_hand = table(tmp_path / "hand.csv", [(0, 2.0), (1, 2.02), (2, 2.01)], "seed,score")  # type: ignore[list-item]
    assert json.loads(call("compare", "a", by_hand, "--format", "json").out)["pairs"] == 3
    for first, problem in [
        ("nosuch", "neither a file nor, in results, a sweep"),
        ("standard", "one of a/standard, b/standard is expected"),
        ("a/mup", "no sweep of results has this strategy"),
        ("a:0.3,0.1", "a:0.3,0.1: lr 0.3 is no point of a"),
        ("a:x", "a:x: LR,WD is expected"),
    ]:
        assert problem in call("compare", first, "b", code=2).err
    assert "--max: of a at (2^-2, 0.1) the other end is best" in call("compare", "a", "b", "--max", code=2).err
    assert "--min or --max" in call("compare", "hand.csv", "hand.csv", code=2).err


def stored(path: Path, direction: str, scores: list[float]) -> str:
    """Return the address of a storage of Optuna with scores by seed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=f"sqlite:///{path}", direction=direction)
    space = {"seed": optuna.distributions.IntDistribution(0, 9)}
    for seed, score in enumerate(scores):
        study.add_trial(optuna.create_trial(params={"seed": seed}, distributions=space, value=score))
    return f"sqlite:///{path}"


def test_a_study_of_optuna_says_what_is_better(call: Call, tmp_path: Path) -> None:
    high, higher = [0.9, 0.91, 0.92], [0.95, 0.96, 0.97]
    a = stored(tmp_path / "a.db", "maximize", high)
    b = table(tmp_path / "b.csv", list(enumerate(higher)), "seed,score")  # type: ignore[arg-type]
    for arguments in [(a, b), (a, stored(tmp_path / "c.db", "maximize", higher)), (a, b, "--max")]:
        assert json.loads(call("compare", *arguments, "--format", "json").out)["verdict"] == "worse", arguments
    assert f"--min: of {a} the other end is best; leave the option out" in call("compare", a, b, "--min", code=2).err
    rows: list[Row] = [(lr, 0.1, seed, curve(lr, seed)[2]) for lr, seed in RUNS]
    call("import", table(tmp_path / "low.csv", rows), "--min")
    for other in ("low", stored(tmp_path / "d.db", "minimize", high)):
        refused = call("compare", other, a, code=2).err
        assert "the min is best, and of sqlite:///" in refused
        assert "a.db the max is best" in refused


def test_sweeps_with_other_values_of_a_curve_are_not_compared(call: Call, tmp_path: Path) -> None:
    chart = exported_chart(tmp_path / "chart.csv")
    for take in ("best", "last"):
        call("import", chart, "--min", "--take", take, "--name", take)
    assert "`take: best` and of last" in call("compare", "best", "last", code=2).err
    rows: list[Row] = [(lr, 0, seed, curve(lr, seed)[2] + 0.2) for lr, seed in RUNS]
    call("import", table(tmp_path / "alone.csv", rows, "lr,wd,seed,val_loss"), "--min", "--column", "score=val_loss")
    assert json.loads(call("compare", "best", "alone", "--format", "json").out)["verdict"] == "better"


def test_fresh_seeds_of_best_points_are_compared_where_both_have_some(call: Call, tmp_path: Path, grid: Path) -> None:
    results = tmp_path / "results"
    for name, level in (("one", 0.5), ("two", 0.6)):
        path = write_fake_grid(tmp_path / f"{name}.yaml", seeds=[0, 1], run={"width": 8 if name == "one" else 16})
        sweep_spec = load_sweep_spec(path)
        keep(results, sweep_spec)
        for spec in sweep_spec.specs():
            finish(results, spec, level + abs(math.log2(spec.lr / 0.25)) + 0.01 * spec.seed)
        for seed in (2, 3):
            finish(results, sweep_spec.specs()[0].with_point(0.25, 0.25, seed), level + 0.05 * seed)
    data = json.loads(call("compare", "one", "two", "--format", "json", code=None).out)
    assert [row["mean"] for row in data["scores"]] == pytest.approx([0.625, 0.725])
    assert [row["runs"] for row in data["scores"]] == [2, 2]


def test_a_folder_and_a_chart_are_compared(call: Call, tmp_path: Path) -> None:
    for name, lr in (("a", 0.25), ("b", 0.5)):
        for seed in range(3):
            write_log(tmp_path / name / f"seed{seed}.log", lr, seed)
    options = ("--min", "--reader", "stdout", "--column", "score=val_loss")
    result = call("compare", "a", "b", *options)
    assert "better: A is better by 0.1" in result.err
    assert "over 3 common seeds" in result.err
    chart = exported_chart(tmp_path / "chart.csv", [(0.5, seed) for seed in range(3)])
    assert "over 3 common seeds" in call("compare", chart, chart, "--min", code=1).err
    assert (
        "at least two scores are needed"
        in call("compare", exported_chart(chart, [(0.5, 0)]), chart, "--min", code=2).err
    )
