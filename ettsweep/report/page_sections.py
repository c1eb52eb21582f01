"""Sections of the page below the answer: families one by one, training speed, spikes."""

from collections.abc import Mapping, Sequence

from ettsweep.quantities import score_with_error
from ettsweep.report import formats, tables, verdict_text
from ettsweep.report.families import JudgedFamily, StrategyComparison
from ettsweep.report.figure_files import Figure
from ettsweep.report.spike_rates import SPIKE_LABELS, nonzero_counts, sum_spikes
from ettsweep.report.summary import family_anchor, family_colour, run_cell
from ettsweep.report.surface_frames import optimum_text
from ettsweep.report.verdict_text import Row
from ettsweep.runs.index import Run
from ettsweep.runs.versions import find_mixed_versions
from ettsweep.study.fresh import compare_fresh
from ettsweep.study.study import StudyKey
from ettsweep.study.tried import Outcome

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
"""Share of the time waiting for data from which on the page suggests more loader workers."""

Figures = Mapping[tuple[StudyKey, str], Figure]
"""Figures by key of a verdict and kind; figures of a whole comparison have the key of its first family."""


def comparison_section(
    comparison: StrategyComparison,
    figures: Figures,
    others: Mapping[StudyKey, Sequence[str]],
    tried: Mapping[StudyKey, Outcome | None],
) -> Row:
    """Return the section of a comparison: the figures of all its strategies, then each family."""
    keys = [family.verdict.key for family in comparison.families]
    figure_keys = [
        *((keys[0], kind) for kind in ("strategies", "seeds", "scores")),
        *((key, "trajectories") for key in keys),
    ]
    return {
        "title": comparison.title,
        "figures": [figures[figure_key] for figure_key in figure_keys if figure_key in figures],
        "metric": formats.axis_title_and_factor(comparison.metric)[0],
        "families": [
            {**_family_section(family, figures, others), "tried": tried.get(family.verdict.key)}
            for family in comparison.families
        ],
    }


def _family_section(family: JudgedFamily, figures: Figures, others: Mapping[StudyKey, Sequence[str]]) -> Row:
    verdict, metric = family.verdict, family.verdict.study.metric
    return {
        "verdict": verdict,
        "reason": verdict_text.reason_text(verdict),
        "anchor": family_anchor(family),
        "colour": family_colour(family),
        "others": others.get(verdict.key, ()),
        "notes": verdict_text.run_notes(verdict),
        "mixture": (find_mixed_versions(verdict.runs) or ("",))[0],
        "score": None
        if verdict.score is None
        else score_with_error(verdict.score, formats.standard_error(family.scores), metric),
        "seeds": verdict_text.seed_count(verdict),
        "fresh": fresh if (fresh := compare_fresh(verdict)) and fresh.is_notable else None,
        "better_means": verdict_text.better_means(family.verdict, family.study_state),
        "known": verdict_text.bound_row(verdict),
        "neighbours": verdict_text.neighbour_rows(verdict),
        "place": optimum_text(verdict),
        **{kind: figures.get((verdict.key, kind)) for kind in ("map", "curves")},
    }


def speed_section(comparison: StrategyComparison) -> Row | None:
    """Return the training speed of each strategy; None if no run was timed."""
    rows = [
        {"label": family.verdict.label, "colour": family_colour(family), **speed}
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
    cells = {str(name): run_cell(str(name), value) for name, value in middle.items()}
    return {**cells, "runs": len(timed), "starves": middle["data_wait"] > DATA_WAIT_LIMIT}


def spike_section(comparison: StrategyComparison) -> Row | None:
    """Return how often the runs of a comparison spiked or diverged; None if no run is finished."""
    rows: list[Row] = []
    for family in comparison.families:
        all_runs = sum_spikes(family.runs)
        if all_runs.runs:
            groups = (("at the candidate", sum_spikes(family.optimum)), ("whole search", all_runs))
            rows.append(
                {
                    "label": family.verdict.label,
                    "colour": family_colour(family),
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
