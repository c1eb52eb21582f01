"""A finished check whose measurements follow the theory, but for those that a test spoils."""

from ettsweep.theory.judge import judge_measurements
from ettsweep.theory.scaling_check import CheckResult, CoordinateCurves
from ettsweep.trainer.specs import ModelSpec
from support.perfect import HEADS, SAMPLES, WIDTHS, expectations, perfect


def made_curves(
    strategy: str, lr: float, hidden: float, outputs: float, stages: tuple[str, ...], steps: int
) -> CoordinateCurves:
    """Return changes that have the implied powers, and grow with depth and step."""

    def changes(depth: int, power: float) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(1e-3 * depth * step * (n / WIDTHS[-1]) ** power for n in WIDTHS) for step in range(1, steps + 1)
        )

    *parts, head = stages
    lines = {stage: changes(depth, hidden) for depth, stage in enumerate(parts, start=1)}
    return CoordinateCurves(strategy, lr, {**lines, head: changes(20, outputs)}, hidden, outputs)


def made_check(model: ModelSpec | None = None, spoil: object = None, steps: int = 3) -> CheckResult:
    """Return a check of ntk beside standard, of images by default; `spoil` changes each measurement."""
    expected = expectations(0.0) if model is None else expectations(0.0, model=model)
    measured = [spoil(m) if callable(spoil) else m for m in perfect(expected)]
    settings: dict[str, object] = {"model": "small", "strategy": "ntk", "optimizer": "adamw", "widths": list(WIDTHS)}
    curves = (
        made_curves("standard", 1e-6, 1.0, 1.5, expected.stages, steps),
        made_curves("ntk", 0.01, -0.5, 0.0, expected.stages, steps),
    )
    return CheckResult(
        settings=settings | {"beyond_theory": []},
        about="small under ntk: 4 heads",
        widths=WIDTHS,
        judgement=judge_measurements(expected, measured, HEADS, SAMPLES),
        curves=curves,
    )
