"""Sections of the page: the answer with a card per strategy, families one by one, training speed, spikes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ettsweep.console import format_count, format_device_hours
from ettsweep.quantities import as_share, bound_text, column_text, difference_text, score_text, three_digits
from ettsweep.report import formats, tables
from ettsweep.report.answer import point_text
from ettsweep.report.families import JudgedFamily, StrategyComparison
from ettsweep.report.figure_files import Figure
from ettsweep.report.formats import mean_std, mean_text
from ettsweep.report.reason_text import better_means
from ettsweep.report.spike_rates import SPIKE_LABELS, nonzero_counts, sum_spikes
from ettsweep.report.surface_frames import optimum_text
from ettsweep.runs.index import Run
from ettsweep.study.fresh import chance
from ettsweep.study.study import StudyKey
from ettsweep.study.tried import Outcome
from ettsweep.study.verdict import Verdict

Row = dict[str, Any]
"""Values of the template, by name."""

OTHER_METRICS = {
    "best_accuracy": "best accuracy",
    "best_bits": "lowest loss, bits per token",
    "best_bits_per_byte": "lowest loss, bits per byte",
}
"""Other metrics on a card, means over all seeds, with their labels."""

SPEED_LABELS = {
    "devices": "devices of a run",
    "samples_per_s": "samples / s",
    "step_s": "seconds a step",
    "utilisation": "utilisation (data sheet)",
    "data_wait": "waits for data",
    "memory_gib": "memory (GiB)",
}
"""Columns of the table of speed, with their labels."""

DATA_WAIT_LIMIT = 0.1
"""Share of time waiting for data above which the page suggests more loader workers."""

Figures = Mapping[tuple[StudyKey, str], Figure]
"""Figures by key of a verdict and kind; figures of a whole comparison have the key of its first family."""


# --- the answer -----------------------------------------------------------------------------------------------------


def answer_section(comparison: StrategyComparison, figures: Figures) -> Row:
    """Return the answer of a comparison: a sentence on the best of several strategies, a card for each, and a map."""
    families = comparison.families
    key, kind = families[0].view.key, "map" if len(families) == 1 else "strategies"
    return {
        "title": comparison.title,
        "best": best_optimum([family.verdict for family in families]) if len(families) > 1 else "",
        "figure": figures.get((key, kind)),
        "cards": [
            {
                "view": family.view,
                "anchor": _anchor(family),
                "colour": _colour(family),
                "lines": [*_score_lines(family), *_other_metrics(family), *_cost(family)],
            }
            for family in families
        ],
    }


Line = tuple[str, str, str]
"""Label, value, and small text beside it."""


def _score_lines(family: JudgedFamily) -> list[Line]:
    """Return the score over the search's seeds, which make the point look better than it is, and over fresh seeds."""
    verdict, metric = family.verdict, family.study.metric
    label, fresh = formats.axis_title_and_factor(metric)[0], list(verdict.fresh_scores.values())
    lines = []
    if verdict.score is not None and verdict.candidate:
        lines.append((label, family.view.score, format_count(verdict.candidate.runs, "search seed")))
    if diverged := fresh.count(None):
        lines.append(("over fresh seeds", f"{diverged} of {len(fresh)} diverged", ""))
    elif mean := mean_text(fresh, metric):
        lines.append(("over fresh seeds", mean, format_count(len(fresh), "seed")))
    return lines


def _other_metrics(family: JudgedFamily) -> list[Line]:
    """Return the lines of metrics other than the score, means over all seeds that have a score."""
    columns = [name for name in OTHER_METRICS if name in tables.METRIC_COLUMNS]
    frame = tables.results_frame([run for run in family.optimum if run.score is not None], columns)
    means = {name: values.mean() for name in columns if len(values := frame[name].dropna())}
    if family.study.metric.is_fraction:  # the score is one
        means.pop("best_accuracy", None)
    return [(OTHER_METRICS[name], column_text(mean, name), "all seeds") for name, mean in means.items()]


def _cost(family: JudgedFamily) -> list[Line]:
    """Return the line with the number of finished runs, and the device hours of all runs, unfinished ones too."""
    finished, device_s = sum(run.state.finished for run in family.runs), sum(run.device_s for run in family.runs)
    if not finished:
        return []
    return [("cost", format_count(finished, "finished run"), format_device_hours(device_s) if device_s else "")]


def _anchor(family: JudgedFamily) -> str:
    """Return the HTML id of a family's section."""
    return "-".join(family.view.key)


def _colour(family: JudgedFamily) -> str:
    return formats.strategy_colour(family.study.strategy, family.study.variant_number)


# --- family by family -----------------------------------------------------------------------------------------------


def _kinds(comparison: StrategyComparison) -> str:
    return "variants" if any(family.study.variant for family in comparison.families) else "strategies"


def comparison_section(
    comparison: StrategyComparison, figures: Figures, tried: Mapping[StudyKey, Outcome | None]
) -> Row:
    """Return the section of a comparison: the figures of all its strategies, then each family."""
    keys, is_alone = [family.view.key for family in comparison.families], len(comparison.families) == 1
    # A family alone has its map in the answer, and its curves here.
    figure_keys = [(keys[0], kind) for kind in (("curves", "seeds") if is_alone else ("seeds", "scores"))]
    return {
        "title": comparison.title,
        "heading": "curves and seeds" if is_alone else f"{_kinds(comparison)} side by side",
        "figures": [figures[figure_key] for figure_key in figure_keys if figure_key in figures],
        "metric": formats.axis_title_and_factor(comparison.metric)[0],
        "families": [
            {**_family_section(family, {} if is_alone else figures), "tried": tried.get(family.view.key)}
            for family in comparison.families
        ],
    }


def _family_section(family: JudgedFamily, figures: Figures) -> Row:
    place = optimum_text(family.verdict)
    return {
        "view": family.view,
        "anchor": _anchor(family),
        "colour": _colour(family),
        "better_means": better_means(family.verdict, family.study_state),
        "evidence": [*family.view.evidence, *([f"optimum of the fitted surface: {place}"] if place else [])],
        **{kind: figures.get((family.view.key, kind)) for kind in ("map", "curves")},
    }


# --- speed and spikes -----------------------------------------------------------------------------------------------


def speed_section(comparison: StrategyComparison) -> Row | None:
    """Return the training speed of each strategy; None if no run was timed."""
    rows = [
        {"label": family.view.label, "colour": _colour(family), **speed}
        for family in comparison.families
        if (speed := _median_speed(family.runs))
    ]
    if not rows:
        return None
    columns = {name: label for name, label in SPEED_LABELS.items() if any(row[name] for row in rows)}
    return {
        "title": comparison.title,
        "columns": columns,
        "rows": rows,
        "starving": [row for row in rows if row["starves"]],
    }


def _median_speed(runs: Sequence[Run]) -> Row | None:
    """Return medians over the runs whose training was timed; None if none was."""
    frame = tables.results_frame(runs, (*tables.SPEED_COLUMNS, "devices"))
    timed = frame[frame["step_s"].notna()]
    if timed.empty:
        return None
    middle = timed.astype("float64").median()
    cells = {str(name): _speed_cell(str(name), value) for name, value in middle.items()}
    return {**cells, "runs": len(timed), "starves": middle["data_wait"] > DATA_WAIT_LIMIT}


def _speed_cell(name: str, value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{100 * value:.3g}%" if name in ("utilisation", "data_wait") else three_digits(value)


def spike_section(comparison: StrategyComparison) -> Row | None:
    """Return how often the runs of a comparison spiked or diverged; None if no run is finished."""
    rows: list[Row] = []
    for family in comparison.families:
        all_runs = sum_spikes(family.runs)
        if all_runs.runs:
            groups = (("at the candidate", sum_spikes(family.optimum)), ("whole search", all_runs))
            rows.append(
                {
                    "label": family.view.label,
                    "colour": _colour(family),
                    "groups": groups,
                    "all": all_runs,
                }
            )
    if not rows:
        return None
    return {
        "title": comparison.title,
        "rows": rows,
        "kinds": {name: SPIKE_LABELS[name] for name in nonzero_counts(row["all"] for row in rows)},
        "diverged": any(row["all"].diverged for row in rows),
        "finished": sum(row["all"].runs for row in rows),
        "steps": sum(row["all"].steps for row in rows),
    }


# --- the best of several verified optima ------------------------------------------------------------------------------


def best_optimum(verdicts: Sequence[Verdict]) -> str:
    """Return a sentence on the best of the verified optima of several strategies.

    It is the best by fresh seeds if all have them, else by the search's seeds.
    """
    verified = [v for v in verdicts if v.verdict == "optimal" and v.candidate and v.score is not None]
    if not verified:
        unsearched = all(v.verdict == "unsearched" for v in verdicts)
        return "No axis was searched: both are fixed." if unsearched else "No optimum is verified yet."
    fresh = {v.family: mean_std([*v.fresh_scores.values()]) for v in verified}
    # All or none: the search's seeds make their point look better than it is.
    by_fresh = all(mean is not None for mean, _ in fresh.values())
    metric = verified[0].study.metric
    ranked = sorted(verified, key=lambda v: metric.sort_key(fresh[v.family][0] if by_fresh else v.score))
    winner = ranked[0]
    assert winner.candidate is not None
    assert winner.score is not None
    number = len(winner.fresh_scores) if by_fresh else winner.candidate.runs
    score = (by_fresh and mean_text([*winner.fresh_scores.values()], metric)) or score_text(winner.score, metric)
    seeds = format_count(number, "fresh seed" if by_fresh else "search seed")
    lead = _lead_text(winner, ranked[1]) if by_fresh and len(ranked) > 1 else ""
    return (
        f"Best of {format_count(len(verified), 'verified optimum')}: {winner.strategy} at "
        f"{point_text(winner.candidate.point)}, {metric.label} {score} over {seeds}{', ' * bool(lead)}{lead}."
    ).replace("optimums", "optima")


def _lead_text(winner: Verdict, second: Verdict) -> str:
    """Compare the best optimum with the next one over fresh seeds, by Welch's test (95%, two-sided: the better leads).

    Empty if one of them has fewer than two fresh seeds, or one diverged, or the best loss is 0.
    """
    (first_mean, first_std), (mean, std) = (mean_std([*v.fresh_scores.values()]) for v in (winner, second))
    if first_mean is None or mean is None or first_std is None or std is None:
        return ""
    numbers = len(winner.fresh_scores), len(second.fresh_scores)
    squares = [sd**2 / n for sd, n in zip((first_std, std), numbers, strict=True)]
    error = math.sqrt(sum(squares))
    spread = sum(square**2 / (n - 1) for square, n in zip(squares, numbers, strict=True))
    dof = error**4 / spread if spread else math.inf  # Welch-Satterthwaite
    ahead = winner.study.metric.worse_by(mean, first_mean)
    sure = chance(error, dof)
    metric = winner.study.metric
    # As shares of the best score, like all differences.
    shares = [share for value in (ahead, error, sure) if (share := as_share(value, first_mean, metric)) is not None]
    if not shares:
        return ""
    gap = difference_text(shares[0], shares[1], metric, signed=False)
    if ahead > sure:
        return f"ahead of {second.label} by {gap}"
    luck = f"which may be luck (a lead of {bound_text(shares[2], metric)} would not be)"
    return f"ahead of {second.label} by {gap}, {luck}"
