"""Data within the page: JSON that nothing in it can end, tables column by column, each data set of figures once."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ettsweep.files import Json

_SPELLED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def script_json(value: object) -> Markup:
    """Return a value as JSON for a script element: no text in it can close the element, or open a comment.

    What is not finite is null.
    """
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_SPELLED))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def by_columns(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Return rows by columns, with null for what a row lacks: names are written once, and so are texts that recur."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {"rows": len(rows), "columns": {name: column([row.get(name) for row in rows]) for name in names}}


def column(values: Sequence[Any]) -> Any:
    """Return a column: its values or, of texts that recur, each text once and the place of each row's among them."""
    if not all(isinstance(value, str) for value in values):
        return list(values)
    texts = {text: index for index, text in enumerate(dict.fromkeys(values))}
    if len(texts) > len(values) / 2:
        return list(values)
    return {"texts": list(texts), "at": [texts[value] for value in values]}


def data_sets(specs: Iterable[Json]) -> dict[str, Json]:
    """Return the data sets of specifications by name, by columns; those of one name are the same."""
    datasets: dict[str, Json] = {}
    for spec in specs:
        for name, rows in spec.get("datasets", {}).items():
            if name not in datasets:
                datasets[name] = by_columns(rows)
    return datasets


def without_data(spec: Json) -> Json:
    """Return a specification with the names of its data sets alone: the page has the rows elsewhere."""
    return {**spec, "datasets": list(spec.get("datasets", {}))}
