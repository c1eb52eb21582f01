"""A sweep as Optuna's tools read it: one study for each strategy, in a journal beside the sweep's files.

    sweeps/<name>/study.journal    lines of JSON that Optuna's JournalStorage reads; there is no pickle in it

The journal is output: what is known of runs is read from their folders, and the journal is read only to see how much of
that it says already. What it lacks is appended, and seen by a dashboard that is open. Where it says something else, for
instance of a point that has one more seed by now, all of it is written anew.
"""

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from ettsweep.errors import CorruptError, InputError, error_line
from ettsweep.files import Json, dumps, loads, storage_errors, write_atomic
from ettsweep.output import count
from ettsweep.runs.folder import sweeps_dir
from ettsweep.runs.state import State
from ettsweep.sweep.ledger import Ledger, Run
from ettsweep.sweep.look import Look
from ettsweep.sweep.samplers import quiet
from ettsweep.sweep.search import Point, Search
from ettsweep.sweep.sweeps import Sweep, load_sweeps
from ettsweep.sweep.verify import looks
from ettsweep.tasks.kinds import Score

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import FloatDistribution
    from optuna.storages.journal import BaseJournalBackend as Backend
    from optuna.trial import FrozenTrial
else:
    Backend = object  # Optuna is imported once it is needed

VERSION = 1
"""Of what studies say, and how; a journal of a later version is not guessed at."""

FORMAT = "ettsweep format"
"""The attribute of a study that has the version."""

LOCK = ".lock"
"""Ends the name of what Optuna makes, exclusively, beside a journal before it appends to it."""

STALE_S = 10.0
"""Seconds after which whoever holds that lock is taken for dead; to write takes a fraction of one."""


# --- what is told ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """A point as one trial, over all its seeds.

    Attributes:
        params: its values along the free axes.
        state: the name of Optuna's.
        value: the mean score; of a point that diverged, the worst of all; None where there is none.
        attrs: what else is known of it.
        first: the run of its first seed, whose curve the trial has.
    """

    params: Mapping[str, float]
    state: str
    value: float | None
    attrs: Json
    first: Run

    def trial(self, space: "dict[str, FloatDistribution]", curve: dict[int, float]) -> "FrozenTrial":
        """Return it for Optuna."""
        from optuna.trial import TrialState, create_trial

        return create_trial(
            state=TrialState[self.state],
            value=self.value,
            params=dict(self.params),
            distributions=dict(space),
            user_attrs=self.attrs,
            intermediate_values=curve,
        )

    def is_told_by(self, trial: "FrozenTrial") -> bool:
        """Say whether a trial, of the same place, says the same; its curve is that of the same run."""
        said = trial.state.name, trial.value, trial.user_attrs
        return said == (self.state, self.value, self.attrs)


@dataclass(frozen=True)
class Study:
    """A family as a study.

    Attributes:
        attrs: what is known of the family, the values of fixed axes too.
        space: the ranges of the free axes.
    """

    name: str
    measure: Score
    attrs: Json
    space: "dict[str, FloatDistribution]"
    points: tuple[Told, ...]

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """What is best, as Optuna says it."""
        return "minimize" if self.measure.mode == "min" else "maximize"

    def lacking(self, trials: "Sequence[FrozenTrial]") -> list[Told] | None:
        """Return the points that are not among some trials; None where one of these says what is not so."""
        left = {_place(point.params): point for point in self.points}
        for trial in trials:
            point = left.pop(_place(trial.params), None)
            if point is None or trial.distributions != self.space or not point.is_told_by(trial):
                return None
        return list(left.values())


def _place(params: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(params.items()))


def studies(sweep: Sweep, ledger: Ledger) -> list[Study]:
    """Return one study for each strategy of a sweep: the points that have a result, or were pruned.

    Those that proposers named come first to last, then all others by lr and wd.
    """
    return [_study(look, sweep.samplers(look.search)) for look in looks(sweep.searches, ledger)]


def _study(look: Look, samplers: Mapping[Point, str]) -> Study:
    search, runs = look.search, look.runs()
    others = sorted(runs.keys() - samplers.keys(), key=tuple)
    shown = {point: found for point in (*samplers, *others) if (found := _shown(runs.get(point, ())))}
    means = [mean for found in shown.values() if (mean := _mean(found)) is not None]
    worst = max(means, key=search.measure.rank, default=None)
    points = tuple(_told(search, point, found, worst, samplers.get(point)) for point, found in shown.items())
    fixed = {name: getattr(search.centre, name) for name in ("lr", "wd") if name not in _free(search)}
    about = {"sweep": search.sweep, "family": search.family, "metric": search.measure.metric}
    return Study(search.title, search.measure, {FORMAT: VERSION, **about, **fixed}, _space(search, shown), points)


def _shown(runs: Sequence[Run]) -> list[Run]:
    """Return the finished runs of a point, lowest seed first; where there is none, those that were pruned."""
    in_order = sorted(runs, key=lambda run: run.spec.seed)
    finished = [run for run in in_order if run.state.finished]
    return finished or [run for run in in_order if run.state is State.PRUNED]


def _mean(runs: Sequence[Run]) -> float | None:
    """Return the mean score of some runs; None where one of them has none."""
    scores = [run.score for run in runs if run.score is not None]
    return fmean(scores) if len(scores) == len(runs) else None


def _told(search: Search, point: Point, runs: Sequence[Run], worst: float | None, sampler: str | None) -> Told:
    params = {name: getattr(point, name) for name in _free(search)}
    attrs: Json = {"runs": [run.id for run in runs], "seeds": [run.spec.seed for run in runs]}
    attrs |= {"proposed by": sampler} if sampler else {}
    if runs[0].state is State.PRUNED:
        return Told(params, "PRUNED", None, attrs | {"pruned": runs[0].status.reason}, runs[0])
    attrs["scores"] = [run.score for run in runs]
    if (mean := _mean(runs)) is not None:
        return Told(params, "COMPLETE", mean, attrs, runs[0])
    return Told(params, "FAIL" if worst is None else "COMPLETE", worst, attrs | {"diverged": True}, runs[0])


def _free(search: Search) -> list[str]:
    return [name for name, axis in (("lr", search.lr), ("wd", search.wd)) if not axis.fixed]


def _space(search: Search, points: Collection[Point]) -> "dict[str, FloatDistribution]":
    """Return ranges that hold all points, and those that may be proposed."""
    from optuna.distributions import FloatDistribution

    within = (*search.box, *search.asked, *points)
    along = {name: [getattr(point, name) for point in within] for name in _free(search)}
    return {name: FloatDistribution(min(values), max(values), log=True) for name, values in along.items()}


# --- the journal ----------------------------------------------------------------------------------------------------


class _Lines(Backend):
    """The lines of a journal, in memory.

    Attributes:
        whole: whether the last one is; a kill may have cut it.
    """

    def __init__(self, lines: Sequence[Json] = (), whole: bool = True) -> None:
        self.lines = list(lines)
        self.whole = whole

    @classmethod
    def of(cls, data: bytes) -> "_Lines":
        """Parse a file.

        Raises:
            ValueError: a line is no JSON.
        """
        *lines, cut = data.split(b"\n")
        return cls([_parsed(number, line) for number, line in enumerate(lines, 1)], not cut)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the lines from one on, as Optuna asks for them."""
        yield from self.lines[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Take lines that Optuna writes."""
        self.lines += logs

    def text(self, first: int = 0) -> str:
        """Return the lines from one on as a file has them."""
        return "".join(dumps(line) + "\n" for line in self.lines[first:])


def _parsed(number: int, line: bytes) -> Json:
    try:
        parsed = loads(line)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"line {number} is no JSON object")
    return parsed


@dataclass
class Journal:
    """The journal of a sweep, which is brought up to date whenever there is more to tell.

    Attributes:
        name: the sweep's.
    """

    results: Path
    name: str
    _curves: dict[tuple[str, State], dict[int, float]] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> Path:
        return sweeps_dir(self.results) / self.name / "study.journal"

    def check(self) -> None:
        """Check that the journal that is there, if one is, may be written to.

        Raises:
            InputError: it has a study of another sweep, of somebody else, or of a later version.
            CorruptError: it cannot be read.
        """
        sweep = load_sweeps(self.results).named.get(self.name, Sweep(self.name))
        self._read(sweep)

    def write(self, ledger: Ledger) -> None:
        """Have the journal say what is on disk.

        Raises:
            InputError: it has a study of another sweep, of somebody else, or of a later version.
            CorruptError: it cannot be read.
            StorageError: it cannot be written.
        """
        sweep = self._sweep()
        wanted = studies(sweep, ledger)
        with _locked(self.path):
            lines, known = self._read(sweep)
            lacking = _lacking(wanted, known) if lines.whole else None
            if lacking is None:
                self._write_anew(wanted)
            else:
                self._append(lines, [(known[study.name], study, points) for study, points in lacking])

    def rebuild(self, ledger: Ledger) -> str:
        """Write the journal anew, whatever is there; return what was written, for people.

        Raises:
            InputError: there is no such sweep.
            StorageError: it cannot be written.
        """
        wanted = studies(self._sweep(), ledger)
        with _locked(self.path):
            self._write_anew(wanted)
        trials = count(sum(len(study.points) for study in wanted), "trial")
        return f"wrote {self.path}: {trials} of {len(wanted)} {'study' if len(wanted) == 1 else 'studies'}"

    def _sweep(self) -> Sweep:
        (sweep,) = load_sweeps(self.results).chosen([self.name])
        return sweep

    def _read(self, sweep: Sweep) -> "tuple[_Lines, dict[str, optuna.Study]]":
        """Return the lines of the journal, and its studies by name; none where there is none.

        Raises:
            InputError: a study is none that this version may write.
            CorruptError: it cannot be read.
        """
        remedy = f"`ettsweep search --sweep {self.name} --rebuild` writes it anew from the runs"
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return _Lines(), {}  # nothing is known, and so all of it is written
        except OSError as error:
            raise CorruptError(f"{self.path}: {error.strerror}; move it away") from None
        try:
            lines = _Lines.of(content)
            known = _studies_in(lines)
        except Exception as error:  # whatever Optuna makes of lines that are none of its own
            raise CorruptError(f"{self.path}: is no journal of Optuna's: {error_line(error)}; {remedy}") from error
        problems = [(name, problem) for name, study in known.items() if (problem := _foreign(study, sweep))]
        if problems:
            raise InputError.of(f"{self.path}: study {name!r} {problem}; {remedy}" for name, problem in problems)
        return lines, known

    def _append(self, lines: _Lines, lacking: "Sequence[tuple[optuna.Study, Study, Sequence[Told]]]") -> None:
        """Append what the studies of a journal lack, in one write; a kill may cut a line, which is then left out."""
        before = len(lines.lines)
        with quiet():
            for known, study, points in lacking:
                self._add(known, study, points)
        if more := lines.text(before):
            with storage_errors(self.path), self.path.open("ab") as file:
                file.write(more.encode())
                file.flush()
                os.fsync(file.fileno())

    def _write_anew(self, wanted: Sequence[Study]) -> None:
        import optuna

        lines = _Lines()
        with quiet():
            storage = optuna.storages.JournalStorage(lines)
            for study in wanted:
                made = optuna.create_study(storage=storage, study_name=study.name, direction=study.direction)
                made.set_metric_names([study.measure.metric])
                for key, value in study.attrs.items():
                    made.set_user_attr(key, value)
                self._add(made, study, study.points)
        write_atomic(self.path, lines.text())

    def _add(self, known: "optuna.Study", study: Study, points: Sequence[Told]) -> None:
        for point in points:
            known.add_trial(point.trial(study.space, self._curve(point.first, study.measure)))

    def _curve(self, run: Run, measure: Score) -> dict[int, float]:
        """Return the best score so far after each evaluation of a run, which are read once."""
        key = run.id, run.state
        if key not in self._curves:
            self._curves[key] = measure.along(run.dir.evaluations())
        return self._curves[key]


def _studies_in(lines: _Lines) -> "dict[str, optuna.Study]":
    import optuna

    with quiet():
        storage = optuna.storages.JournalStorage(lines)
        names = optuna.get_all_study_names(storage)
        return {name: optuna.load_study(study_name=name, storage=storage) for name in names}


def _foreign(study: "optuna.Study", sweep: Sweep) -> str:
    """Say why a study is none that may be written to; nothing where it is one of a sweep, whatever its name was."""
    attrs = study.user_attrs
    if not isinstance(made := attrs.get(FORMAT), int):
        return "was not written by ettsweep"
    if made > VERSION:
        return f"was written by a later version of ettsweep (format {made}, known is {VERSION})"
    if attrs.get("family") not in {search.family for search in sweep.searches}:
        return f"is of another sweep, {attrs.get('sweep')}: {sweep.name} has no family {attrs.get('family')}"
    return ""


def _lacking(wanted: Sequence[Study], known: "Mapping[str, optuna.Study]") -> list[tuple[Study, list[Told]]] | None:
    """Return the points that each study of a journal lacks; None where the journal says anything else."""
    said = {name: (study.user_attrs, study.direction.name.lower()) for name, study in known.items()}
    if said != {study.name: (study.attrs, study.direction) for study in wanted}:
        return None
    found = []
    for study in wanted:
        if (points := study.lacking(known[study.name].get_trials(deepcopy=False))) is None:
            return None
        found.append((study, points))
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep others from writing to a journal meanwhile, Optuna's own tools too; what a killed process held is taken.

    Optuna's locks wait for ever for one that a killed dashboard left: a link that leads nowhere.

    Raises:
        StorageError: the folder cannot be written.
    """
    lock, began_s, theirs = path.with_name(path.name + LOCK), time.monotonic(), 0
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                taken = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                mine = os.fstat(taken).st_ino
                os.close(taken)
                break
            except FileExistsError:
                before, theirs = theirs, _inode(lock)
                if theirs != before:
                    began_s = time.monotonic()  # another holds it by now
                elif time.monotonic() - began_s > STALE_S:
                    lock.unlink(missing_ok=True)
                time.sleep(0.01)
    try:
        yield
    finally:
        if _inode(lock) == mine:
            lock.unlink(missing_ok=True)


def _inode(path: Path) -> int:
    """Return the number of a file or link; 0 where there is none."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return 0
