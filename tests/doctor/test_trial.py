"""`ettsweep try` on trainers whose answers are known: what it sees of each, what it keeps, and what `grid` makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import GRID, ettsweep, write_fake_grid, write_grid
from support.own_code import processes_with
from support.trainers import write_function, write_walk

pytestmark = pytest.mark.usefixtures("process", "warm")

FAST = ("--launch-set", "slots=2", "--launch-set", "threads=1", "--launch-set", "devices=cpu")


def tried(grid: Path, results: Path, *options: object, code: int = 0) -> dict[str, Any]:
    """Return what a trial says, with its observations by name."""
    completed = ettsweep(
        "try", grid, "--results", results, "--format", "json", *FAST, *options, code=code, cwd=grid.parent
    )
    outcome = json.loads(completed.stdout)
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


@pytest.mark.parametrize("fault", KNOWN)
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
