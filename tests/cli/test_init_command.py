"""`ettsweep init --command`: what it finds in a command, what it proposes, what it names as missing, what it refuses."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import Call, status

from ettsweep.config import read_yaml
from ettsweep.study.grid_file import load_sweep_spec

AROUND = {"range": [-2, 2], "step": 1}


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> None:
    """Have scripts, of which these tests train none, and what a run by hand has left."""
    for name in ("train.py", "train.sh", "pkg/__init__.py", "pkg/main.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    write_metrics(tmp_path / "runs" / "hand" / "metrics.jsonl", loss=2.0, val_acc=0.5, val_loss=1.5)


def write_metrics(path: Path, **metrics: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": step, **metrics}) + "\n" for step in (1, 2)))


def written(call: Call, command: str, *options: object, code: int = 0) -> tuple[dict[str, Any], str]:
    """Return the file that is written for a command, and what is said."""
    err = call("init", "--command", command, "--out", "mine.yaml", *options, code=code).err
    return read_yaml(Path("mine.yaml")), err


# --- what is found ----------------------------------------------------------------------------------------------------

REST = "--weight-decay .1 --seed 0 --out runs/a"
PLACED = "--weight-decay {wd} --seed {seed} --out {out}"


@pytest.mark.parametrize(
    ("command", "expected", "centre"),
    [
        (f"python train.py --lr 3e-4 {REST}", f"python train.py --lr {{lr}} {PLACED}", (3e-4, 0.1)),
        ("python train.py --lr=3e-4 --wd=0.25 --seed=0 --out=runs/a",
         "python train.py --lr={lr} --wd={wd} --seed={seed} --out={out}", (3e-4, "2^-2")),
        (f"python train.py --learning-rate 0.015625 {REST}", f"python train.py --learning-rate {{lr}} {PLACED}", ("2^-6", 0.1)),
        ("python train.py --learning_rate=6e-4 --weight_decay=1e-1 --random_seed=0 --out_dir=out",
         "python train.py --learning_rate={lr} --weight_decay={wd} --random_seed={seed} --out_dir={out}", (6e-4, 0.1)),
        ("nice -n 1 python train.py -lr .5 -wd 2. --seed 0 --save-dir runs/a",
         "nice -n 1 python train.py -lr {lr} -wd {wd} --seed {seed} --save-dir {out}", ("2^-1", "2^1")),
        ("python train.py optim.lr=3e-4 +optim.weight_decay=0.1 seed=0 hydra.run.dir=runs/a",
         "python train.py optim.lr={lr} +optim.weight_decay={wd} seed={seed} hydra.run.dir={out}", (3e-4, 0.1)),
        ("python -m pkg.main fit --optimizer.lr 0.1 --optimizer.weight_decay 0.1 --seed_everything 0 --trainer.default_root_dir x",
         "python -m pkg.main fit --optimizer.lr {lr} --optimizer.weight_decay {wd} --seed_everything {seed} --trainer.default_root_dir {out}",
         (0.1, 0.1)),
        (f"bash train.sh --lr 1e-05 {REST}", f"bash train.sh --lr {{lr}} {PLACED}", (1e-5, 0.1)),
        ("python train.py optim.lr=[5e-4] wd=0.1 seed=0 output=runs/a",
         "python train.py optim.lr=[{lr}] wd={wd} seed={seed} output={out}", (5e-4, 0.1)),
        ("python train.py --lr 3e-4 --wd 0.1 --seed 0 --output runs/a/model.pt",
         "python train.py --lr {lr} --wd {wd} --seed {seed} --output {out}/model.pt", (3e-4, 0.1)),
        (f"python train.py --lr 3e-4 --min-lr 1e-5 --save 100 --betas 0.9,0.95 {REST}",
         f"python train.py --lr {{lr}} --min-lr 1e-5 --save 100 --betas 0.9,0.95 {PLACED}", (3e-4, 0.1)),
        (f"python train.py --lr 3e-4 --name 'a run; of mine' --note \"it's\" {REST}",
         f"python train.py --lr {{lr}} --name 'a run; of mine' --note 'it'\"'\"'s' {PLACED}", (3e-4, 0.1)),
        (f"python train.py --lr 3e-4 --model '{{\"width\": 8}}' {REST}",
         f"python train.py --lr {{lr}} --model '{{{{\"width\": 8}}}}' {PLACED}", (3e-4, 0.1)),
        (f"python train.py --lr 3e-4 --name für {REST}", f"python train.py --lr {{lr}} --name für {PLACED}", (3e-4, 0.1)),
        (f"python train.py \\\n  --lr 3e-4 \\\n  {REST}", f"python train.py --lr {{lr}} {PLACED}", (3e-4, 0.1)),
        (f"python train.py --lr 3e-4 --name {{seed}}-{{id}} {REST}", f"python train.py --lr {{lr}} --name {{seed}}-{{id}} {PLACED}", (3e-4, 0.1)),
        (f"python train.py --lr 3e-4 --head.lr 3e-4 {REST}", f"python train.py --lr {{lr}} --head.lr {{lr}} {PLACED}", (3e-4, 0.1)),
    ],
)  # fmt: skip
def test_numbers_and_the_folder_become_placeholders(
    command: str, expected: str, centre: tuple[object, object], call: Call, tmp_path: Path
) -> None:
    content, err = written(call, command)
    assert content["run"]["command"] == expected
    assert content["centre"] == dict(zip(("lr", "wd"), centre, strict=True))
    assert (content["lr"], content["wd"], content["seeds"]) == (AROUND, AROUND, [0, 1, 2])
    sweep_spec = load_sweep_spec(tmp_path / "mine.yaml")
    assert len(sweep_spec.recipe.argv) == len(shlex.split(command.replace("\\\n", " ")))
    assert len(sweep_spec.specs()) == 75
    assert "wrote mine.yaml: 75 runs to begin with" in err
    assert "no " not in err
    assert "`ettsweep try mine.yaml` sees in minutes" in err
    assert "`ettsweep grid --grid mine.yaml` trains it" in err


@pytest.mark.parametrize(
    ("argument", "placed", "centre", "offsets"),
    [
        ("--lr~'loguniform(1e-5, 1e-1)'", "--lr {lr}", "2^-10", [-7, 7]),
        ("--lr~'loguniform(1e-5, 1e-1, precision=3)'", "--lr {lr}", "2^-10", [-7, 7]),
        ("--lr~'choices([0.1, 0.01])'", "--lr {lr}", "2^-5", [-2, 2]),
        ("'lr~uniform(0.25, 1)'", "lr={lr}", "2^-1", [-1, 1]),
        ("'lr=[0.1,0.01]'", "lr={lr}", "2^-5", [-2, 2]),
        ("--multirun lr=1e-3,1e-2", "lr={lr}", "2^-8", [-2, 2]),
        ("-m optim.lr=0.5,1,2", "optim.lr={lr}", "2^0", [-1, 1]),
        ("'lr=interval(1e-5,1e-1)'", "lr={lr}", "2^-10", [-7, 7]),
        ("'lr=tag(log, interval(1e-5, 1e-1))'", "lr={lr}", "2^-10", [-7, 7]),
    ],
)
def test_ranges_and_lists_of_other_tools_are_ranges(
    argument: str, placed: str, centre: str, offsets: list[int], call: Call, tmp_path: Path
) -> None:
    content, _ = written(call, f"python train.py {argument} {REST}")
    assert content["run"]["command"] == f"python train.py {placed} {PLACED}"
    assert (content["centre"]["lr"], content["lr"]) == (centre, {"range": offsets, "step": 1})
    assert load_sweep_spec(tmp_path / "mine.yaml").lr.offsets()[0] == offsets[0]


def test_seeds_and_wd_have_lists_too_and_a_wd_of_zero_is_fixed(call: Call, tmp_path: Path) -> None:
    content, _ = written(call, "python train.py lr=0.1 wd=0,0.1,0.4 seed=3,5 out=x")
    assert (content["centre"]["wd"], content["wd"]) == ("2^-2", {"range": [-2, 1], "step": 1})
    assert content["seeds"] == [3, 5]
    content, err = written(call, "python train.py lr=0.1 wd=0 seed=7 out=x", "--force")
    assert (content["centre"]["wd"], content["wd"], content["seeds"]) == (0, "fixed", [7, 8, 9])
    assert "wd 0 has no log2" in err
    assert len(load_sweep_spec(tmp_path / "mine.yaml").specs()) == 15


def test_variables_before_the_command_are_its_environment(call: Call, tmp_path: Path) -> None:
    content, _ = written(call, f"OMP_NUM_THREADS=1 python train.py --lr 3e-4 {REST}")
    assert content["run"]["command"].startswith("python train.py")
    assert load_sweep_spec(tmp_path / "mine.yaml").recipe.env == {"OMP_NUM_THREADS": "1"}
    written(call, f"CONFIG='{{\"a\": 1}}' python train.py --lr 3e-4 {REST}", "--force")
    assert load_sweep_spec(tmp_path / "mine.yaml").recipe.env == {"CONFIG": '{{"a": 1}}'}
    refused = call("init", "--command", f"CUDA_VISIBLE_DEVICES=0 python train.py --lr 3e-4 {REST}", code=2).err
    assert "CUDA_VISIBLE_DEVICES is set for each run" in refused


def test_options_set_ranges_file_and_whether_one_is_replaced(call: Call, tmp_path: Path) -> None:
    command = ("init", "--command", f"python train.py --lr 3e-4 {REST}")
    err = call(*command, "--lr-range=-1:1", "--wd-range", "fixed").err
    assert "wrote train.yaml: 9 runs" in err
    assert "train.yaml exists already: --force overwrites it" in call(*command, code=2).err
    assert "75 runs" in call(*command, "--force").err
    (tmp_path / "grids").mkdir()
    assert "wrote grids/mine.yaml" in call(*command, "--out", "grids/mine.yaml").err
    recipe = load_sweep_spec(tmp_path / "grids" / "mine.yaml").recipe
    assert (recipe.workdir, recipe.run_folder.resolve()) == ("..", tmp_path)


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


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "python train.py --lr {lr} --wd {wd} --seed={seed} --epochs=3 --out={out}"),
        ({"command": ["${env}", "bash", "train.sh", "${program}", "${args_no_hyphens}"]},
         "bash train.sh train.py lr={lr} wd={wd} seed={seed} epochs=3 out={out}"),
        ({"parameters": WANDB["parameters"] | {"lr": {"distribution": "log_uniform", "min": -11.513, "max": -2.3026}}},
         "python train.py --lr {lr} --wd {wd} --seed={seed} --epochs=3 --out={out}"),
    ],
)  # fmt: skip
def test_a_sweep_file_is_the_command_that_it_starts(
    change: dict[str, Any], expected: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(WANDB | change, sort_keys=False))
    content, err = written(call, "sweep.yaml")
    assert content["run"]["command"] == expected
    assert content["run"]["score"] == {"name": "val/score", "mode": "max"}
    assert content["centre"] == {"lr": "2^-10", "wd": "2^-2"}
    assert (content["lr"]["range"], content["wd"]["range"]) == ([-7, 7], [-2, 1])
    assert load_sweep_spec(tmp_path / "mine.yaml").seeds == (0, 1, 2)
    assert "no reader" in err, "none sees that metric"


def test_a_sweep_file_may_search_for_the_unusual(call: Call, tmp_path: Path) -> None:
    sweep = WANDB | {"metric": {"name": "val_loss", "goal": "maximize"}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    content, _ = written(call, "sweep.yaml")
    assert content["run"]["score"] == {"name": "val_loss", "mode": "max!"}
    assert load_sweep_spec(tmp_path / "mine.yaml").recipe.metric.mode == "max"


def test_a_large_folder_is_not_looked_through(call: Call, tmp_path: Path) -> None:
    with (tmp_path / "corpus.txt").open("wb") as file:
        file.truncate(2**35)
    _, err = written(call, f"python train.py --lr 3e-4 {REST}")
    assert "no reader: " in err
    assert "no reader: " in written(call, f"python train.py --lr 3e-4 --seed 0 --out {'x' * 300}", "--force")[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": None}, "sweep.yaml: a sweep file of Weights & Biases is expected, with program and parameters"),
        ({"command": ["${program}", 8]}, "sweep.yaml: a sweep file of Weights & Biases is expected"),
        ({"command": ["${program}", "${args_json}"]}, "sweep.yaml: command: ${args_json} is not understood"),
        ({"parameters": {"lr": {"mu": 1}}}, "sweep.yaml: parameters: lr: value, values, or min and max are expected"),
        ({"parameters": {"lr": 0.1}}, "sweep.yaml: parameters: lr: value, values, or min and max are expected"),
        ({"parameters": {"lr": {"distribution": "log_uniform", "min": 1, "max": 9999}}}, "exponents are expected"),
        ({"parameters": {"lr": {"value": 0.1}, "batch": {"values": [8, 16]}}}, "--batch~choices(8, 16)"),
        ({"parameters": {"epochs": {"value": 3}}}, "no number of lr in the command"),
        ({"program": "", "command": ["${program}", "${args}"]}, "sweep.yaml: command: ${program} is not understood"),
    ],
)  # fmt: skip
def test_a_sweep_file_that_no_command_can_say_is_refused(
    change: dict[str, Any], message: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(WANDB | change, sort_keys=False))
    assert message in call("init", "--command", "sweep.yaml", "--out", "mine.yaml", code=2).err
    assert not (tmp_path / "mine.yaml").exists()


# --- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python train.py --lr 3e-4 --wd .1 --out x", "no seed in the command: add an option that sets it, and {seed}"),
        ("python train.py --lr 3e-4 --seed 0 --out x", "no wd in the command: it stays as the program has it"),
        ("python train.py --lr 3e-4 --wd .1 --seed 0", "no output folder in the command: add an option that sets it"),
        ("python train.py --lr 3e-4 --wd .1 --seed 0 --save", "no output folder in the command"),
    ],
)
def test_what_is_not_found_is_named_with_what_to_do(command: str, message: str, call: Call, tmp_path: Path) -> None:
    _, err = written(call, command)
    assert message in err
    assert sum(line.startswith("no ") for line in err.splitlines()) == 1
    text = (tmp_path / "mine.yaml").read_text()
    if "seed" not in message:
        assert load_sweep_spec(tmp_path / "mine.yaml").specs()
        return
    assert "# TODO: {seed} is missing" in text
    assert "fill in what mine.yaml has as TODO; then `ettsweep try" in err
    (tmp_path / "mine.yaml").write_text(text.replace("--out {out}", "--out {out} --seed {seed}"))
    assert len(load_sweep_spec(tmp_path / "mine.yaml").specs()) == 75


def test_many_runs_are_told_with_what_trains_fewer(call: Call) -> None:
    _, err = written(call, "python train.py lr=1e-7,1 wd=1e-7,1 seed=0 out=x")
    assert "`ettsweep search --grid mine.yaml` picks among them" in err


# --- reader and score -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "reader", "score"),
    [
        ({"runs/a/metrics.jsonl": {"loss": 1.0, "val_loss": 2.0}}, "jsonl", ("val_loss", "min")),
        ({"runs/a/metrics.jsonl": {"val_acc": 0.5, "val_step_s": 2.0}}, "jsonl", ("val_acc", "max")),
        ({"runs/a/metrics.jsonl": {"val_acc": 0.5, "val_perplexity": 9.0}}, "jsonl", ("val_perplexity", "min")),
        ({"log.jsonl": {"eval/loss": 0.5}}, "jsonl", ("eval/loss", "min")),
        ({"runs/a/train.log": "step 2000: train loss 3.2000, val loss 3.2782\n"}, "nanogpt", ("val_loss", "min")),
        ({"runs/a/summary.csv": "epoch,train_loss,eval_loss,eval_top1\n0,2,1,50\n1,1,1,60\n"}, "timm", ("eval_loss", "min")),
    ],
)  # fmt: skip
def test_a_run_made_by_hand_tells_reader_and_score(
    files: dict[str, Any], reader: str, score: tuple[str, str], call: Call, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "hand" / "metrics.jsonl").unlink()
    for name, content in files.items():
        if isinstance(content, dict):
            write_metrics(tmp_path / name, **content)
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
    content, err = written(call, f"python train.py --lr 3e-4 {REST}")
    assert content["run"]["reader"] == reader
    assert (content["run"]["score"]["name"], content["run"]["score"]["mode"]) == score
    assert f"reader {reader} sees {score[0]} in {next(iter(files))}" in err


@pytest.mark.parametrize(("metrics", "seen"), [({"loss": 1.0}, "jsonl see loss"), ({}, "")])
def test_a_score_that_no_reader_sees_is_to_be_filled_in(
    metrics: dict[str, float], seen: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "hand" / "metrics.jsonl").unlink()
    if metrics:
        write_metrics(tmp_path / "runs" / "a" / "metrics.jsonl", **metrics)
    content, err = written(call, f"python train.py --lr 3e-4 {REST}")
    assert not content["run"].keys() & {"reader", "score"}
    assert seen in err
    assert "no score: name it in mine.yaml" in err
    assert "`ettsweep read runs/a`" in err
    text = (tmp_path / "mine.yaml").read_text()
    assert "# TODO: the metric that verdicts compare" in text
    assert max(map(len, text.splitlines())) <= 120
    assert "score" in call("grid", "--grid", "mine.yaml", "--dry-run", code=2).err
    (tmp_path / "mine.yaml").write_text(text.replace("# score:", "score:").replace("# reader:", "reader:"))
    assert load_sweep_spec(tmp_path / "mine.yaml").recipe.score.name == "val_loss"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python train.py --epochs 3", "no number of lr in the command; `--lr 3e-4`"),
        ("python train.py --lr auto", "no number of lr in the command"),
        ("python train.py --lr {lr}", "no number of lr in the command"),
        ("python train.py --lr", "no number of lr in the command"),
        ("python train.py --lr '[1,2'", "no number of lr in the command"),
        ("python train.py --lr 1e999", "no number of lr in the command"),
        ("", "a command is expected, got nothing"),
        ("A=1", "the program and its arguments alone are expected"),
        ("orion hunt -n a python train.py --lr~'loguniform(1, 2)'", "the program and its arguments alone are expected"),
        ("python train.py --lr 3e-4 > log", "> (a redirection) needs a shell, and none is started; quote it, or write [bash"),
        ("python train.py --lr $LR", "$ (a variable) needs a shell"),
        ("cd src; python train.py --lr 1", "; (;) needs a shell"),
        ("python train.py --lr 3e-4 'a", "no closing quotation"),
        ("python train.py --lr 0", "lr: a positive number is expected, got 0"),
        ("python train.py --lr=-1", "lr: a positive number is expected, got -1"),
        ("python train.py --lr 1 --wd=-1 --seed 0", "wd: a number from 0 on is expected, got -1"),
        ("python train.py --lr 1 --wd {wd} --seed 0", "write the number of wd that the search begins with"),
        ("python train.py a.lr=1 b.lr=2", "a.lr=1 and b.lr=2 would be {lr}; leave one in the command"),
        ("python train.py --lr 1 --out a --save b", "--out a and --save b would be {out}"),
        ("python train.py --lr 1 --batch~'uniform(1, 8)'", "write one value in its place, such as --batch=VALUE"),
        ("python train.py --lr~'normal(0, 1)'", "loguniform, uniform and choices of lr, wd and seed are understood"),
        ("python nowhere.py --lr 1 --seed 0", "there is no file nowhere.py"),
        ("nosuchprogram --lr 1 --seed 0", "there is no program nosuchprogram here"),
        ("nowhere.yaml", "nowhere.yaml: no such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_refused_and_nothing_is_written(
    command: str, message: str, call: Call, tmp_path: Path
) -> None:
    assert message in call("init", "--command", command, "--out", "mine.yaml", code=2).err
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "vit-digits", "--task", "digits"], "--model, --task is for the models that ship; leave it out"),
        (["--data", "."], "--data is for the models that ship"),
        (["--strategy", "ntk"], "--strategy is for the models that ship"),
        (["--lr-range", "1:0"], "--lr-range: empty range: 1 is above 0"),
        (["--out", "."], "--out: . is a folder; name a file in it, such as train.yaml"),
        (["--out", "none/mine.yaml"], "--out: there is no folder none"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], message: str, call: Call) -> None:
    command = ("init", "--command", f"python train.py --lr 3e-4 {REST}")
    assert message in call(*command, *options, code=2).err


def test_a_range_of_wd_needs_one_in_the_command(call: Call) -> None:
    command = ("init", "--command", "python train.py --lr 3e-4 --seed 0 --out x")
    assert "--wd-range: no wd in the command" in call(*command, "--wd-range=-1:1", code=2).err
    call(*command, "--wd-range=fixed")


# --- the whole way ----------------------------------------------------------------------------------------------------

BOWL = '''"""A loss with its optimum at lr 1/4, and a little noise by seed."""
import argparse, json, math, os, random

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--out")
options = parser.parse_args()
os.makedirs(options.out, exist_ok=True)
value = 1 + 0.2 * (math.log2(options.lr) + 2) ** 2 + random.Random(options.seed).gauss(0, 0.001)
with open(os.path.join(options.out, "metrics.jsonl"), "w") as file:
    for step in (1, 2):
        file.write(json.dumps({"step": step, "loss": value, "val_loss": value + 1 / step}) + "\\n")
'''


@pytest.mark.usefixtures("process")
def test_what_is_written_trains_and_has_a_verdict(call: Call, results: Path, tmp_path: Path) -> None:
    (tmp_path / "bowl.py").write_text(BOWL)
    command = [sys.executable, "bowl.py", "--lr", "0.25", "--seed", "0", "--out", "runs/hand"]
    subprocess.run(command, check=True, cwd=tmp_path)
    err = call("init", "--command", shlex.join(command), "--lr-range=-1:1").err
    assert "reader jsonl sees val_loss in runs/hand/metrics.jsonl" in err
    call("grid", "--grid", "bowl.yaml", "--follow", "--results", results, "--launch-set", "slots=1")
    rows = status(results).values()
    assert {row["state"] for row in rows} == {"done"}
    assert len(rows) == 9
    (verdict,) = call("verify-optimum", "--results", results, "--format", "json").json
    assert (verdict["verdict"], verdict["lr"]) == ("optimal", 0.25)
