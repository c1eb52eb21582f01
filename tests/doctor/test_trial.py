"""`ettsweep try` on trainers whose answers are known: what it sees of each, what it keeps, and what `grid` makes of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commandline import GRID, PATIENCE_S, ettsweep, wait_for, write_fake_grid, write_grid
from support.own_code import processes_with
from support.trainers import write_function, write_nano, write_walk

from ettsweep.processes import process_identity
from ettsweep.runs.folder import TRIAL_PREFIX

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("process", "warm")

SLOW = {"try": "--slow --pause 0.015"}
"""Runs that take a second each."""

FAST = ("--launch-set", "slots=2", "--launch-set", "threads=1", "--launch-set", "devices=cpu")


def tried(grid: Path, results: Path, *options: object, code: int = 0) -> dict[str, Any]:
    """Return what a trial says, with its observations by name."""
    completed = ettsweep(
        "try", grid, "--results", results, "--format", "json", *FAST, *options, code=code, cwd=grid.parent
    )
    outcome: dict[str, Any] = json.loads(completed.stdout)
    return outcome | {"of": {each["observation"]: each for each in outcome["observations"]}}


def states(outcome: dict[str, Any]) -> dict[str, str]:
    """Return the states of observations that are not ok."""
    return {each["observation"]: each["state"] for each in outcome["observations"] if each["state"] != "ok"}


NAMES = ["start", "score", "seeds", "repeat", "side by side", "resume", "stop", "processes", "cost"]


def test_a_trainer_without_faults_is_exact(tmp_path: Path, results: Path) -> None:
    outcome = tried(write_walk(tmp_path), results)
    assert [each["observation"] for each in outcome["observations"]] == NAMES
    assert states(outcome) == {}
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (True, True, "exact")
    assert "save and leave" in outcome["of"]["stop"]["seen"]
    assert outcome["kept"] is None
    assert [path.name for path in results.iterdir()] == ["sweeps"], "nothing of the trial is left"
    assert json.loads((results / "sweeps" / "walk" / "try.json").read_text())["resume"] == "exact"


KNOWN = {
    "forgets-random": ({"resume": "warning"}, True, True, "resumes", "other numbers"),
    "nanogpt": ({"resume": "warning"}, True, True, "resumes", "restarts its batches"),
    "ignores-checkpoint": ({"resume": "warning"}, True, True, "restarts", "it starts again at step 1"),
    "constant": ({"seeds": "failed"}, False, True, "exact", ""),
    "entropy": ({}, True, False, "resumes", "cannot be told"),
    "children": ({"processes": "warning"}, True, True, "exact", ""),
    "deaf": ({"stop": "warning"}, True, True, "exact", ""),
    "fixed": ({"side by side": "failed"}, True, True, "exact", ""),
    "coarse": ({"score": "warning"}, True, True, "exact", ""),
}


FURTHER = ("nanogpt", "entropy", "fixed", "coarse", "ignores-checkpoint")


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.slow] if fault in FURTHER else []) for fault in KNOWN]
)
def test_a_trainer_with_a_fault_is_seen_through(tmp_path: Path, results: Path, fault: str) -> None:
    expected, differ, repeats, resume, seen = KNOWN[fault]
    failed = "failed" in expected.values()
    grace = {"stop": {"grace": "0.2s"}} if fault == "deaf" else {}
    outcome = tried(write_walk(tmp_path, fault, run=grace), results, code=1 if failed else 0)
    assert states(outcome) == expected, outcome["observations"]
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (differ, repeats, resume)
    assert seen in outcome["of"]["resume"]["seen"]
    details = {
        "children": ("processes", "leaves sleep"),
        "deaf": ("stop", "grace of 0.2 s"),
        "fixed": ("side by side", "best.txt"),
        "coarse": ("score", "in steps of 0.1"),
    }
    if fault in details:
        name, text = details[fault]
        assert text in outcome["of"][name]["seen"]
    assert bool(outcome["kept"]) is failed
    assert not failed or any(Path(outcome["kept"]).glob("alone/runs/*/result.json")), "what failed can be looked at"
    assert not processes_with(*(f"ETTSWEEP_OUT={path}" for path in results.glob(".try-*/*/runs/*/out")))


def test_the_ways_of_nanogpt_are_seen_through(tmp_path: Path, results: Path) -> None:
    outcome = tried(write_nano(tmp_path), results)
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (None, True, "resumes")
    assert "it restarts its batches" in outcome["of"]["resume"]["seen"]


@pytest.mark.slow
def test_a_program_without_a_seed_is_swept_with_one_run_a_point(tmp_path: Path, results: Path) -> None:
    grid = write_walk(tmp_path, "constant", seeds="none")
    outcome = tried(grid, results)
    assert states(outcome) == {}
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (None, True, "exact")
    ettsweep("grid", "--grid", grid, "--results", results, "--follow", *FAST, cwd=tmp_path)
    assert len(list((results / "runs").iterdir())) == 3, "one run a point"
    judged = ettsweep("verify-optimum", "--dry-run", "--format", "json", "--results", results, code=None)
    (verdict,) = json.loads(judged.stdout)
    assert (verdict["rule"], verdict["evidence"]) == ("paper", None), "there is no bound"
    assert "luck is not told from merit" in judged.stderr
    refused = ettsweep("verify-optimum", "--rule", "bound", "--results", results, code=2)
    assert "one run a point" in refused.stderr
    assert "no fresh ones" in ettsweep("seeds", "--results", results, code=2).stderr


def test_grid_refuses_seeds_that_do_not_differ_until_the_code_has_changed(tmp_path: Path, results: Path) -> None:
    grid = write_walk(tmp_path, "constant")
    never = ettsweep("grid", "--grid", grid, "--results", results, "--dry-run", cwd=tmp_path)
    assert "never tried: `ettsweep try walk.yaml" in never.stderr
    tried(grid, results, code=1)
    refused = ettsweep("grid", "--grid", grid, "--results", results, code=2, cwd=tmp_path)
    assert "two seeds give the same numbers" in refused.stderr
    assert "seeds: none" in refused.stderr
    assert not (results / "runs").exists()
    script = tmp_path / "walk.py"
    script.write_text(script.read_text().replace("1337", "options.seed"))
    mended = ettsweep("grid", "--grid", grid, "--results", results, "--dry-run", cwd=tmp_path)
    assert "not tried since its code or its command changed" in mended.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_outcome_is_on_the_page_and_in_doctor(tmp_path: Path, results: Path) -> None:
    grid = write_walk(tmp_path, "nanogpt", run={"steps": 80})
    ettsweep("grid", "--grid", grid, "--results", results, "--follow", *FAST, cwd=tmp_path)
    rows = {row["check"]: row for row in doctor_rows(results)}
    assert (rows["tried walk"]["state"], "ettsweep try" in rows["tried walk"]["detail"]) == ("absent", True)
    tried(grid, results)
    rows = {row["check"]: row for row in doctor_rows(results)}
    assert (rows["tried walk"]["state"], "restarts its batches" in rows["tried walk"]["detail"]) == ("warning", True)
    ettsweep("report", "--results", results)
    page = (results / "report" / "report.html").read_text()
    assert "restarts its batches" in page
    assert "one seed gives the same numbers twice" in page


def doctor_rows(results: Path) -> list[dict[str, str]]:
    completed = ettsweep("doctor", "--results", results, "--format", "json", code=None)
    return list(json.loads(completed.stdout))


@pytest.mark.slow
def test_runs_are_short_by_the_words_of_try_and_cost_is_that_of_whole_ones(tmp_path: Path, results: Path) -> None:
    outcome = tried(write_walk(tmp_path, run={"try": "--steps 60", "steps": 240}), results)
    assert states(outcome) == {}
    assert "of 25% of its steps" in outcome["of"]["cost"]["seen"]
    assert "6 runs about" in outcome["of"]["cost"]["seen"]


@pytest.mark.parametrize(
    ("script", "name", "seen", "advice"),
    [
        ("import nowhere_to_be_found\n", "start", "nowhere_to_be_found", "by hand"),
        ('print(\'[ettsweep] {"step": 1, "other": 2.0}\')\n', "score", "other", "reader"),
        ('print(\'[ettsweep] {"step": 1, "err": NaN}\')\n', "score", "diverges", "lower lr"),
    ],
)
def test_what_cannot_be_swept_fails_at_its_first_run(
    script: str, name: str, seen: str, advice: str, tmp_path: Path, results: Path
) -> None:
    grid = write_walk(tmp_path)
    (tmp_path / "walk.py").write_text(script)
    outcome = tried(grid, results, code=1)
    assert outcome["of"][name]["state"] == "failed"
    assert seen in outcome["of"][name]["seen"]
    assert advice in outcome["of"][name]["advice"]
    assert {outcome["of"][each]["state"] for each in NAMES[2:7]} == {"absent"}
    assert list(Path(outcome["kept"]).glob("alone/runs/*/attempts/0001/output.txt")), "its output can be looked at"


def test_line_ends_of_windows_are_named(tmp_path: Path, results: Path) -> None:
    block = {"command": "./run.sh {lr} {seed}", "score": {"name": "err", "mode": "min"}}
    grid = write_walk(tmp_path, run=block)
    script = tmp_path / "run.sh"
    script.write_bytes(b'#!/bin/sh\r\necho \'[ettsweep] {"step": 1, "err": 1.0}\'\r\n')
    script.chmod(0o755)
    outcome = tried(grid, results, code=1)
    assert outcome["of"]["start"]["state"] == "failed"
    assert "CRLF" in outcome["of"]["start"]["advice"]
    assert outcome["kept"] not in cleaned(results), "this process is there"
    (Path(outcome["kept"]) / "owner.json").write_text(json.dumps(ended_process()))
    assert outcome["kept"] in cleaned(results)
    assert not Path(outcome["kept"]).exists()


def cleaned(results: Path) -> list[str]:
    completed = ettsweep("clean", "--results", results, "--format", "json")
    return [row["path"] for row in json.loads(completed.stdout)]


def ended_process() -> dict[str, Any]:
    process = subprocess.Popen(["sleep", "100"])
    identity = process_identity(process.pid).to_json()
    process.kill()
    process.wait()
    return identity


def test_files_are_named_whose_edits_would_go_unnoticed(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # what lies there is no person's code
    (project := tmp_path / "project").mkdir()
    for folder in (tmp_path / "temporary", tmp_path / "library", project / "parts"):
        folder.mkdir()
    (tmp_path / "library" / "shared.py").write_text("")
    (project / "plain.py").write_text("")
    (project / "parts" / "by_name.py").write_text("")
    (project / "parts" / "linked.py").write_text("")
    grid = write_walk(project, run={"try": "--steps 10", "resume": None})
    script = project / "walk.py"
    imports = [
        "import plain, importlib, sys",
        "importlib.import_module('parts.by_' + 'name')",
        f"sys.path[:0] = [{str(tmp_path / 'library')!r}, {str(project / 'parts')!r}]",
        "importlib.import_module('shared'), importlib.import_module('linked')",
    ]
    script.write_text("\n".join(imports) + "\n" + script.read_text())
    start = tried(grid, results)["of"]["start"]
    assert start["state"] == "warning"
    assert "it imports parts/linked.py of the project itself, not of the copy" in start["seen"]
    assert "it imports parts/by_name.py, of which its id knows nothing" in start["seen"]
    assert f"it imports {tmp_path}/library/shared.py, outside of the project" in start["seen"]
    assert "`code: [parts/by_name.py]`" in start["advice"]
    assert "plain" not in start["seen"]
    assert "change those that wait: copy it into the project" in start["advice"]


@pytest.mark.slow
def test_code_to_add_is_named_as_the_grid_file_has_to(tmp_path: Path, results: Path) -> None:
    """The project is the repository, where the grid file lies in a folder of its own."""
    for folder in (project := tmp_path / "project", project / ".git", project / "sweeps", project / "parts"):
        folder.mkdir()
    (project / "parts" / "by_name.py").write_text("")
    run = {"try": "--steps 10", "resume": None}
    grid = write_walk(project / "sweeps", run=run)
    script = project / "sweeps" / "walk.py"
    imports = "import importlib, sys\nsys.path.append(sys.path[0] + '/..')\nimportlib.import_module('parts.by_name')\n"
    script.write_text(imports + script.read_text())
    start = tried(grid, results)["of"]["start"]
    assert "`code: [../parts/by_name.py]`" in start["advice"]
    write_walk(project / "sweeps", run=run | {"code": ["../parts/by_name.py"]})
    script.write_text(imports + script.read_text())
    assert tried(grid, results)["of"]["start"]["state"] == "ok"


@pytest.mark.slow
def test_memory_on_gpus_is_not_asked_for_where_kills_and_stops_are_timed(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it starts a program of the driver, here one that notes which parts of the trial have begun."""
    (tool := tmp_path / "bin" / "nvidia-smi").parent.mkdir()
    names = f"$(cd {results}; echo {TRIAL_PREFIX}*/*)"
    tool.write_text(
        f'#!/bin/sh\necho "$1: {names}" >> {tmp_path}/looks\n[ "$1" = --query-gpu=memory.total ] && echo 81920\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    (project := tmp_path / "project").mkdir()
    tried(write_walk(project, run=SLOW), results)
    looks = [line for line in (tmp_path / "looks").read_text().splitlines() if "--query-compute-apps" in line]
    assert any("/two" in look for look in looks)
    assert not any("/killed" in look or "/stopped" in look for look in looks)


def test_runs_that_cannot_share_a_machine_are_seen(tmp_path: Path, results: Path) -> None:
    """Each takes a lock that is no other's, as one with a fixed port does."""
    grid = write_walk(tmp_path, run=SLOW)
    script, lock = tmp_path / "walk.py", tmp_path / "lock"
    taken = f"import fcntl\nheld = open({str(lock)!r}, 'w')\nfcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    script.write_text(taken + script.read_text())
    outcome = tried(grid, results, code=1)
    assert outcome["of"]["side by side"]["state"] == "failed"
    assert "of two at once one is failed" in outcome["of"]["side by side"]["seen"]
    assert outcome["of"]["resume"]["state"] == "ok"


@pytest.mark.slow
def test_what_another_process_writes_in_the_folder_fails_no_trial(tmp_path: Path, results: Path) -> None:
    """It also writes while the project is copied, and a sweep with other results goes on below."""
    grid, other_run = write_walk(tmp_path), tmp_path / "others" / "runs" / "0123456789ab"
    other_run.mkdir(parents=True)
    script = f"while :; do date >> other.log; date >> {other_run}/metrics.jsonl; sleep 0.01; done"
    writer = subprocess.Popen(["sh", "-c", script], cwd=tmp_path)
    try:
        outcome = tried(grid, results)
    finally:
        writer.kill()
        writer.wait()
    assert states(outcome) == {"side by side": "warning"}
    seen = outcome["of"]["side by side"]["seen"]
    assert f"{tmp_path}/other.log, each time: by runs" in seen, "and nothing of the other sweep"


def test_a_function_is_tried_too(tmp_path: Path, results: Path) -> None:
    outcome = tried(write_function(tmp_path), results)
    assert states(outcome) == {}
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (True, True, "exact")
    assert "of memory" in outcome["of"]["cost"]["seen"]


@pytest.mark.slow
def test_the_fake_trainable_is_tried_too(tmp_path: Path, results: Path) -> None:
    run = {"last_step": 100, "every": 10, "step_s": 0.01}
    outcome = tried(write_fake_grid(tmp_path / "fake.yaml", run=run), results)
    assert outcome["resume"] == "exact"
    assert states(outcome) == {}


def test_the_built_in_trainer_is_exact(tmp_path: Path, results: Path) -> None:
    schedule = {"total_steps": 3000, "warmup_steps": 100, "eval_every": 500}
    grid = write_grid(tmp_path / "vit.yaml", recipe=GRID["recipe"] | {"schedule": schedule})
    outcome = tried(grid, results)
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (True, True, "exact")
    assert states(outcome).items() <= {("stop", "absent")}, "a hundred steps may be over before it is told to stop"
    assert "of 3.3% of its steps" in outcome["of"]["cost"]["seen"]


@pytest.mark.slow
def test_transformers_own_trainer_is_exact(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    shutil.copytree(ROOT / "examples" / "transformers", tmp_path / "transformers")
    outcome = tried(tmp_path / "transformers" / "sweep.yaml", results)
    assert (outcome["seeds_differ"], outcome["repeats"], outcome["resume"]) == (True, True, "exact")


def test_nothing_is_left_of_a_trial_that_is_interrupted(tmp_path: Path, results: Path) -> None:
    grid = write_walk(tmp_path, run={"try": "--slow --steps 5000"})
    command = [sys.executable, "-m", "ettsweep", "try", str(grid), "--results", str(results), *FAST]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    out = wait_for(lambda: list(results.glob(".try-*/alone/runs/*/out/ckpt-10.json")), "its first run")[0].parent
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.communicate(timeout=PATIENCE_S)[1]
    assert not processes_with(f"ETTSWEEP_OUT={out}")
    assert not list(results.glob(".try-*"))
