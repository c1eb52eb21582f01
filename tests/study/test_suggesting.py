"""Searching, round after round, on made surfaces."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.simulate import Way, centre_alone, simulate
from bench.worlds import Made
from ettsweep.runs.index import RunIndex
from ettsweep.study.budget import Budget
from ettsweep.study.criterion import Criterion
from ettsweep.study.round import Aim, next_round
from ettsweep.study.study import Study, StudyKey
from ettsweep.study.suggesting import Search, Suggested
from ettsweep.study.sweep import Suggestion

BOWL = Made("bowl", 0.02)


def searched(search: Search, study: Study, *, killed: bool = False) -> list[Suggestion]:
    """Return what was proposed in a whole sweep; if killed after each round, only what was recorded is left of it."""
    collected: list[Suggestion] = []

    class Recording(Search):
        def suggest(
            self,
            studies: Sequence[Study],
            run_index: RunIndex,
            capacity: int,
            max_runs: int,
            exhausted: frozenset[StudyKey] = frozenset(),
        ) -> Suggested:
            starts = {study.key: self.starts[study.key] for study in studies if not study.suggested_points}
            searching = replace(search, starts=starts) if killed else search
            suggested = searching.suggest(studies, run_index, capacity, max_runs, exhausted)
            collected.extend(suggestion for each in suggested.suggestions.values() for suggestion in each)
            return suggested

    recording = Recording(search.sampler, search.suggest_positions, search.trials, search.starts)
    simulate(study, BOWL, Budget(60), slots=2, search=recording)
    return collected


@pytest.mark.parametrize("sampler", ["surface", "tpe", "cmaes"])
def test_a_search_that_is_killed_after_each_round_proposes_the_same(sampler: str) -> None:
    """It starts beside the centre of its lattice, which only its first proposal says."""
    study, complete = Way(sampler, trials=8, off=3).begin(centre_alone((0,), Criterion()), BOWL)
    assert complete
    proposed = searched(complete, study)
    assert proposed == searched(complete, study, killed=True)
    points = [point for suggestion in proposed for point in suggestion.points]
    assert len({(point["lr"], point["wd"]) for point in points}) == len(points) <= 8
    assert sampler == "surface" or len(points) == 8


@pytest.mark.parametrize(("runs", "selected"), [(19, 19), (20, 10), (60, 30)])
def test_a_budget_is_kept_for_the_verdict_where_that_leaves_as_much_for_the_search(runs: int, selected: int) -> None:
    study, searching = Way("random", trials=30).begin(centre_alone((0,), Criterion()), BOWL)
    assert searching
    made = next_round([study], RunIndex({}, {}), Budget(runs), aim=Aim(capacity=100, search=searching))
    assert len(made.studies[0].suggested_points) == selected
