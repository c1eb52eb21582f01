"""Which files of a project are the code of its runs, and what of them makes another digest."""

import os
import subprocess
from pathlib import Path

import pytest

from ettsweep.errors import DataMissingError, InputError
from ettsweep.project_code import SWEEP_HEADER, CodeRule, find_code

CODE = {"train.py": "import model", "model.py": "bias = 1", "conf/base.yaml": "lr: 0.1\nmodel: a"}
FILES = CODE | {
    "data.bin": "\0",
    "sweep.yaml": "run: {command: a}\ncentre: {lr: 0.1}",
    "axes.yaml": "run:\n  command: a\naxes: {lr: [1, 2]}",
    "lists.yaml": "model: vit-b16\nrecipe: {}\nlr: [1, 2]",
    "launch/site.yaml": "kind: slurm",
    "look.ipynb": "{}",
    "wandb/run-1/config.yaml": "lr: 0.1",
    "results/sweeps/a.yaml": SWEEP_HEADER,
    "train.log": "",
    **dict.fromkeys(("docs/guide.py", "README.md", "tests/test_model.py", "test_train.py", ".secrets"), ""),
    **dict.fromkeys(("results/notes.txt", "page/report.html", "page/tables/runs.csv", ".venv/lib/site.py"), ""),
    **dict.fromkeys(("env/pyvenv.cfg", "env/lib/site.py"), ""),
}


def write(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def git(folder: Path, *arguments: str) -> None:
    author = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *arguments], cwd=folder, check=True, env=os.environ | author, stdout=subprocess.DEVNULL)


def names(folder: Path, **rule: list[str]) -> set[str]:
    return set(find_code(folder, CodeRule.model_validate(rule)).files)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(tmp_path / "project")


def test_without_git_all_texts_are_code_but_what_no_run_depends_on(project: Path) -> None:
    assert names(project) == {*CODE}


def test_with_git_what_it_ignores_is_no_code_and_what_it_tracks_is(project: Path) -> None:
    write(project, {".gitignore": "model.py", "new.py": "", "sub/deep/new.py": ""})
    git(project, "init", "-q")
    git(project, "add", "train.py", "look.ipynb", "wandb")
    tracked, new = {"train.py", "look.ipynb", "wandb/run-1/config.yaml"}, {"new.py", "sub/deep/new.py"}
    assert names(project) == tracked | new | {"conf/base.yaml"}


def test_a_repository_inside_is_listed_by_its_own_git(project: Path) -> None:
    write(project / "lib", {"a.py": "", "b.py": "", ".gitignore": "b.py"})
    git(project / "lib", "init", "-q")
    git(project, "init", "-q")
    assert names(project) == {*CODE, "lib/a.py"}
    git(project / "lib", "add", "a.py")
    git(project / "lib", "commit", "-qm", "a")
    git(project, "-c", "advice.addEmbeddedRepo=false", "add", "lib")
    assert names(project) == {*CODE, "lib/a.py"}, "as a submodule"


def test_a_commit_a_second_clone_and_a_plain_copy_have_the_same_digest(tmp_path: Path) -> None:
    project = write(tmp_path / "repository", CODE)
    digests = {find_code(write(tmp_path / "plain", CODE), CodeRule()).digest}
    git(project, "init", "-q")
    digests.add(find_code(project, CodeRule()).digest)
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    digests.add(find_code(project, CodeRule()).digest)
    git(tmp_path, "clone", "-q", str(project), "clone")
    digests.add(find_code(tmp_path / "clone", CodeRule()).digest)
    assert len(digests) == 1


def test_an_edit_makes_another_digest(tmp_path: Path) -> None:
    before = {"train.py": "import model", "model.py": "bias = 1"}
    edited, renamed = before | {"model.py": "bias = 2"}, {"train.py": "import model", "models.py": "bias = 1"}
    versions = (before, edited, renamed, before | {"new.py": ""}, {"train.py": "import model"})
    folders = [write(tmp_path / str(number), files) for number, files in enumerate(versions)]
    assert len({find_code(folder, CodeRule()).digest for folder in folders}) == 5


def test_named_files_are_code_of_any_kind_and_size(project: Path) -> None:
    assert names(project, add=["data.bin", "docs"]) - names(project) == {"data.bin", "docs/guide.py"}
    assert names(project, only=["*.bin", "conf"]) == {"data.bin", "conf/base.yaml"}
    everything = CodeRule(only=(".",))
    assert {"data.bin", "conf/base.yaml"} < set(find_code(project, everything).files)
    assert set(find_code(project, CodeRule(), data=[project / "conf"]).files) == {"train.py", "model.py"}
    assert names(project, exclude=["conf", "model.*"]) == {"train.py"}
    assert names(project, add=["data.bin"], exclude=["*.py"]) == {"data.bin", "conf/base.yaml"}
    with pytest.raises(DataMissingError, match=r"code: no file in .* matches nothing\.py"):
        names(project, add=["nothing.py"])
    code = find_code(project, CodeRule(), named=[project / "data.bin", project / "env" / "lib" / "site.py"])
    assert set(code.files) - names(project) == {"data.bin"}, "an interpreter of the project is no code"


def test_a_link_counts_by_what_it_leads_to(project: Path, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("a = 1")
    (project / "shared.py").symlink_to(tmp_path / "shared.py")
    (project / "nowhere.py").symlink_to(tmp_path / "nowhere.py")
    before = find_code(project, CodeRule())
    assert "shared.py" in before.files
    (tmp_path / "shared.py").write_text("a = 2")
    assert find_code(project, CodeRule()).digest != before.digest


def test_too_many_files_are_refused_with_a_cure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ettsweep.project_code.MAX_FILES", 2)
    with pytest.raises(InputError, match=r"more than 2 files; name the code: `code: \{only:"):
        find_code(project, CodeRule())
    assert names(project, only=["train.py"]) == {"train.py"}


# --- what differs -----------------------------------------------------------------------------------------------------


def differences(
    project: Path, before: dict[str, list[str]], now: dict[str, list[str]], **files: str | None
) -> list[str]:
    """Return what differs after some files are written, or removed, under two rules."""
    rules = [CodeRule.model_validate(rule) for rule in (before, now)]
    then = find_code(project, rules[0]).files
    for name, text in files.items():
        path = project / name.replace("_", ".")
        path.unlink() if text is None else path.write_text(text)
    return find_code(project, rules[1]).differences(then, *rules)


def test_edits_are_named_file_by_file(project: Path) -> None:
    edits = differences(project, {}, {}, train_py=None, model_py="bias = 3", more_py="")
    assert edits == ["model.py was edited", "more.py is new", "train.py is gone"]


@pytest.mark.parametrize(
    ("before", "now"), [({"exclude": ["model.py"]}, {}), ({}, {"only": ["train.py"]}), ({"add": ["data.bin"]}, {})]
)
def test_another_rule_alone_is_no_edit(project: Path, before: dict[str, list[str]], now: dict[str, list[str]]) -> None:
    assert differences(project, before, now) == []
    assert differences(project, before, now, train_py="x") == ["train.py was edited"]


def test_an_edit_of_a_named_binary_is_one(project: Path) -> None:
    rule = {"add": ["*.bin"]}
    assert differences(project, rule, rule, data_bin="\0\0") == ["data.bin was edited"]
