"""Variants of a sweep: a lattice for each combination of values, in one sweep."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ettsweep.cli.options import RunOptions
from ettsweep.errors import InputError
from ettsweep.report.formats import strategy_colour
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.state import State, Status
from ettsweep.study import grid_file
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_store import extend_sweep, load_sweep_store, run_strategy

COMMAND = {
    "command": "python train.py --lr {lr} --opt {opt} --batch {batch} --seed {seed} --out {out}",
    "reader": "jsonl",
    "score": {"name": "val_loss", "mode": "min"},
}
OWN = {
    "run": COMMAND,
    "centre": {"lr": 0.25},
    "lr": {"range": [-1, 1]},
    "vary": {"opt": ["adam", "muon"], "batch": [32, 64]},
}
VIT = {
    "model": "vit-digits",
    "task": "digits",
    "recipe": {"batch_size": 64, "schedule": {"total_steps": 240, "warmup_steps": 24, "eval_every": 12}},
    "centre": {"standard": {"lr": 0.25, "wd": 0.5}},
    "centre_sgd": {"standard": {"lr": 1.0, "wd": 0.001}},
    "lr": {"range": [-1, 0]},
    "wd": "fixed",
    "strategies": ["standard", "mup"],
}

Write = Callable[..., Path]


@pytest.fixture
def grid(tmp_path: Path) -> Write:
    """Return a function that writes a grid file."""
    (tmp_path / "train.py").write_text("")

    def write(content: dict[str, object] = OWN, **changes: object) -> Path:
        path = tmp_path / "g.yaml"
        path.write_text(yaml.safe_dump({**content, **changes}, sort_keys=False))
        return path

    return write


def test_each_combination_of_values_has_a_lattice_and_a_name(grid: Write) -> None:
    studies = load_sweep_spec(grid()).studies("w")
    assert [study.strategy for study in studies] == [
        f"opt={opt} batch={batch}" for opt in ("adam", "muon") for batch in (32, 64)
    ]
    assert {len(study.grid_points) for study in studies} == {3}
    assert len({spec.run_id for study in studies for spec in study.specs()}) == 12
    for study in studies:
        assert all(spec.variant == study.variant for spec in study.specs())
        assert study.has_strategies


def test_the_values_of_a_command_are_part_of_the_id_and_those_of_others_are_not_there(grid: Write) -> None:
    plain = {**COMMAND, "command": "python train.py --lr {lr} --seed {seed}"}
    (study,) = load_sweep_spec(grid(run=plain, vary=None)).studies()
    assert "variant" not in study.base.model_dump(mode="json")
    one, other = (
        study.base for study in load_sweep_spec(grid(vary={"opt": ["a", "b"], "batch": [1, 2]})).studies()[:2]
    )
    assert one.family_id != other.family_id
    assert one.model_dump(mode="json")["variant"] == {"opt": "a", "batch": 1}


def test_a_variant_of_a_model_has_the_ids_of_a_sweep_with_that_field(grid: Write) -> None:
    studies = load_sweep_spec(grid(VIT, vary={"batch_size": [32, 64], "optimizer": ["adamw", "sgd"]})).studies()
    assert [study.strategy for study in studies][:4] == [
        "batch_size=32 optimizer=adamw",
        "mup batch_size=32 optimizer=adamw",
        "batch_size=32 optimizer=sgd",
        "mup batch_size=32 optimizer=sgd",
    ]
    for optimizer, lr in (("adamw", 0.25), ("sgd", 1.0)):
        alone = load_sweep_spec(grid(VIT), overrides=["batch_size=32", f"optimizer={optimizer}"]).studies()
        variants = [study for study in studies if study.variant == {"batch_size": 32, "optimizer": optimizer}]
        assert {spec.run_id for each in variants for spec in each.specs()} == {
            spec.run_id for each in alone for spec in each.specs()
        }
        assert variants[0].centre["lr"] == lr, "the centre is that of its optimizer"


def test_a_sweep_keeps_its_variants_and_grows_by_seeds(grid: Write, tmp_path: Path) -> None:
    results = tmp_path / "results"
    first = load_sweep_spec(grid()).bound()
    extend_sweep(results, "w", first)
    extend_sweep(results, "w", load_sweep_spec(grid(), seeds=[0, 1]).bound())
    (sweep,) = load_sweep_store(results).sweeps.values()
    assert [study.strategy for study in sweep.studies] == [study.strategy for study in first.studies()]
    assert {study.seeds for study in sweep.studies} == {(0, 1)}
    latest = sweep.latest_spec(["opt=muon batch=32"])
    assert [*latest.names] == ["opt=muon batch=32"]
    assert [study.strategy for study in latest.studies()] == ["opt=muon batch=32"]
    extend_sweep(results, "w", latest.model_copy(update={"seeds": (7,)}))
    (sweep,) = load_sweep_store(results).sweeps.values()
    assert sweep.latest_spec().names.keys() == first.names.keys(), "one variant went on alone"
    assert all(sweep.covers(sweep.latest_spec(names)) for names in ([], ["opt=muon batch=32"], ["opt=adam batch=64"]))
    with pytest.raises(InputError, match=r"what varies is opt=adam batch=32; .* there, opt=adam batch=32; .* here"):
        extend_sweep(results, "w", load_sweep_spec(grid(vary={"opt": ["adam", "sgd"], "batch": [32, 64]})).bound())


def test_a_variant_of_a_model_goes_on_alone(grid: Write, tmp_path: Path) -> None:
    spec = load_sweep_spec(grid(VIT, vary={"batch_size": [32, 64]})).bound()
    extend_sweep(tmp_path, "w", spec)
    (sweep,) = load_sweep_store(tmp_path).sweeps.values()
    extend_sweep(tmp_path, "w", sweep.latest_spec(["mup batch_size=64"]).model_copy(update={"seeds": (7,)}))
    (sweep,) = load_sweep_store(tmp_path).sweeps.values()
    assert sweep.latest_spec().names == spec.names


def test_no_two_variants_have_one_colour(grid: Write) -> None:
    studies = load_sweep_spec(grid(VIT, vary={"batch_size": [32, 64, 128]})).studies()
    colours = [strategy_colour(study.strategy, study.variant_number) for study in studies]
    assert len({*colours}) == len(colours) == 6


def test_the_limit_of_runs_counts_all_variants(grid: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_file, "MAX_RUNS", 11)
    with pytest.raises(InputError, match="the grid has 12 runs, the limit is 11"):
        load_sweep_spec(grid())


@pytest.mark.parametrize(
    ("content", "vary", "message"),
    [
        (OWN, {"opt": ["adam", "muon"]}, "there is no placeholder {batch}"),
        (OWN, {"opt": ["adam"], "batch": [32, 64]}, "vary.opt: two or more different names or numbers are expected"),
        (OWN, {"opt": "adam", "batch": [32, 64]}, "vary.opt: two or more different names or numbers are expected"),
        (OWN, {"lr": [1, 2], "opt": ["a", "b"], "batch": [1, 2]}, "vary.lr: lr is an axis; list its values under `axes:`"),
        (OWN, {"seed": [1, 2]}, "vary.seed: a name of letters, digits, _ and dots is expected"),
        (OWN, {"opt": ["a b", "c"], "batch": [1, 2]}, "vary.opt: 'a b': without spaces and ="),
        (OWN, {"opt": ["a", "b"], "batch": [*range(40)]}, "vary: 80 variants; the limit is 64"),
        (OWN, {"opt": ["a", "b"], "batch": [1, 2], "x": [1, 2]}, "{x} is missing: runs of different x would be"),
        (OWN, [], "vary: names with lists are expected, such as vary: {optimizer: [adamw, muon]}"),
        (VIT, {"batch_sise": [32, 64]}, "batch_sise"),
        (VIT, {"optimizer.beta2": [0.9, "0.90"]}, "vary.optimizer.beta2: two or more different names or numbers are expected"),
        (VIT, {"optimizer": ["adamw", "lion"]}, "(vary: optimizer=lion)"),
        (VIT, {"optimizer": ["adamw", "muon"]}, "no centre for muon"),
    ],
)  # fmt: skip
def test_a_wrong_variant_is_refused(grid: Write, content: dict[str, object], vary: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load_sweep_spec(grid(content, vary=vary))


def test_runs_of_a_model_are_listed_and_chosen_by_their_variant(grid: Write, tmp_path: Path) -> None:
    extend_sweep(tmp_path, "w", load_sweep_spec(grid(VIT, vary={"batch_size": [32, 64]})).bound())
    store = load_sweep_store(tmp_path)
    specs = [spec for study in store.studies for spec in study.specs()]
    listed = {run_strategy(store.studies_by_family, spec) for spec in specs}
    assert listed == {"batch_size=32", "batch_size=64", "mup batch_size=32", "mup batch_size=64"}
    index = RunIndex({each.run_id: Run(RunDir(tmp_path / each.run_id), each, Status(State.DONE)) for each in specs}, {})
    chosen = RunOptions(strategy=["mup batch_size=64"]).runs(index, store)
    assert {run_strategy(store.studies_by_family, run) for run in chosen} == {"mup batch_size=64"}
    assert len(chosen) == len(specs) / 4
