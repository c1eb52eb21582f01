"""`ettsweep try` on trainers whose answers are known: what it sees of each, what it keeps, and what `grid` makes of it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.claims import dead_process
from support.commandline import PATIENCE_S, ettsweep, wait_for
from support.own_code import processes_with
from support.trainers import write_function, write_walk

pytestmark = pytest.mark.usefixtures("process", "warm")

FAST = ("--launch-set", "slots=2", "--launch-set", "threads=1", "--launch-set", "devices=cpu")

NAMES = ["start", "score", "seeds", "repeat", "resume", "stop", "processes", "cost"]


def tried(grid: Path, results: Path, code: int = 0) -> dict[str, Any]:
    """Return what a trial says, with its observations by name."""
    arguments = ("try", grid, "--results", results, "--format", "json", *FAST)
    outcome: dict[str, Any] = json.loads(ettsweep(*arguments, code=code, cwd=grid.parent).stdout)
    return outcome | {"of": {each["observation"]: each for each in outcome["observations"]}}


def states(outcome: dict[str, Any]) -> dict[str, str]:
    """Return the states of observations that are not ok."""
    return {each["observation"]: each["state"] for each in outcome["observations"] if each["state"] != "ok"}


def classes(outcome: dict[str, Any]) -> tuple[object, object, object]:
    return outcome["seeds_differ"], outcome["repeats"], outcome["resume"]


def test_a_trainer_without_faults_is_exact(tmp_path: Path, results: Path) -> None:
    outcome = tried(write_walk(tmp_path), results)
    assert [each["observation"] for each in outcome["observations"]] == NAMES
    assert (states(outcome), classes(outcome)) == ({}, (True, True, "exact"))
    assert "with a checkpoint" in outcome["of"]["stop"]["seen"]
    assert outcome["kept"] is None
    assert [path.name for path in results.iterdir()] == ["sweeps"], "nothing of the trial is left"
    assert json.loads((results / "sweeps" / "walk.try.json").read_text())["resume"] == "exact"


def test_a_trainer_with_faults_is_seen_through(tmp_path: Path, results: Path) -> None:
    grid = write_walk(tmp_path, "forgets-random,children,deaf", run={"stop": {"grace": "0.2s"}})
    outcome = tried(grid, results)
    expected = {"resume": "its numbers differ", "stop": "0.2 s of grace", "processes": "leaves sleep"}
    assert (states(outcome), classes(outcome)) == (dict.fromkeys(expected, "warning"), (True, True, "resumes"))
    for name, text in expected.items():
        assert text in outcome["of"][name]["seen"]
    assert outcome["kept"] is None


@pytest.mark.slow
def test_a_program_without_a_seed_is_swept_with_one_run_a_point(tmp_path: Path, results: Path) -> None:
    grid = write_walk(tmp_path, "constant", seeds="none")
    outcome = tried(grid, results)
    assert (states(outcome), classes(outcome)) == ({}, (None, True, "exact"))
    ettsweep("grid", grid, "--results", results, "--follow", *FAST, cwd=tmp_path)
    assert len(list((results / "runs").iterdir())) == 3, "one run a point"
    judged = ettsweep("verify-optimum", "--dry-run", "--format", "json", "--results", results, code=None)
    (verdict,) = json.loads(judged.stdout)
    assert (verdict["rule"], verdict["evidence"]) == ("paper", None), "there is no bound"
    refused = ettsweep("verify-optimum", "--rule", "bound", "--results", results, code=2)
    assert "one run a point" in refused.stderr
    assert "no fresh seeds" in ettsweep("seeds", "--results", results, code=2).stderr


@pytest.mark.slow
def test_grid_refuses_seeds_that_do_not_differ_until_the_code_has_changed(tmp_path: Path, results: Path) -> None:
    grid = write_walk(tmp_path, "constant")
    never = ettsweep("grid", grid, "--results", results, "--dry-run", cwd=tmp_path)
    assert "never tried: `ettsweep try walk.yaml" in never.stderr
    outcome = tried(grid, results, code=1)
    assert (states(outcome), classes(outcome)) == ({"seeds": "failed"}, (False, True, "exact"))
    assert "identical numbers" in outcome["of"]["seeds"]["seen"]
    kept = outcome["kept"]
    assert any(Path(kept).glob("alone/runs/*/result.json")), "what failed can be looked at"
    refused = ettsweep("grid", grid, "--results", results, code=2, cwd=tmp_path)
    assert "two seeds gave the same numbers" in refused.stderr
    assert "seeds: none" in refused.stderr
    assert not (results / "runs").exists()
    script = tmp_path / "walk.py"
    script.write_text(script.read_text().replace("1337", "options.seed"))
    mended = ettsweep("grid", grid, "--results", results, "--dry-run", cwd=tmp_path)
    assert "not tried since its code or command changed" in mended.stderr
    assert kept not in cleaned(results), "this process is there"
    (Path(kept) / "owner.json").write_text(json.dumps(dead_process().to_json()))
    assert kept in cleaned(results)
    assert not Path(kept).exists()


def cleaned(results: Path) -> list[str]:
    completed = ettsweep("clean", "--results", results, "--format", "json")
    return [row["path"] for row in json.loads(completed.stdout)]


@pytest.mark.parametrize(
    ("script", "name", "seen", "advice"),
    [
        ("import nowhere_to_be_found", "start", "nowhere_to_be_found", "run the command in the same shell"),
        ('print(\'[ettsweep] {"step": 1, "other": 2.0}\')', "score", "other", "reader"),
        ('print(\'[ettsweep] {"step": 1, "err": NaN}\')', "score", "diverges", "lower the lr"),
    ],
)
def test_what_cannot_be_swept_fails_at_its_first_run(
    script: str, name: str, seen: str, advice: str, tmp_path: Path, results: Path
) -> None:
    grid = write_walk(tmp_path)
    (tmp_path / "walk.py").write_text(script)
    outcome = tried(grid, results, code=1)
    told = outcome["of"][name]
    assert (told["state"], seen in told["seen"], advice in told["advice"]) == ("failed", True, True), told
    assert {outcome["of"][each]["state"] for each in NAMES[2:6]} == {"absent"}
    assert list(Path(outcome["kept"]).glob("alone/runs/*/attempts/0001/output.txt")), "its output can be looked at"


@pytest.mark.slow
def test_a_function_is_tried_too(tmp_path: Path, results: Path) -> None:
    outcome = tried(write_function(tmp_path), results)
    assert (states(outcome), classes(outcome)) == ({}, (True, True, "exact"))
    assert "of memory" in outcome["of"]["cost"]["seen"]


@pytest.mark.slow
def test_nothing_is_left_of_a_trial_whose_session_ends(tmp_path: Path, results: Path) -> None:
    """It sends two signals."""
    grid = write_walk(tmp_path, run={"try": "--slow --steps 5000"})
    command = [sys.executable, "-m", "ettsweep", "try", str(grid), "--results", str(results), *FAST]
    held = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and `try` heeds that
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGHUP, held)
    out = wait_for(lambda: list(results.glob(".try-*/alone/runs/*/out/ckpt-10.json")), "its first run")[0].parent
    for number in (signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    assert "interrupted" in process.communicate(timeout=PATIENCE_S)[1]
    assert not processes_with(f"ETTSWEEP_OUT={out}")
    assert not list(results.glob(".try-*"))
