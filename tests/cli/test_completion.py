"""What a shell is offered, by what the scripts of bash, zsh and fish give to the command."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, get_args

import pytest
from support.commandline import ETTSWEEP, ettsweep, keep, typed, write_grid
from typer.core import TyperArgument, TyperOption

from ettsweep.cli import completion
from ettsweep.config import read_yaml
from ettsweep.readers.registry import reader_names
from ettsweep.runs.folder import RunDir
from ettsweep.runs.metric_loggers import METRIC_LOGGERS
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.shipped_files import shipped
from ettsweep.strategies.strategy import STRATEGIES
from ettsweep.study.criterion import Rule
from ettsweep.study.grid_file import find_grid, load_sweep_spec
from ettsweep.study.samplers import SAMPLERS
from ettsweep.trainer.models.registry import named_models
from ettsweep.trainer.tasks.registry import TASKS

pytestmark = pytest.mark.usefixtures("process")


class Offer(Protocol):
    def __call__(self, *words: object, **environment: str) -> list[str]: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder to type commands in, with results, a grid and a profile of its own."""
    for name in ("results", "grids", "launch"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def offered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Return a function that gives what bash is offered for the last of some words, found in this process."""

    def ask_here(*words: object, **environment: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["__main__"], "__package__", None)  # else its name would be `python -m pytest`
            # What it does to be quick is undone.
            patch.setitem(sys.modules, "rich", sys.modules.get("rich"))
            for kind in (TyperOption, TyperArgument):
                patch.setattr(kind, "process_value", kind.process_value)
            return names("bash", ettsweep(cwd=folder, env=environment_of("bash", words, environment)))

    return ask_here


def ask(shell: str, folder: Path, *words: object, **environment: str) -> list[str]:
    """Return the names that a shell is offered for the last of some words, by a process of its own."""
    env = environment_of(shell, words, environment)
    return names(shell, subprocess.run([ETTSWEEP], capture_output=True, text=True, cwd=folder, env=env))


def environment_of(shell: str, words: Sequence[object], changes: dict[str, str]) -> dict[str, str]:
    """Return the environment in which the script of a shell asks."""
    line = ["ettsweep", *map(str, words)]
    mapping = {"_TYPER_COMPLETE_ARGS": " ".join(line), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    if shell == "bash":
        mapping = {"COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(line) - 1)}
    return {**os.environ, **mapping, completion.COMPLETE_VARIABLE: f"complete_{shell}", **changes}


def names(shell: str, process: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return the names of an answer, and hold that nothing else is said."""
    assert process.stderr == ""
    if shell == "zsh":
        return re.findall(r'^(?:_arguments \'\*: :\(\()?"([^"]+)"', process.stdout, re.MULTILINE)
    return [text.split("\t")[0] for text in process.stdout.splitlines() if text]


def make_sweep(folder: Path, name: str, results: str = "results") -> None:
    keep(folder / results, load_sweep_spec(write_grid(folder / f"{name}.yaml")))


# --- names ------------------------------------------------------------------------------------------------------------


def test_each_shell_is_offered_commands_options_and_names(
    shell: str, folder: Path, make_spec: Callable[..., RunSpec]
) -> None:
    ids = sorted(RunDir.create(folder / "results", make_spec(seed=seed)).id for seed in range(3))
    make_sweep(folder, "first")
    make_sweep(folder, "second")
    assert ask(shell, folder, "ver") == ["verify-optimum", "verdict"]
    assert ask(shell, folder, "sweeps", "") == ["rename", "note", "archive", "unarchive", "delete"]
    assert ask(shell, folder, "status", "--st") == ["--strategy", "--state"]
    assert ask(shell, folder, "status", "-s", "") == ["first", "second"]
    assert ask(shell, folder, "sweeps", "archive", "first", "se") == ["second"]
    assert ask(shell, folder, "show", "") == ids
    assert ask(shell, folder, "status", "--format", "") == ["table", "json", "csv", "markdown"]
    assert ask(shell, folder, "grid", "--grid", "") == [], "then the shell offers files"


@pytest.mark.parametrize(
    "message",
    [
        "status --sweep",
        "watch -s",
        "grid --name",
        "sweeps rename",
        "sweeps note",
        "sweeps archive",
        "sweeps unarchive",
        "sweeps delete",
    ],
)
def test_sweeps_are_offered(message: str, folder: Path, offered: Offer) -> None:
    make_sweep(folder, "wide.2")
    (folder / "results" / "sweeps" / "odd name").mkdir()
    (folder / "results" / "sweeps" / "notes.txt").touch()
    assert offered(*message.split(), "") == ["wide.2"]


def test_archived_sweeps_are_offered_too(folder: Path, offered: Offer) -> None:
    make_sweep(folder, "old")
    ettsweep("sweeps", "archive", "old", cwd=folder)
    assert offered("sweeps", "unarchive", "") == ["old"]


@pytest.mark.parametrize("command", ["status", "logs", "show", "cancel", "retry", "train"])
def test_runs_are_offered(command: str, folder: Path, offered: Offer, spec: RunSpec) -> None:
    RunDir.create(folder / "results", spec)
    (folder / "results" / "runs" / "0123456789ab").mkdir()
    (folder / "results" / "runs" / "0123456789ab" / "spec.json").write_text("{")
    (folder / "results" / "runs" / "notes").mkdir()
    assert offered(command, "") == sorted(["0123456789ab", spec.run_id])
    assert offered(command, spec.run_id[:6]) == [spec.run_id]


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ("verify-optimum --strategy", STRATEGIES),
        ("train --strategy", STRATEGIES),
        ("map --from", STRATEGIES),
        ("map --to", STRATEGIES),
        ("check-scaling --strategy", STRATEGIES),
        ("verify-optimum --rule", get_args(Rule)),
        ("cancel --state", [state.value for state in State]),
        ("retry --log", METRIC_LOGGERS),
        ("search --sampler", SAMPLERS),
        ("read x --reader", sorted(reader_names())),
        ("init --task", TASKS),
        ("init --model", named_models()),
        ("init --strategy", STRATEGIES),
        ("status --model", named_models()),
        ("scales --model", named_models()),
        ("map --model", named_models()),
    ],
)
def test_what_a_table_has_is_offered(message: str, names: list[str], offered: Offer) -> None:
    assert offered(*message.split(), "") == list(names)


@pytest.mark.parametrize("command", ["grid", "train", "doctor"])
def test_models_are_offered_that_one_grid_is_for(
    command: str, folder: Path, offered: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "mine": "# one of mine\nmodel: vit-s16   # small",
        "shipped-too": "model: vit-b16",
        "first": "model: vit-digits",
        "second": "model: vit-digits",
        "described": "model: {kind: vit}",
        "broken": "model: [",
    }.items():
        (folder / "grids" / f"{name}.yaml").write_text(text)
    (folder / "grids" / "dangling.yaml").symlink_to("nothing")
    models = offered(command, "--model", "")
    shipped_models = {read_yaml(path)["model"] for path in shipped("grids").glob("*.yaml")}
    # Two of the folder's grids are for vit-digits, and none of those shipped for vit-s16; two of these have other names.
    assert set(models) == shipped_models - {"vit-digits"} | {"vit-s16", "encdec-pydoc", "gpt2-muon"}
    assert len(models) == len(set(models))
    monkeypatch.chdir(folder)
    for name in ("broken", "dangling"):
        (folder / "grids" / f"{name}.yaml").unlink()
    assert all(find_grid(model) for model in models)


def test_profiles_are_offered(folder: Path, offered: Offer) -> None:
    for name in ("mine.yaml", "odd name.yaml", "twice.yaml.yaml", "local.yaml", "README.md"):
        (folder / "launch" / name).touch()
    shipped = {"slurm", "slurm-container", "slurm-cpu", "slurm-node", "slurm-preempt", "slurm-together"}
    assert set(offered("grid", "--launch", "")) == {"mine", "local", *shipped}


# --- where they are looked for ----------------------------------------------------------------------------------------


def test_names_are_those_of_the_results_folder_that_is_typed_or_set(
    folder: Path, offered: Offer, tmp_path: Path
) -> None:
    make_sweep(folder, "here")
    make_sweep(folder, "there", "other")
    assert offered("status", "-s", "") == ["here"]
    assert offered("status", "--results", tmp_path / "other", "-s", "") == ["there"]
    assert offered("status", "-s", "", ETTSWEEP_RESULTS="other") == ["there"]
    assert offered("status", "--results", "~/other", "-s", "", HOME=str(folder)) == ["there"]
    assert offered("status", "--results", "$HOME/other", "-s", "", HOME=str(folder)) == ["there"]


@pytest.mark.parametrize("message", ["status -s", "status"])
def test_a_folder_that_is_not_there_or_cannot_be_read_offers_nothing(
    message: str, folder: Path, offered: Offer
) -> None:
    assert offered(*message.split(), "", ETTSWEEP_RESULTS="nowhere") == []
    for name in ("runs", "sweeps"):
        (folder / "results" / name).touch()
    assert offered(*message.split(), "") == []


# --- shells -----------------------------------------------------------------------------------------------------------


def test_bash_completes_with_the_script_that_is_installed(folder: Path, tmp_path: Path) -> None:
    make_sweep(folder, "first")
    mapping = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = typed("--show-completion", "bash", env=mapping).stdout
    assert f"{completion.COMPLETE_VARIABLE}=complete_bash" in script
    (tmp_path / "script").write_text(script)
    code = """
        . ./script
        COMP_WORDS=(ettsweep status --results "$PWD/results" --sweep "") COMP_CWORD=5
        _ettsweep_completion ettsweep
        printf '%s\\n' "${COMPREPLY[@]}"
        COMP_WORDS=(ettsweep status --st) COMP_CWORD=2
        _ettsweep_completion ettsweep
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bash = shutil.which("bash") or pytest.skip("no bash")
    completed = subprocess.run(
        [bash, "-c", code], capture_output=True, text=True, cwd=folder, env={**os.environ, "PATH": path}
    )
    assert (completed.stdout, completed.stderr) == ("first\n--strategy\n--state\n", "")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ({"_TYPER_COMPLETE_ARGS": "ettsweep status --format "}, 0),
        ({"_TYPER_COMPLETE_ARGS": "ettsweep grid --grid "}, 1),
    ],
)
def test_fish_is_told_whether_to_offer_files(line: dict[str, str], code: int, folder: Path) -> None:
    mapping = {**line, "_TYPER_COMPLETE_FISH_ACTION": "is-args", completion.COMPLETE_VARIABLE: "complete_fish"}
    typed_result = typed(code=code, env={**os.environ, **mapping}, cwd=folder)
    assert (typed_result.stdout, typed_result.stderr) == ("", "")


@pytest.mark.parametrize(
    ("message", "light"),
    [
        *(
            (message, True)
            for message in ("status --", "status -s", "show", "grid --model", "status --state", "grid --log")
        ),
        ("status --model", False),
        ("init --task", False),
    ],
)
def test_no_heavy_package_is_loaded(message: str, light: bool, folder: Path, make_spec: Callable[..., RunSpec]) -> None:
    """Else it would take longer than a shell may wait; `make bench` says how long it takes."""
    make_sweep(folder, "first")
    RunDir.create(folder / "results", make_spec())
    heavy = {"torch", "pandas", "optuna", "numpy", "scipy", "submitit", "rich"} | (
        {"pydantic", "yaml"} if light else set()
    )
    line = ["ettsweep", *message.split(), *([] if message.endswith("--") else [""])]
    mapping = {"_TYPER_COMPLETE_ARGS": " ".join(line), completion.COMPLETE_VARIABLE: "complete_zsh"}
    environment = {**os.environ, **mapping, "PYTHONPROFILEIMPORTTIME": "1"}
    completed = subprocess.run([ETTSWEEP], capture_output=True, text=True, cwd=folder, env=environment)
    assert completed.stdout.startswith("_arguments")
    loaded = {text.rpartition("|")[2].strip().split(".")[0] for text in completed.stderr.splitlines()}
    assert "typer" in loaded
    assert not heavy & loaded
