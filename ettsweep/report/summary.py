"""The answer of a comparison: the best optimum in a sentence, and a card per strategy with its next step."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ettsweep.console import count
from ettsweep.powers import POWER_COLUMNS, power
from ettsweep.report import formats, tables, verdict_text
from ettsweep.report.cost_table import cost_of
from ettsweep.report.families import JudgedFamily, StrategyComparison
from ettsweep.report.next_steps import next_steps
from ettsweep.report.spike_rates import spikes_of
from ettsweep.report.verdict_text import Row
from ettsweep.study.sweep_store import Searches
from ettsweep.study.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

LINES = ("optimum", "score", "fresh", "beats", "behind", "accuracy", "bits", "cost")
"""Lines of a card, top to bottom; those that no strategy has are left out."""


def answer(comparison: StrategyComparison, searches: Searches, notes: Mapping[str, str]) -> Row:
    """Return the answer of a comparison: the best optimum, and a card per strategy; `notes` are by sweep name."""
    families, metric = comparison.families, comparison.metric
    finished = spikes_of(run for family in families for run in family.runs)
    lines = [_lines(family, searches) for family in families]
    line_names = [name for name in LINES if any(name in card_lines for card_lines in lines)]
    cards = [
        {
            "verdict": family.verdict,
            "anchor": anchor(family),
            "colour": colour(family),
            "lines": [(label(name, family.verdict), card_lines.get(name)) for name in line_names],
            "next": step,
        }
        for family, card_lines, step in zip(families, lines, next_steps(families), strict=True)
    ]
    return {
        "title": comparison.title,
        "note": notes.get(families[0].verdict.study.sweep, ""),
        "metric": formats.metric_name(metric.metric),
        "better": "lower" if metric.mode == "min" else "higher",
        "best": verdict_text.best([family.verdict for family in families]),
        "unsearched": all(family.verdict.verdict == "unsearched" for family in families),
        "finished": finished.runs,
        "diverged": finished.diverged,
        "fresh": "fresh" in line_names,
        "scored": "score" in line_names,
        "cards": cards,
    }


def anchor(family: JudgedFamily) -> str:
    """Return the HTML id of a family's section."""
    return "-".join(family.verdict.key)


def colour(family: JudgedFamily) -> str:
    """Return the colour of a family's strategy."""
    return formats.strategy_colour(family.verdict.strategy)


def label(name: str, verdict: Verdict) -> str:
    """Return the label of a line of a card."""
    labels = {
        "optimum": "optimum" if verdict.verdict == "optimal" else "candidate",
        "score": formats.metric_name(verdict.study.metric.metric),
        "fresh": "over fresh seeds",
        "beats": "beats all neighbours",
        "behind": "nearest neighbour is worse by",
        "accuracy": "best accuracy, mean of all seeds",
        "bits": "lowest loss, bits per token, mean of all seeds",
        "cost": "cost",
    }
    return labels[name]


def _lines(family: JudgedFamily, searches: Searches) -> dict[str, tuple[str, str]]:
    """Return the lines of a card by name: the value, and small text beside it."""
    verdict, metric = family.verdict, family.verdict.study.metric.metric
    card_lines: dict[str, tuple[str, str]] = {}
    if verdict.point:
        card_lines["optimum"] = (f"lr {power(verdict.point.lr)}, wd {power(verdict.point.wd)}", "")
    _, std = formats.mean_std(family.scores)
    if score := formats.plus_minus(verdict.score, std, metric):
        card_lines["score"] = (score, count(verdict_text.seeds(verdict), "search seed"))
    diverged = sum(score is None for score in verdict.fresh.values())
    if diverged:
        card_lines["fresh"] = (f"{diverged} of {len(verdict.fresh)} diverged", "")
    elif fresh := formats.plus_minus(*formats.mean_std([*verdict.fresh.values()]), metric):
        card_lines["fresh"] = (fresh, count(len(verdict.fresh), "seed"))
    bound = verdict_text.known(verdict)
    if bound and bound["best"]:
        card_lines["beats"] = (bound["best"], "probability")
    if nearest := verdict_text.nearest(verdict):
        card_lines["behind"] = (nearest["text"], "as fitted")
    # Without a bound, the lead is a difference of means, by the rule of the paper.
    elif not bound and verdict.lead is not None:
        difference = verdict_text.difference(verdict.lead, verdict)
        card_lines["behind"] = (difference["text"], difference["relative"] or "")
    return card_lines | _beside(family) | _cost(family, searches)


def _beside(family: JudgedFamily) -> dict[str, tuple[str, str]]:
    """Return the lines of metrics other than the score, means over all seeds that have a score."""
    runs, card_lines = tables.runs_table([run for run in family.optimum if run.score is not None]), {}
    if not formats.is_accuracy(family.verdict.study.metric.metric) and (mean := _mean(runs, "best_accuracy")):
        card_lines["accuracy"] = (mean, "")
    if mean := _mean(runs, "best_bits"):
        card_lines["bits"] = (mean, "")
    return card_lines


def _cost(family: JudgedFamily, searches: Searches) -> dict[str, tuple[str, str]]:
    cost = cost_of("", family.runs, searches)
    if not cost.runs:
        return {}
    hours = f"{formats.short(cost.hours)} device hours" if cost.device_s else ""
    return {"cost": (count(cost.runs, "finished run"), hours)}


def _mean(runs: "pd.DataFrame", metric: str) -> str | None:
    """Return the mean of a metric over the runs that have it; None if none has."""
    values = runs[metric].dropna()
    return formats.score_text(values.mean(), metric) if len(values) else None


def cell(name: str, value: object) -> str:
    """Return a cell of the table of runs as text."""
    # NaN differs from itself; pandas.NA has no truth value, so its name is compared.
    if value != value or value is None or str(value) == "<NA>":
        return ""
    if isinstance(value, float):
        if name in tables.METRICS:
            return formats.score_text(value, name)
        if name in POWER_COLUMNS:
            return power(value)
        if name in ("utilisation", "data_wait"):
            return f"{100 * value:.3g}%"
        return formats.short(value)
    return str(value)
