"""`ettsweep init`: a grid file for a model or for a command: what it finds, what it names as missing, what it refuses."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import Call

from ettsweep.config import read_yaml
from ettsweep.doctor.grid_template import SHIPPED_GRIDS, model_template
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.trainer.models.registry import named_models

SHIPPED = Path(__file__).parents[2] / "grids"


# --- models that ship -------------------------------------------------------------------------------------------------


def test_the_template_for_each_model_is_one_that_grid_takes(tmp_path: Path) -> None:
    assert list(SHIPPED_GRIDS) == list(named_models())
    for model in named_models():
        path = tmp_path / f"{model}.yaml"
        text, notes = model_template(model, path)
        path.write_text(text)
        result, shipped = load_sweep_spec(path), load_sweep_spec(SHIPPED / f"{SHIPPED_GRIDS[model]}.yaml")
        assert notes[0].startswith(f"wrote {path}: {len(result.specs())} runs of")
        if model in SHIPPED_GRIDS.values() or model == "encdec-tiny":
            assert result.specs() == shipped.specs()
        else:
            assert result.recipe.model == named_models()[model]
            assert result.centres.keys() == shipped.centres.keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model vit-b16 --command x", "pass either --command or --model"),
        ("--out .", "--out: . is a folder; pass a file, such as vit-digits.yaml"),
        ("--out 0123456789ab.yaml", "--out 0123456789ab: that could be a run's id"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_written(
    options: str, message: str, call: Call, tmp_path: Path
) -> None:
    assert message in " ".join(call("init", *options.split(), code=2).err.split())
    assert not list(tmp_path.glob("*.yaml"))


def test_a_file_that_is_there_is_overwritten_with_force_alone(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kept")
    assert "mine.yaml already exists: pass --force to overwrite it" in call("init", "--out", path, code=2).err
    assert path.read_text() == "kept"
    call("init", "--out", path, "--force")
    assert load_sweep_spec(path).recipe == load_sweep_spec(SHIPPED / "vit-digits.yaml").recipe
    assert "choose another folder with --out" in call("init", "--out", "none/mine.yaml", code=1).err


def test_a_plan_says_that_it_takes_the_file_that_init_wrote(call: Call) -> None:
    plan = ("grid", "--model", "vit-digits", "--strategy", "ntk", "--dry-run")
    assert f"grid file: {SHIPPED / 'vit-digits.yaml'}, which ettsweep ships\n" in call(*plan).err
    assert "`ettsweep grid vit-digits.yaml" in call("init", "--model", "vit-digits").err
    line = "grid file: vit-digits.yaml; it takes precedence over the shipped vit-digits.yaml\n"
    assert line in call(*plan).err


# --- a command: what is found -----------------------------------------------------------------------------------------

AROUND = {"range": [-2, 2], "step": 1}
REST = "--weight-decay .1 --seed 0 --out runs/a"
PLACED = "--weight-decay {wd} --seed {seed} --out {out}"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path) -> None:
    """Have a folder with scripts, of which these tests train none."""
    for name in ("train.py", "train.sh"):
        (tmp_path / name).touch()


def written(call: Call, command: str, *options: object) -> tuple[dict[str, Any], str]:
    """Return the file that is written for a command, and what is said."""
    err = call("init", "--command", command, "--out", "mine.yaml", "--force", *options).err
    return read_yaml(Path("mine.yaml")), err


@pytest.mark.parametrize(
    ("command", "expected", "centre"),
    [
        ("python train.py --learning-rate 0.015625 --weight_decay=1e-1 --random_seed=0 --work-dir out",
         "python train.py --learning-rate {lr} --weight_decay={wd} --random_seed={seed} --work-dir {out}", ("2^-6", 0.1)),
        ("python train.py optim.lr=3e-4 +optim.weight_decay=0.1 seed=0 hydra.run.dir=runs/a",
         "python train.py optim.lr={lr} +optim.weight_decay={wd} seed={seed} hydra.run.dir={out}", (3e-4, 0.1)),
        ("bash train.sh -lr .5 -wd 2. --seed 0 --output runs/a/model.pt",
         "bash train.sh -lr {lr} -wd {wd} --seed {seed} --output {out}/model.pt", ("2^-1", "2^1")),
        (f"python train.py \\\n --lr 3e-4 --min-lr 1e-5 --save 100 --name 'a run; of mine' --model '{{\"width\": 8}}' {REST}",
         f"python train.py --lr {{lr}} --min-lr 1e-5 --save 100 --name 'a run; of mine' --model '{{{{\"width\": 8}}}}' {PLACED}", (3e-4, 0.1)),
    ],
)  # fmt: skip
def test_numbers_and_the_folder_become_placeholders(
    command: str, expected: str, centre: tuple[object, object], call: Call, tmp_path: Path
) -> None:
    content, err = written(call, command)
    assert content["run"] == {"command": expected}
    assert content["centre"] == dict(zip(("lr", "wd"), centre, strict=True))
    assert (content["lr"], content["wd"], content["seeds"]) == (AROUND, AROUND, [0, 1, 2])
    text = (tmp_path / "mine.yaml").read_text()
    assert "# TODO: the metric" in text
    (tmp_path / "mine.yaml").write_text(text.replace("# TODO: the metric to compare, such as score", "score"))
    sweep_spec = load_sweep_spec(tmp_path / "mine.yaml")
    assert len(sweep_spec.recipe.argv) == len(shlex.split(command.replace("\\\n", " ")))
    assert len(sweep_spec.specs()) == 75
    assert "wrote mine.yaml: 75 runs to begin with" in err
    assert "fill in each TODO of mine.yaml, then `ettsweep try mine.yaml` checks" in err


def test_variables_before_the_command_are_its_environment(call: Call, tmp_path: Path) -> None:
    content, _ = written(call, f"OMP_NUM_THREADS=1 CONFIG='{{\"a\": 1}}' python train.py --lr 3e-4 {REST}")
    assert content["run"]["command"].startswith("python train.py")
    assert content["run"]["env"] == {"OMP_NUM_THREADS": "1", "CONFIG": '{{"a": 1}}'}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python train.py --lr 3e-4 --wd .1 --out x", "no seed in the command: add an option"),
        ("python train.py --lr 3e-4 --wd 0 --seed 0 --out x", "wd 0 has no log2"),
    ],
)
def test_what_is_not_found_is_named_with_what_to_do(command: str, message: str, call: Call, tmp_path: Path) -> None:
    content, err = written(call, command)
    assert message in err
    assert ("# TODO: {seed} is missing" in (tmp_path / "mine.yaml").read_text()) == ("no seed" in message)
    assert (content["wd"] == "fixed") == ("wd" in message)


# --- sweep files of Weights & Biases ----------------------------------------------------------------------------------

WANDB = {
    "program": "train.py",
    "method": "bayes",
    "metric": {"name": "val/score", "goal": "maximize"},
    "parameters": {
        "lr": {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1},
        "wd": {"values": [0.1, 0.4]},
        "seed": {"value": 0},
        "epochs": {"value": 3},
        "out": {"value": "runs/a"},
    },
}
LOG_UNIFORM = {"lr": {"distribution": "log_uniform", "min": -11.513, "max": -2.3026}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"parameters": WANDB["parameters"] | LOG_UNIFORM},
         "python train.py --lr={lr} --wd={wd} --seed={seed} --epochs=3 --out={out}"),
        ({"command": ["${env}", "bash", "train.sh", "${program}", "${args_no_hyphens}"]},
         "bash train.sh train.py lr={lr} wd={wd} seed={seed} epochs=3 out={out}"),
    ],
)  # fmt: skip
def test_a_sweep_file_is_the_command_that_it_starts(
    change: dict[str, Any], expected: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(WANDB | change, sort_keys=False))
    content, _ = written(call, "sweep.yaml")
    assert content["run"]["command"] == expected
    assert content["run"]["score"] == {"name": "val/score", "mode": "max"}
    assert content["centre"] == {"lr": "2^-10", "wd": "2^-2"}
    assert (content["lr"]["range"], content["wd"]["range"]) == ([-7, 7], [-2, 1])
    assert load_sweep_spec(tmp_path / "mine.yaml").seeds == (0, 1, 2)


def test_further_parameters_of_a_sweep_file_are_variants(call: Call, tmp_path: Path) -> None:
    further = {"batch-size": {"values": [8, 16]}, "opt": {"values": ["adamw", "muon"]}}
    data = WANDB | {"parameters": WANDB["parameters"] | further}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    content, _ = written(call, "sweep.yaml")
    assert content["run"]["command"].endswith("--batch-size={batch_size} --opt={opt}")
    assert {"vary": {"batch_size": [8, 16], "opt": ["adamw", "muon"]}}.items() <= content.items()
    assert len(load_sweep_spec(tmp_path / "mine.yaml").studies()) == 4


def test_a_sweep_file_that_no_command_can_say_is_refused(call: Call, tmp_path: Path) -> None:
    data = WANDB | {"parameters": {"lr": {"value": 0.1}, "batch": {"min": 8, "max": 16}}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    refused = call("init", "--command", "sweep.yaml", "--out", "mine.yaml", code=2).err
    assert "batch has a range; list its values" in refused
    assert not (tmp_path / "mine.yaml").exists()


# --- what is refused, and what is found -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python train.py --epochs 3", "has no number of lr, such as `--lr 3e-4`"),
        ("python train.py --lr 3e-4 > log", "> (a redirection) needs a shell"),
        ("python train.py a.lr=1 b.lr=2", "a.lr=1 and b.lr=2 would all be {lr}; keep one in the command"),
        ("python nowhere.py --lr 1 --seed 0", "there is no file nowhere.py"),
    ],
)
def test_what_cannot_be_swept_is_refused_and_nothing_is_written(
    command: str, message: str, call: Call, tmp_path: Path
) -> None:
    assert message in call("init", "--command", command, "--out", "mine.yaml", code=2).err
    assert not (tmp_path / "mine.yaml").exists()


def test_a_command_without_lr_is_answered_with_the_options_of_its_program(call: Call, tmp_path: Path) -> None:
    source = "parser.add_argument('-l', '--lr', type=float, default=0.003)\np.add_argument('--lr-decay')\n"
    (tmp_path / "train.py").write_text(f"raise SystemExit('started')\n{source}")
    err = call("init", "--command", "python train.py --epochs 9", "--out", "mine.yaml", code=2).err
    assert "has no number of lr; add one of the program's options `--lr 0.003`\n" in err


def test_the_metric_is_found_in_what_the_command_left(call: Call, tmp_path: Path) -> None:
    """A run by hand has written metrics into its folder: nothing is left to fill in."""
    (tmp_path / "runs" / "hand").mkdir(parents=True)
    lines = [json.dumps({"step": step, "loss": 1.0, "val_loss": 1 / step}) for step in (1, 2)]
    (tmp_path / "runs" / "hand" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    err = call("init", "--command", "python train.py --lr 0.25 --seed 0 --out runs/hand").err
    assert "reader jsonl finds val_loss in runs/hand" in err
    (row, *_) = call("grid", "train.yaml", "--dry-run", "--format", "json").json
    assert row["action"] == "submit"
