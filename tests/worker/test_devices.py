"""Real commands whose runs are each trained by two processes: killed, told to end, cancelled, or never started.

Whatever happens to either process, a run that is finished has the bits of one that two processes trained in peace.
"""

import contextlib
import itertools
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commandline import alive, end_workers, ettsweep, runs_in, status, wait_for, worker_pids, write_grid
from support.forks import Forks
from support.holds import is_stopped
from support.slots import held, owner, wait_for_results, waiting

from ettsweep.files import read_lines
from ettsweep.launch.submissions import submission_folders
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import MAX_LOST_ATTEMPTS, State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.worker import devices

pytestmark = [
    pytest.mark.skipif(not Path("/proc/locks").exists(), reason="looks at processes through Linux's /proc"),
    pytest.mark.usefixtures("process"),
]

RECIPE = {"batch_size": 33, "schedule": {"total_steps": 90, "warmup_steps": 4, "eval_every": 30}}
SETS = (
    "devices=cpu",
    "slots=2",
    "devices_per_run=2",
    "threads=1",
    "checkpoint_every_steps=25",
    "trainer.micro_batch=9",
)
TOGETHER = tuple(word for setting in SETS for word in ("--launch-set", setting))


@pytest.fixture
def command(tmp_path: Path) -> tuple[object, ...]:
    """Return the command that has one run trained by two processes."""
    path = write_grid(tmp_path / "grid.yaml", recipe=RECIPE, lr={"range": [0, 0]})
    return "grid", path, "--results", tmp_path / "results", *TOGETHER


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a results folder with two runs that two processes trained in peace."""
    folder = tmp_path_factory.mktemp("calm")
    results = folder / "results"
    path = write_grid(folder / "grid.yaml", recipe=RECIPE, lr={"range": [0, 1]})
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ETTSWEEP_SLOTS", str(folder / "slots"))
        with held("cpu-1"):
            ettsweep("grid", path, "--results", results, *TOGETHER)
            (worker,) = wait_for(lambda: waiting(p := worker_pids(results)) and p, "the worker to wait")
            assert not any(run.attempt_numbers() for run in runs_in(results)), "the second slot is needed too"
        wait_for_results(results, 2)
        wait_for(lambda: not alive(worker), "the worker to end")
    yield results
    end_workers(results)


def assert_as_if_calm(run: RunDir, calm: Path) -> None:
    expected = RunDir(calm / "runs" / run.id)
    assert run.metrics_path.read_bytes() == expected.metrics_path.read_bytes()
    result, reference = run.result(), expected.result()
    assert result is not None
    assert reference is not None
    assert result["weights_sha256"] == reference["weights_sha256"]


def followers(leader: int) -> list[int]:
    """Return the processes that a worker has started, by their command line."""
    collected = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            follows = b"--follow" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == leader and follows:
            collected.append(int(folder.name))
    return collected


def at_work(attempt: Attempt) -> tuple[int, int]:
    """Return the processes that train, leader and follower, where they hold; `tell` has both go on.

    The leader has stopped itself, see the fixture `hold_runs`, and the other waits for it.
    """
    wait_for(attempt.path.exists, f"attempt {attempt.number}")
    leader = owner(attempt)
    wait_for(lambda: is_stopped(leader), f"attempt {attempt.number} to hold")
    (follower,) = followers(leader)
    return leader, follower


def tell(pid: int, number: signal.Signals, leader: int) -> None:
    os.kill(pid, number)
    with contextlib.suppress(ProcessLookupError):  # killed
        os.kill(leader, signal.SIGCONT)


def wait_until_gone(*pids: int) -> None:
    wait_for(lambda: not any(alive(pid) for pid in pids), "processes to end")


def logs(results: Path) -> str:
    return "".join(path.read_text() for folder in submission_folders(results) for path in folder.glob("*_log.*"))


# --- in peace -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_train_the_runs_of_a_grid_and_one_writes(calm: Path) -> None:
    runs = runs_in(calm)
    specs = load_sweep_spec(calm.parent / "grid.yaml").specs()
    assert {run.id for run in runs} == {spec.run_id for spec in specs}, "who trains is no part of a run"
    for run in runs:
        result, attempt = run.result(), run.attempt(1)
        assert result is not None
        assert (run.attempt_numbers(), result["execution"]["processes"], result["execution"]["micro_batch"]) == (
            [1],
            2,
            9,
        )
        assert result["device_s"] == pytest.approx(2 * result["wall_s"], rel=1e-3)
        lines = read_lines(attempt.metrics_path)
        assert [line["step"] for line in lines if "loss" in line] == list(range(1, 91))
        assert [line["step"] for line in lines if "val_loss" in line] == [30, 60, 90]
    assert len({owner(run.attempt(1)) for run in runs}) == 1
    assert "Warning" not in logs(calm)


# --- killed and told to end -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_leader_takes_the_others_along_and_a_killed_follower_is_replaced(
    command: Any, results: Path, calm: Path, hold_runs: Callable[[int], None]
) -> None:
    hold_runs(2)
    ettsweep(*command)
    (run,) = runs_in(results)
    leader, follower = at_work(run.attempt(1))
    tell(leader, signal.SIGKILL, leader)
    wait_until_gone(follower)
    assert status(results)[run.id]["state"] == "interrupted"

    assert "1 resumed" in ettsweep(*command).stderr
    leader, follower = at_work(run.attempt(2))
    tell(follower, signal.SIGKILL, leader)
    wait_for(run.attempt(3).path.exists, "the third attempt")
    assert owner(run.attempt(3)) == leader, "it lives on"
    assert follower not in followers(leader)
    wait_for_results(results, 1)
    assert run.attempt_numbers() == [1, 2, 3]
    assert run.attempt(2).failure() == {"kind": "lost", "reason": run.attempt(2).failure()["reason"], "details": ""}  # type: ignore[index]
    assert "another process of this run is gone" in logs(results)
    assert 25 <= run.attempt(2).resumed_from()[1] < run.attempt(3).resumed_from()[1]
    assert_as_if_calm(run, calm)
    wait_until_gone(leader)
    assert "Traceback" not in logs(results)


@pytest.mark.slow
def test_a_sharded_run_is_killed_and_told_to_end_and_cleaned_up(
    command: Any, results: Path, tmp_path: Path, hold_runs: Callable[[int], None]
) -> None:
    sharded = (*command, "--launch-set", "trainer.sharded=true")
    hold_runs(2)
    ettsweep(*sharded)
    (run,) = runs_in(results)
    leader, follower = at_work(run.attempt(1))
    tell(follower, signal.SIGKILL, leader)
    leader, follower = at_work(run.attempt(2))
    tell(follower, signal.SIGTERM, leader)
    wait_until_gone(leader, follower)
    assert run.attempt(2).failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}
    wait_for(lambda: status(results)[run.id]["state"] == "interrupted", "the job to end")
    assert "1 resumed" in ettsweep(*sharded).stderr
    wait_for_results(results, 1)
    assert run.attempt_numbers() == [1, 2, 3]
    assert 25 <= run.attempt(2).resumed_from()[1] < run.attempt(3).resumed_from()[1]
    assert "Traceback" not in logs(results)
    assert "Warning" not in logs(results)

    calm = tmp_path / "calm"
    ettsweep(*(calm if word == results else word for word in sharded))
    wait_for_results(calm, 1)
    assert_as_if_calm(run, calm)
    result = run.result()
    assert result is not None
    assert (result["execution"]["processes"], result["execution"]["sharded"]) == (2, True)
    last = run.attempt(3)
    assert last.has_checkpoint()
    wait_until_gone(owner(last))
    ettsweep("clean", "--results", results)
    assert not last.has_checkpoint()
    assert run.attempt_numbers() == [3]
    assert run.result() == result
    end_workers(calm)


@pytest.mark.slow
def test_both_processes_save_and_end_whichever_is_told_to(
    command: Any, results: Path, calm: Path, hold_runs: Callable[[int], None]
) -> None:
    hold_runs(2)
    for number, choice in enumerate((0, 1), 1):
        stderr = ettsweep(*command).stderr
        assert number == 1 or "1 resumed" in stderr
        (run,) = runs_in(results)
        processes = at_work(run.attempt(number))
        tell(processes[choice], signal.SIGTERM, processes[0])
        wait_until_gone(*processes)
        assert run.attempt_numbers() == list(range(1, number + 1)), "it is not taken on by who was told to end"
        assert run.attempt(number).failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}
        wait_for(lambda: status(results)[run.id]["state"] == "interrupted", "the job to end")  # noqa: B023
    ettsweep(*command)
    wait_for_results(results, 1)
    last_steps = [max(line["step"] for line in run.attempt(number).history()) for number in (1, 2)]
    assert [run.attempt(number).resumed_from() for number in (2, 3)] == list(enumerate(last_steps, 1))
    assert_as_if_calm(run, calm)
    assert "Traceback" not in logs(results)


@pytest.mark.slow
def test_a_cancelled_run_stops_on_both(command: Any, results: Path, hold_runs: Callable[[int], None]) -> None:
    hold_runs(1)
    ettsweep(*command)
    (run,) = runs_in(results)
    attempt = run.attempt(1)
    processes = at_work(attempt)
    ettsweep("cancel", attempt.run.name, "--results", results)
    os.kill(processes[0], signal.SIGCONT)
    wait_until_gone(*processes)
    assert status(results)[attempt.run.name]["state"] == "cancelled"
    assert attempt.failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}


# --- followers that cannot ------------------------------------------------------------------------------------------


@pytest.fixture
def followers_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what has followers, and nobody else, run some code before anything else."""

    def put(code: str) -> None:
        folder = tmp_path / "site"
        folder.mkdir()
        lines = [
            "import sys, lean",
            "if {'ettsweep.worker', '--follow'} <= set(sys.orig_argv):",
            *(f"    {line}" for line in code.splitlines()),
        ]
        (folder / "sitecustomize.py").write_text("\n".join(lines))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))

    return put


@pytest.mark.slow
def test_a_process_that_cannot_even_start_is_an_error_and_nobody_waits_for_it(
    command: Any, results: Path, followers_first: Callable[[str], None]
) -> None:
    followers_first("import os\nprint('libcudart.so: no such file', flush=True)\nos._exit(7)")
    failed = ettsweep(*command, "--follow", code=1)
    assert "the workers ended without starting a run" in failed.stderr
    assert "another process of this worker ended with code 7 before it could train" in failed.stderr
    assert "libcudart.so: no such file" in logs(results)
    assert [run.attempt_numbers() for run in runs_in(results)] == [[]]


@pytest.mark.slow
def test_a_run_that_is_lost_whenever_it_starts_fails_in_the_end(
    command: Any, results: Path, followers_first: Callable[[str], None]
) -> None:
    followers_first(
        "import os\nfrom ettsweep.trainer.training import loop\nloop.Trainer.train_step = lambda *_: os._exit(7)"
    )
    (spec,) = load_sweep_spec(Path(command[1])).specs()
    run = RunDir.create(results, spec)
    for number in range(MAX_LOST_ATTEMPTS - 1):
        attempt = run.claim({}, after=number)
        assert attempt is not None
        attempt.record_failure("lost", "another process of this run is gone: Connection closed by peer")
    ettsweep(*command)
    wait_for(lambda: run.status().state is State.FAILED, "the last attempt")
    wait_until_gone(owner(run.attempt(MAX_LOST_ATTEMPTS)))
    assert len(run.attempt_numbers()) == MAX_LOST_ATTEMPTS
    reason = f"{MAX_LOST_ATTEMPTS} attempts got no further: another process of this run is gone"
    assert status(results)[run.id]["reason"].startswith(reason)


@pytest.mark.slow
def test_what_a_follower_alone_cannot_do_is_told_and_not_tried_again(
    command: Any, results: Path, followers_first: Callable[[str], None]
) -> None:
    followers_first(
        "from ettsweep.trainer.tasks.images.digits import Digits\n"
        "def unreadable(*_): raise OSError('the disk of this node alone is broken')\n"
        "Digits.validation = unreadable"
    )
    ettsweep(*command)
    (run,) = runs_in(results)
    wait_for(lambda: run.status().state is State.FAILED, "the failure")
    wait_until_gone(owner(run.attempt(1)))
    assert run.attempt_numbers() == [1]
    assert status(results)[run.id]["reason"] == "OSError: the disk of this node alone is broken"
    failure = run.attempt(1).failure()
    assert failure is not None
    assert "in unreadable" in failure["details"]


# --- where those of a job meet --------------------------------------------------------------------------------------


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the addresses at which a process waits for connections, as the kernel lists them."""
    mine = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(str(path.readlink()).removeprefix("socket:[").removesuffix("]"))
    set_result = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in mine:
                address, port = local.split(":")
                values = [bytes.fromhex(address[k : k + 8])[::-1] for k in range(0, len(address), 8)]
                family = socket.AF_INET if table == "tcp" else socket.AF_INET6
                set_result.add((socket.inet_ntop(family, b"".join(values)), int(port, 16)))
    return set_result


Meet = Callable[..., list[int]]


@pytest.fixture
def meet(forks: Forks, tmp_path: Path) -> Iterator[Meet]:
    """Return a function that has both processes of job 7 of a cluster meet, and returns them; they end with the test."""
    pids = list[int]()

    def meet(*names: str, nodes: int = 1, selected: str = "elsewhere", **also: str) -> list[int]:
        job = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": selected}
        job |= {"SLURM_JOB_NUM_NODES": str(nodes), "SLURM_LOCALID": "0", "SLURM_NODEID": "0"} | also
        outputs = list[Path]()
        for rank, name in itertools.product(range(2), names):
            env = os.environ | job | {"SLURM_PROCID": str(rank)}
            env.pop("SLURM_LAUNCH_NODE_IPADDR", None)
            outputs.append(tmp_path / f"{name}-{rank}.txt")
            outputs[-1].touch()
            pids.append(forks.start("support.side_by_side:meet", name, env=env, output=outputs[-1]))
        wait_for(lambda: [output.read_text() for output in outputs] == ["1\n"] * len(outputs), "them to have met")
        return pids

    yield meet
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def free_port(address: str) -> int:
    """Return a port that nobody has, none of those that the system gives to anybody."""
    for port in random.sample(devices.PORTS, 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind((address, port))
            return port
    pytest.fail("no port is free")


@pytest.mark.parametrize(
    ("nodes", "selected", "address"), [(1, "elsewhere", "127.0.0.1"), (2, "127.0.0.2", "127.0.0.2")]
)
def test_processes_of_a_job_listen_where_the_others_reach_them_and_nowhere_else(
    meet: Meet, nodes: int, selected: str, address: str
) -> None:
    port = free_port(address)
    pids = meet("vit.1a2b3c4d", nodes=nodes, selected=selected, MASTER_PORT=str(port))
    leader, follower = map(listening, pids)
    assert (address, port) in leader
    assert not {"0.0.0.0", "::"} & {folder for folder, _ in leader | follower}


def test_jobs_of_one_number_meet_side_by_side(meet: Meet) -> None:
    """Two clusters on a machine count their jobs from 1; nor may a port be one that the system gives to anybody."""
    leaders = meet("vit.1a2b3c4d", "vit.5e6f7a8b")[:2]
    ports = [{port for _, port in listening(pid)} & {*devices.PORTS} for pid in leaders]
    assert [len(own_part) for own_part in ports] == [1, 1]
    assert ports[0] != ports[1]
    assert devices.PORTS.stop <= int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


@pytest.mark.parametrize(
    ("message", "address"),
    [("192.0.2.7", "192.0.2.7"), ("2001:db8::1", "2001:db8::1"), ("127.0.0.1", "n1"), ("n2", "n1"), (None, "n1")],
)
def test_a_job_meets_where_srun_is_reached_else_at_the_first_nodes_name(
    monkeypatch: pytest.MonkeyPatch, message: str | None, address: str
) -> None:
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    if message:
        monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", message)
    assert devices.leader_host("n1") == address
