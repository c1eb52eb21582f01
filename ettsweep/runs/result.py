"""The result of a run, made from what was recorded, whoever trained it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.ownership import trusts_group
from ettsweep.runs.attempt import Attempt, TimeSpent

if TYPE_CHECKING:  # pydantic, and states of runs are completed in a shell
    from ettsweep.runs.spec import RunSpec

MAX_SEEN = 20
"""Most names of recorded metrics that a message lists."""


RECORDED = "recorded"
"""Entry of the result of a run of own code: how many values each of its metrics has."""


TRUSTED_GROUP = "trusted_group"
"""Entry of the result of a run whose worker had --trust-group."""


def recorded_counts(result: Mapping[str, Any] | None) -> dict[str, int] | None:
    """Return how many values each metric of a finished run has; None if that was not noted."""
    counts = (result or {}).get(RECORDED)
    return counts if isinstance(counts, dict) and all(isinstance(each, int) for each in counts.values()) else None


def make_result(
    spec: "RunSpec", history: Sequence[Json], step: int, attempt: Attempt, spent: TimeSpent, *, diverged: bool
) -> Json:
    """Return the entries of result.json on status, scores, spikes, steps and cost.

    Args:
        spec: the run.
        history: lines of its metrics.jsonl, from all attempts.
        step: the last one, or the one at which it diverged.
        attempt: the one that ended it.
        spent: time over all attempts.
        diverged: whether it diverged: then it has no score.

    Raises:
        InputError: it ended, and recorded no score.
    """
    from ettsweep.runs.contract import kind_of  # pydantic
    from ettsweep.runs.spikes import count_spikes  # numpy, which reads the number of threads when it is imported

    result: Json = {"status": "diverged" if diverged else "done", **kind_of(spec).summary(spec, history, diverged)}
    result["score"] = None if diverged else result[spec.info.metric.name]
    if result["score"] is None and not diverged:
        raise InputError(_no_score_reason(spec, history))
    if diverged:
        result["diverged_step"] = step
    if spec.info.stop_signal:  # the program keeps them by itself
        result["resumed_step"] = attempt.resumed_from()[1]
    return {
        **result,
        **count_spikes(history, spec),
        "steps": step,
        "wall_s": spent.wall_s,
        "device_s": spent.device_s,
        "steps_per_s": step / max(spent.wall_s, 1e-9),
        "corrupt_images": len(attempt.skipped_samples()),
        "attempts": attempt.number,
        **({TRUSTED_GROUP: True} if trusts_group() else {}),
    }


def _no_score_reason(spec: "RunSpec", history: Sequence[Json]) -> str:
    metric = spec.info.metric
    seen = list(dict.fromkeys(name for line in history for name in line if name != "step"))
    names = ", ".join(seen[:MAX_SEEN]) + (", ..." if len(seen) > MAX_SEEN else "")
    at = f" at step {metric.take}" if isinstance(metric.take, int) else ""
    recorded = f"recorded were {names}" if seen else "nothing was recorded"
    return f"no score: {metric.column} was not recorded{at}; {recorded}"
