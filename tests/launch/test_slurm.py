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
from ettsweep.ownership import TRUST_VARIABLE
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


def test_what_the_profile_leaves_out_is_left_to_the_site(tmp_path: Path) -> None:
    options_result = options(script_of(tmp_path, gpus=0))
    assert not {"partition", "account", "qos", "constraint", "mem", "gpus-per-node", "wckey", "error"} & set(
        options_result
    )
    assert options_result["ntasks-per-node"] == "1", "one worker a node trains on the CPU"


@pytest.mark.parametrize(
    ("tasks", "parallel", "array"), [(1, 1, "0-0%1"), (10, 4, "0-9%4"), (1000, 1000, "0-999%1000")]
)
def test_the_array_has_an_index_for_each_task(tmp_path: Path, tasks: int, parallel: int, array: str) -> None:
    assert options(script_of(tmp_path, tasks, parallel))["array"] == array


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["partition", "account", "qos", "constraint"])
def test_odd_values_reach_sbatch_as_they_are(tmp_path: Path, field: str, value: str) -> None:
    assert options(script_of(tmp_path, **{field: value}))[field] == value
    assert options(script_of(tmp_path, sbatch={"comment": value}))["comment"] == value


def test_all_options_come_before_the_first_command(tmp_path: Path) -> None:
    script = script_of(tmp_path, environment={"A": 1}, setup=["module load cuda"], sbatch={"zone": "z"})
    assert script.startswith("#!/bin/bash\n")
    assert len(options(script)) == sum(line.startswith("#SBATCH") for line in script.splitlines())


# --- what the script runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ODD)
def test_bash_accepts_the_script_whatever_is_in_it(tmp_path: Path, value: str) -> None:
    folder = tmp_path / value.replace("/", "_")
    script = script_of(folder, partition=value, environment={"A": value}, sbatch={"comment": value})
    completed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.mark.parametrize("value", ODD)
def test_the_worker_is_given_the_folder_whatever_it_is_called(tmp_path: Path, run_script: Any, value: str) -> None:
    folder = tmp_path / value
    message, _ = run_script(script_of(folder))
    assert message[-1] == str(folder)
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


def test_srun_hands_on_what_the_script_exports_where_the_job_was_submitted_without_an_environment(
    tmp_path: Path, run_script: Any
) -> None:
    message, environment = run_script(script_of(tmp_path), SLURM_EXPORT_ENV="NONE")
    assert "--export=ALL" in message or environment.get("SLURM_EXPORT_ENV") == "ALL"


def test_python_of_the_profile_is_a_command_of_its_own(tmp_path: Path, run_script: Any) -> None:
    message, _ = run_script(script_of(tmp_path, python="apptainer exec --nv 'my image.sif' python3"))
    start = message.index("apptainer")
    assert message[start : start + 7] == ["apptainer", "exec", "--nv", "my image.sif", "python3", "-u", "-P"]


@pytest.mark.parametrize("value", [*ODD, "", "a=b"])
def test_variables_reach_the_worker_as_they_are(tmp_path: Path, run_script: Any, value: str) -> None:
    _, environment = run_script(script_of(tmp_path, environment={"FOO": value}))
    assert environment["FOO"] == value
    assert not (tmp_path / "hurt").exists()


def test_jobs_trust_the_group_where_the_command_did(
    tmp_path: Path, run_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    assert TRUST_VARIABLE not in run_script(script_of(tmp_path))[1]
    monkeypatch.setenv(TRUST_VARIABLE, "1")
    trusting = script_of(tmp_path)
    monkeypatch.delenv(TRUST_VARIABLE)  # as sbatch may pass no variables
    assert run_script(trusting)[1][TRUST_VARIABLE] == "1"


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
        (None, {}, []),
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


def test_without_a_snapshot_the_installed_code_is_used(tmp_path: Path, run_script: Any) -> None:
    _, environment = run_script(script_of(tmp_path))
    assert not {"PYTHONPATH", "PYTHONSAFEPATH"} & set(environment)


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


@pytest.mark.parametrize(
    ("field", "value", "variable"),
    [
        ("partition", "gpu", "SBATCH_PARTITION"),
        ("account", "mine", "SBATCH_ACCOUNT"),
        ("qos", "high", "SBATCH_QOS"),
        ("constraint", "a100", "SBATCH_CONSTRAINT"),
        ("mem_gb", 8, "SBATCH_MEM_PER_NODE"),
        ("gpus", 2, "SBATCH_GPUS_PER_NODE"),
        ("sbatch", {"gpu-bind": "none"}, "SBATCH_GPU_BIND"),
    ],
)
def test_what_the_profile_says_is_not_overridden_by_the_shell(
    tmp_path: Path, seen_by_sbatch: Any, field: str, value: object, variable: str
) -> None:
    profile: dict[str, Any] = {"gpus": 0, field: value}
    assert seen_by_sbatch(script_of(tmp_path, **profile), variable) == set()


def test_what_the_profile_leaves_out_may_come_from_the_shell(tmp_path: Path, seen_by_sbatch: Any) -> None:
    names = ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION", "HOME_OF_MINE")
    assert seen_by_sbatch(script_of(tmp_path), *names) == set(names)


@pytest.mark.parametrize(
    "variable",
    [
        "SBATCH_TIMELIMIT",
        "SBATCH_ARRAY_INX",
        "SBATCH_JOB_NAME",
        "SBATCH_OUTPUT",
        "SBATCH_OPEN_MODE",
        "SBATCH_SIGNAL",
        "SBATCH_REQUEUE",
        "SBATCH_NO_REQUEUE",
        "SBATCH_ERROR",
        "SBATCH_WAIT",
        "SBATCH_CLUSTERS",
        "SLURM_CLUSTERS",
    ],
)
def test_what_the_tool_depends_on_is_not_up_to_the_shell(tmp_path: Path, seen_by_sbatch: Any, variable: str) -> None:
    assert seen_by_sbatch(script_of(tmp_path), variable) == set()


def test_nothing_of_a_job_that_submits_another_one_is_handed_on(tmp_path: Path, seen_by_sbatch: Any) -> None:
    names = ["SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_CPUS_PER_TASK", "SLURM_PROCID", "SLURM_RESTART_COUNT"]
    names += ["SLURM_MEM_PER_NODE", "SLURMD_NODENAME", "SRUN_DEBUG", "SUBMITIT_EXECUTOR", "PMI_RANK"]
    assert seen_by_sbatch(script_of(tmp_path), *names) == set()


def test_where_slurm_is_stays_known(tmp_path: Path, seen_by_sbatch: Any) -> None:
    assert seen_by_sbatch(script_of(tmp_path), "SLURM_CONF", "SLURM_JWT") == {"SLURM_CONF", "SLURM_JWT"}


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


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_dry_run_shows_the_scripts_that_are_submitted(
    stand_in_cluster: Path, results: Path, make_spec: Callable[..., RunSpec], snapshot: bool
) -> None:
    profile = SlurmProfile(kind="slurm", runs_per_job=2, max_parallel=3, snapshot=snapshot, partition="a b")
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


def test_each_submission_has_a_name_of_its_own_which_its_jobs_carry(
    stand_in_cluster: Path, results: Path, make_spec: Callable[..., RunSpec]
) -> None:
    folders = submit(results, plan_of(results, [make_spec(seed=s) for s in range(4)]), SlurmProfile(kind="slurm"))
    names = [read_submission(folder).name for folder in folders]
    assert len(set(names)) == 2
    assert [options(path.read_text())["job-name"] for path in sorted(stand_in_cluster.iterdir())] == names


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


def test_a_sbatch_that_refuses_before_it_has_read_the_script_is_told(
    stand_in_cluster: Path, bin_folder: Path, tmp_path: Path, results: Path
) -> None:
    program(bin_folder, "sbatch", "exec <&-; echo 'sbatch: error: no such partition' >&2; exit 1")
    (tmp_path / "long.yaml").write_text(f"kind: slurm\nsetup: ['echo {'x' * 200_000}']\n")
    options = tmp_path / "grid.yaml", "--launch", tmp_path / "long.yaml", "--results", results
    write_grid(tmp_path / "grid.yaml")
    assert "sbatch refuses: no such partition" in typed("grid", *options, code=1).stderr


def test_a_path_that_is_not_utf8_reaches_sbatch_as_it_is(
    stand_in_cluster: Path, tmp_path: Path, make_spec: Callable[..., RunSpec]
) -> None:
    results, profile = tmp_path / os.fsdecode(b"r\xff"), SlurmProfile(kind="slurm", setup=("echo f\u00fcr",))
    plan = plan_of(results, [make_spec()])
    check_plan(results, plan, profile)
    submit(results, plan, profile)
    (script,) = (path.read_bytes() for path in stand_in_cluster.iterdir())
    assert b"/r\xff/jobs/" in script
    assert "echo für".encode() in script
