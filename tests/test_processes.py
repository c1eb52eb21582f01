"""Processes are told apart, and alive from dead."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from support.commandline import wait_for

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
    wait_for(lambda: owner.liveness() != "alive", "its end")
    assert owner.liveness() == "dead", "it waits for its parent, but will not write again"
    child.communicate()
    assert owner.liveness() == "dead"
    assert start_time(child.pid) is None


def test_processes_of_other_boots_machines_and_namespaces() -> None:
    me = process_identity()
    assert replace(me, start_time=f"{me.start_time}0").liveness() == "dead", "a reused number"
    another = replace(me, boot_id="another boot")
    assert another.liveness() == "unknown", "a name does not tell a reboot from another machine"
    assert another.has_name_of_this_host
    assert replace(another, host="elsewhere").liveness() == "unknown"
    assert replace(me, host="renamed").liveness() == "alive"
    assert replace(me, namespace="pid:[1]").liveness() == "unknown", "its numbers say nothing here"


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
