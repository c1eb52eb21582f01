"""The page: one HTML file with everything in it, no scripts and nothing from the network."""

import base64
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from ettsweep import __version__
from ettsweep.launch.cost import cost_so_far
from ettsweep.launch.reproduce import mixture
from ettsweep.output import DEFAULT_RESULTS, POINTS, at_results, count, power
from ettsweep.report import claims, style, tables
from ettsweep.report.claims import Key, Row
from ettsweep.report.families import Comparison, JudgedFamily, of_families
from ettsweep.report.fitted import place_of
from ettsweep.report.spikes import SPIKES, occurring, spikes_of
from ettsweep.sweep.criterion import Criterion
from ettsweep.sweep.ledger import Run, count_states
from ettsweep.sweep.sweeps import Searches
from ettsweep.tasks.kinds import task_kind

MAX_RUN_ROWS = 300

SPEED = {
    "devices": "devices of a run",
    "samples_per_s": "samples / s",
    "step_s": "seconds a step",
    "utilisation": "utilisation (data sheet)",
    "utilisation_measured": "utilisation (measured peak)",
    "data_wait": "waits for data",
    "memory_gib": "memory (GiB)",
}
"""Columns of the table of speed."""

MUCH_WAITING = 0.1
"""Share of the time in which devices wait for data that is worth a word."""

Images = Mapping[tuple[Key, str], bytes]
"""PNG images by a verdict's key and kind: map, course, curves; seeds, of the first family of a comparison."""


def render(
    results: str,
    comparisons: Sequence[Comparison],
    images: Images,
    runs: Sequence[Run],
    searches: Searches,
    corrupt: dict[str, str],
    looks: Sequence[Run] = (),
) -> str:
    """Return the page: comparisons, counts and a table of all runs, and why the history of some could not be read.

    `searches` are those of all sweeps.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"short": style.short, "metric": style.metric_name, "point": style.point_text}
    environment.filters |= {"power": power, "png": _data_uri, "said": partial(_said, results)}
    environment.filters |= {"runs": lambda number: count(number, "finished run")}
    template = environment.from_string(
        resources.files("ettsweep.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    families = [family for comparison in comparisons for family in comparison.families]
    others = claims.others([family.verdict for family in families])
    measures = {comparison.measure for comparison in comparisons}
    rules = {family.verdict.search.criterion.rule for family in families} or {Criterion().rule}
    return template.render(
        results=results,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        sections=[_section(comparison, images, others) for comparison in comparisons],
        runs=_run_rows(runs, searches),
        run_count=len(runs),
        states=[(state.value, number) for state, number in count_states(run.state for run in runs).items()],
        other_families=len({run.family for run in runs} - {family.verdict.family for family in families}),
        metrics=sorted((measure.metric, measure.mode) for measure in measures),
        rules=rules,
        corrupt=sorted(corrupt.items()),
        provenance=[*_provenance(families), ("cost", cost_so_far(runs, searches, looks))],
    )


def _section(comparison: Comparison, images: Images, others: Mapping[Key, Sequence[str]]) -> Row:
    measure = comparison.measure
    families = [_family(family, images, others) for family in comparison.families]
    return {
        "title": comparison.title,
        "families": families,
        "seeds": images.get((comparison.families[0].verdict.key, "seeds")),
        "metric": style.metric_name(measure.metric),
        "better": "lower" if measure.mode == "min" else "higher",
        "shows": {
            "point": any(f["verdict"].point for f in families),
            "score": any(f["score"] for f in families),
            "fresh": any(f["fresh"] or f["fresh_diverged"] for f in families),
            "lead": any(f["lead"] for f in families) and not any(f["known"] for f in families),
            "bound": any(f["known"] for f in families),
            "more": any(f["known"] and f["known"]["more"] for f in families),
            "accuracy": any(f["accuracy"] for f in families) and not style.is_accuracy(measure.metric),
            "bits": any(f["bits"] for f in families),
            "diverged": any(f["spikes_all"].diverged for f in families),
        },
        "spikes": {name: SPIKES[name] for name in occurring(f["spikes_all"] for f in families)},
        "unsearched": all(f["verdict"].verdict == "unsearched" for f in families),
        "diverged": sum(f["spikes_all"].diverged for f in families),
        "finished": sum(f["spikes_all"].runs for f in families),
        "steps": sum(f["spikes_all"].steps for f in families),
        "starving": [f for f in families if f["speed"] and f["speed"]["starves"]],
        "speed": {name: told for name, told in SPEED.items() if any(f["speed"] and f["speed"][name] for f in families)},
        "best": claims.best([family.verdict for family in comparison.families]),
    }


def _family(family: JudgedFamily, images: Images, others: Mapping[Key, Sequence[str]]) -> Row:
    """Return a verdict, and what is computed of the runs of its family."""
    verdict, metric = family.verdict, family.verdict.search.measure.metric
    _, searched_std = style.mean_std([run.score for run in family.counted(family.optimum)])
    optimum = tables.runs_table(family.optimum)
    return {
        "verdict": verdict,
        "anchor": "-".join(verdict.key),
        "others": others.get(verdict.key, ()),
        "mixture": (mixture(verdict.runs) or ("",))[0],
        "colour": style.strategy_colour(verdict.strategy),
        "score": style.plus_minus(verdict.score, searched_std, metric),
        "seeds": claims.seeds(verdict),
        "fresh": style.plus_minus(*style.mean_std([*verdict.fresh.values()]), metric),
        "fresh_diverged": sum(score is None for score in verdict.fresh.values()),
        "lead": None if verdict.lead is None else claims.difference(verdict.lead, verdict),
        "known": claims.known(verdict),
        "accuracy": _mean(optimum, "best_accuracy"),
        "bits": _mean(optimum, "best_bits"),
        "neighbours": claims.neighbours(verdict),
        "place": place_of(verdict),
        "map": images.get((verdict.key, "map")),
        "course": images.get((verdict.key, "course")),
        "curves": images.get((verdict.key, "curves")),
        "spikes_optimum": spikes_of(family.optimum),
        "spikes_all": spikes_of(family.runs),
        "speed": _speed(tables.runs_table(family.runs)),
        "points": len(family.points),
        "runs": len(family.runs),
    }


def _mean(runs: pd.DataFrame, metric: str) -> str | None:
    """Return the mean of a metric over the runs that have it."""
    values = runs[metric].dropna()
    return style.score_text(values.mean(), metric) if len(values) else None


# --- cells ------------------------------------------------------------------------------------------------


def _said(results: str, text: str) -> Markup:
    """Return a text with its commands set as code, as they are typed for this results folder."""
    told = text if Path(results) == DEFAULT_RESULTS else at_results(text, results)
    parts = re.split("`([^`]*)`", told)
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(parts))


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _speed(runs: pd.DataFrame) -> Row | None:
    """Return medians over the runs whose training was timed, and None where none was."""
    timed = runs[runs["step_s"].notna()]
    if timed.empty:
        return None
    middle = timed[[*tables.SPEED, "devices"]].astype("float64").median()
    cells = {str(name): _cell(str(name), value) for name, value in middle.items()}
    return {**cells, "runs": len(timed), "starves": middle["data_wait"] > MUCH_WAITING}


def _run_rows(runs: Sequence[Run], searches: Searches) -> list[Row]:
    """Return rows for the best runs of each family, about as many of each."""
    families = of_families(runs)
    best: list[Run] = []
    share = max(1, MAX_RUN_ROWS // max(1, len(families)))
    for members in families.values():
        measure = task_kind(members[0].spec.task).score
        best += sorted(members, key=lambda run: measure.rank(run.score))[:share]
    records = tables.known(tables.runs_table(best[:MAX_RUN_ROWS], searches)).to_dict("records")
    return [{str(name): _cell(str(name), value) for name, value in record.items()} for record in records]


def _cell(name: str, value: Any) -> str:
    if value != value or value is None or str(value) == "<NA>":
        return ""
    if name in tables.METRICS:
        return style.score_text(value, name)
    if name in POINTS:
        return power(value)
    if name in ("utilisation", "utilisation_measured", "data_wait"):
        return f"{100 * value:.3g}%"
    return style.short(value) if isinstance(value, float) else str(value)


def _provenance(families: Sequence[JudgedFamily]) -> list[tuple[str, str]]:
    """Return what made the report, and what trained the optima, as their claims recorded it."""
    recorded: dict[str, set[str]] = {}
    for family in families:
        for run in family.optimum[:1]:
            attempt = run.dir.latest()
            for key, value in (attempt.claim() if attempt else {}).items():
                if key in ("torch", "device_name", "instruction_set", "threads", "ettsweep", "python", "git"):
                    recorded.setdefault(key, set()).add(str(value))
    made_by = (
        f"ettsweep {__version__}, Python {platform.python_version()}, pandas {version('pandas')}, "
        f"matplotlib {version('matplotlib')}"
    )
    trained = [(f"optima trained with: {key.replace('_', ' ')}", ", ".join(sorted(recorded[key]))) for key in recorded]
    return [("report made by", made_by), *trained]
