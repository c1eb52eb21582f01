"""Cores and memory are those that control groups leave: in trees made by hand, and in real groups where root makes them."""

import math
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from support.commandline import PATIENCE_S, runs_in

from ettsweep import cgroups
from ettsweep.processes import CoreCount, machine_bytes, memory_bytes
from ettsweep.runs.state import State

V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
CPU_V1 = "31 23 0:27 {top} /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct"
MEMORY_V1 = "32 23 0:28 {top} /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory"
UNIFIED = "33 23 0:29 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw"
OTHER = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n21 1 0:5 / /proc rw - proc proc rw"

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Return a function that writes `proc` and `sys` of a process, and returns the folder that holds them."""

    def write(own: str, mounts: list[str], files: dict[str, str]) -> Path:
        texts = {"proc/self/cgroup": own, "proc/self/mountinfo": "\n".join([OTHER, *mounts]) + "\n"}
        for name, text in {**texts, **{f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def of_version_1(*quotas: str | int) -> dict[str, str]:
    """Return the files of groups with these quotas, as name, quota and so on."""
    pairs = {f"cpu,cpuacct/{quotas[k]}": str(quotas[k + 1]) for k in range(0, len(quotas), 2)}
    return {
        f"{group}/cpu.cfs_{file}": text
        for group, quota in pairs.items()
        for file, text in (("quota_us", quota), ("period_us", "100000"))
    }


V1_OWN = "12:cpu,cpuacct:{0}\n11:memory:{0}\n3:cpuset:{0}\n1:name=systemd:{0}\n"


@pytest.mark.parametrize(
    ("own", "mounts", "files", "quota"),
    [
        pytest.param("0::/\n", [V2], {"cpu.max": "200000 100000"}, 2, id="own path is / in a namespace"),
        pytest.param("0::/\n", [V2], {"cpu.max": "max 100000"}, math.inf, id="no quota"),
        pytest.param("0::/a/b\n", [V2], {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5, id="parent"),
        pytest.param("0::/a/b\n", [V2], {"c/cpu.max": "1000 100000"}, math.inf, id="another group's"),
        pytest.param("0::/docker/ab/c\n", ["/docker/ab"], {"c/cpu.max": "70000 100000"}, 0.7, id="the mount is a part"),
        pytest.param(
            V1_OWN.format("/docker/ab"), [CPU_V1], of_version_1("docker/ab", -1, "docker", 250000), 2.5, id="v1"
        ),
        pytest.param(
            V1_OWN.format("/a") + "0::/a.scope\n", [CPU_V1, UNIFIED], of_version_1("a", 400000), 4, id="hybrid"
        ),
        pytest.param("0::/\n", [], {"cpu.max": "200000 100000"}, math.inf, id="nothing is mounted"),
    ],
)
def test_the_tightest_cpu_quota_of_all_groups_counts(
    tree: Tree, own: str, mounts: list[str], files: dict[str, str], quota: float
) -> None:
    lines = [V2.format(top=mount) if mount.startswith("/") else mount.replace("{top}", "/") for mount in mounts]
    assert cgroups.cpu_quota(tree(own, lines, files)) == quota


@pytest.mark.parametrize(
    ("machine", "affinity", "quota", "usable", "text"),
    [
        (64, 64, math.inf, 64, "64 cores"),
        (64, 64, 0.5, 1, "1 core: cgroup quota 0.5 of 64"),
        (64, 8, math.inf, 8, "8 cores: affinity 8 of 64"),
        (64, 8, 7.5, 7, "7 cores: cgroup quota 7.5 of 64"),
    ],
)
def test_quota_and_affinity_limit_the_cores(machine: int, affinity: int, quota: float, usable: int, text: str) -> None:
    count = CoreCount(machine, affinity, quota)
    assert (count.usable, str(count)) == (usable, text)


@pytest.mark.parametrize(
    ("own", "mounts", "files", "limit", "free"),
    [
        pytest.param("0::/\n", [V2], {"memory.max": "max", "memory.current": "7"}, math.inf, math.inf, id="none"),
        pytest.param("0::/\n", [V2], {"memory.max": "1000", "memory.current": "300"}, 1000, 700, id="own"),
        pytest.param(
            "0::/a\n",
            [V2],
            {
                "a/memory.max": "1000",
                "a/memory.current": "900",
                "a/memory.stat": "anon 200\nfile 700\ninactive_file 600",
            },
            1000,
            700,
            id="files that were read once are no use of memory",
        ),
        pytest.param(
            V1_OWN.format("/a/b"),
            [MEMORY_V1],
            {
                "memory/a/memory.limit_in_bytes": "1000",
                "memory/a/memory.usage_in_bytes": "950",
                "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 150",
                "memory/a/b/memory.limit_in_bytes": str(2**63 - 4096),  # no limit
            },
            1000,
            200,
            id="version 1, parent",
        ),
    ],
)
def test_the_tightest_memory_limit_of_all_groups_counts(
    tree: Tree, own: str, mounts: list[str], files: dict[str, str], limit: float, free: float
) -> None:
    root = tree(own, [mount.format(top="/") for mount in mounts], files)
    assert (cgroups.memory_limit(root), cgroups.free_memory(root)) == (limit, free)
    assert memory_bytes(root) == min(limit, machine_bytes())


@pytest.mark.parametrize(
    ("own", "mount", "files", "kills"),
    [
        ("0::/a/b\n", V2, {"a/b/memory.events": "oom 3\noom_kill 2\noom_group_kill 1"}, 2),
        (V1_OWN.format("/a"), MEMORY_V1, {"memory/a/memory.oom_control": "oom_kill_disable 0\noom_kill 4"}, 4),
        ("0::/a\n", V2, {}, 0),
    ],
)
def test_processes_that_were_killed_for_want_of_memory_are_counted(
    tree: Tree, own: str, mount: str, files: dict[str, str], kills: int
) -> None:
    assert cgroups.out_of_memory_kills(tree(own, [mount.format(top="/")], files)) == kills


# --- real groups ------------------------------------------------------------------------------------------------------

LIMITS = {"memory.max": str(2**30), "memory.limit_in_bytes": str(2**30)}


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Make a group with a limit of 1 GiB of memory, and one in it; return the inner one of each controller."""
    mounts = Path("/proc/self/mountinfo")
    if os.geteuid() or not mounts.exists():
        pytest.skip("only root of Linux makes control groups")
    with ExitStack() as stack:
        inner_groups = []
        for line in mounts.read_text().splitlines():
            kind, *_, options = line.partition(" - ")[2].split()
            if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
                outer = Path(line.split()[4]) / f"ettsweep-test-{uuid.uuid4().hex}"
                try:
                    for group in (outer, outer / "inner"):
                        group.mkdir()
                        stack.callback(group.rmdir)
                    for name, value in LIMITS.items():
                        if (outer / name).exists():
                            (outer / name).write_text(value)
                            inner_groups.append(outer / "inner")
                except OSError as error:
                    pytest.skip(f"control groups cannot be made here: {error}")
        if not inner_groups:
            pytest.skip("the controller of memory cannot be used here")
        yield inner_groups


@pytest.mark.slow
def test_real_groups_limit_a_process_which_is_told_why_it_was_killed(
    groups: list[Path], tmp_path: Path, results: Path
) -> None:
    def run_in(*command: object) -> str:
        def enter() -> None:
            for group in groups:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        words = list(map(str, command))
        return subprocess.run(words, preexec_fn=enter, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    limit = "from ettsweep.processes import memory_bytes; print(memory_bytes())"
    assert run_in(sys.executable, "-c", limit) == f"{2**30}\n"
    (tmp_path / "greedy.py").write_text("held = [bytearray(2**20) for _ in range(2000)]\n")
    block = {"command": [sys.executable, "greedy.py", "{lr}", "{seed}"], "score": {"name": "err", "mode": "min"}}
    grid = tmp_path / "sweep.yaml"
    grid.write_text(yaml.safe_dump({"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}))
    run_in(sys.executable, "-m", "ettsweep", "train", grid, "--results", results)
    (run,) = runs_in(results)
    assert run.status().state is State.FAILED
    assert run.status().reason == "out of memory, killed by the system (exit code -9); a smaller batch takes less"
