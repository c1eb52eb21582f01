"""What `ettsweep try` saw of a sweep's runs, as it is kept with the sweep: sweeps/<name>.try.json."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ettsweep.errors import EttsweepError, InputError
from ettsweep.files import read_json, storage_errors, write_atomic
from ettsweep.runs.folder import sweeps_dir
from ettsweep.schema import StrictModel, validate
from ettsweep.study.study import Study

TrialState = Literal["ok", "warning", "failed", "absent"]

ResumeClass = Literal["exact", "resumes", "restarts"]
"""How a killed run goes on: with the numbers of an uninterrupted one, with others, or from the start."""


class Observation(StrictModel):
    """One thing that a trial looked at.

    Attributes:
        observation: what, in a word.
        state: `ok`; `warning` if it works, but not as one may expect; `failed` if a sweep would be worth nothing, or
            fail; `absent` if the trial could not see it.
        seen: what it saw.
        advice: what to do; empty for nothing.
    """

    observation: str
    state: TrialState
    seen: str
    advice: str = ""


class Outcome(StrictModel):
    """What a trial saw.

    Attributes:
        version: of the format.
        family: of the runs that a sweep would train: after a change of code it is another one.
        made: when, in UTC.
        seeds_differ: whether two seeds gave different scores, False if all that they recorded is the same; None if that
            is not known, or the score alone is the same.
        repeats: whether one seed gave the same numbers twice; None likewise.
        resume: how a killed run went on; None likewise.
        observations: in order.
    """

    version: Literal[1] = 1
    family: str
    made: str
    seeds_differ: bool | None
    repeats: bool | None
    resume: ResumeClass | None
    observations: Annotated[tuple[Observation, ...], Field(strict=False)]

    @property
    def state(self) -> TrialState:
        """The worst of all observations; what could not be looked at counts only beside nothing else."""
        states = {each.state for each in self.observations}
        return next(state for state in ("failed", "warning", "ok", "absent") if state in states or state == "absent")

    @property
    def summary(self) -> str:
        """The warnings and failures in a line, or that there are none."""
        noted = [each for each in self.observations if each.state in ("failed", "warning")]
        return f"`try`, {self.made}: " + ("; ".join(f"{each.observation}: {each.seen}" for each in noted) or "passed")


def write_outcome(results: Path, name: str, outcome: Outcome) -> None:
    """Keep an outcome with the sweep of a name, which need not exist yet.

    Raises:
        StorageError: it cannot be written.
    """
    path = trial_file(results, name)
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, outcome.model_dump_json(indent=1) + "\n")


def read_outcome(results: Path, name: str) -> Outcome | None:
    """Return the latest outcome of the sweep of a name; None if there is none that can be read."""
    path = trial_file(results, name)
    try:
        return validate(Outcome, read_json(path), str(path))
    except (OSError, EttsweepError):
        return None  # a trial can be repeated at any time


def outcome_of(results: Path, study: Study) -> Outcome | None:
    """Return the outcome of a study's own runs, as they are now; None if they were not tried."""
    outcome = read_outcome(results, study.sweep)
    return outcome if outcome and outcome.family == study.family else None


def check_tried(results: Path, name: str, study: Study, grid: str) -> str:
    """Return a line on the trial of a sweep that is asked for; empty if there is nothing to say.

    The models that ship have tests of their own, and nothing is said of them.

    Args:
        results: the results folder.
        name: of the sweep.
        study: the first one of it.
        grid: name of the grid file, for the command in the line.

    Raises:
        InputError: two seeds gave the same numbers.
    """
    outcome, command = read_outcome(results, name), f"`ettsweep try {grid}`"
    if study.base.info.code is None:
        return ""
    if outcome is None:
        return f"never tried: {command} checks seeds, checkpoints and signals in minutes"
    if outcome.family != study.family:
        return f"not tried since its code or command changed: {command}"
    if outcome.seeds_differ is False and study.base.info.seeded:
        raise InputError(
            f"sweep {name}: in {command}, two seeds gave the same numbers: repeats would be copies, and the bound "
            "would be wrong; have the program use its seed and try again, or write `seeds: none` for one run a point"
        )
    return outcome.summary if outcome.state == "failed" else ""


def trial_file(results: Path, name: str) -> Path:
    """Return the file with the outcome of the sweep of a name."""
    return sweeps_dir(results) / f"{name}.try.json"
