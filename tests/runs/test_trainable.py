"""Trainables of others: held to the contract, found as plugins and as installed packages, swept by local workers."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.commandline import ettsweep, status, typed, wait_for
from support.fake import FakeRecipe, FakeSettings

from ettsweep.errors import InputError
from ettsweep.launch.profile import LocalProfile, read_profile
from ettsweep.runs import trainables
from ettsweep.runs.trainable import Settings, Trainable
from ettsweep.runs.trainables import trainable_class, trainable_names
from ettsweep.testing import TrainableSuite
from ettsweep.trainer.settings import TrainerSettings

SUPPORT = Path(__file__).parents[1]


class TestFake(TrainableSuite):
    recipe = FakeRecipe()


@pytest.fixture(autouse=True)
def _fresh_registry() -> Iterator[None]:
    for function in (trainables._added_trainables, trainable_class):
        function.cache_clear()
    yield
    for function in (trainables._added_trainables, trainable_class):
        function.cache_clear()


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
def test_a_plugin_is_swept_to_a_verdict(tmp_path: Path, results: Path) -> None:
    grid = write_grid(tmp_path / "fake.yaml")
    ettsweep("grid", "--grid", grid, "--results", results, "--launch-set", "slots=2", "--follow")
    assert {row["state"] for row in status(results).values()} == {"done"}
    verdicts = json.loads(ettsweep("verify-optimum", "--results", results, "--follow", "--format", "json").stdout)
    assert [verdict["verdict"] for verdict in verdicts] == ["optimal"]
    best = FakeRecipe().end(2.0**-6, 2.0**-3, 0)
    run = next(row for row in status(results).values() if (row["log2_lr"], row["log2_wd"], row["seed"]) == (-6, -3, 0))
    assert run["best_score"] == pytest.approx(best + (4 - best) * 0.5**20)


@pytest.mark.usefixtures("process")
def test_an_installed_package_adds_a_trainable_and_a_launch_profile(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "outside" / "profiles").mkdir(parents=True)
    (site / "outside" / "__init__.py").write_text("")
    (site / "outside" / "profiles" / "ours.yaml").write_text("kind: local\nslots: 1\ndevices: cpu\n")
    source = (SUPPORT / "support" / "fake.py").read_text().replace('"fake"', '"outside"')
    (site / "outside" / "recipe.py").write_text(source)
    metadata = site / "outside-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[ettsweep.trainables]\noutside = outside.recipe:FakeRecipe\n\n"
        "[ettsweep.launch_profiles]\noutside = outside.profiles\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))
    grid = write_grid(tmp_path / "outside.yaml", trainable="outside")
    typed("grid", "--grid", grid, "--results", results, "--launch", "ours")
    rows = wait_for(
        lambda: [
            row for row in json.loads(typed("status", "--results", results, "--format", "json").stdout)
            if row["state"] == "done"
        ][17:],
        "the runs",
    )  # fmt: skip
    assert rows[0]["model"] == "outside"


def test_what_is_no_trainable_is_refused(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown trainable 'fucntion'; did you mean 'function'"):
        trainable_class("fucntion")
    for plugin, problem in (("support.no_such", "cannot be imported"), ("support.toy", "has no subclass of Trainable")):
        trainables._added_trainables.cache_clear()
        monkeypatch.setenv("ETTSWEEP_PLUGINS", plugin)
        with pytest.raises(InputError, match=problem):
            trainable_names()
    monkeypatch.delenv("ETTSWEEP_PLUGINS")
    trainables._added_trainables.cache_clear()
    done = ettsweep("grid", "--grid", write_grid(tmp_path / "a.yaml"), "--results", results, code=2)
    assert "unknown trainable 'fake'" in done.stderr


def test_fields_of_a_trainable_are_checked(tmp_path: Path, results: Path) -> None:
    grid = write_grid(tmp_path / "a.yaml", evry=3)
    done = ettsweep("grid", "--grid", grid, "--results", results, code=2)
    assert "run: evry: unknown key; did you mean every?" in done.stderr


@pytest.mark.usefixtures("process")
def test_a_trainable_has_settings_of_its_own_in_a_launch_profile(tmp_path: Path, results: Path) -> None:
    grid, profile = write_grid(tmp_path / "a.yaml"), tmp_path / "mine.yaml"
    profile.write_text("slots: 1\ndevices: cpu\ntrainer: {trainable: fake}\n")
    values = ["grid", "--grid", grid, "--results", results, "--launch", profile]
    ettsweep(*values, "--launch-set", "trainer.greeting=hello", "--follow")
    run = next((results / "runs").iterdir())
    assert "greeting 'hello'" in (run / "attempts" / "0001" / "log.txt").read_text()
    refused = {
        "trainer.greting=hello": "trainer.greting: unknown key; did you mean trainer.greeting?",
        "trainer.pack=8": "trainer.pack: unknown key; known: greeting, loaders",
        "trainer.loaders=100000": "trainer.loaders: 100000 are too many",
        "trainer.trainable=flake": "trainer: unknown trainable 'flake'; did you mean 'fake'?",
    }
    for override, message in refused.items():
        error = ettsweep(*values, "--launch-set", override, code=2).stderr
        assert message in error
        assert f"--launch-set {override}: " in error


def test_runs_take_the_settings_of_their_own_trainable_alone() -> None:
    profile = LocalProfile(trainer=TrainerSettings(pack=8))
    assert profile.settings(TrainerSettings).pack == 8
    assert profile.settings(FakeSettings) == FakeSettings()
    assert profile.settings(Trainable.settings) == Settings()
    stored = LocalProfile(trainer=FakeSettings(greeting="hello"))
    assert read_profile("local", stored.model_dump(mode="json"), "submission.json") == stored
