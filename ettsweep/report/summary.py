"""The answer of a comparison: the best optimum in a sentence, and a card per strategy with its next step."""

from typing import TYPE_CHECKING

from ettsweep.console import format_count, format_device_hours
from ettsweep.powers import POWER_COLUMNS, power_and_decimal
from ettsweep.quantities import column_text, score_with_error, three_digits
from ettsweep.report import formats, tables, verdict_text
from ettsweep.report.families import JudgedFamily, StrategyComparison
from ettsweep.report.next_steps import next_steps
from ettsweep.report.spike_rates import sum_spikes
from ettsweep.report.verdict_text import Row
from ettsweep.study.fresh import compare_fresh
from ettsweep.study.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

CARD_LINES = ("optimum", "score", "fresh", "beats", "behind", "accuracy", "bits", "bytes", "cost")
"""Lines of a card, top to bottom; those that no strategy has are left out."""


def comparison_answer(comparison: StrategyComparison) -> Row:
    """Return the answer of a comparison: the best optimum, and a card per strategy."""
    families, metric = comparison.families, comparison.metric
    finished = sum_spikes(run for family in families for run in family.runs)
    lines = [_card_lines(family) for family in families]
    line_names = [name for name in CARD_LINES if any(name in card_lines for card_lines in lines)]
    cards = [
        {
            "verdict": family.verdict,
            "fresh": fresh if (fresh := compare_fresh(family.verdict)) and fresh.is_notable else None,
            "anchor": family_anchor(family),
            "colour": family_colour(family),
            "lines": [(line_label(name, family.verdict), card_lines.get(name)) for name in line_names],
            "next": step,
        }
        for family, card_lines, step in zip(families, lines, next_steps(families), strict=True)
    ]
    return {
        "title": comparison.title,
        "metric": metric.label,
        "better": "lower" if metric.mode == "min" else "higher",
        "best": verdict_text.best_optimum([family.verdict for family in families]),
        "unsearched": all(family.verdict.verdict == "unsearched" for family in families),
        "finished": finished.runs,
        "diverged": finished.diverged,
        "fresh": "fresh" in line_names,
        "scored": "score" in line_names,
        "cards": cards,
    }


def family_anchor(family: JudgedFamily) -> str:
    """Return the HTML id of a family's section."""
    return "-".join(family.verdict.key)


def family_colour(family: JudgedFamily) -> str:
    """Return the colour of a family's strategy."""
    return formats.strategy_colour(family.verdict.strategy)


def line_label(name: str, verdict: Verdict) -> str:
    """Return the label of a line of a card."""
    labels = {
        "optimum": "optimum" if verdict.verdict == "optimal" else "candidate",
        "score": formats.axis_title_and_factor(verdict.study.metric)[0],
        "fresh": "over fresh seeds",
        "beats": "beats all neighbours",
        "behind": "nearest neighbour is worse by",
        "accuracy": "best accuracy, mean of all seeds",
        "bits": "lowest loss, bits per token, mean of all seeds",
        "bytes": "lowest loss, bits per byte, mean of all seeds",
        "cost": "cost",
    }
    return labels[name]


def _card_lines(family: JudgedFamily) -> dict[str, tuple[str, str]]:
    """Return the lines of a card by name: the value, and small text beside it."""
    verdict, metric = family.verdict, family.verdict.study.metric
    card_lines: dict[str, tuple[str, str]] = {}
    if verdict.point:
        card_lines["optimum"] = (
            verdict.point.words,
            "",
        )
    if verdict.score is not None:
        score = score_with_error(verdict.score, formats.standard_error(family.scores), metric)
        card_lines["score"] = (score, format_count(verdict_text.seed_count(verdict), "search seed"))
    diverged = sum(score is None for score in verdict.fresh_scores.values())
    if diverged:
        card_lines["fresh"] = (f"{diverged} of {len(verdict.fresh_scores)} diverged", "")
    elif fresh := formats.mean_text([*verdict.fresh_scores.values()], metric):
        card_lines["fresh"] = (fresh, format_count(len(verdict.fresh_scores), "seed"))
    bound = verdict_text.bound_row(verdict)
    if bound and bound["best"]:
        card_lines["beats"] = (bound["best"], "probability")
    if nearest := verdict_text.nearest_row(verdict):
        card_lines["behind"] = (nearest["text"], "as fitted")
    # Without a bound, the lead is a difference of means, by the rule of the paper.
    elif not bound and verdict.lead_over_neighbours is not None:
        difference = verdict_text.difference_row(verdict.lead_over_neighbours, verdict)
        card_lines["behind"] = (difference["text"], "")
    return card_lines | _other_metric_lines(family) | _cost_line(family)


def _other_metric_lines(family: JudgedFamily) -> dict[str, tuple[str, str]]:
    """Return the lines of metrics other than the score, means over all seeds that have a score."""
    scored, card_lines = [run for run in family.optimum if run.score is not None], {}
    runs = tables.results_frame(scored, ("best_accuracy", "best_bits", "best_bits_per_byte"))
    if not family.verdict.study.metric.is_fraction and (mean := _mean_text(runs, "best_accuracy")):
        card_lines["accuracy"] = (mean, "")
    if mean := _mean_text(runs, "best_bits"):
        card_lines["bits"] = (mean, "")
    if mean := _mean_text(runs, "best_bits_per_byte"):
        card_lines["bytes"] = (mean, "")
    return card_lines


def _cost_line(family: JudgedFamily) -> dict[str, tuple[str, str]]:
    """Return the number of finished runs, and the device hours of all runs, unfinished ones too."""
    finished, device_s = sum(run.state.finished for run in family.runs), sum(run.device_s for run in family.runs)
    if not finished:
        return {}
    return {"cost": (format_count(finished, "finished run"), format_device_hours(device_s) if device_s else "")}


def _mean_text(runs: "pd.DataFrame", column: str) -> str | None:
    """Return the mean of a column over the runs that have it; None if none has."""
    values = runs[column].dropna()
    return column_text(values.mean(), column) if len(values) else None


def run_cell(name: str, value: object) -> str:
    """Return a cell of the table of runs as text."""
    # NaN differs from itself; pandas.NA has no truth value, so its name is compared.
    if value != value or value is None or str(value) == "<NA>":
        return ""
    if isinstance(value, float):
        if name in tables.METRIC_COLUMNS:
            return column_text(value, name)
        if name in POWER_COLUMNS:
            return power_and_decimal(value)
        if name in ("utilisation", "data_wait"):
            return f"{100 * value:.3g}%"
        return three_digits(value)
    return str(value)
