"""The batch script of an array: what it asks for, what it runs, and what sbatch is told beside it."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ettsweep.errors import InputError, SubmissionUnknownError
from ettsweep.launch import slurm_api
from ettsweep.launch.follow import read_run_index
from ettsweep.launch.slurm import Array, SlurmProfile
from ettsweep.launch.slurm_api import sbatch_command
from ettsweep.launch.submissions import read_submission, submissions
from ettsweep.launch.submit import check_plan, submit
from ettsweep.runs.spec import RunSpec
from ettsweep.study.plan import Plan, make_plan
from ettsweep.trainer.tasks.registry import task_spec

ODD = ["a b", "it's", 'say "x"', "$(touch hurt)", "`touch hurt`", "100%", "a\\b", "#5", "*", "a;b&c|d", "ü", "$HOME"]
"""Values that a shell would read as something else."""


def script_of(folder: Path, tasks: int = 3, parallel: int = 3, code: str = "", **fields: Any) -> str:
    """Return the batch script of an array, whose variables are written."""
    profile = SlurmProfile(kind="slurm", **fields)
    folder.mkdir(exist_ok=True)
    profile.write_variables(folder, code)
    return profile.script(folder, Array(tasks, parallel), "vit-ntk.1a2b3c4d", code)


def options(script: str) -> dict[str, str]:
    """Return the options of a batch script as sbatch reads them: up to the first line that is no comment."""
    collected = {}
    for line in script.splitlines():
        if line.startswith("#SBATCH "):
            (field,) = shlex.split(line.removeprefix("#SBATCH "))
            option, _, value = field.partition("=")
            assert option not in collected
            collected[option.removeprefix("--")] = value
        elif line and not line.startswith("#"):
            break
    return collected


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that comes first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def program(folder: Path, name: str, body: str) -> None:
    """Write a shell script that stands for a program of SLURM's."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def run_script(bin_folder: Path, tmp_path: Path) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """Return a function that runs a batch script and returns what srun was given: words, and the environment."""
    messages, environment = tmp_path / "told", tmp_path / "environment"
    program(bin_folder, "srun", f'for word; do printf "%s\\0" "$word"; done > {messages}\nenv -0 > {environment}')

    def run(script: str, **variables: str) -> tuple[list[str], dict[str, str]]:
        env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", **variables}
        completed = subprocess.run(
            ["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (completed.returncode, completed.stderr) == (0, "")
        pairs = (pair.partition("=") for pair in environment.read_text().split("\0")[:-1])
        return messages.read_text().split("\0")[:-1], {name: value for name, _, value in pairs}

    return run


# --- what the script asks for ---------------------------------------------------------------------------------------


def test_the_script_asks_for_what_the_profile_says_and_nothing_else(tmp_path: Path) -> None:
    same = {"partition": "gpu", "account": "my-project", "qos": "high", "constraint": "a100|h100"}
    profile: dict[str, Any] = {"time_min": 90, "nodes": 2, "gpus": 4, "cpus": 6, "mem_gb": 0.5, "warn_s": 77}
    sbatch = {"mail-type": "FAIL", "exclude": "n[1-3],n7", "exclusive": True, "hold": False, "nice": 5}
    assert options(script_of(tmp_path, tasks=5, parallel=2, sbatch=sbatch, **same, **profile)) == {
        **same,
        "array": "0-4%2",
        "job-name": "vit-ntk.1a2b3c4d",
        "time": "90",
        "nodes": "2",
        "gpus-per-node": "4",
        "ntasks-per-node": "4",
        "cpus-per-task": "6",
        "mem": "512M",
        "signal": "USR2@77",
        "requeue": "",
        "open-mode": "append",
        "output": f"{tmp_path}/%A_%a_0_log.out",
        "mail-type": "FAIL",
        "exclude": "n[1-3],n7",
        "exclusive": "",
        "nice": "5",
    }


# --- what the script runs -------------------------------------------------------------------------------------------


def test_odd_values_reach_sbatch_and_the_worker_as_they_are(tmp_path: Path, run_script: Any) -> None:
    for number, value in enumerate([*ODD, "", "a=b"]):
        folder = tmp_path / f"{number}{value}"
        script = script_of(folder, account=value or None, sbatch={"comment": value}, environment={"FOO": value})
        assert (options(script).get("account", ""), options(script)["comment"]) == (value, value)
        message, environment = run_script(script)
        assert (message[-1], environment["FOO"]) == (str(folder), value)
    assert not (tmp_path / "hurt").exists()


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (None, [sys.executable]),
        ("apptainer exec 'my image.sif' python3", ["apptainer", "exec", "my image.sif", "python3"]),
    ],
)
def test_srun_starts_workers_with_cpus(tmp_path: Path, run_script: Any, python: str | None, words: list[str]) -> None:
    message, _ = run_script(script_of(tmp_path, cpus=6, python=python))
    start = message.index(words[0])
    assert message[start:] == [*words, "-u", "-P", "-m", "ettsweep.worker", str(tmp_path)]
    assert "--cpus-per-task=6" in message[:start]
    assert message[message.index("--output") + 1] == f"{tmp_path}/%A_%a_%t_log.out", "a file for each worker"
    assert "--kill-on-bad-exit=0" in message, "one that fails leaves the others to their runs"
    together, _ = run_script(script_of(tmp_path, nodes=2, gpus=2, devices_per_run=4))
    assert "--kill-on-bad-exit=1" in together, "the others would wait for it"


def test_setup_runs_in_order_before_the_workers_and_sees_the_variables(tmp_path: Path, run_script: Any) -> None:
    _, without = run_script(script_of(tmp_path))
    setup = ['export Y="$A-b"', 'export Z="$Y-c"']
    _, environment = run_script(script_of(tmp_path, environment={"A": 1, "B": "0.5", "C": True}, setup=setup))
    new = {"A": "1", "B": "0.5", "C": "true", "Y": "1-b", "Z": "1-b-c"}
    assert {name: environment[name] for name in set(environment) - set(without)} == new
    assert set(without) <= set(environment)


@pytest.mark.parametrize(("profile", "path"), [({}, ["/mine", "/yours"]), ({"PYTHONPATH": "/site"}, ["/site"])])
def test_a_snapshot_comes_first_where_python_looks_for_modules(
    tmp_path: Path, run_script: Any, monkeypatch: pytest.MonkeyPatch, profile: dict[str, str], path: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine:/yours")
    code = tmp_path / "code"
    code.mkdir()
    _, environment = run_script(script_of(tmp_path, code=str(code), environment=profile))
    assert environment["PYTHONPATH"].split(":") == [str(code), *path]
    assert environment["PYTHONSAFEPATH"] == "1"


def test_the_shell_may_say_what_neither_the_profile_says_nor_the_tool_depends_on(
    tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bin_folder, "sbatch", "env -0")
    script = script_of(tmp_path, partition="gpu", mem_gb=8, gpus=2, sbatch={"gpu-bind": "none"})
    passed = {"SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_RESERVATION", "HOME_OF_MINE", "SLURM_CONF", "SLURM_JWT"}
    stated = {"SBATCH_PARTITION", "SBATCH_MEM_PER_NODE", "SBATCH_GPUS_PER_NODE", "SBATCH_GPU_BIND"}
    of_a_job = {"SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_RESTART_COUNT", "SUBMITIT_EXECUTOR", "PMI_RANK"}
    ours = ["TIMELIMIT", "ARRAY_INX", "JOB_NAME", "OUTPUT", "OPEN_MODE", "SIGNAL", "REQUEUE", "NO_REQUEUE", "WAIT"]
    names = {*passed, *stated, *of_a_job, *(f"SBATCH_{name}" for name in ours), "SBATCH_CLUSTERS", "SLURM_CLUSTERS"}
    for name in names:
        monkeypatch.setenv(name, "1")
    completed = subprocess.run(sbatch_command(script), capture_output=True, text=True, check=True)
    assert {pair.partition("=")[0] for pair in completed.stdout.split("\0")} & names == passed


# --- from a plan to sbatch ------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in_cluster(bin_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """Put programs on PATH that stand for a cluster whose arrays have two tasks; return where sbatch puts scripts."""
    slurm_api.configuration.cache_clear()
    folder = tmp_path / "submitted"
    folder.mkdir()
    program(bin_folder, "scontrol", "echo 'ClusterName             = toy'; echo 'MaxArraySize            = 2'")
    program(bin_folder, "squeue", "")
    take = f'number=$(ls {folder} | wc -l)\ncp "$script" {folder}/$number\necho "Submitted batch job 10$number"'
    program(bin_folder, "sbatch", f'for script; do :; done\n[ "$script" = --test-only ] && exit 0\n{take}')
    yield folder
    slurm_api.configuration.cache_clear()


def plan_of(results: Path, specs: list[RunSpec]) -> Plan:
    return make_plan(specs, read_run_index(results))


def without_unique_names(script: str) -> str:
    script = re.sub(r"/jobs/\d{6}-[0-9a-f]{8}\b", "/jobs/XXXXXXXX", script)
    script = re.sub(r"/code/[0-9a-f]{8,}\b", "/code/XXXXXXXX", script)
    return re.sub(r"\.[0-9a-f]{8}$", ".XXXXXXXX", script, flags=re.MULTILINE)


def test_a_dry_run_shows_the_scripts(stand_in_cluster: Path, results: Path, make_spec: Callable[..., RunSpec]) -> None:
    profile = SlurmProfile(kind="slurm", runs_per_job=2, max_parallel=3, snapshot=True, partition="a b")
    plan = plan_of(results, [make_spec(seed=seed) for seed in range(7)])
    shown = profile.scripts(results, plan.to_launch)
    assert not results.exists(), "a dry run leaves no trace"
    made = [read_submission(folder) for folder in submit(results, plan, profile)]
    submitted = [path.read_text() for path in sorted(stand_in_cluster.iterdir())]
    assert [without_unique_names(script) for script in submitted] == shown
    assert [options(script)["array"] for script in shown] == ["0-1%1", "0-1%1"], "two arrays share max_parallel"
    assert [len(submission.runs) for submission in made] == [4, 3]
    assert [submission.array_id() for submission in made] == ["100", "101"]
    names = [submission.name for submission in made]
    assert len(set(names)) == 2
    assert [options(script)["job-name"] for script in submitted] == names, "by which jobs are found"


@pytest.mark.usefixtures("stand_in_cluster")
@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ({}, {"imagenet": "/login/imagenet"}),
        ({"environment": {"ETTSWEEP_IMAGENET": "/node/imagenet"}}, {}),
        ({"setup": ["export ETTSWEEP_IMAGENET=$TMPDIR/imagenet"]}, {}),
    ],
)
def test_workers_are_told_where_the_data_are_unless_the_profile_says_it(
    results: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch, profile: dict[str, Any], told: dict[str, str]
) -> None:
    monkeypatch.setenv("ETTSWEEP_IMAGENET", "/login/imagenet")
    plan = plan_of(results, [spec.model_copy(update={"task": task_spec("imagenet")})])
    (folder,) = submit(results, plan, SlurmProfile(kind="slurm", **profile))
    assert read_submission(folder).data == told


@pytest.mark.parametrize("line", ["\nSubmitted batch job 4711 on cluster c2", ""])
def test_the_job_is_that_of_sbatchs_own_line_or_else_of_the_name_of_the_submission(
    stand_in_cluster: Path, bin_folder: Path, results: Path, spec: RunSpec, line: str
) -> None:
    says = f"--> job 17 has used 3 of 500 hours{line}"
    program(bin_folder, "sbatch", f'for script; do :; done\ncp "$script" {stand_in_cluster}/script\necho "{says}"')
    name = f"$(sed -n 's/^#SBATCH --job-name=//p' {stand_in_cluster}/script)"
    squeue = f'echo "17_0|other|RUNNING|None|n1|N/A|0|"\necho "4711_0|{name}|PENDING|None||N/A|0|"'
    program(bin_folder, "squeue", squeue)
    (folder,) = submit(results, plan_of(results, [spec]), SlurmProfile(kind="slurm"))
    assert read_submission(folder).array_id() == "4711"


def test_jobs_that_sbatch_accepts_without_their_id_keep_their_list(
    stand_in_cluster: Path, bin_folder: Path, results: Path, spec: RunSpec
) -> None:
    program(bin_folder, "sbatch", "echo 'welcome'")
    with pytest.raises(SubmissionUnknownError, match="Submitted batch job"):
        submit(results, plan_of(results, [spec]), SlurmProfile(kind="slurm"))
    assert len(submissions(results)) == 1


def test_a_folder_that_slurm_would_rewrite_is_refused(stand_in_cluster: Path, tmp_path: Path, spec: RunSpec) -> None:
    results = tmp_path / "50%j"
    with pytest.raises(InputError, match=r"50%j.*SLURM.*%"):
        check_plan(results, plan_of(results, [spec]), SlurmProfile(kind="slurm"))
