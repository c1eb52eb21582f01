"""Data in specifications: by name, rounded, and null where a value is missing."""

import math

import pandas as pd
import pytest

from ettsweep.report.figures.chart_data import Datasets, significant_digits


def test_values_are_rounded_and_null_where_they_are_missing() -> None:
    data = Datasets()
    frame = pd.DataFrame({"a": [1.2345678, math.nan, math.inf], "b": ["x", None, "y"], "n": [1, 2, 3]})
    frame["k"] = pd.array([1, None, 3], dtype="Int64")
    name = data.add(frame)["name"]
    assert data.attach_to({})["datasets"][name] == [
        {"a": 1.2346, "b": "x", "n": 1, "k": 1},
        {"a": None, "b": None, "n": 2, "k": None},
        {"a": None, "b": "y", "n": 3, "k": 3},
    ]


def test_equal_frames_have_one_name_in_all_figures() -> None:
    item, other = pd.DataFrame({"a": [1.0]}), pd.DataFrame({"a": [2.0]})
    assert Datasets().add(item) == Datasets().add(item.copy()) != Datasets().add(other)


@pytest.mark.parametrize(("apart", "digits"), [(1.0, 5), (1e-9, 13), (1e-15, 15), (0.0, 5)])
def test_as_many_digits_are_kept_as_tell_values_apart(apart: float, digits: int) -> None:
    assert significant_digits(pd.Series([0.1, 0.1 + apart, math.nan])) == digits
    data = Datasets()
    add_result = data.add(pd.DataFrame({"a": [0.1, 0.1 + apart]}))
    low, high = data.attach_to({})["datasets"][add_result["name"]]
    assert high["a"] - low["a"] == pytest.approx(apart, rel=0.12)
