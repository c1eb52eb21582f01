"""Outcome of `ettsweep try`, kept with the sweep: sweeps/<name>.try.json."""

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
"""How a killed run resumes: with the numbers of an uninterrupted one, with others, or from the start."""


class Observation(StrictModel):
    """One observation of a trial.

    Attributes:
        observation: its subject, in a word.
        state: `ok`; `warning` for a surprise; `failed` if a sweep would fail or be worthless; `absent` if the trial
            could not see it.
        seen: a sentence on it.
        advice: what to do; empty for nothing.
    """

    observation: str
    state: TrialState
    seen: str
    advice: str = ""


class Outcome(StrictModel):
    """Outcome of a trial.

    Attributes:
        version: of the format.
        family: of the sweep's runs; after a change of code it is another one.
        made: time of the trial, in UTC.
        seeds_differ: whether two seeds gave different scores, False if all their metrics are identical; None if that is
            unknown, or only the score is identical.
        repeats: whether one seed gave the same numbers twice; None likewise.
        resume: how a killed run resumed; None likewise.
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
        """The worst state of all observations; `absent` counts only if all are."""
        states = {each.state for each in self.observations}
        return next(state for state in ("failed", "warning", "ok", "absent") if state in states or state == "absent")

    @property
    def summary(self) -> str:
        """The warnings and failures in a line, or a line that there are none."""
        noted = [each for each in self.observations if each.state in ("failed", "warning")]
        return f"`try`, {self.made}: " + ("; ".join(f"{each.observation}: {each.seen}" for each in noted) or "passed")


def write_outcome(results: Path, name: str, outcome: Outcome) -> None:
    """Write the outcome for the sweep of a name, which need not exist yet.

    Raises:
        StorageError: it cannot be written.
    """
    path = trial_file(results, name)
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, outcome.model_dump_json(indent=1) + "\n")


def read_outcome(results: Path, name: str) -> Outcome | None:
    """Return the latest outcome for the sweep of a name; None if there is none, or it is unreadable."""
    path = trial_file(results, name)
    try:
        return validate(Outcome, read_json(path), str(path))
    except (OSError, EttsweepError):
        return None  # a trial can be repeated at any time


def outcome_of(results: Path, study: Study) -> Outcome | None:
    """Return the outcome for a study's current runs; None if they were not tried."""
    outcome = read_outcome(results, study.sweep)
    return outcome if outcome and outcome.family == study.family else None


def check_tried(results: Path, name: str, study: Study, grid: str) -> str:
    """Return a line on the trial of a requested sweep; empty if the trial went well, or for a shipped model.

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
