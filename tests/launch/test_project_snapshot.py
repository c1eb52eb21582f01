"""Copies of users' projects, made at submission: edits do not change runs that wait, and all else stays in reach."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, runs_in, status, typed, wait_for

from ettsweep.launch.project_snapshot import ProjectSnapshot, project_snapshots, take_project_snapshots
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec

TRAIN = """import json, os, sys
from pathlib import Path

import factor

lr, seed, out = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
print("[ettsweep]", json.dumps({"step": 1, "err": factor.of(lr)}), flush=True)
(out / "seen.json").write_text(json.dumps({"folder": os.getcwd(), "file": factor.__file__}))
"""
FACTOR = "def of(lr):\n    return 1 + lr\n"

Ask = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project of a script, a module, and data that git would ignore."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "factor.py").write_text(FACTOR)
    (folder / "data").mkdir()
    (folder / "data" / "words.txt").write_text("of, and, the")
    return folder


@pytest.fixture
def grid(project: Path, results: Path) -> Ask:
    """Return a function that requests runs of the script."""

    def ask(*options: object, runs: int = 1, code: int | None = 0, **block: Any) -> Any:
        command = [sys.executable, "train.py", "{lr}", "{seed}", "{out}"]
        content = {"run": {"command": command, "score": {"name": "err", "mode": "min"}} | block}
        content |= {"centre": {"lr": 0.25}}
        (project / "sweep.yaml").write_text(yaml.safe_dump(content))
        arguments = "grid", "--grid", project / "sweep.yaml", "--results", results, "--launch-set", "slots=1"
        arguments += "--lr-range", f"0:{runs - 1}"
        return ettsweep(*arguments, *options, code=code)

    return ask


def track(project: Path, *names: str) -> None:
    """Have git track some files of a project."""
    author = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    for arguments in (["init", "-q"], ["add", *names], ["commit", "-qm", "first"]):
        subprocess.run(["git", *arguments], cwd=project, check=True, env=os.environ | author)


def seen(results: Path) -> list[dict[str, str]]:
    """Return what the runs have told of where they are."""
    return [json.loads((run.path / "out" / "seen.json").read_text()) for run in runs_in(results)]


def errs(results: Path) -> list[float]:
    """Return the scores of all runs by ascending lr."""
    runs = sorted(runs_in(results), key=lambda run: run.spec().lr)
    return [dict(run.result() or {})["score"] for run in runs]


def only_copy(results: Path) -> ProjectSnapshot:
    (snapshot,) = project_snapshots(results)
    return snapshot


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("with_git", [False, True])
def test_an_edit_while_runs_wait_changes_none_of_them(project: Path, results: Path, grid: Ask, with_git: bool) -> None:
    if with_git:
        track(project, "train.py")  # its module is not tracked, and belongs to the code all the same
    # The first run edits the project, as its user might.
    edit = f"Path({str(project / 'factor.py')!r}).write_text('def of(lr):\\n    return 100\\n')"
    (project / "train.py").write_text(f"{TRAIN}{edit}\n")
    grid("--follow", runs=3)
    assert errs(results) == [1.25, 1.5, 2.0]
    assert "100" in (project / "factor.py").read_text()
    assert {each["folder"] for each in seen(results)} == {str(only_copy(results).path / "project")}


@pytest.mark.usefixtures("process")
def test_a_function_trains_from_the_copy_too(project: Path, results: Path) -> None:
    module = "from pathlib import Path\nimport factor\n\n\ndef main(run):\n    run.record(1, err=factor.of(run.lr))\n"
    module += f"    Path({str(project / 'walk.py')!r}).write_text('broken')\n"
    (project / "walk.py").write_text(module)
    block = {"function": "walk:main", "score": {"name": "err", "mode": "min"}, "code": "factor.py"}
    content = {"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 1]}}
    (project / "sweep.yaml").write_text(yaml.safe_dump(content))
    arguments = "grid", "--grid", project / "sweep.yaml", "--results", results
    ettsweep(*arguments, "--follow", "--launch-set", "slots=1")
    assert errs(results) == [1.25, 1.5]
    assert (project / "walk.py").read_text() == "broken"


@pytest.mark.usefixtures("process")
def test_the_copy_has_what_git_tracks_and_leads_to_all_else(project: Path, results: Path, grid: Ask) -> None:
    (project / "conf").mkdir()
    (project / "conf" / "a.yaml").write_text("a: 1")
    (project / "conf" / "local.yaml").write_text("b: 1")
    with (project / "large.bin").open("wb") as file:
        file.truncate(11 * 2**20)
    (project / "gone.txt").write_text("")
    track(project, "train.py", "conf/a.yaml", "large.bin", "gone.txt")
    (project / "gone.txt").unlink()
    grid("--follow")
    copy = only_copy(results).path / "project"
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file() and not path.is_symlink()}
    assert {name for name in copied if "__pycache__" not in name} == {"train.py", "factor.py", "conf/a.yaml"}
    links = {name: str((copy / name).readlink()) for name in ("data", "large.bin", "conf/local.yaml", "sweep.yaml")}
    assert links == {name: str(project / name) for name in links}
    assert (copy / "data" / "words.txt").read_text() == "of, and, the"


@pytest.mark.usefixtures("process")
def test_equal_code_is_copied_once_and_what_was_lost_comes_back(project: Path, results: Path, grid: Ask) -> None:
    grid("--follow")
    first = only_copy(results)
    (first.path / "project" / "factor.py").unlink()
    (first.path / "project" / "train.py").write_text("raise SystemExit('edited')")
    (project / "new").mkdir()
    grid("--follow", runs=2)
    assert only_copy(results).path == first.path
    assert errs(results) == [1.25, 1.5]
    assert (first.path / "project" / "new").is_dir(), "what is new is in reach"


@pytest.mark.usefixtures("process")
def test_a_run_of_earlier_code_goes_on_with_that_code(project: Path, results: Path, grid: Ask, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    (project / "train.py").write_text(f"import os\nassert os.path.exists({str(flag)!r})\n{TRAIN}")
    grid("--follow", code=None)
    (run,) = runs_in(results)
    assert run.status().state is State.FAILED
    flag.touch()
    (project / "factor.py").write_text("def of(lr):\n    return 7\n")
    told = ettsweep("retry", run.id, "--results", results).stderr
    assert "runs train in their copy of it, with --new-code as it is now" in " ".join(told.split())
    wait_for(run.result, "its result")
    assert errs(results) == [1.25]
    shutil.rmtree(project)  # even then it can be trained again
    typed("train", "--spec", run.spec_path, "--results", tmp_path / "again")
    assert errs(tmp_path / "again") == [1.25]


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("snapshot", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_failed_run_may_be_retried_with_the_code_of_now(
    project: Path, results: Path, grid: Ask, snapshot: bool
) -> None:
    (project / "factor.py").write_text("def of(lr):\n    raise SystemExit('a mistake')\n")
    grid("--follow", code=None, snapshot=snapshot)
    (run,) = runs_in(results)
    assert run.status().state is State.FAILED
    (project / "factor.py").write_text(FACTOR)
    ettsweep("retry", run.id, "--new-code", "--results", results)
    wait_for(run.result, "its result")
    assert errs(results) == [1.25]
    assert len(project_snapshots(results)) == (2 if snapshot else 0)


@pytest.mark.usefixtures("process")
def test_code_that_is_nowhere_is_told_before_a_run_is_reset(project: Path, results: Path, grid: Ask) -> None:
    (project / "factor.py").write_text("def of(lr):\n    raise SystemExit('a mistake')\n")
    grid("--follow", code=None, snapshot=False)
    (run,) = runs_in(results)
    (project / "factor.py").write_text(FACTOR)
    run.spec_path.write_text(run.spec_path.read_text().replace('"snapshot": false', '"snapshot": true'))
    told = ettsweep("retry", run.id, "--results", results, code=2).stderr
    assert "restore it, or take it as it is now: --new-code" in " ".join(told.split())
    assert run.status().state is State.FAILED


@pytest.mark.usefixtures("process")
def test_code_that_has_changed_is_told_by_file_and_may_count_as_the_same(
    project: Path, results: Path, grid: Ask
) -> None:
    (project / "same.py").write_text("")
    (project / "train.py").write_text(f"import same\n{TRAIN}")
    grid("--follow", runs=1)
    (project / "same.py").write_text("# a comment")
    (project / "factor.py").write_text("def of(lr):\n    return lr + 1\n")
    (run,) = runs_in(results)
    before = run.spec().own_code()
    assert before is not None
    told = " ".join(grid(code=2, runs=2).stderr.split())
    assert (
        "where what has changed (factor.py) leaves all numbers as they were, --same-numbers goes on with this sweep, "
        f"and so does `version: {before.digest}` under `run:`" in told
    )
    grid("--follow", "--same-numbers", runs=2)
    grid("--follow", runs=3, version=before.digest)
    assert errs(results) == [1.25, 1.5, 2.0]
    copies = {Path(each["folder"]).parent for each in seen(results)}
    assert copies == {each.path for each in project_snapshots(results)}
    assert len(copies) == 3, "of the first code, of what counts as the same, and of another grid file"
    ettsweep("seeds", "--sweep", "sweep", "--count", "1", "--follow", "--results", results, code=None)
    ettsweep("verify-optimum", "--sweep", "sweep", "--follow", "--max-runs", "2", "--results", results, code=None)
    assert {row["state"] for row in status(results).values()} == {"done"}
    assert len(runs_in(results)) > 3


@pytest.mark.usefixtures("process")
def test_other_code_is_another_copy_and_clean_removes_the_one_that_no_run_needs(
    project: Path, results: Path, grid: Ask
) -> None:
    grid("--follow")
    first = only_copy(results).path
    (project / "factor.py").write_text("def of(lr):\n    return 7\n")
    grid("--follow", "--name", "other")
    assert len(project_snapshots(results)) == 2
    ettsweep("clean", "--yes", "--results", results)
    assert len(project_snapshots(results)) == 2, "runs of both can be trained again"
    (earlier,) = (run for run in runs_in(results) if dict(run.result() or {})["score"] == 1.25)
    shutil.rmtree(earlier.path)
    assert "copy of a project that no run needs" in ettsweep("clean", "--dry-run", "--results", results).stdout
    ettsweep("clean", "--yes", "--results", results)
    assert first not in [each.path for each in project_snapshots(results)]


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_a_script_above_the_grid_file_is_copied_too(project: Path, results: Path) -> None:
    (project / "sweeps").mkdir()
    (project / "sweeps" / "words.yaml").write_text(f"""
run:
  command: [{sys.executable}, ../train.py, '{{lr}}', '{{seed}}', '{{out}}']
  score: {{name: err, mode: min}}
centre: {{lr: 0.25}}
lr: {{range: [0, 0]}}
""")
    ettsweep("grid", "--grid", project / "sweeps" / "words.yaml", "--follow", "--results", results)
    assert [each["folder"] for each in seen(results)] == [str(only_copy(results).path / "project" / "sweeps")]


def test_a_path_out_of_the_project_is_refused_with_what_would_work(
    project: Path, results: Path, grid: Ask, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    told = grid(code=2, command=[sys.executable, "train.py", "{lr}", "{seed}", "--data=../data"]).stderr
    assert (
        "command: ../data leads out of the project, of which runs train in a copy: write an absolute path, such as "
        f"{tmp_path / 'data'}, or `snapshot: false`" in " ".join(told.split())
    )
    grid("--dry-run", command=[sys.executable, "train.py", "{lr}", "{seed}", "--data=../data"], snapshot=False)


@pytest.mark.usefixtures("process")
def test_a_project_may_be_trained_in_place(project: Path, results: Path, grid: Ask) -> None:
    grid("--follow", snapshot=False)
    assert [each["folder"] for each in seen(results)] == [str(project)]
    assert not project_snapshots(results)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    "place", ["src", pytest.param("lib/src", marks=pytest.mark.slow), pytest.param("lib", marks=pytest.mark.slow)]
)
def test_an_installed_package_of_the_project_is_imported_from_the_copy(
    project: Path, results: Path, grid: Ask, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (project / place).mkdir(parents=True)
    (project / place.partition("/")[0] / "pyproject.toml").write_text("")
    (project / "factor.py").rename(project / place / "factor.py")
    (project / "lib" / "scripts").mkdir(parents=True, exist_ok=True)
    (project / "train.py").rename(project / "lib" / "scripts" / "train.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project / place), os.environ["PYTHONPATH"]]))
    track(project, ".")
    command = [sys.executable, "-P", "train.py", "{lr}", "{seed}", "{out}"]
    grid("--follow", command=command, workdir="lib/scripts")
    assert seen(results)[0]["file"] == str(only_copy(results).path / "project" / place / "factor.py")


@pytest.mark.parametrize("place", ["src", "lib/src", "lib"])
def test_an_installed_package_of_the_project_belongs_to_the_code(
    project: Path, results: Path, grid: Ask, place: str
) -> None:
    """Where a script imports it, whose folder it does not lie in: an edit of it makes other runs."""
    folder = project / place / "mine"
    folder.mkdir(parents=True)
    (project / place.partition("/")[0] / "pyproject.toml").write_text("")
    (folder / "factor.py").write_text(FACTOR)
    (project / "lib" / "scripts").mkdir(parents=True, exist_ok=True)
    (project / "lib" / "scripts" / "train.py").write_text(TRAIN.replace("import factor", "from mine import factor"))
    track(project, ".")

    def run_id(*words: str) -> str:
        command = [sys.executable, *words, "{lr}", "{seed}", "{out}"]
        rows = grid("--dry-run", "--format", "json", command=command, workdir="lib").stdout
        return str(json.loads(rows)[0]["run"])

    before, module = run_id("scripts/train.py"), run_id("-m", "mine.factor")
    (folder / "factor.py").write_text(f"# of lr\n{FACTOR}")
    assert (run_id("scripts/train.py"), run_id("-m", "mine.factor")) == (before, module)
    (folder / "factor.py").write_text(FACTOR.replace("1", "2"))
    assert run_id("scripts/train.py") != before
    assert run_id("-m", "mine.factor") != module


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_a_link_that_leads_nowhere_harms_nobody(project: Path, results: Path, grid: Ask) -> None:
    shutil.rmtree(project / "data")
    (project / "data").symlink_to(project / "nowhere")
    grid("--follow")
    assert status(results).popitem()[1]["state"] == "done"


@pytest.mark.parametrize("name", ["train.py", "factor.py"])
def test_code_that_all_may_write_to_is_refused_not_copied(project: Path, results: Path, grid: Ask, name: str) -> None:
    (project / name).chmod(0o666)
    said = " ".join(grid(code=2).stderr.split())
    assert f"{name} can be written by all users, and ettsweep executes it: take that right away (`chmod go-w " in said
    assert not project_snapshots(results)


@pytest.mark.usefixtures("process")
def test_a_script_imports_what_lies_beside_it_where_ettsweep_is_copied_too(results: Path, grid: Ask) -> None:
    grid("--follow", "--launch-set", "snapshot=true")
    assert errs(results) == [1.25]


# --- what a copy does not have ----------------------------------------------------------------------------------------


def assert_waiting_runs_are_refused(results: Path, why: str) -> None:
    """The first run, which edits its code, is done; those that waited are not trained with other code."""
    states = sorted(row["state"] for row in status(results).values())
    assert states == ["done", "failed", "failed"]
    failed = [row for row in status(results).values() if row["state"] == "failed"]
    assert all(why in row["reason"] for row in failed)


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_an_edit_of_a_script_that_is_named_by_an_absolute_path_is_seen(project: Path, results: Path, grid: Ask) -> None:
    edit = f"Path({str(project / 'factor.py')!r}).write_text('def of(lr):\\n    return 100\\n')"
    (project / "train.py").write_text(f"{TRAIN}{edit}\n")
    command = [sys.executable, str(project / "train.py"), "{lr}", "{seed}", "{out}"]
    grid("--follow", runs=3, code=None, command=command)
    assert_waiting_runs_are_refused(results, "has changed since the run was requested")


@pytest.mark.usefixtures("process")
def test_an_edit_of_code_that_is_linked_is_seen(project: Path, results: Path, grid: Ask, tmp_path: Path) -> None:
    elsewhere = tmp_path / "factor.py"
    (project / "factor.py").rename(elsewhere)
    (project / "factor.py").symlink_to(elsewhere)
    edit = f"Path({str(elsewhere)!r}).write_text('def of(lr):\\n    return 100\\n')"
    (project / "train.py").write_text(f"{TRAIN}{edit}\n")
    grid("--follow", runs=3, code=None)
    assert_waiting_runs_are_refused(results, "has changed since the run was requested")


@pytest.mark.usefixtures("process")
def test_an_edit_of_the_copy_itself_is_seen(project: Path, results: Path, grid: Ask) -> None:
    edit = "Path('factor.py').write_text('def of(lr):\\n    return 100\\n')"
    (project / "train.py").write_text(f"{TRAIN}{edit}\n")
    grid("--follow", runs=3, code=None)
    assert_waiting_runs_are_refused(results, "has changed since the run was requested")


@pytest.mark.usefixtures("process")
def test_runs_that_wait_keep_their_copy_when_others_are_submitted(
    project: Path, results: Path, grid: Ask, tmp_path: Path
) -> None:
    """The digest does not have what a script reads by itself."""
    (project / "conf.txt").write_text("1")
    code = TRAIN.replace("factor.of(lr)", "factor.of(lr) * int(Path('conf.txt').read_text())")
    (project / "train.py").write_text(
        f"{code}while not os.path.exists({str(tmp_path / 'go')!r}):\n    __import__('time').sleep(0.05)\n"
    )
    grid(runs=2)
    wait_for(lambda: list(results.glob("runs/*/out/seen.json")), "the first run")
    (project / "conf.txt").write_text("100")
    grid("--name", "other", "--launch-set", "slots=2", "--lr-range", "2:2")
    (tmp_path / "go").touch()
    wait_for(lambda: len([run for run in runs_in(results) if run.result()]) == 3, "all results")
    assert errs(results) == [1.25, 1.5, 200.0]


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_new_code_that_has_counted_once_does_not_let_in_all_later_code(project: Path, results: Path, grid: Ask) -> None:
    (project / "factor.py").write_text("def of(lr):\n    raise SystemExit('a mistake')\n")
    grid("--follow", code=None)
    (run,) = runs_in(results)
    (project / "factor.py").write_text("def of(lr):\n    raise SystemExit('another')\n")
    ettsweep("retry", run.id, "--new-code", "--results", results)
    wait_for(lambda: run.status().state is State.FAILED and len(run.attempt_numbers()) == 2, "its second failure")
    (project / "factor.py").write_text("def of(lr):\n    return 100\n")
    told = ettsweep("retry", run.id, "--results", results).stderr
    assert "runs train in their copy of it" in " ".join(told.split())
    wait_for(lambda: run.status().state is State.FAILED and len(run.attempt_numbers()) == 3, "its third failure")
    assert "another" in run.attempt(3).output_path.read_text()


@pytest.mark.usefixtures("process")
def test_a_function_of_an_installed_package_is_imported_from_the_copy(
    project: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src").mkdir()
    (project / "src" / "walk.py").write_text("def main(run):\n    run.record(1, err=run.lr)\n")
    track(project, ".")
    monkeypatch.syspath_prepend(str(project / "src"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project / "src"), os.environ["PYTHONPATH"]]))
    block = {"function": "walk:main", "score": {"name": "err", "mode": "min"}}
    content = {"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 1]}}
    (project / "sweep.yaml").write_text(yaml.safe_dump(content))
    ettsweep("grid", "--grid", project / "sweep.yaml", "--results", results, "--follow", "--launch-set", "slots=1")
    assert errs(results) == [0.25, 0.5]


@pytest.mark.usefixtures("process")
def test_data_in_a_linked_folder_are_the_same_data(project: Path, results: Path, grid: Ask) -> None:
    track(project, "train.py")
    grid("--follow", data=["**/*.txt"])
    assert errs(results) == [1.25]


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_a_folder_of_data_is_one_link_although_git_tracks_a_file_in_it(project: Path, results: Path, grid: Ask) -> None:
    for number in range(1100):
        (project / "data" / f"{number}.png").touch()
    (project / "data" / ".gitkeep").touch()
    track(project, "train.py", "data/.gitkeep")
    grid("--follow")
    assert (only_copy(results).path / "project" / "data").is_symlink()


def test_data_out_of_the_project_are_refused_with_what_would_work(
    project: Path, results: Path, grid: Ask, tmp_path: Path
) -> None:
    (tmp_path / "x.bin").touch()
    assert "data: ../x.bin leads out of the project" in " ".join(grid(code=2, data=["../x.bin"]).stderr.split())


def test_submissions_at_the_same_instant_lose_nothing_of_each_other(project: Path, results: Path) -> None:
    for k in range(12):
        (project / f"train{k}.py").write_text(f"{TRAIN}# {k}\n")
        block = {
            "command": [sys.executable, f"train{k}.py", "{lr}", "{seed}", "{out}"],
            "score": {"name": "err", "mode": "min"},
        }
        path = project / f"sweep{k}.yaml"
        path.write_text(yaml.safe_dump({"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 1]}}))
    recipes = [load_sweep_spec(project / f"sweep{k}.yaml").studies()[0].base.bound_to(None) for k in range(12)]
    with ThreadPoolExecutor(12) as pool:
        names = list(pool.map(lambda recipe: take_project_snapshots(results, [recipe]), recipes))
    copy = only_copy(results)
    assert names == [{code.digest: copy.path.name} for recipe in recipes if (code := recipe.own_code())]
    assert len(names) == len(copy.codes) == 12


@pytest.mark.usefixtures("process")
def test_code_above_the_grid_file_is_copied_and_nothing_is_put_beside_the_copy(
    project: Path, results: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "m.py").write_text("")
    content = {
        "run": {
            "command": [sys.executable, "train.py", "{lr}", "{seed}", "{out}"],
            "score": {"name": "err", "mode": "min"},
            "code": "../shared/*.py",
        },
        "centre": {"lr": 0.25},
        "lr": {"range": [0, 0]},
    }
    (project / "sweep.yaml").write_text(yaml.safe_dump(content))
    elsewhere = tmp_path.parent / f"{tmp_path.name}-results"
    ettsweep("grid", "--grid", project / "sweep.yaml", "--results", elsewhere, "--follow")
    assert errs(elsewhere) == [1.25]
    copy = only_copy(elsewhere).path
    assert {path.name for path in copy.iterdir()} == {"codes", "project", "project.json"}
    assert (copy / "project" / "shared" / "m.py").is_file()
