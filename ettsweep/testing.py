"""Tests of a trainable or a reader, for whoever writes one: pytest runs them in a subclass that has it.

from ettsweep.testing import ReaderSuite, TrainableSuite

class TestMine(TrainableSuite):
recipe = Mine(steps=20)

class TestMyReader(ReaderSuite):
reader = "mine"
recorded = Path("a-run-of-mine")
first, last = {"step": 1, "val_loss": 3.21}, {"step": 20}
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ettsweep.files import Json
from ettsweep.launch.profile import LocalProfile, Slot
from ettsweep.readers.found_files import natural_key
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.readers.registry import reader_of
from ettsweep.readers.source import MetricSource
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec, StrategySpec, validated_spec
from ettsweep.runs.state import LocalLiveness
from ettsweep.runs.stop import StopReason
from ettsweep.runs.trainable import Trainable
from ettsweep.runs.trainables import TRAINABLES, trainable_class
from ettsweep.worker.in_process import train_attempt
from ettsweep.worker.work_list import WorkList

HEAVY = ("torch", "tensorflow", "jax", "pandas", "optuna")
"""Packages that would make each command slow to start."""


class TrainableSuite:
    """Tests that hold a trainable to its contract.

    Attributes:
        recipe: a small one: it is trained several times.
        lr, wd: a point at which it does not diverge.
        data: location of its data, if it needs any.
        resumes: whether it saves checkpoints, and a run that is resumed records what one records that never stopped.
    """

    recipe: ClassVar[Trainable]
    lr: ClassVar[float] = 2.0**-6
    wd: ClassVar[float] = 0.0
    data: ClassVar[str | None] = None
    resumes: ClassVar[bool] = True

    @pytest.fixture(autouse=True)
    def _is_registered(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Have run folders find the class by its name, whether it is installed or not."""
        cls = type(self.recipe)
        monkeypatch.setitem(TRAINABLES, self.recipe.trainable, f"{cls.__module__}:{cls.__qualname__}")
        trainable_class.cache_clear()
        yield
        trainable_class.cache_clear()

    def spec(self, seed: int = 0) -> RunSpec:
        """Return the spec of a run."""
        return RunSpec.of(self.recipe, StrategySpec(s=None), self.lr, self.wd, seed)

    def train(self, results: Path, stop_after: int | None = None, seed: int = 0) -> RunDir:
        """Train a run in a results folder, or take it up again; stop it after it has looked so often."""
        run = RunDir.create(results, self.spec(seed))
        numbers = run.attempt_numbers()
        attempt = run.claim({}, after=numbers[-1] if numbers else 0)
        assert attempt is not None, f"{run.path} has an owner"
        stop_source: Any = _Stops(stop_after)
        data = {self.recipe.data_kind: self.data} if self.data else {}
        slot, profile = Slot("cpu-0", "cpu", None, 1), LocalProfile(devices="cpu")
        train_attempt(run, attempt, WorkList([run], slot, profile, data, stop_source, LocalLiveness(), {}))
        failure = attempt.failure()
        assert failure is None or failure["kind"] == "interrupted", (failure["reason"], failure.get("details"))
        return run

    def test_its_module_is_quick_to_import(self) -> None:
        """Commands that train nothing import it: no heavy package may come along."""
        module = type(self.recipe).__module__
        code = f"import sys, {module}; print(*sys.modules)"
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        completed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=False, env=env
        )
        assert completed.returncode == 0, completed.stderr
        heavy = sorted({name.partition(".")[0] for name in completed.stdout.split()} & set(HEAVY))
        assert not heavy, f"{module} imports {', '.join(heavy)}; import what training needs inside `train`"

    def test_what_planner_and_views_ask_for_is_there(self) -> None:
        recipe = self.recipe
        assert recipe.metric.mode in ("min", "max")
        assert recipe.labels.model
        assert recipe.steps is None or recipe.steps > 0
        hash(self.spec().recipe_key)
        assert recipe.settings().trainable in ("", recipe.trainable)

    def test_a_spec_is_the_same_after_it_was_written_and_read(self) -> None:
        spec = self.spec()
        again = validated_spec(json.loads(spec.model_dump_json()), "spec.json")
        assert again == spec
        assert again.run_id == spec.run_id

    def test_ids_tell_seeds_and_points_apart(self) -> None:
        spec = self.spec()
        assert len({spec.run_id, self.spec(seed=1).run_id, spec.with_point(2 * self.lr, self.wd, 0).run_id}) == 3
        assert spec.family_id == self.spec(seed=1).family_id

    def test_a_run_records_its_score(self, tmp_path: Path) -> None:
        result = self.train(tmp_path).result()
        assert result is not None, "it ended without a result"
        assert result["status"] == "done", "choose a point at which it does not diverge"
        assert isinstance(result["score"], float)
        if self.recipe.steps:
            assert result["steps"] <= self.recipe.steps

    def test_seeds_differ(self, tmp_path: Path) -> None:
        """Else the spread over seeds, on which every verdict rests, would be zero."""
        first, second = (self.train(tmp_path, seed=seed).result() for seed in (0, 1))
        assert first is not None
        assert second is not None
        assert first["score"] != second["score"], "two seeds have the same score: is the seed used?"

    def test_a_run_that_is_stopped_and_resumed_records_the_same(self, tmp_path: Path) -> None:
        if not self.resumes:
            return
        expected = self.train(tmp_path / "alone").metrics_path.read_bytes()
        run, stops = self.train(tmp_path / "stopped", stop_after=3), 1
        assert run.result() is None, "it went on although `run.stop` said why to stop"
        while run.result() is None:
            stops += 1
            assert stops < 20, "it never comes to its end"
            run = self.train(tmp_path / "stopped", stop_after=3 * 2**stops)
        assert any(run.attempt(n).resumed_from()[1] for n in run.attempt_numbers()), "it never saved what was resumed"
        assert run.metrics_path.read_bytes() == expected, "what it stores does not suffice to go on as if never stopped"


class _Stops:
    """A source of stops that says so once it has been looked at so often."""

    def __init__(self, after: int | None) -> None:
        self._left = after
        self.stop_reason = ""

    def restore(self) -> bool:
        """Return whether handlers of signals were replaced: there are none here."""
        return False

    def make_poll(self, *_: object) -> Any:
        """Return what a run calls to learn whether to stop."""

        def poll() -> StopReason | None:
            if self._left is None:
                return None
            self._left -= 1
            return StopReason.TERMINATED if self._left < 0 else None

        return poll


class ReaderSuite:
    """Tests that hold a reader to what a recorded run has, however it was written.

    Attributes:
        reader: its name, or all that `reader:` of a grid file may be.
        recorded: what a run left: its folder, or the log of its command.
        first, last: what the first and the last row have at least, with `step`.
    """

    reader: ClassVar[str | dict[str, Any] | Reader]
    recorded: ClassVar[Path]
    first: ClassVar[Json]
    last: ClassVar[Json]

    def files(self) -> dict[str, bytes]:
        """Return what was recorded, by relative path in the order of writing; a log is `output`."""
        if self.recorded.is_file():
            return {OUTPUT: self.recorded.read_bytes()}
        paths = [path for path in self.recorded.rglob("*") if path.is_file()]
        names = sorted((path.relative_to(self.recorded).as_posix() for path in paths), key=natural_key)
        return {name: (self.recorded / name).read_bytes() for name in names}

    def source(self, folder: Path) -> MetricSource:
        """Return a source of a run in a folder."""
        return MetricSource(reader_of(self.reader), folder / "run", folder / OUTPUT)

    def write(self, folder: Path, files: dict[str, bytes]) -> None:
        """Write files of a run, each a second after the one before."""
        for second, (name, data) in enumerate(files.items()):
            path = folder / OUTPUT if name == OUTPUT else folder / "run" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (second, second))

    def rows(self, folder: Path, files: dict[str, bytes]) -> list[Json]:
        """Return the rows of files that are there from the start."""
        self.write(folder, files)
        return _comparable(self.source(folder).rows(final=True))

    def is_text(self) -> bool:
        """Return whether the files are text."""
        return reader_of(self.reader).kind != "tensorboard"

    def test_it_reads_what_was_recorded(self, tmp_path: Path) -> None:
        rows = self.rows(tmp_path, self.files())
        assert rows, self.source(tmp_path).seen()
        for row, expected in ((rows[0], self.first), (rows[-1], self.last)):
            assert {name: row.get(name) for name in expected} == expected

    def test_it_reads_the_same_while_files_grow(self, tmp_path: Path) -> None:
        """A file that grows by some bytes at a time is cut at every kind of place."""
        expected = self.rows(tmp_path / "whole", self.files())
        written, rows, source = dict[str, bytes](), [], self.source(tmp_path)
        for name, data in self.files().items():
            part = max(7, len(data) // 300)
            for end in range(0, len(data) + part, part):
                written[name] = data[:end]
                self.write(tmp_path, written)
                rows += source.rows()
        assert _comparable(rows + source.rows(final=True)) == expected

    def test_it_leaves_out_what_was_there_before_it_began(self, tmp_path: Path) -> None:
        whole, files = self.rows(tmp_path / "whole", self.files()), self.files()
        before = self._half(files)
        earlier = self.rows(tmp_path, before)
        source = self.source(tmp_path)
        source.begin()
        assert source.rows() == []
        self.write(tmp_path, files)
        assert earlier + _comparable(source.rows(final=True)) == whole
        assert source.rows(final=True) == []

    def _half(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """Return what an attempt had written when it was stopped, in the middle: whole lines, or whole documents."""
        left, half = sum(map(len, files.values())) // 2, dict[str, bytes]()
        for name, data in files.items():
            if len(data) > left:
                if reader_of(self.reader).kind != "json":
                    half[name] = data[: data.rfind(b"\n", 0, left) + 1]
                break
            half[name], left = data, left - len(data)
        return half

    def test_it_reads_lines_with_carriage_returns(self, tmp_path: Path) -> None:
        if self.is_text():
            files = self.files()
            windows = {name: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for name, data in files.items()}
            assert self.rows(tmp_path / "windows", windows) == self.rows(tmp_path / "as-it-is", files)


def _comparable(rows: list[Json]) -> list[Json]:
    """Return rows with nan as text, which is equal to itself."""
    return [{name: "nan" if value != value else value for name, value in row.items()} for row in rows]
