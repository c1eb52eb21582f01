"""The page: one self-contained HTML file with its data, which loads nothing from the network."""

import base64
import hashlib
import json
import math
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from ettsweep import __version__
from ettsweep.console import DEFAULT_RESULTS, escape_control, format_count, with_results_option
from ettsweep.files import Json
from ettsweep.powers import power_and_decimal
from ettsweep.quantities import confidence_text, three_digits
from ettsweep.report.answer import AXIS_NAMES
from ettsweep.report.families import JudgedFamily, StrategyComparison
from ettsweep.report.page_sections import Figures, Row, answer_section, comparison_section, speed_section, spike_section
from ettsweep.report.run_table import run_table
from ettsweep.report.theme import CONFIG
from ettsweep.runs.folder import TRUSTED_GROUP
from ettsweep.runs.index import Run, count_states
from ettsweep.study.criterion import Criterion
from ettsweep.study.sweep_store import StudiesByFamily
from ettsweep.study.tried import outcome_of


def render(
    results: Path,
    out: Path,
    comparisons: Sequence[StrategyComparison],
    figures: Figures,
    runs: Sequence[Run],
    studies_by_family: StudiesByFamily,
    corrupt: Mapping[str, str],
    figure_files: bool = True,
) -> str:
    """Render the page: the answer, figures, a table of runs, and the histories that could not be read.

    Args:
        results: the results folder; links to the folders of runs lead there.
        out: the folder that the page will be in.
        comparisons: of the page, in its order.
        figures: by key of a verdict and kind.
        runs: all runs of the report.
        studies_by_family: the studies of all sweeps, also of sweeps outside of the report.
        corrupt: reasons why a run's history cannot be read, by run id.
        figure_files: whether the page links to files of figures.
    """
    families = [family for comparison in comparisons for family in comparison.families]
    # Own scripts record anything: their speed and spikes are no results.
    measured = [comparison for comparison in comparisons if comparison.families[0].study.base.info.records_every_step]
    tried = {family.study.key: outcome_of(results, family.study) for family in families}
    scripts = {name: _read_script(name) for name in ("vega", "theme", "figures", "page")}
    return _environment(str(results)).get_template("page.html.j2").render(
        results=escape_control(str(results)),
        heading=_heading(comparisons),
        made=f"{datetime.now(UTC):%-d %b %Y}",
        policy=_content_security_policy(scripts.values()),
        style=Markup(_read_resource("page.css")),
        scripts=scripts,
        answers=[answer_section(comparison, figures) for comparison in comparisons],
        has_strategies=any(family.study.has_strategies for family in families),
        kinds="variants" if any(family.study.variant for family in families) else "strategies",
        sections=[comparison_section(comparison, figures, tried) for comparison in comparisons],
        specs={figure.name: script_json(without_data(figure.spec)) for figure in figures.values()},
        data=script_json(collect_datasets(figure.spec for figure in figures.values())),
        figure_files=figure_files,
        config=script_json(CONFIG),
        runs=run_table(runs, studies_by_family, results, out),
        run_count=len(runs),
        states=[(state.value, number) for state, number in count_states(run.state for run in runs).items()],
        speed=[section for comparison in measured if (section := speed_section(comparison))],
        spikes=[section for comparison in measured if (section := spike_section(comparison))],
        other_families=len({run.family for run in runs} - {family.study.family for family in families}),
        metrics=sorted({comparison.metric for comparison in comparisons}, key=lambda metric: metric.name),
        confidences=_confidences(families),
        rules={family.study.criterion.rule for family in families} or {Criterion().rule},
        corrupt=sorted(corrupt.items()),
        provenance=[*_provenance(families), *_trusted(runs), *_ensembles(runs)],
    )  # fmt: skip


def _heading(comparisons: Sequence[StrategyComparison]) -> str:
    if len(comparisons) == 1:
        return comparisons[0].title
    names = dict.fromkeys(name for each in comparisons for family in each.families for name in family.study.free)
    return f"Sweeps of {' and '.join(AXIS_NAMES.get(name, name) for name in names)}" if len(names) < 3 else "Sweeps"


# --- helpers ----------------------------------------------------------------------------------------------


def _environment(results: str) -> Environment:
    from jinja2 import FunctionLoader

    # StrictUndefined raises for a misspelled name, which would otherwise print nothing.
    environment = Environment(
        loader=FunctionLoader(_read_resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "short": three_digits,
        "power": power_and_decimal,
        "prose": partial(_prose_markup, results),
        "command": partial(_command_markup, results),
    }
    environment.filters |= {"runs": lambda number: format_count(number, "finished run"), "sentence": _capitalize_first}
    return environment


def _read_resource(name: str) -> str:
    return resources.files("ettsweep.report").joinpath(name).read_text(encoding="utf-8")


def _read_script(name: str) -> Markup:
    # Markup, or autoescape would turn the quotes and signs of the script into entities.
    return Markup(_read_resource(f"{name}.js"))


def _content_security_policy(scripts: Iterable[str]) -> str:
    """Return the page's Content-Security-Policy: only its own scripts run, and nothing is loaded.

    'unsafe-eval' is for Vega, which compiles the expressions of its specifications.
    """
    # A browser runs an inline script only if its hash is listed.
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src 'unsafe-eval' {hashes}"


def _prose_markup(results: str, text: str) -> Markup:
    """Return a text with commands in backticks as <code>, with --results unless the folder is the default."""
    return Markup("").join(
        Markup("<code>{}</code>").format(span) if is_code else escape(span)
        for span, is_code in _spans(_with_results_option(results, text))
    )


def _spans(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text, and whether each is code, in backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick is plain text
        parts[-2:] = ["`".join(parts[-2:])]
    for number, part in enumerate(parts):
        yield part, number % 2 == 1


def _command_markup(results: str, command: str) -> Markup:
    """Return a command for this results folder, each argument in a <span> of its own.

    The style sheet does not break lines within a span.
    """
    arguments = _with_results_option(results, f"`{command}`").strip("`").split(" ")
    return Markup(" ").join(Markup("<span>{}</span>").format(argument) for argument in arguments)


def _with_results_option(results: str, text: str) -> str:
    return text if Path(results) == DEFAULT_RESULTS else with_results_option(text, results)


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _confidences(families: Sequence[JudgedFamily]) -> list[str]:
    """Return the confidences that the sweeps require, such as 95%."""
    confidences = {family.study.criterion.confidence for family in families} or {Criterion().confidence}
    return [confidence_text(confidence) for confidence in sorted(confidences)]


def _provenance(families: Sequence[JudgedFamily]) -> list[Row]:
    """Return the versions behind the report and the optima, and the particulars of their training."""
    recorded: dict[str, set[str]] = {}
    for family in families:
        for run in family.optimum[:1]:
            attempt = run.dir.latest_attempt()
            for key, value in (attempt.claim() if attempt else {}).items():
                if key in ("torch", "device_name", "instruction_set", "threads", "ettsweep", "python", "git"):
                    recorded.setdefault(key, set()).add(str(value))
    made_by = f"ettsweep {__version__}, Python {platform.python_version()}, pandas {version('pandas')}"
    trained = [
        {"label": f"optima trained with: {key.replace('_', ' ')}", "value": ", ".join(sorted(recorded[key]))}
        for key in recorded
    ]
    particulars = {
        f"{family.study.sweep or family.study.model}: {label}": text
        for family in families
        for label, text in family.study.base.info.particulars.items()
    }
    stated = [{"label": label, "value": text} for label, text in particulars.items()]
    return [{"label": "report made by", "value": made_by}, *trained, *stated]


def _trusted(runs: Sequence[Run]) -> list[Row]:
    """Return how many runs were trained with --trust-group; nothing for none."""
    count = sum(bool((run.result or {}).get(TRUSTED_GROUP)) for run in runs)
    if not count:
        return []
    text = f"{format_count(count, 'run')} trained from folders that others could write to (--trust-group)"
    return [{"label": "trusted group", "value": text}]


def _ensembles(runs: Sequence[Run]) -> list[Row]:
    """Return which runs were trained in ensembles; nothing for none."""
    names = [run.id for run in runs if ((run.result or {}).get("execution") or {}).get("ensemble")]
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    verb = "was" if len(names) == 1 else "were"
    text = f"{', '.join(names[:3])}{more} {verb} trained in an ensemble, which rounds differently"
    return [{"label": "not bit-exact", "value": text}]


# --- data within the page ---------------------------------------------------------------------------------------------

# `</script>` or `<!--` would end or garble the element.
_JSON_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def script_json(value: object) -> Markup:
    """Return a value as JSON for a script element.

    Characters that could close the element or open a comment are escaped; numbers that are not finite are null.
    """
    try:
        text = _dumps(value)
    except ValueError:  # a rare number that is not finite
        text = _dumps(_nan_to_null(value))
    return Markup(text.translate(_JSON_ESCAPES))


def _dumps(value: object) -> str:
    # NaN is not JSON: fail here rather than in the browser.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _nan_to_null(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _nan_to_null(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_nan_to_null(inner) for inner in value]
    return value


def to_columns(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Return rows as columns, with null for missing values: this stores names and repeated texts once."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {"rows": len(rows), "columns": {name: encode_column([row.get(name) for row in rows]) for name in names}}


def encode_column(values: Sequence[Any]) -> Any:
    """Return a column as a list or, if texts recur, as each text once and the index of the text for each row."""
    if not all(isinstance(value, str) for value in values):
        return list(values)
    texts = {text: index for index, text in enumerate(dict.fromkeys(values))}
    if len(texts) > len(values) / 2:  # the indices would cost more than they save
        return list(values)
    return {"texts": list(texts), "at": [texts[value] for value in values]}


def collect_datasets(specs: Iterable[Json]) -> dict[str, Json]:
    """Return the data sets of all specifications by name, each by columns; equal data have equal names."""
    datasets: dict[str, Json] = {}
    for spec in specs:
        for name, rows in spec.get("datasets", {}).items():
            if name not in datasets:
                datasets[name] = to_columns(rows)
    return datasets


def without_data(spec: Json) -> Json:
    """Return a specification with only the names of its data sets; the page has the rows elsewhere, once."""
    return {**spec, "datasets": list(spec.get("datasets", {}))}
