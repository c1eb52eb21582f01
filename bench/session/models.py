"""Steps 2 and 4: a training step of our models beside that of other libraries, through the benchmarks of their own."""

from dataclasses import asdict
from typing import Any

from bench import encdec, turns, vit
from bench.session.environment import device
from ettsweep.models.architectures import model_spec
from ettsweep.spec import Precision

QUICK_S = 1e-3


def beside_timm(
    model: str, precision: Precision, compiled: bool, batch_size: int, count: int, quick: bool
) -> list[dict[str, Any]]:
    """Let ours and timm's take turns."""
    import timm  # noqa: F401 (first, so that what it lacks is known at once)

    _hurry(quick)
    row = vit.measure(model_spec(model), device(), precision, compiled, batch_size, count)
    return [{"model": model, **asdict(row)}]


def beside_mbart(
    model: str, precision: Precision, compiled: bool, batch_size: int, count: int, quick: bool
) -> list[dict[str, Any]]:
    """Let ours and MBart take turns."""
    import transformers  # noqa: F401

    _hurry(quick)
    return [asdict(encdec.measure(model, device(), precision, compiled, count, batch_size))]


def alone(model: str, precision: Precision, compiled: bool, batch_size: int, quick: bool) -> list[dict[str, Any]]:
    """Let ours take steps with activation checkpointing."""
    _hurry(quick)
    return [asdict(encdec.measure_alone(model, device(), precision, compiled, batch_size))]


def _hurry(quick: bool) -> None:
    if quick:
        turns.TURN_S, encdec.ALONE_STEPS = QUICK_S, 2
