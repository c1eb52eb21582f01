"""What a check of a scaling found, as plain data: for tables, files and the figure."""

from collections.abc import Mapping
from dataclasses import dataclass

from ettsweep.check.judgement import Judgement
from ettsweep.check.powers import Verdict
from ettsweep.files import Json


@dataclass(frozen=True)
class Curves:
    """How activations and outputs change in the first steps of training under one strategy.

    Attributes:
        strategy: its name.
        lr: learning rate, the same at all widths.
        changes: of each stage, for each step, at each width: the rms change, mean over seeds.
        hidden_power: power of the width that is implied for hidden activations; None where none is.
        output_power: that of the outputs.
    """

    strategy: str
    lr: float
    changes: Mapping[str, tuple[tuple[float, ...], ...]]
    hidden_power: float | None
    output_power: float | None


@dataclass(frozen=True)
class Check:
    """A finished check.

    Attributes:
        name: of the model, the strategy and the optimizer, such as `vit-b16-ntk-adamw`.
        settings: all that says what was built, trained and measured.
        about: the same in a line.
        widths: n, ascending.
        judgement: of the strategy.
        findings: in words.
        curves: of the strategy, after those of standard where it is another.
    """

    name: str
    settings: Json
    about: str
    widths: tuple[int, ...]
    judgement: Judgement
    findings: tuple[str, ...]
    curves: tuple[Curves, ...]

    @property
    def verdict(self) -> Verdict:
        """Return that of the judgement."""
        return self.judgement.verdict
