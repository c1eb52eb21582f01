"""Processes are told apart, and alive from dead."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from ettsweep.files import dumps
from ettsweep.processes import Process, process_identity, start_time


def test_this_process_is_alive_and_survives_json() -> None:
    me = process_identity()
    assert me.pid == os.getpid()
    assert me.liveness() == "alive"
    assert Process.from_json(json.loads(dumps(me.to_json()))) == me


def test_running_and_ended_and_unreaped_children() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = process_identity(child.pid)
    assert owner.liveness() == "alive"
    child.kill()
    deadline_s = time.monotonic() + 10
    while owner.liveness() == "alive" and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert owner.liveness() == "dead", "it waits for its parent, but will not write again"
    child.communicate()
    assert owner.liveness() == "dead"
    assert start_time(child.pid) is None


def test_reused_pid_is_another_process() -> None:
    me = process_identity()
    assert Process(me.host, me.boot_id, me.pid, f"{me.start_time}0").liveness() == "dead"


def test_processes_of_other_boots_and_machines() -> None:
    me = process_identity()
    another = Process(me.host, "another boot", me.pid, me.start_time)
    assert another.liveness() == "unknown", "a name does not tell a reboot from another machine"
    assert another.has_name_of_this_host
    assert Process("elsewhere", "another boot", me.pid, me.start_time).liveness() == "unknown"
    assert Process("renamed", me.boot_id, me.pid, me.start_time).liveness() == "alive"


def test_a_process_number_of_another_namespace_says_nothing() -> None:
    me = process_identity()
    assert replace(me, namespace="pid:[1]").liveness() == "unknown"
    by_key = {key: value for key, value in me.to_json().items() if key != "namespace"}
    older = Process.from_json(by_key)
    assert older is not None
    assert (older.namespace, older.liveness()) == ("", "alive")


HIDDEN = """
import os, subprocess, sys
from pathlib import Path
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
from ettsweep.processes import process_identity
other = process_identity(int(sys.argv[1]))
os.setgid(65534); os.setuid(65534)
print(Path(f"/proc/{other.pid}").exists(), other.liveness())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system and becomes another user")
def test_a_process_that_the_system_hides_from_other_users_may_be_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    command = ["unshare", "--mount", sys.executable, "-c", HIDDEN, str(child.pid)]
    seen = subprocess.run(command, capture_output=True, text=True)
    child.communicate()
    if "mount" in seen.stderr or "unshare" in seen.stderr:
        pytest.skip("mounting a file system is not allowed here")
    assert seen.stdout == "False unknown\n", seen.stderr


@pytest.mark.parametrize("pid", [math.inf, math.nan, 1e308, 10**400, None, "seven"])
def test_a_number_that_no_process_has_names_none_that_lives(pid: object) -> None:
    from_json_result = Process.from_json(process_identity().to_json() | {"pid": pid})
    assert from_json_result is None or from_json_result.liveness() == "dead"
