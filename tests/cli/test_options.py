import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.commandline import GRID, Call, write_fake_grid, write_grid

from ettsweep import cli
from ettsweep.cli.options import RunOptions
from ettsweep.errors import InputError
from ettsweep.launch.profile import load_profile
from ettsweep.launch.slurm import SlurmProfile
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_store import load_sweep_store

MakeSpec = Callable[..., RunSpec]


def test_a_selection_narrows_by_each_of_its_parts(results: Path, make_spec: MakeSpec) -> None:
    ntk, other_lr = make_spec(), make_spec(lr=2.0)
    standard = make_spec(strategy={"s": None})
    wide = make_spec(model={"width": 16})
    for spec in (ntk, other_lr, standard, wide):
        RunDir.create(results, spec)
    RunDir(results / "runs" / wide.run_id).cancel()
    run_index = load_run_index(results)

    def chosen(**parts: Any) -> set[str]:
        return {run.id for run in RunOptions(**parts).runs(run_index, load_sweep_store(results))}

    everything = {ntk.run_id, other_lr.run_id, standard.run_id, wide.run_id}
    assert chosen() == everything
    assert chosen(run=[ntk.run_id[:8], wide.run_id]) == {ntk.run_id, wide.run_id}
    assert chosen(family=[ntk.family_id[:6]]) == {ntk.run_id, other_lr.run_id}
    assert chosen(strategy=["standard"]) == {standard.run_id}
    assert chosen(model=["vit-n16-l1-h2-p4-i8-c1-k10"]) == {wide.run_id}
    assert chosen(state=[State.CANCELLED], strategy=["standard"]) == set()
    with pytest.raises(InputError, match="--model nope: no run or study matches; available: "):
        chosen(run=[ntk.run_id], model=["nope"])


# --- the home folder --------------------------------------------------------------------------------------------------


def parsed(command: Any, name: str, text: str) -> Iterator[tuple[str, str | None, Any]]:
    """Yield each option and argument of a command and of those below it, its metavar, and what becomes of a text."""
    context = command.make_context(name, [], resilient_parsing=True)
    for option in command.params:
        several = option.multiple or option.nargs == -1
        with contextlib.suppress(typer.BadParameter):  # a number, a choice
            value = option.process_value(context, [text] if several else text)
            yield f"{name} {option.opts[0]}", option.metavar, value[0] if several else value
    for child, subcommand in getattr(command, "commands", {}).items():
        yield from parsed(subcommand, f"{name} {child}", text)


def test_home_is_expanded_in_every_option_that_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x").mkdir()  # commands that read a results folder refuse one that is not there
    paths = {"DIR", "FILE", "FILES", "PROFILE", "DATA", "SCORES", "A", "B"}  # metavars
    options = parsed(typer.main.get_command(cli.make_app()), "ettsweep", "~/x")
    expanded = {option: str(value) for option, metavar, value in options if metavar in paths or isinstance(value, Path)}
    assert {"ettsweep grid --data", "ettsweep report --out", "ettsweep train --spec"} <= expanded.keys()
    assert expanded == dict.fromkeys(expanded, str(tmp_path / "x"))


def test_home_is_expanded_in_variables_grid_files_and_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    write_fake_grid(home / "g.yaml")
    (home / "launch.yaml").write_text("{kind: local, devices: cpu, slots: 1}")
    monkeypatch.setenv("ETTSWEEP_SLOTS", "~/slots")
    call("grid", "~/g.yaml", "--launch=~/launch.yaml", "--results=~/results", "--follow")
    assert {path.name for path in home.iterdir()} == {"g.yaml", "launch.yaml", "slots", "results"}
    monkeypatch.setenv("ETTSWEEP_RESULTS", "~/results")
    assert "3 runs in" in call("status").err
    assert [name for name in os.listdir() if name.startswith("~")] == []

    images = {"task": "cifar10", "model": GRID["model"] | {"image_size": 32, "channels": 3}}
    monkeypatch.setenv("ETTSWEEP_CIFAR10", "~/elsewhere")
    path = write_grid(tmp_path / "images.yaml", **images)
    assert f"{home / 'elsewhere'}" in call("grid", path, "--dry-run").err
    assert load_sweep_spec(write_grid(path, data="~/pictures", **images)).data == str(home / "pictures")
    slurm = load_profile("slurm", ["sbatch.chdir=~/jobs"])
    assert isinstance(slurm, SlurmProfile)
    assert slurm.sbatch["chdir"] == str(home / "jobs")
