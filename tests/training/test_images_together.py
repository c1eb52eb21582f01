"""Images on two processes: a run on a folder of JPEG files, loaded by workers, is the run of one process."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ettsweep
from support.waves import CLASSES, write_images

from ettsweep.files import read_lines

COUNTS = {"train": 60, "val": 30}
SMALL = {
    **{"model.classes": CLASSES, "model.width": 16, "model.heads": 2, "model.depth": 1},
    **{"model.image_size": 32, "model.patch_size": 8, "task.resize": 36, "task.mixup_chunk": 8},
    **{"task.train_size": COUNTS["train"], "task.val_size": COUNTS["val"]},
    **{"batch_size": 20, "precision": "fp32", "schedule.epochs": 2, "schedule.warmup_steps": 2},
}


def train(data: Path, results: Path, *launch: str) -> tuple[list[float], dict[str, Any], str]:
    """Return the losses of a run on the images of a folder, its result, and what it logged."""
    options = [f"--set={key}={value}" for key, value in SMALL.items()]
    options += [f"--launch-set={option}" for option in launch]
    where = ("--data", data, "--results", results)
    ettsweep("train", "--model", "vit-b16", "--strategy", "standard", *options, *where)
    (run,) = (results / "runs").iterdir()
    losses = [line["loss"] for line in read_lines(run / "metrics.jsonl") if "loss" in line]
    return (
        losses,
        json.loads((run / "result.json").read_text()),
        ettsweep("logs", run.name, "--results", results).stdout,
    )


@pytest.mark.slow
def test_two_processes_with_loaders_train_as_one_and_name_every_damaged_image(tmp_path: Path) -> None:
    write_images(tmp_path / "data", COUNTS, 40)
    damaged = [f"n{label:02}/0.jpg" for label in range(4)]
    for name in damaged:
        path = tmp_path / "data" / "train" / name
        path.write_bytes(path.read_bytes()[:300])
    one, alone, log = train(tmp_path / "data", tmp_path / "one", "slots=1")
    together = ("slots=2", "devices_per_run=2", "loader_workers=1")
    two, shared, logs = train(tmp_path / "data", tmp_path / "two", *together)
    assert two == pytest.approx(one, rel=1e-4)
    assert alone["run"] == shared["run"]
    assert alone["execution"]["data"] == shared["execution"]["data"] != ""
    assert alone["corrupt_images"] == shared["corrupt_images"] == len(damaged)
    for name in damaged:
        assert log.count(f"{name}: cannot be decoded") == 1
        assert logs.count(f"{name}: cannot be decoded") == 1
