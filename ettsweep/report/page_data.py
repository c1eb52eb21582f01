"""Data within the page: JSON that cannot end its script element, tables by column, each data set of figures once."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ettsweep.files import Json

# `</script>` or `<!--` within a text would end or garble the element.
_JSON_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def script_json(value: object) -> Markup:
    """Return a value as JSON for a script element.

    Characters that could close the element or open a comment are escaped; numbers that are not finite are null.
    """
    try:
        text = _dumps(value)
    except ValueError:  # some number is not finite: most values have none, and are not searched for it
        text = _dumps(_nan_to_null(value))
    return Markup(text.translate(_JSON_ESCAPES))


def _dumps(value: object) -> str:
    # allow_nan=False: NaN is no JSON, so one that slipped through must fail here and not in the browser.
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
    """Return rows as columns, with null for missing values: names and repeated texts are then stored once."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {"rows": len(rows), "columns": {name: encode_column([row.get(name) for row in rows]) for name in names}}


def encode_column(values: Sequence[Any]) -> Any:
    """Return a column as a list or, if texts recur, as each text once and the index of the text for each row."""
    if not all(isinstance(value, str) for value in values):
        return list(values)
    texts = {text: index for index, text in enumerate(dict.fromkeys(values))}
    if len(texts) > len(values) / 2:  # few repetitions: the indices would cost more than they save
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
