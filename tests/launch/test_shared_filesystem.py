"""Hosts that share a results folder and nothing else: claims, results, heartbeats and workers.

A host is a process in namespaces of its own (mounts, network, processes, name), so that no host sees the processes of
another, as on machines that share a network file system. Each sees the folder under a path of its own:

    bind      bind mounts of one folder
    sshfs     FUSE clients, one a host, that cache what they have seen for 20 s and know nothing of each other
    given     folders of ETTSWEEP_SHARED_FOLDERS (with colons between), such as mounts of one NFS export on this machine

`python test_shared_filesystem.py RESULTS` is such a host: it obeys commands, one line of JSON each.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.commandline import wait_for

from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.worker.work_list import heartbeat

HOSTS = 3
ROUNDS = 20
BEAT_S = 0.2
GIVEN = os.environ.get("ETTSWEEP_SHARED_FOLDERS", "")
ISOLATED = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


# --- a host ---------------------------------------------------------------------------------------------------------


class Host:
    """A process that has the machine for itself, as far as it can see, and the folder under a path of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        command = ["sh", "-c", f'hostname {name} && exec "$@"', "sh", sys.executable, __file__, str(folder)]
        self._process = subprocess.Popen(
            [*ISOLATED, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, subject: str, *arguments: object) -> None:
        """Have the host do something, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([subject, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for what it says of that."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.name} died"
        return json.loads(line)

    def ask(self, subject: str, *arguments: object) -> Any:
        """Have the host do something, and return what it says."""
        self.send(subject, *arguments)
        return self.answer()

    def kill(self) -> None:
        """End the host and all its processes, without a last word."""
        self._process.kill()
        self._process.communicate()


def obey(results: Path) -> None:
    """Be a host: do what each line of the input says, and answer with a line."""
    slurm_cache, hearts = SlurmCache(), ExitStack()
    for line in sys.stdin:
        label, run_id, *arguments = json.loads(line)
        run = RunDir(runs_dir(results) / run_id)
        if label == "beat":
            hearts.enter_context(heartbeat([run.attempt(arguments[0])], BEAT_S))
        if label == "pulse":
            print(json.dumps(slurm_cache.heartbeat_life(run.attempt(arguments[0]))), flush=True)
        else:
            print(json.dumps(ACTIONS[label](run, *arguments)), flush=True)


ACTIONS: dict[str, Callable[..., Any]] = {
    "claim": lambda run, after: run.claim({"heartbeat_s": BEAT_S}, after=after) is not None,
    "finish": lambda run, score: run.finish({"status": "done", "score": score}, []),
    "beat": lambda run, number: None,
    "owner": lambda run, number: run.attempt(number).host(),
    "liveness": lambda run, number: run.attempt(number).liveness(),
    "superseded": lambda run, number: run.attempt(number).is_superseded(),
    "state": lambda run: run.status().state,
    "result": lambda run: (run.result() or {}).get("score"),
}


# --- fixtures -------------------------------------------------------------------------------------------------------


KINDS = ["bind", *(["given"] if GIVEN else [])]
if shutil.which("sshfs") and any(map(os.path.exists, SFTP_SERVERS)) and Path("/dev/fuse").exists():
    KINDS.append("sshfs")


@pytest.fixture(scope="module", params=KINDS)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Give paths of one folder, one a host, each by a mount of its own."""
    if subprocess.run([*ISOLATED, "hostname", "elsewhere"], capture_output=True).returncode:
        pytest.skip("namespaces are not allowed here (unshare)")
    with ExitStack() as stack:
        yield list(
            {"bind": _bind, "sshfs": _sshfs, "given": _given}[request.param](tmp_path_factory.mktemp("shared"), stack)
        )


def _mount(stack: ExitStack, folder: Path, *command: object) -> Path:
    folder.mkdir()
    completed = subprocess.run([*map(str, command), str(folder)], capture_output=True, text=True)
    if completed.returncode:
        pytest.skip(f"mounting is not allowed here: {completed.stderr.strip()}")
    stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
    return folder


def _bind(tmp_path: Path, stack: ExitStack) -> Iterator[Path]:
    server = tmp_path / "server"
    server.mkdir()
    for number in range(HOSTS):
        yield _mount(stack, tmp_path / f"view-{number}", "mount", "--bind", server)


def _sshfs(tmp_path: Path, stack: ExitStack) -> Iterator[Path]:
    sftp = next(path for path in SFTP_SERVERS if Path(path).exists())
    server, ssh = tmp_path / "server", tmp_path / "ssh"
    server.mkdir()
    ssh.write_text(f"#!/bin/sh\nexec {sftp}\n")  # no network: the client speaks with its server through a pipe
    ssh.chmod(0o755)
    for number in range(HOSTS):
        yield _mount(stack, tmp_path / f"view-{number}", "sshfs", "-o", f"ssh_command={ssh}", f"host:{server}")


def _given(tmp_path: Path, stack: ExitStack) -> Iterator[Path]:
    paths = [Path(path) for path in GIVEN.split(":")]
    text = f"ettsweep-test-{os.getpid()}-{time.monotonic_ns()}"
    (paths[0] / text).mkdir()
    stack.callback(shutil.rmtree, paths[0] / text, ignore_errors=True)
    for number in range(HOSTS):
        folder = paths[number % len(paths)] / text
        wait_for(folder.exists, f"{folder} to be seen")
        yield folder


@pytest.fixture(scope="module")
def hosts(folders: list[Path]) -> Iterator[list[Host]]:
    """Give hosts for all tests, each of which has runs of its own, and kill them afterwards."""
    collected = [Host(f"node{number}", folder) for number, folder in enumerate(folders)]
    yield collected
    for host in collected:
        host.kill()


def together(hosts: list[Host], subject: str, *arguments: list[object]) -> list[Any]:
    """Have all hosts do something at the same time; each has a list of arguments of its own."""
    for host, own_part in zip(hosts, arguments, strict=True):
        host.send(subject, *own_part)
    return [host.answer() for host in hosts]


# --- claims and results -----------------------------------------------------------------------------------------------


def test_one_host_wins_each_claim(hosts: list[Host], make_spec: Callable[..., RunSpec]) -> None:
    for seed in range(ROUNDS):
        run = RunDir.create(hosts[0].folder, make_spec(seed=seed))
        for number in (1, 2):  # a first claim, and a takeover of it
            won = together(hosts, "claim", *[[run.id, number - 1]] * HOSTS)
            assert won.count(True) == 1, f"attempt {number} was claimed by {won}"
            owners = together(hosts, "owner", *[[run.id, number]] * HOSTS)
            assert owners == [hosts[won.index(True)].name] * HOSTS, "hosts disagree about who has it"
        assert run.attempt_numbers() == [1, 2]


def test_a_result_is_written_once(hosts: list[Host], make_spec: Callable[..., RunSpec]) -> None:
    for seed in range(100, 100 + ROUNDS):
        run = RunDir.create(hosts[0].folder, make_spec(seed=seed))
        won = together(hosts, "finish", *[[run.id, number] for number in range(HOSTS)])
        assert won.count(True) == 1, f"{won.count(True)} hosts wrote the result"
        assert together(hosts, "result", *[[run.id]] * HOSTS) == [won.index(True)] * HOSTS


def test_a_superseded_owner_notices(hosts: list[Host], make_spec: Callable[..., RunSpec]) -> None:
    run = RunDir.create(hosts[0].folder, make_spec(seed=200))
    assert hosts[1].ask("claim", run.id, 0)
    assert not hosts[1].ask("superseded", run.id, 1)
    assert hosts[2].ask("claim", run.id, 1)
    wait_for(lambda: hosts[1].ask("superseded", run.id, 1), "the first owner to see the second")


# --- alive or dead ----------------------------------------------------------------------------------------------------


def test_only_a_heartbeat_tells_if_another_host_lives(hosts: list[Host], make_spec: Callable[..., RunSpec]) -> None:
    run = RunDir.create(hosts[0].folder, make_spec(seed=300))
    owner, other = Host("owner", hosts[0].folder), hosts[1]
    assert owner.ask("claim", run.id, 0)
    owner.ask("beat", run.id, 1)
    assert owner.ask("liveness", run.id, 1) == "alive"
    assert other.ask("liveness", run.id, 1) == "unknown", "a process of another host is no process of this one"
    wait_for(lambda: other.ask("pulse", run.id, 1) == "alive", "its heart to be seen beating")
    owner.kill()
    assert other.ask("liveness", run.id, 1) == "unknown"
    assert other.ask("state", run.id) == State.UNKNOWN, "nothing is taken over on unknown"
    wait_for(lambda: other.ask("pulse", run.id, 1) == "dead", "its heart to stand still")
    assert hosts[2].ask("pulse", run.id, 1) == "unknown", "one who has just begun to look knows nothing"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = lambda args: os._exit(1)
    obey(Path(sys.argv[1]))
