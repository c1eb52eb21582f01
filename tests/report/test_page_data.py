"""Data in a script element: nothing in it ends the element, and it comes back as it was."""

import json
import math

from ettsweep.report.page import collect_datasets, encode_column, script_json, to_columns, without_data


def test_no_text_closes_the_element_and_all_of_it_comes_back() -> None:
    value = {"</script><!--": ["<b>&amp;\u2028\u2029", "ж", "\udcff", 1e-9, None, True]}
    text = str(script_json(value))
    assert not set(text) & set("<>&\u2028\u2029")
    assert text.isascii()
    assert json.loads(text) == value


def test_what_is_not_finite_is_missing() -> None:
    assert json.loads(script_json({"a": [math.nan, math.inf, (1.5,)]})) == {"a": [None, None, [1.5]]}


def test_texts_that_recur_are_written_once() -> None:
    assert encode_column(["a", "b", "a", "a"]) == {"texts": ["a", "b"], "at": [0, 1, 0, 0]}
    assert encode_column(["a", "b"]) == ["a", "b"]
    assert encode_column([1, "a", "a", "a"]) == [1, "a", "a", "a"]


def test_data_sets_of_figures_are_held_once_by_columns() -> None:
    rows = [{"x": 1, "y": "a"}, {"x": 2}]
    specs = [{"mark": "point", "datasets": {"one": rows}}, {"datasets": {"one": rows, "two": []}}, {"mark": "line"}]
    assert collect_datasets(specs) == {
        "one": {"rows": 2, "columns": {"x": [1, 2], "y": ["a", None]}},
        "two": {"rows": 0, "columns": {}},
    }
    assert without_data(specs[0]) == {"mark": "point", "datasets": ["one"]}
    assert to_columns([]) == {"rows": 0, "columns": {}}
