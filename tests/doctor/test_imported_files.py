"""The hook by which Python programs tell what they import: in real ones, which go on as without it."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from ettsweep.doctor.imported_files import hooked, told_files
from ettsweep.launch.profile import LocalProfile, SlurmProfile


def run(script: Path, **variables: str) -> str:
    return completed(script, **variables).stdout


def completed(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script)]
    return subprocess.run(command, env=usual | variables, capture_output=True, text=True, check=True)


def test_a_program_tells_what_it_imports_and_runs_its_own_hook_too(tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    (own / "sitecustomize.py").write_text("import helper\nprint('own hook')\n")
    (own / "helper.py").write_text("")
    (tmp_path / "beside.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text("import beside, json, numpy, sys\nprint('trained')\nsys.exit(0)\n")
    _, variables = hooked(LocalProfile(), tmp_path / "hook")
    path = os.pathsep.join([variables["PYTHONPATH"].split(os.pathsep)[0], str(own)])
    assert run(script, PYTHONPATH=path).split() == ["own", "hook", "trained"]
    assert told_files(tmp_path / "hook") == [], "it is no run's"
    assert run(script, PYTHONPATH=path, ETTSWEEP_OUT="x").split() == ["own", "hook", "trained"]
    assert told_files(tmp_path / "hook") == [tmp_path / "beside.py", script], "nothing of Python, packages and hooks"


def test_files_are_named_by_machine_and_process(tmp_path: Path) -> None:
    """Two nodes of one run may have the same process ids."""
    (script := tmp_path / "train.py").write_text("import os\nprint(os.getpid())\n")
    _, variables = hooked(LocalProfile(), tmp_path / "hook")
    pid = run(script, **variables, ETTSWEEP_OUT="x").strip()
    assert [path.name for path in (tmp_path / "hook").glob("*.json")] == [f"{platform.node()}-{pid}.json"]


def test_a_program_that_cannot_tell_prints_nothing_of_it(tmp_path: Path) -> None:
    (script := tmp_path / "train.py").write_text(f"import shutil\nshutil.rmtree({str(tmp_path / 'hook')!r})\n")
    _, variables = hooked(LocalProfile(), tmp_path / "hook")
    assert completed(script, **variables, ETTSWEEP_OUT="x").stderr == ""


def test_a_hook_of_its_own_that_raises_does_so_alone(tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    (own / "sitecustomize.py").write_text("raise ValueError('own fault')\n")
    (tmp_path / "beside.py").write_text("")
    (script := tmp_path / "train.py").write_text("import beside\nprint('trained')\n")
    _, variables = hooked(LocalProfile(), tmp_path / "hook")
    path = os.pathsep.join([variables["PYTHONPATH"].split(os.pathsep)[0], str(own)])
    ended = completed(script, PYTHONPATH=path, ETTSWEEP_OUT="x")
    assert ended.stdout == "trained\n"
    assert "own fault" in ended.stderr
    assert "NameError" not in ended.stderr
    assert told_files(tmp_path / "hook") == [tmp_path / "beside.py"]


def test_jobs_of_slurm_start_with_it_before_what_their_profile_says(tmp_path: Path) -> None:
    profile, variables = hooked(
        SlurmProfile(kind="slurm", environment={"PYTHONPATH": "/theirs", "A": "1"}), tmp_path / "hook"
    )
    assert isinstance(profile, SlurmProfile)
    assert profile.environment == {"PYTHONPATH": f"{tmp_path / 'hook'}{os.pathsep}/theirs", "A": "1"}
    assert variables == {}
