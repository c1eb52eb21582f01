"""The paper's vision experiment in small: the grid that ships, its whole recipe, a few hundred JPEG files, one CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ettsweep

from bench.waves import CLASSES, write_images
from ettsweep.files import read_lines

COUNTS = {"train": 320, "val": 400}
SMALL = {
    **{"model.classes": CLASSES, "model.width": 32, "model.heads": 4, "model.depth": 1},
    **{"model.image_size": 32, "model.patch_size": 8, "task.resize": 36},
    **{"task.train_size": COUNTS["train"], "task.val_size": COUNTS["val"], "task.mixup_chunk": 16},
    **{"batch_size": 32, "schedule.epochs": 8, "schedule.warmup_epochs": 2},
}
"""What is smaller than in the paper; precision, augmentation and all else are its own."""


@pytest.mark.slow
@pytest.mark.usefixtures("process", "warm")
def test_from_jpeg_files_to_a_verdict(tmp_path: Path, results: Path) -> None:
    write_images(tmp_path / "data", COUNTS, 40)

    def command(*arguments: object, code: int = 0) -> Any:
        output = ettsweep(*arguments, "--results", results, "--format", "json", code=code, cwd=tmp_path)
        return json.loads(output.stdout) if output.stdout else output.stderr

    sets = [f"--set={key}={value}" for key, value in SMALL.items()]
    grid = ("grid", "--model", "vit-b16", "--strategy", "ntk", "--range=lr=-6:0:3", "--range=wd=fixed")
    values = (*grid, "--rule", "paper", *sets)
    assert "3 of 3 runs finished" in command(
        *values, "--data", "data", "--launch-set=trainer.loader_workers=1", "--follow"
    )
    assert {row["lr"] for row in command("status")} == {20 / 64, 20 / 8, 20}

    # The data, the profile and the recipe are remembered: what follows needs to be told none of them.
    (actual,) = command("verify-optimum", "--follow")
    scores = {row["lr"]: row["best_score"] for row in command("status")}
    assert actual["verdict"] == "optimal"
    assert {n["lr"] for n in actual["neighbours"]} == {actual["lr"] / 8, actual["lr"] * 8} < scores.keys()
    assert actual["score"] == scores[actual["lr"]] == max(scores.values()) > 2 / CLASSES

    for row in command("status"):
        folder = results / "runs" / row["run"]
        result = json.loads((folder / "result.json").read_text())
        assert (result["steps"], result["corrupt_images"]) == (80, 0)
        metrics = list(read_lines(folder / "metrics.jsonl"))
        assert all("loss_scale" in line for line in metrics if "loss" in line), "fp16, as in the paper"
        evaluated = [line["val_accuracy"] * COUNTS["val"] for line in metrics if "val_accuracy" in line]
        assert len(evaluated) == 8
        assert evaluated == pytest.approx([round(count) for count in evaluated]), "each image counts once"
        timings = list(read_lines(folder / "attempts" / "0001" / "timings.jsonl"))
        assert all(line["samples_per_s"] > 0 and line["step_s"] > 0 and 0 <= line["data_wait"] <= 1 for line in timings)


@pytest.mark.slow
def test_two_processes_with_loaders_train_as_one_and_name_every_damaged_image(tmp_path: Path) -> None:
    write_images(tmp_path / "data", COUNTS, 40)
    damaged = [f"n{label:02}/0.jpg" for label in range(4)]
    for name in damaged:
        path = tmp_path / "data" / "train" / name
        path.write_bytes(path.read_bytes()[:300])
    sets = [f"--set={key}={value}" for key, value in (SMALL | {"precision": "fp32", "schedule.epochs": 3}).items()]
    train = ("train", "--model", "vit-b16", "--strategy", "standard", *sets, "--data", tmp_path / "data")
    losses, results = list[list[float]](), list[dict[str, Any]]()
    for folder, launch in (
        ("one", ["slots=1"]),
        ("two", ["slots=2", "devices_per_run=2", "trainer.loader_workers=1"]),
    ):
        ettsweep(*train, "--results", tmp_path / folder, *(f"--launch-set={option}" for option in launch))
        (run,) = (tmp_path / folder / "runs").iterdir()
        losses.append([line["loss"] for line in read_lines(run / "metrics.jsonl") if "loss" in line])
        results.append(json.loads((run / "result.json").read_text()))
        log = ettsweep("logs", run.name, "--results", tmp_path / folder).stdout
        assert [log.count(f"{name}: cannot be decoded") for name in damaged] == [1] * len(damaged)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    for key in ("run", "corrupt_images"):
        assert results[0][key] == results[1][key]
    assert results[0]["execution"]["data"] == results[1]["execution"]["data"] != ""


def test_data_that_no_run_could_train_on_are_refused_before_anything_is_submitted(
    tmp_path: Path, results: Path
) -> None:
    message = "data: the data have 10 classes, the model has 4: --set model.classes=10"
    write_images(tmp_path / "data", {"train": 20, "val": 10}, 16)
    right = SMALL | {"task.train_size": 20, "task.val_size": 10, "batch_size": 4}
    sets = [f"--set={key}={value}" for key, value in right.items()]
    values = ("grid", "--model", "vit-b16", *sets, "--set=model.classes=4", "--data", "data", "--results", results)
    assert message in ettsweep(*values, code=1, cwd=tmp_path).stderr
    assert not results.exists()
    assert (
        f"cannot be submitted yet: task images: {tmp_path}/{message}"
        in ettsweep(*values, "--dry-run", cwd=tmp_path).stderr
    )
