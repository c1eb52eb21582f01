from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import GRID, Call, keep, write_grid

from ettsweep.cli.options import RunOptions
from ettsweep.errors import InputError
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.run_index import load_run_index
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
    assert chosen(strategy=["s=0"]) == everything - {standard.run_id}
    assert chosen(model=["vit-n16-l1-h2-p4-i8-c1-k10"]) == {wide.run_id}
    assert chosen(state=[State.CANCELLED]) == {wide.run_id}
    assert chosen(state=[State.CANCELLED], strategy=["standard"]) == set()
    with pytest.raises(InputError, match="--family zzz: no run or study matches; available: "):
        chosen(family=["zzz"])
    with pytest.raises(InputError, match="--model nope: no run or study matches; available: "):
        chosen(run=[ntk.run_id], model=["nope"])
    with pytest.raises(InputError, match="unknown strategy 'nkt'; did you mean 'ntk'"):
        chosen(strategy=["nkt"])


def test_options_that_nothing_fits_together_are_named(tmp_path: Path, call: Call) -> None:
    """Two searches, and what is asked for is the model of one and the strategy of the other."""
    results, wide = tmp_path / "results", GRID["model"] | {"width": 16}
    centre = {"centre": {"ntk": {"lr": 1.0, "wd": 1.0}}, "strategies": ["ntk"]}
    for sweep_spec in (
        load_sweep_spec(write_grid(tmp_path / "a.yaml")),
        load_sweep_spec(write_grid(tmp_path / "b.yaml", model=wide, **centre)),
    ):
        keep(results, sweep_spec)
    model = "vit-n8-l1-h2-p4-i8-c1-k10"
    err = call("verify-optimum", "--model", model, "--strategy", "ntk", "--results", results, code=2).err
    assert err.startswith(f"ettsweep: --model {model} --strategy ntk: no study matches all of these; available: ")
    assert f"a {model} standard (" in err
    assert "b vit-n16-l1-h2-p4-i8-c1-k10 ntk (" in err
