"""A trainable by its contract alone: named by a grid file, with fields and settings of its own, swept by local workers."""

import json
from pathlib import Path

import pytest
import yaml
from support.commandline import ettsweep, status
from support.fake import FakeRecipe, FakeSettings

from ettsweep.errors import InputError
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.profile import read_profile
from ettsweep.runs.contract import Settings, kind_named
from ettsweep.trainer.settings import TrainerSettings


def write_grid(path: Path, **block: object) -> Path:
    content = {
        "run": {"trainable": "fake", **block},
        "centre": {"lr": 2.0**-6, "wd": 2.0**-3},
        "lr": {"range": [-1, 1]},
        "wd": {"range": [-1, 1]},
        "seeds": [0, 1],
        "criterion": {"margin": "5%"},
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.usefixtures("process")
def test_a_trainable_is_swept_to_a_verdict(tmp_path: Path, results: Path) -> None:
    grid = write_grid(tmp_path / "fake.yaml")
    ettsweep("grid", grid, "--results", results, "--launch-set", "slots=2", "--follow")
    assert {row["state"] for row in status(results).values()} == {"done"}
    verdicts = json.loads(ettsweep("verify-optimum", "--results", results, "--follow", "--format", "json").stdout)
    assert [verdict["verdict"] for verdict in verdicts] == ["optimal"]
    best = FakeRecipe().end(2.0**-6, 2.0**-3, 0)
    run = next(row for row in status(results).values() if (row["log2_lr"], row["log2_wd"], row["seed"]) == (-6, -3, 0))
    assert run["best_score"] == pytest.approx(best + (4 - best) * 0.5**20)


def test_what_is_no_trainable_is_refused() -> None:
    with pytest.raises(InputError, match="unknown trainable 'fucntion'; did you mean 'function'"):
        kind_named("fucntion")


def test_fields_of_a_trainable_are_checked(tmp_path: Path, results: Path) -> None:
    grid = write_grid(tmp_path / "a.yaml", evry=3)
    done = ettsweep("grid", grid, "--results", results, code=2)
    assert "run: evry: unknown key; did you mean every?" in done.stderr


@pytest.mark.usefixtures("process")
def test_a_trainable_has_settings_of_its_own_in_a_launch_profile(tmp_path: Path, results: Path) -> None:
    grid, profile = write_grid(tmp_path / "a.yaml"), tmp_path / "mine.yaml"
    profile.write_text("slots: 1\ndevices: cpu\ntrainer: {trainable: fake}\n")
    values = ["grid", grid, "--results", results, "--launch", profile]
    ettsweep(*values, "--launch-set", "trainer.greeting=hello", "--follow")
    run = next((results / "runs").iterdir())
    assert "greeting 'hello'" in (run / "attempts" / "0001" / "log.txt").read_text()
    refused = {
        "trainer.greting=hello": "trainer.greting: unknown key; did you mean trainer.greeting?",
        "trainer.ensemble=8": "trainer.ensemble: unknown key; known: greeting, loaders",
        "trainer.loaders=100000": "trainer.loaders: 100000 are too many",
        "trainer.trainable=flake": "trainer: unknown trainable 'flake'; did you mean 'fake'?",
    }
    for override, message in refused.items():
        error = ettsweep(*values, "--launch-set", override, code=2).stderr
        assert message in error
        assert f"--launch-set {override}: " in error


def test_runs_take_the_settings_of_their_own_trainable_alone() -> None:
    profile = LocalProfile(trainer=TrainerSettings(ensemble=8))
    assert profile.settings(TrainerSettings).ensemble == 8
    assert profile.settings(FakeSettings) == FakeSettings()
    assert profile.settings(Settings) == Settings()
    stored = LocalProfile(trainer=FakeSettings(greeting="hello"))
    assert read_profile("local", stored.model_dump(mode="json"), "submission.json") == stored
