"""What runs of functions and of commands have in common: a stated score, a digest of their code, a stated size."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator

from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.runs.result import RECORDED
from ettsweep.runs.score_spec import ScoreSpec
from ettsweep.runs.trainable import Size, Trainable
from ettsweep.runs.trainable_hooks import OwnCode
from ettsweep.schema import ListOfOne, NotInId, Positive
from ettsweep.worker.code_identity import DIGEST_DIGITS, digest_of

DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_DIGITS}}}")

Patterns = Annotated[tuple[str, ...], Field(strict=False), ListOfOne]


def _check_code_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern or Path(pattern).is_absolute():
            raise ValueError(f"code: patterns of files beside the grid file are expected, got {pattern!r}")
    return patterns


CodePatterns = Annotated[Patterns, AfterValidator(_check_code_patterns)]


def folders_of(folder: Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Return the folders that files lie in, by names or patterns relative to a folder; absolute ones are left out."""
    fixed = (re.split(r"[*?\[]", name)[0] for name in names if not Path(name).is_absolute())
    return tuple(Path(os.path.normpath(folder / f"{name}_")).parent for name in fixed)


class OwnCodeRecipe(Trainable):
    """A recipe of anybody's code.

    Attributes:
        score: what verdicts compare.
        last_step: number of the last step, if it is known; `steps:` in a grid file.
        width, factors: what strategies map lr and wd by, see `Size`; without a width there is one strategy.
        code: digest of the code, or the stated version.
        folder: of the grid file.
        version: a word that replaces the digest of the code; a digest says that the numbers are those of that code.
        same_code: digests of files that count as `code`: of a copy, or of what leaves all numbers as they were.
        keep: patterns of files in a run's `out` that `clean --outputs` leaves; None for all.
        snapshot: whether runs train in a copy of the code that is made at submission.
        seeds: `none` if it has no seed, so that a point has one run; stated beside `run:` in a grid file.
    """

    score: ScoreSpec
    last_step: Annotated[Positive | None, NotInId()] = None
    width: Annotated[Positive | None, NotInId()] = None
    factors: Annotated[Literal["adamw", "sgd"], NotInId()] = "adamw"
    code: str = ""
    folder: Annotated[str, NotInId()] = ""
    version: Annotated[str | None, NotInId()] = None
    same_code: Annotated[tuple[str, ...], Field(strict=False), NotInId()] = ()
    snapshot: Annotated[bool, NotInId()] = True
    keep: Annotated[Patterns | None, NotInId()] = None
    seeds: Annotated[Literal["none"] | None, NotInId()] = None

    @field_validator("version")
    @classmethod
    def _check_version(cls, version: str | None) -> str | None:
        if version is not None and not re.fullmatch(r"[\w.+-]{1,40}", version):
            raise ValueError(f"version: a word is expected, such as v2, got {version!r}")
        return version

    @property
    def metric(self) -> Metric:
        return self.score.metric

    @property
    def is_seeded(self) -> bool:
        return self.seeds is None

    @property
    def steps(self) -> int | None:
        return self.last_step

    @property
    def size(self) -> Size | None:
        return None if self.width is None else Size(self.width, self.factors)

    @property
    def job_nodes(self) -> int | None:
        return 1

    def code_digest(self) -> str:
        """Return a digest of the code, or the stated version; comments and formatting of Python do not change it.

        Raises:
            DataMissingError: a file is missing.
        """
        if self.same_code:
            content = self.content_digest()
            return self.code if content in self.same_code else content
        if self.version is not None:
            return self.version if DIGEST.fullmatch(self.version) else f"version {self.version}"
        return self.content_digest()

    def content_digest(self) -> str:
        return digest_of(self.code_paths(), self.code_base)

    @property
    def code_base(self) -> Path:
        """Folder that files of the code are named relative to."""
        return Path(self.folder)

    @property
    def kept_outputs(self) -> Sequence[str] | None:
        return self.keep

    def code_folders(self) -> tuple[Path, ...]:
        """Return further folders that some of the code lies in."""
        return ()

    def package_folders(self, folder: Path) -> list[Path]:
        """Return where packages of the project are imported from below a folder, if they are installed as editable."""
        from ettsweep.launch.project_snapshot import package_folders, project_root

        root = project_root(OwnCode(Path(self.folder), "", self.code_folders()))
        return package_folders(Path(os.path.normpath(folder)), root) if root else []

    def own_code(self) -> OwnCode | None:
        if not (self.code and self.folder):
            return None
        return OwnCode(Path(self.folder), self.code, self.code_folders(), self.snapshot)

    def with_code_in(self, folder: Path, same_code: Sequence[str] = ()) -> Self:
        return self.model_copy(update={"folder": str(folder), "same_code": tuple(same_code)})

    def as_code(self, digest: str) -> Self:
        return self.model_copy(update={"code": digest, "same_code": (self.content_digest(),)})

    def summary(self, history: Sequence[Json], *, diverged: bool) -> Json:
        names = Counter(name for line in history for name, value in line.items() if value is not None)
        recorded = {name: count for name, count in names.items() if name not in ("step", "nonfinite")}
        return {**super().summary(history, diverged=diverged), RECORDED: recorded}

    def code_differences(self, other: Trainable) -> list[str]:
        if not isinstance(other, type(self)):
            return []
        own, others = self._digests(), other._digests()
        return sorted(name for name in own.keys() | others.keys() if own.get(name) != others.get(name))

    def _digests(self) -> dict[str, str]:
        base = self.code_base
        return {os.path.relpath(path, base): digest_of([path], base) for path in self.code_paths()}
