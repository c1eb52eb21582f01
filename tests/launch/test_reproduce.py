"""A run that is trained again by the command that `show --reproduce` prints, and what is said of it."""

import itertools
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ETTSWEEP, ettsweep, runs_in, write_grid

from ettsweep.launch import reproduce as module
from ettsweep.launch.profile import LocalProfile, load_profile
from ettsweep.launch.reproduce import attempt_facts, compare_facts, local_facts, reproduce
from ettsweep.provenance import provenance
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.trainer.settings import TrainerSettings

MakeSpec = Callable[..., RunSpec]
HERE = {"torch": "2.9", "numpy": "2.1", "instruction_set": "AVX2", "code": "c0de"}
CLAIM = {"device": "cpu", "threads": 2, **{key: value for key, value in HERE.items() if key != "code"}}
CLEAN = {"commit": "abc", "dirty": False, "diff": "", "diff_truncated": False}


@pytest.fixture
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine one with known versions."""
    monkeypatch.setattr(module, "local_facts", lambda device: HERE)


def begun(results: Path, spec: RunSpec, claim: dict[str, Any] = CLAIM, **origin: Any) -> Attempt:
    """Return a first attempt with this claim and provenance."""
    attempt = RunDir.create(results, spec).claim(claim, after=0)
    assert attempt is not None
    attempt.record_provenance({"git": CLEAN, "problem": None, "code": "c0de", "packages": {}, **origin})
    return attempt


def shell(command: str, folder: Path) -> str:
    """Run a line as typed into a shell in some folder."""
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "PATH": f"{Path(ETTSWEEP).parent}:{os.environ['PATH']}"}
    completed = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed
    return completed.stdout


# --- a run trained again ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_command_typed_elsewhere_trains_the_same_run_bit_for_bit(tmp_path: Path, threads: int) -> None:
    results = tmp_path / "it's mine" / "results"
    results.parent.mkdir()
    grid = write_grid(tmp_path / "grid.yaml")
    settings = ("--launch-set", "devices=cpu", "--launch-set", f"threads={threads}")
    ettsweep("train", "--grid", grid, "--lr", 1 / 3, "--seed", 7, "--results", results, *settings)
    (run,) = runs_in(results)
    attempt = run.latest_attempt()
    assert attempt is not None
    attempt.record_provenance(provenance())
    result = ettsweep("show", run.id, "--results", "results", "--reproduce", cwd=results.parent)
    (line,) = result.stdout.splitlines()
    assert "no difference found" in result.stderr
    grid.unlink()
    shell(line, tmp_path / "elsewhere")
    (repeated,) = runs_in(tmp_path / "elsewhere" / f"reproduced-{run.id}")
    assert repeated.id == run.id
    assert repeated.metrics_path.read_bytes() == run.metrics_path.read_bytes()
    first, second = run.result(), repeated.result()
    assert first is not None
    assert second is not None
    assert first["weights_sha256"] == second["weights_sha256"]
    assert second["environment"]["threads"] == threads
    data = json.loads(ettsweep("show", run.id, "--results", results, "--reproduce", "--format", "json").stdout)
    assert set(data) == {"command", "commit", "differs"}
    assert (shlex.split(data["command"]), data["differs"]) == (shlex.split(line), [])


def test_a_spec_file_is_trained_and_an_edited_one_is_another_run(
    tmp_path: Path, results: Path, make_spec: MakeSpec
) -> None:
    path = tmp_path / "my.json"
    spec = make_spec(seed=3)
    path.write_text(spec.model_dump_json())
    options = ("--spec", path, "--results", results, "--launch-set", "devices=cpu")
    ettsweep("train", *options)
    path.write_text(make_spec(seed=4).model_dump_json())
    ettsweep("train", *options)
    assert {run.spec().seed for run in runs_in(results)} == {3, 4}
    assert {run.id for run in runs_in(results)} == {spec.run_id, make_spec(seed=4).run_id}


# --- what is said -----------------------------------------------------------------------------------------------------


def test_the_command_is_that_of_the_attempt_that_finished(results: Path, spec: RunSpec, this_machine: None) -> None:
    first = begun(results, spec, {**CLAIM, "threads": 8})
    first.record_failure("interrupted", "terminated")
    second = RunDir(first.run).claim(CLAIM, after=1)
    assert second is not None
    assert RunDir(second.run).finish({"status": "done", "score": 1.0, "attempts": 2}, [])
    path = results.resolve() / "runs" / spec.run_id / "spec.json"
    values = ["--spec", str(path), "--results", f"reproduced-{spec.run_id}"]
    settings = ["--launch-set", "threads=2", "--launch-set", "slots=1", "--launch-set", "devices=cpu"]
    reproduce_result = reproduce(RunDir(second.run), spec, RunDir(second.run).result())
    assert shlex.split(reproduce_result.command) == ["ettsweep", "train", *values, *settings]
    assert reproduce_result.differences == []


def test_the_command_has_as_many_processes_and_cuts_the_batch_as_before(
    results: Path, spec: RunSpec, this_machine: None
) -> None:
    attempt = begun(results, spec)
    mapping = {"processes": 2, "micro_batch": 5, "compile": False, "activation_checkpointing": True}
    attempt.record_execution(mapping)
    lines = shlex.split(reproduce(RunDir(attempt.run), spec, None).command)
    settings = [value for token, value in itertools.pairwise(lines) if token == "--launch-set"]
    profile = load_profile("local", settings)
    assert isinstance(profile, LocalProfile)
    (slot,) = profile.resolve_slots()
    assert (slot.device, slot.threads, len(slot.others)) == ("cpu", 2, 1)
    trainer = profile.settings(TrainerSettings)
    assert (trainer.micro_batch, trainer.compile, trainer.activation_checkpointing) == (5, False, True)

    claim_result = RunDir(attempt.run).claim({**CLAIM, "device": "cuda"}, after=1)
    assert claim_result is not None
    claim_result.record_resume(1, 8)
    claim_result.record_execution(mapping | {"processes": 4, "micro_batch": 3})
    reproduce_result = reproduce(RunDir(attempt.run), spec, None)
    assert (
        "'devices=[0, 1, 2, 3]' --launch-set devices_per_run=4 --launch-set trainer.micro_batch=3"
        in reproduce_result.command
    )
    notes = "\n".join(reproduce_result.notes)
    assert "attempt 2 resumed at step 8 where processes was 2, is 4: no run from the start reproduces that" in notes
    assert "attempt 2 resumed at step 8 where micro_batch was 5, is 3" in notes


def test_a_run_of_a_gpu_is_trained_on_one_again(results: Path, spec: RunSpec, this_machine: None) -> None:
    attempt = begun(results, spec, {**CLAIM, "device": "cuda"})
    reproduce_result = reproduce(RunDir(attempt.run), spec, None)
    assert reproduce_result.command.endswith("--launch-set threads=2 --launch-set 'devices=[0]'")
    assert any("on a GPU" in line for line in reproduce_result.notes)


def test_what_differs_is_named(results: Path, spec: RunSpec, this_machine: None) -> None:
    old = {"torch": "2.8", "instruction_set": "AVX512", "timm": "1.0"}
    attempt = begun(results, spec, {**CLAIM, **old}, code="01d", packages={"timm": "1.0", "numpy": "2.1"})
    reproduce_result = reproduce(RunDir(attempt.run), spec, None)
    assert set(reproduce_result.differences) == {
        "timm was 1.0, is absent",
        "torch was 2.8, is 2.9",
        "instruction_set was AVX512, is AVX2",
        "code was 01d, is c0de",
    }
    assert reproduce_result.commit == "abc"


def test_an_unfinished_run_has_a_command_with_a_note(results: Path, spec: RunSpec, this_machine: None) -> None:
    run = RunDir.create(results, spec)
    reproduce_result = reproduce(run, spec, None)
    assert shlex.split(reproduce_result.command)[:4] == ["ettsweep", "train", "--spec", str(run.spec_path.resolve())]
    assert "--launch-set" not in reproduce_result.command
    assert reproduce_result.notes == [
        f"run {run.id} is not finished: the command trains it from its start to its end",
        "it was never trained: its threads, device and code are unknown",
    ]
    begun(results, spec)
    assert "threads=2" in reproduce(run, spec, None).command
    assert reproduce(run, spec, None).notes[0].startswith(f"run {run.id} is not finished")


def test_a_run_that_resumed_under_other_circumstances_says_so(results: Path, spec: RunSpec, this_machine: None) -> None:
    first = begun(results, spec, {**CLAIM, "threads": 8})
    second = RunDir(first.run).claim(CLAIM, after=1)
    assert second is not None
    second.record_provenance(first.provenance())
    assert not any("went on" in line for line in reproduce(RunDir(first.run), spec, None).notes)  # it began anew
    second.record_resume(1, 12)
    line = "attempt 2 resumed at step 12 where threads was 8, is 2: no run from the start reproduces that"
    assert line in reproduce(RunDir(first.run), spec, None).notes


def test_a_task_with_a_data_set_says_that_it_needs_it(results: Path, this_machine: None) -> None:
    from ettsweep.shipped_files import shipped

    spec = load_sweep_spec(shipped("grids") / "vit-b16.yaml").specs()[0]
    reproduce_result = reproduce(RunDir.create(results, spec), spec, None)
    assert "task imagenet needs its data set: add --data PATH, or set ETTSWEEP_IMAGENET" in reproduce_result.notes


@pytest.mark.slow
def test_the_facts_of_this_process_are_those_that_a_run_records(results: Path, spec: RunSpec) -> None:
    import torch

    from ettsweep.trainer.training.run import environment

    attempt = begun(results, spec, environment(torch.device("cpu")), **provenance())
    assert compare_facts(attempt_facts(attempt), local_facts("cpu")) == []
    assert {"torch", "numpy", "python", "instruction_set", "device_name", "code"} <= set(attempt_facts(attempt))


def test_a_torch_that_cannot_be_imported_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcuda')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert compare_facts({"instruction_set": "AVX2"}, local_facts("cpu")) == [
        "instruction_set was AVX2, is unknown: torch cannot be imported"
    ]


def notes(results: Path, spec: RunSpec, origin: dict[str, Any]) -> list[str]:
    shutil.rmtree(results, ignore_errors=True)
    attempt = begun(results, spec, CLAIM, **origin)
    return [line for line in reproduce(RunDir(attempt.run), spec, None).notes if "not finished" not in line]


def test_the_code_is_named_by_its_commit(results: Path, spec: RunSpec, this_machine: None) -> None:
    assert notes(results, spec, {}) == ["its code: `git checkout abc`"]
    installed = {"git": None, "packages": {"ettsweep": "1.2"}}
    assert notes(results, spec, installed) == ["its code: ettsweep 1.2, in no git repository"]
    (line,) = notes(results, spec, {**installed, "problem": "git is not installed"})
    assert line.endswith("in no git repository (git is not installed)")
    cut = {"git": {**CLEAN, "dirty": True, "diff_truncated": True}}
    assert "the recorded changes are incomplete" in notes(results, spec, cut)[-1]
    attempt = begun(results, spec.with_point(2.0, 0.5, 1))
    attempt.provenance_path.unlink()
    assert "its code was not recorded" in reproduce(RunDir(attempt.run), spec, None).notes


def test_changed_code_is_restored_as_the_note_says(tmp_path: Path, spec: RunSpec, this_machine: None) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "code.py").write_text("x = 1\n")
    for command in ("init --quiet", "add .", "-c user.name=A -c user.email=a@example.org commit --quiet -m first"):
        subprocess.run(["git", *command.split()], cwd=clone, check=True)
    (clone / "code.py").write_text("x = 'é'\n")
    diff = shell("git diff", clone)
    commit = shell("git rev-parse HEAD", clone).strip()
    shell("git checkout --quiet -- . && git checkout --quiet -b other && git rm --quiet code.py", clone)
    shell("git -c user.name=A -c user.email=a@example.org commit --quiet -m second", clone)
    git = {"commit": commit, "dirty": True, "diff": diff, "diff_truncated": False}
    messages, settings = notes(tmp_path / "my results", spec, {"git": git})
    assert f"commit {commit} with changes" in messages
    shell(settings, clone)
    assert (clone / "code.py").read_text() == "x = 'é'\n"


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_notes_go_beside_the_command(results: Path, spec: RunSpec) -> None:
    attempt = begun(results, spec, {**CLAIM, "torch": "1.0"})
    result = ettsweep("show", spec.run_id, "--results", results, "--reproduce")
    assert len(result.stdout.splitlines()) == 1
    assert "differs here: torch was 1.0, is " in result.stderr
    assert "its code: `git checkout abc`" in result.stderr
    data = json.loads(ettsweep("show", spec.run_id, "--results", results, "--reproduce", "--format", "json").stdout)
    assert data["commit"] == "abc"
    assert any(line.startswith("torch was 1.0, is ") for line in data["differs"])
    shutil.rmtree(attempt.path)
    result = ettsweep("show", spec.run_id, "--results", results, "--reproduce")
    assert result.stdout.startswith("ettsweep train --spec ")
    assert "differs" not in result.stderr


def test_a_run_whose_spec_is_damaged_cannot_be_reproduced(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    run.spec_path.write_text("{")
    result = ettsweep("show", spec.run_id, "--results", results, "--reproduce", code=1)
    assert result.stdout == ""
    assert f"{run.spec_path}: no valid JSON" in result.stderr


def test_a_run_is_shown_with_its_job_and_code_but_not_the_diff(results: Path, spec: RunSpec) -> None:
    job = {"cluster": "sweep", "id": "123_4", "restart": 0, "node": "n1"}
    git = {"commit": "abc", "dirty": True, "diff": "SECRET\n", "diff_truncated": False}
    begun(results, spec, {**CLAIM, "job": job}, git=git, packages={"timm": "1.0"})
    (attempt,) = json.loads(ettsweep("show", spec.run_id, "--results", results, "--format", "json").stdout)["attempts"]
    assert attempt["job"] == job
    assert attempt["provenance"]["git"]["commit"] == "abc"
    assert attempt["provenance"]["git"]["diff_bytes"] == 7
    table = ettsweep("show", spec.run_id, "--all", "--results", results).stdout
    assert "SECRET" not in table
    rows = dict(line.split(maxsplit=1) for line in table.splitlines() if len(line.split()) > 1)
    assert rows["attempts.1.provenance.git.dirty"].strip() == "yes"
    assert rows["attempts.1.provenance.packages.timm"].strip() == "1.0"
    assert rows["attempts.1.job.id"].strip() == "123_4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "vit-digits"), "--spec FILE describes the whole run: leave out --model"),
        (("--grid", "grid.yaml"), "leave out --grid"),
        (("abc",), "leave out a run id"),
        (("--strategy", "ntk"), "leave out --strategy"),
        (("--lr", 1, "--wd", 1), "leave out --lr and --wd"),
        (("--seed", 0), "leave out --seed"),
        (("--set", "batch_size=8"), "leave out --set"),
        ((), "spec.json: no such file"),
    ],
)
def test_a_spec_file_says_all(tmp_path: Path, arguments: tuple[Any, ...], message: str) -> None:
    result = ettsweep("train", "--spec", "spec.json", *arguments, code=2, cwd=tmp_path)
    assert message in result.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "spec.json: no valid JSON"),
        ("[]", "spec.json: not a JSON object"),
        ("{}", "spec.json: lr: is required"),
        ("{'sed': 1}".replace("'", '"'), "spec.json: sed: unknown key"),
    ],
)
def test_a_file_that_is_no_spec_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "spec.json").write_text(text)
    result = ettsweep("train", "--spec", "spec.json", code=2, cwd=tmp_path)
    assert message in result.stderr
    assert not (tmp_path / "results").exists()
