"""Images on two processes: a run on a folder of JPEG files, loaded by workers, is the run of one process."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ettsweep
from support.here import train_once
from support.made_runs import stop_at

from bench.waves import CLASSES, write_images
from ettsweep.files import read_lines
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.training.runtime_settings import RuntimeSettings

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
    values = ("--data", data, "--results", results)
    ettsweep("train", "--model", "vit-b16", "--strategy", "standard", *options, *values)
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
    item, single, log = train(tmp_path / "data", tmp_path / "one", "slots=1")
    together = ("slots=2", "devices_per_run=2", "trainer.loader_workers=1")
    two, shared, logs = train(tmp_path / "data", tmp_path / "two", *together)
    assert two == pytest.approx(item, rel=1e-4)
    assert single["run"] == shared["run"]
    assert single["execution"]["data"] == shared["execution"]["data"] != ""
    assert single["corrupt_images"] == shared["corrupt_images"] == len(damaged)
    for name in damaged:
        assert log.count(f"{name}: cannot be decoded") == 1
        assert logs.count(f"{name}: cannot be decoded") == 1


def test_a_run_that_goes_on_with_other_images_says_so(
    tmp_path: Path, make_spec: Callable[..., RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_images(tmp_path / "data", COUNTS, 48)
    shutil.copytree(tmp_path / "data", tmp_path / "other")
    for path in (tmp_path / "other").glob("train/*/*"):
        path.rename(path.with_stem(f"other{path.stem}"))
    model = {"image_size": 32, "patch_size": 8, "channels": 3}
    sizes = {"train_size": COUNTS["train"], "val_size": COUNTS["val"], "resize": 36}
    spec = make_spec(model=model, task={"kind": "imagenet", **sizes}, batch_size=20)
    run = RunDir.create(tmp_path / "results", spec)
    for name in ("data", "data", "other"):
        settings = RuntimeSettings(data=str(tmp_path / name), loader_workers=0)
        attempt = train_once(run, settings, stop_at(3))
        text = "from here on the run sees other images, or the same images in another order"
        assert (text in attempt.log_text()) == (name == "other")
