"""What runs of functions and of commands have in common: a stated score, a digest of their code, a stated size."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field

from ettsweep.metric import Metric
from ettsweep.runs.score_spec import ScoreSpec
from ettsweep.runs.trainable import OwnCode, Size, Trainable
from ettsweep.schema import ListOfOne, NotInId, Positive

Patterns = Annotated[tuple[str, ...], Field(strict=False), ListOfOne]


def _check_code_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern or Path(pattern).is_absolute():
            raise ValueError(f"code: patterns of files beside the grid file are expected, got {pattern!r}")
    return patterns


CodePatterns = Annotated[Patterns, AfterValidator(_check_code_patterns)]


class OwnCodeRecipe(Trainable):
    """A recipe of anybody's code.

    Attributes:
        score: what verdicts compare.
        last_step: number of the last step, if it is known; `steps:` in a grid file.
        width, factors: what strategies map lr and wd by, see `Size`; without a width there is one strategy.
        code: digest of the code.
        folder: of the grid file.
        snapshot: whether runs train in a copy of the code that is made at submission.
    """

    score: ScoreSpec
    last_step: Annotated[Positive | None, NotInId()] = None
    width: Annotated[Positive | None, NotInId()] = None
    factors: Annotated[Literal["adamw", "sgd"], NotInId()] = "adamw"
    code: str = ""
    folder: Annotated[str, NotInId()] = ""
    snapshot: Annotated[bool, NotInId()] = True

    @property
    def metric(self) -> Metric:
        return self.score.metric

    @property
    def steps(self) -> int | None:
        return self.last_step

    @property
    def size(self) -> Size | None:
        return None if self.width is None else Size(self.width, self.factors)

    def code_folders(self) -> tuple[Path, ...]:
        """Return further folders that some of the code lies in."""
        return ()

    def own_code(self) -> OwnCode | None:
        if not (self.snapshot and self.code and self.folder):
            return None
        return OwnCode(Path(self.folder), self.code, self.code_folders())

    def with_code_in(self, folder: Path) -> Self:
        return self.model_copy(update={"folder": str(folder)})
