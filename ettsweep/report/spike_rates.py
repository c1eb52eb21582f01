"""Spikes of runs: totals, and rates per run and per 1,000 steps, which compare unequal numbers of runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ettsweep.files import number
from ettsweep.runs.index import Run

SPIKE_LABELS = {
    "loss_spikes": "train loss",
    "grad_spikes": "gradient norm",
    "accuracy_spikes": "accuracy",
    "eval_loss_spikes": "validation loss",
    "unrecovered": "unrecovered",
    "overflow_steps": "overflow steps",
}
"""Counts in the result of a run, with their labels."""


@dataclass(frozen=True)
class SpikeCounts:
    """Sums over finished runs; `steps` are those trained, of a diverged run up to where it diverged."""

    runs: int
    diverged: int
    steps: int
    counts: dict[str, int]

    def rates(self, name: str) -> tuple[int | None, float | None, float | None]:
        """Return a count in all, per run and per 1,000 steps; None if nothing was trained."""
        total = self.counts[name]
        return (
            total if self.runs else None,
            total / self.runs if self.runs else None,
            1000 * total / self.steps if self.steps else None,
        )


def sum_spikes(runs: Iterable[Run]) -> SpikeCounts:
    """Add up the spikes of finished runs; others are ignored."""
    results = [run.result for run in runs if run.result is not None]
    sums = {name: sum(int(number(r.get(name)) or 0) for r in results) for name in (*SPIKE_LABELS, "steps")}
    diverged = sum(r.get("status") == "diverged" for r in results)
    return SpikeCounts(len(results), diverged, sums.pop("steps"), sums)


def nonzero_counts(spike_counts: Iterable[SpikeCounts]) -> list[str]:
    """Return the names of the counts above 0 in any of some sums, in the order of `SPIKE_LABELS`."""
    all_counts = list(spike_counts)
    return [name for name in SPIKE_LABELS if any(spikes.counts[name] for spikes in all_counts)]


def rate_columns(name: str) -> Sequence[str]:
    """Return the columns of a count in tables: total, per run, per 1,000 steps."""
    return name, f"{name}_per_run", f"{name}_per_1000_steps"
