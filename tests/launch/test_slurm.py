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
from support.commandline import typed, write_grid

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

ODD = [
    "a b",
    "it's",
    'say "x"',
    "$(touch hurt)",
    "`touch hurt`",
    "100%",
    "back\\slash",
    "#5",
    "*",
    "a;b&c|d",
    "~",
    "ü",
    "$HOME",
    "-x",
]
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
    profile: dict[str, Any] = {
        "partition": "gpu",
        "account": "my-project",
        "qos": "high",
        "constraint": "a100|h100",
        "time_min": 90,
        "nodes": 2,
        "gpus": 4,
        "cpus": 6,
        "mem_gb": 0.5,
        "sbatch": {"mail-type": "FAIL", "exclude": "n[1-3],n7", "exclusive": True, "hold": False, "nice": 5},
        "warn_s": 77,
    }
    log = f"{tmp_path}/%A_%a_0_log.out"
    assert options(script_of(tmp_path, tasks=5, parallel=2, **profile)) == {
        "array": "0-4%2",
        "job-name": "vit-ntk.1a2b3c4d",
        "partition": "gpu",
        "account": "my-project",
        "qos": "high",
        "constraint": "a100|h100",
        "time": "90",
        "nodes": "2",
        "gpus-per-node": "4",
        "ntasks-per-node": "4",
        "cpus-per-task": "6",
        "mem": "512M",
        "signal": "USR2@77",
        "requeue": "",
        "open-mode": "append",
        "output": log,
        "mail-type": "FAIL",
        "exclude": "n[1-3],n7",
        "exclusive": "",
        "nice": "5",
    }


def test_odd_values_reach_sbatch_as_they_are(tmp_path: Path) -> None:
    for value in ODD:
        fields = dict.fromkeys(("partition", "account", "qos", "constraint"), value)
        found = options(script_of(tmp_path, **fields, sbatch={"comment": value}))
        assert {name: found[name] for name in (*fields, "comment")} == {**fields, "comment": value}


# --- what the script runs -------------------------------------------------------------------------------------------


def test_odd_folders_and_variables_reach_the_worker_as_they_are(tmp_path: Path, run_script: Any) -> None:
    for number, value in enumerate([*ODD, "", "a=b"]):
        folder = tmp_path / f"{number}{value}"
        message, environment = run_script(script_of(folder, environment={"FOO": value}))
        assert (message[-1], environment["FOO"]) == (str(folder), value)
    assert not (tmp_path / "hurt").exists()


def test_srun_starts_a_worker_with_all_its_cpus(tmp_path: Path, run_script: Any) -> None:
    message, _ = run_script(script_of(tmp_path, cpus=6))
    start = message.index(sys.executable)
    assert message[start:] == [sys.executable, "-u", "-P", "-m", "ettsweep.worker", str(tmp_path)]
    assert "--cpus-per-task=6" in message[:start]
    assert message[message.index("--output") + 1] == f"{tmp_path}/%A_%a_%t_log.out", "a file for each worker"


def test_workers_end_together_only_where_they_train_together(tmp_path: Path, run_script: Any) -> None:
    """Beside each other, one that fails leaves the others to their runs; together they would wait for it."""
    for devices_per_run, ends in ((1, 0), (4, 1)):
        message, _ = run_script(script_of(tmp_path, nodes=2, gpus=2, devices_per_run=devices_per_run))
        assert f"--kill-on-bad-exit={ends}" in message


def test_python_of_the_profile_is_a_command_of_its_own(tmp_path: Path, run_script: Any) -> None:
    message, _ = run_script(script_of(tmp_path, python="apptainer exec --nv 'my image.sif' python3"))
    start = message.index("apptainer")
    assert message[start : start + 7] == ["apptainer", "exec", "--nv", "my image.sif", "python3", "-u", "-P"]


def test_the_script_exports_exactly_the_variables_of_the_profile(tmp_path: Path, run_script: Any) -> None:
    _, without = run_script(script_of(tmp_path))
    variables = {"A": 1, "B": "0.5", "C": True, "D": False, "_E": "x"}
    _, environment = run_script(script_of(tmp_path, environment=variables))
    assert {name: environment[name] for name in set(environment) - set(without)} == {
        "A": "1",
        "B": "0.5",
        "C": "true",
        "D": "false",
        "_E": "x",
    }
    assert set(without) <= set(environment)


def test_setup_runs_in_order_before_the_workers_and_sees_the_variables(tmp_path: Path, run_script: Any) -> None:
    setup = ['export B="$A-b"', 'export C="$B-c"']
    _, environment = run_script(script_of(tmp_path, environment={"A": "a"}, setup=setup))
    assert environment["C"] == "a-b-c"


# --- code and data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "profile", "path"),
    [
        ("/mine:/yours", {}, ["/mine", "/yours"]),
        (None, {"PYTHONPATH": "/site"}, ["/site"]),
    ],
)
def test_a_snapshot_comes_first_where_python_looks_for_modules(
    tmp_path: Path,
    run_script: Any,
    monkeypatch: pytest.MonkeyPatch,
    shell: str | None,
    profile: dict[str, str],
    path: list[str],
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if shell:
        monkeypatch.setenv("PYTHONPATH", shell)
    code = tmp_path / "code"
    code.mkdir()
    _, environment = run_script(script_of(tmp_path, code=str(code), environment=profile))
    assert environment["PYTHONPATH"].split(":") == [str(code), *path]
    assert environment["PYTHONSAFEPATH"] == "1"


# --- the environment of sbatch --------------------------------------------------------------------------------------


@pytest.fixture
def seen_by_sbatch(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """Return a function that runs sbatch for a script and returns which of some variables it sees."""
    program(bin_folder, "sbatch", "env -0")
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH"))]:
        monkeypatch.delenv(name)

    def run(script: str, *names: str) -> set[str]:
        for name in names:
            monkeypatch.setenv(name, "1")
        completed = subprocess.run(sbatch_command(script), capture_output=True, text=True, check=True)
        return {pair.partition("=")[0] for pair in completed.stdout.split("\0")} & set(names)

    return run


def test_what_the_profile_says_is_not_overridden_by_the_shell_which_may_say_the_rest(
    tmp_path: Path, seen_by_sbatch: Any
) -> None:
    script = script_of(tmp_path, partition="gpu", mem_gb=8, gpus=2, sbatch={"gpu-bind": "none"})
    names = {"SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_RESERVATION", "HOME_OF_MINE", "SLURM_CONF", "SLURM_JWT"}
    stated = {"SBATCH_PARTITION", "SBATCH_MEM_PER_NODE", "SBATCH_GPUS_PER_NODE", "SBATCH_GPU_BIND"}
    of_a_job = {"SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_RESTART_COUNT", "SUBMITIT_EXECUTOR", "PMI_RANK"}
    assert seen_by_sbatch(script, *names, *stated, *of_a_job) == names


def test_what_the_tool_depends_on_is_not_up_to_the_shell(tmp_path: Path, seen_by_sbatch: Any) -> None:
    names = ["TIMELIMIT", "ARRAY_INX", "JOB_NAME", "OUTPUT", "OPEN_MODE", "SIGNAL", "REQUEUE", "NO_REQUEUE", "ERROR"]
    names = [f"SBATCH_{name}" for name in (*names, "WAIT", "CLUSTERS")]
    assert seen_by_sbatch(script_of(tmp_path), *names, "SLURM_CLUSTERS") == set()


# --- from a plan to sbatch ------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in_cluster(bin_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """Put programs on PATH that stand for a cluster whose arrays have two tasks; return where sbatch puts scripts."""
    slurm_api.configuration.cache_clear()
    folder = tmp_path / "submitted"
    folder.mkdir()
    program(bin_folder, "scontrol", "echo 'ClusterName             = toy'; echo 'MaxArraySize            = 2'")
    program(bin_folder, "squeue", "")
    program(
        bin_folder,
        "sbatch",
        f'for script; do :; done\n[ "$script" = --test-only ] && exit 0\nnumber=$(ls {folder} | wc -l)\n'
        f'cp "$script" {folder}/$number\necho "Submitted batch job 10$number"',
    )
    yield folder
    slurm_api.configuration.cache_clear()


def plan_of(results: Path, specs: list[RunSpec]) -> Plan:
    return make_plan(specs, read_run_index(results))


def without_unique_names(script: str) -> str:
    script = re.sub(r"/jobs/\d{6}-[0-9a-f]{8}\b", "/jobs/XXXXXXXX", script)
    script = re.sub(r"/code/[0-9a-f]{8,}\b", "/code/XXXXXXXX", script)
    return re.sub(r"\.[0-9a-f]{8}$", ".XXXXXXXX", script, flags=re.MULTILINE)


def test_a_dry_run_shows_the_scripts_that_are_submitted(
    stand_in_cluster: Path, results: Path, make_spec: Callable[..., RunSpec]
) -> None:
    profile = SlurmProfile(kind="slurm", runs_per_job=2, max_parallel=3, snapshot=True, partition="a b")
    plan = plan_of(results, [make_spec(seed=seed) for seed in range(7)])
    batch_scripts_result = profile.scripts(results, plan.to_launch)
    assert not results.exists(), "a dry run leaves no trace"
    folders = submit(results, plan, profile)
    submitted = [path.read_text() for path in sorted(stand_in_cluster.iterdir())]
    assert [without_unique_names(script) for script in submitted] == batch_scripts_result
    assert [options(script)["array"] for script in batch_scripts_result] == ["0-1%1", "0-1%1"], (
        "two arrays share max_parallel"
    )
    assert [len(read_submission(folder).runs) for folder in folders] == [4, 3]
    assert [read_submission(folder).array_id() for folder in folders] == ["100", "101"]
    names = [read_submission(folder).name for folder in folders]
    assert len(set(names)) == 2
    assert [options(script)["job-name"] for script in submitted] == names, "by which jobs are found"


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({}, {"imagenet": "/login/imagenet"}),
        ({"environment": {"ETTSWEEP_IMAGENET": "/node/imagenet"}}, {}),
        ({"setup": ["export ETTSWEEP_IMAGENET=$TMPDIR/imagenet"]}, {}),
    ],
)
def test_workers_are_told_where_the_data_are_unless_the_profile_says_it(
    stand_in_cluster: Path,
    results: Path,
    make_spec: Callable[..., RunSpec],
    monkeypatch: pytest.MonkeyPatch,
    profile: dict[str, Any],
    message: dict[str, str],
) -> None:
    spec = make_spec().model_copy(update={"task": task_spec("imagenet")})
    monkeypatch.setenv("ETTSWEEP_IMAGENET", "/login/imagenet")
    (folder,) = submit(results, plan_of(results, [spec]), SlurmProfile(kind="slurm", **profile))
    assert read_submission(folder).data == message


BANNER = "--> job 17 has used 3 of 500 hours"


@pytest.mark.parametrize("says", [f"{BANNER}\nSubmitted batch job 4711 on cluster c2\n{BANNER}", BANNER, "4711"])
def test_the_job_is_that_of_sbatchs_own_line_or_else_of_the_name_of_the_submission(
    stand_in_cluster: Path, bin_folder: Path, results: Path, make_spec: Callable[..., RunSpec], says: str
) -> None:
    program(bin_folder, "sbatch", f'for script; do :; done\ncp "$script" {stand_in_cluster}/script\necho "{says}"')
    name = f"$(sed -n 's/^#SBATCH --job-name=//p' {stand_in_cluster}/script)"
    program(
        bin_folder, "squeue", f'echo "17_0|other|RUNNING|None|n1|N/A|0|"\necho "4711_0|{name}|PENDING|None||N/A|0|"'
    )
    (folder,) = submit(results, plan_of(results, [make_spec()]), SlurmProfile(kind="slurm"))
    assert read_submission(folder).array_id() == "4711"


def test_jobs_that_sbatch_accepts_without_their_id_keep_their_list(
    stand_in_cluster: Path, bin_folder: Path, results: Path, make_spec: Callable[..., RunSpec]
) -> None:
    program(bin_folder, "sbatch", f"echo '{BANNER}'")
    with pytest.raises(SubmissionUnknownError, match="Submitted batch job"):
        submit(results, plan_of(results, [make_spec()]), SlurmProfile(kind="slurm"))
    assert len(submissions(results)) == 1


def test_a_results_folder_whose_name_slurm_would_rewrite_is_refused(
    stand_in_cluster: Path, tmp_path: Path, make_spec: Callable[..., RunSpec]
) -> None:
    results = tmp_path / "50%j"
    with pytest.raises(InputError, match=r"50%j.*SLURM.*%"):
        check_plan(results, plan_of(results, [make_spec()]), SlurmProfile(kind="slurm"))
    assert not results.exists()


@pytest.mark.slow
def test_a_sbatch_that_refuses_before_it_has_read_the_script_is_told(
    stand_in_cluster: Path, bin_folder: Path, tmp_path: Path, results: Path
) -> None:
    program(bin_folder, "sbatch", "exec <&-; echo 'sbatch: error: no such partition' >&2; exit 1")
    (tmp_path / "long.yaml").write_text(f"kind: slurm\nsetup: ['echo {'x' * 200_000}']\n")
    options = tmp_path / "grid.yaml", "--launch", tmp_path / "long.yaml", "--results", results
    write_grid(tmp_path / "grid.yaml")
    assert "sbatch refuses: no such partition" in typed("grid", *options, code=1).stderr
