"""What is stated of how verdicts are given: read from files, kept in sweeps, the last statement of each part."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import write_grid

from ettsweep.errors import InputError
from ettsweep.study.criterion import Criterion, CriterionOptions
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import extend_sweep, load_sweep_store, record_criterion
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS

Ask = Callable[..., SweepSpec]


@pytest.fixture
def make_sweep_spec(tmp_path: Path) -> Ask:
    """Return a function that makes a request of the small grid, with a criterion in its file."""

    def make(criterion: object = None, **changes: Any) -> SweepSpec:
        return load_sweep_spec(write_grid(tmp_path / "w8.yaml", criterion=criterion or {}, **changes))

    return make


def criterion(results: Path, name: str = "w8") -> Criterion:
    sweep = load_sweep_store(results).sweeps[name]
    assert {study.criterion for study in sweep.studies} == {sweep.criterion}
    return sweep.criterion


def test_a_grid_file_states_as_much_as_it_wants(make_sweep_spec: Ask) -> None:
    declared = make_sweep_spec({"rule": "paper", "confidence": "97.5%", "margin": 0})
    assert declared.criterion == CriterionOptions(rule="paper", confidence=0.975, margin=0.0)
    assert declared.specs() == make_sweep_spec().specs(), "it is in no id"
    assert make_sweep_spec().criterion is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"margin": 5}, "criterion: margin: 5 is 500%; for 5% write 5% or 0.05"),
        ({"margin": -0.02}, "criterion.margin: input should be greater than or equal to 0, got -0.02"),
        ({"confidence": 95}, "criterion.confidence: 95 is 9500%; for 95% write 95% or 0.95"),
        ({"confidence": "100%"}, "criterion.confidence: input should be less than 1, got 1.0"),
        ("paper", "criterion: {rule: ..., confidence: ..., margin: ...} is expected, got 'paper'"),
    ],
)
def test_what_is_no_criterion_is_refused(make_sweep_spec: Ask, content: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"w8.yaml: {message}") + "$"):
        make_sweep_spec(content)


def test_a_margin_that_nobody_stated_goes_by_the_score() -> None:
    assert [Criterion().margin_for(score) for score in (LOWEST_LOSS, BEST_ACCURACY)] == [0.02, 0.002]
    assert [Criterion(margin=0.0).margin_for(score) for score in (LOWEST_LOSS, BEST_ACCURACY)] == [0.0, 0.0]


def test_of_each_part_the_last_statement_counts(make_sweep_spec: Ask, results: Path) -> None:
    extend_sweep(results, "w8", make_sweep_spec({"margin": 0.05, "confidence": 0.9}))
    assert criterion(results) == Criterion(margin=0.05, confidence=0.9)
    record_criterion(results, ["w8"], CriterionOptions(rule="paper"))
    record_criterion(results, ["w8"], CriterionOptions(margin=0.01))
    assert criterion(results) == Criterion(rule="paper", margin=0.01, confidence=0.9)
    extended = extend_sweep(results, "w8", make_sweep_spec({"margin": 0.05}))
    assert extended == "extended sweep w8; margin 5% from now on"
    assert criterion(results) == Criterion(rule="paper", margin=0.05, confidence=0.9)
    assert extend_sweep(results, "w8", make_sweep_spec({"margin": 0.05})) == "", "that says nothing new"
    assert extend_sweep(results, "w8", make_sweep_spec(seeds=[0, 1])) == "extended sweep w8"
    assert criterion(results) == Criterion(rule="paper", margin=0.05, confidence=0.9), "and that nothing of it"
