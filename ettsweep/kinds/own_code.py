"""What runs of functions and of commands have in common: a stated score, the code of a project, a stated size."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.project_code import CodeRule, Patterns, ProjectCode, find_code
from ettsweep.runs.result import RECORDED
from ettsweep.runs.score_spec import ScoreSpec
from ettsweep.runs.trainable import Size, Trainable
from ettsweep.runs.trainable_hooks import OwnCode
from ettsweep.schema import NotInId, Positive


def folders_of(folder: Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Return the folders that files lie in, by names or patterns relative to a folder; absolute ones are left out."""
    fixed = (re.split(r"[*?\[]", name)[0] for name in names if not Path(name).is_absolute())
    return tuple(Path(os.path.normpath(folder / f"{name}_")).parent for name in fixed)


def is_last(history: Sequence[Json], last_step: int) -> bool:
    """Whether metrics reach the last step: the next ones would have come at it or later, if it did not count from 0."""
    steps: list[int] = sorted({line["step"] for line in history}) or [0]
    # Of the last few: evaluations may come between. A single one is a step of its own size.
    every = max((after - before for before, after in pairwise(steps[-4:])), default=max(1, steps[-1]))
    return steps[-1] + every >= last_step


class OwnCodeRecipe(Trainable):
    """A recipe of anybody's code.

    Attributes:
        score: what verdicts compare.
        last_step: number of the last step, if it is known; `steps:` in a grid file.
        ends_early: whether a run may end before its last step; else it has failed then.
        width, factors: what strategies map lr and wd by, see `Size`; without a width there is one strategy.
        code: digest of the code.
        trains_in: digest of the copy of the project that runs train in: `code`, or one that counts as equal.
        code_rule: which files of the project are the code; `code:` in a grid file.
        folder: of the grid file.
        keep: patterns of files in a run's `out` that `clean --outputs` leaves; None for all.
        snapshot: whether runs train in a copy of the project, not in the project itself.
        seeds: `none` if it has no seed, so that a point has one run; stated beside `run:` in a grid file.
    """

    score: ScoreSpec
    last_step: Annotated[Positive | None, NotInId()] = None
    ends_early: Annotated[bool, NotInId()] = False
    width: Annotated[Positive | None, NotInId()] = None
    factors: Annotated[Literal["adamw", "sgd"], NotInId()] = "adamw"
    code: str = ""
    trains_in: Annotated[str, NotInId()] = ""
    code_rule: Annotated[CodeRule, NotInId()] = CodeRule()
    folder: Annotated[str, NotInId()] = ""
    snapshot: Annotated[bool, NotInId()] = True
    keep: Annotated[Patterns | None, NotInId()] = None
    seeds: Annotated[Literal["none"] | None, NotInId()] = None

    @property
    def metric(self) -> Metric:
        return self.score.metric

    @property
    def is_seeded(self) -> bool:
        return self.seeds is None

    @property
    def steps(self) -> int | None:
        return self.last_step

    def early_end(self, history: Sequence[Json]) -> str:
        """Return that a run has ended before its last step, and what to do; empty if it has not, or may."""
        if self.last_step is None or self.ends_early or is_last(history, self.last_step):
            return ""
        last = max((line["step"] for line in history), default=0)
        return f"ended at step {last} of {self.last_step}; if runs may end early, set `ends_early: true` under `run:`"

    @property
    def size(self) -> Size | None:
        return None if self.width is None else Size(self.width, self.factors)

    @property
    def job_nodes(self) -> int | None:
        return 1

    @property
    def kept_outputs(self) -> Sequence[str] | None:
        return self.keep

    # --- its code ---

    def named_files(self) -> Iterable[Path]:
        """Return the files that belong to its code since the grid file names them, whatever they are."""
        return ()

    def code_folders(self) -> tuple[Path, ...]:
        """Return further folders that some of the code lies in."""
        return ()

    def data_paths(self) -> Iterable[Path]:
        """Return its files and folders of data.

        Raises:
            DataMissingError: one is missing.
        """
        return ()

    def project_code(self) -> ProjectCode:
        return find_code(
            Path(self.folder),
            self.code_rule,
            named=self.named_files(),
            data=self.data_paths(),
            folders=self.code_folders(),
        )

    def bound_to(self, data: str | None) -> Self:
        if self.code:  # a sweep's: it has its code, whatever the project has now
            return self
        code = self.project_code()
        self.check_code(code)
        return self.model_copy(update={"code": code.digest, "trains_in": code.digest, **self.data_fields()})

    def check_code(self, code: ProjectCode) -> None:
        """Check that a copy of some code can be trained in.

        Raises:
            InputError: it cannot.
        """

    def data_fields(self) -> dict[str, Any]:
        """Return the fields that its data give it.

        Raises:
            DataMissingError: some are missing.
        """
        return {}

    def own_code(self) -> OwnCode | None:
        return OwnCode(self.code, self.trains_in, Path(self.folder), self.code_rule, self.snapshot)

    def with_code(self, digest: str, copy: str) -> Self:
        return self.model_copy(update={"code": digest, "trains_in": copy})

    def moved_to(self, folder: Path) -> Self:
        return self.model_copy(update={"folder": str(folder)})

    def summary(self, history: Sequence[Json], *, diverged: bool) -> Json:
        names = Counter(name for line in history for name, value in line.items() if value is not None)
        recorded = {name: count for name, count in names.items() if name not in ("step", "nonfinite")}
        return {**super().summary(history, diverged=diverged), RECORDED: recorded}
