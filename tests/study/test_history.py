"""The course of a search: which run comes when, and the best score by then."""

import os
from dataclasses import replace
from pathlib import Path

from support.made_sweep import digits_spec, finish, finish_at, imagenet_spec, read, searched

from ettsweep.study.criterion import Criterion
from ettsweep.study.history import HistoryEntry, search_history
from ettsweep.study.judgement import evaluate
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.study import Study

BASE = digits_spec(None)


def spent(results: Path, study: Study) -> tuple[HistoryEntry, ...]:
    return search_history(evaluate(study, read(results, [study]).runs))


def test_the_best_loss_is_the_lowest_of_all_so_far(results: Path) -> None:
    steps = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1)]
    study = searched(BASE, steps)
    for second, (at, loss) in enumerate(zip(steps, [9.0, 0.5, 0.7, 0.4, 0.4], strict=True)):
        finish_at(results, study, at, loss, ended_s=second, diverged=second == 0)
    spent_result = spent(results, study)
    assert [item.best_score for item in spent_result] == [None, 0.5, 0.5, 0.4, 0.4]
    assert [item.suggestion_number for item in spent_result] == [1, 2, 3, 4, 5]


def test_the_best_accuracy_is_the_highest_of_all_so_far(results: Path) -> None:
    study = searched(imagenet_spec(None), [(0, 0), (1, 0), (2, 0)])
    for second, loss in enumerate([2.0, 1.0, 3.0]):
        finish_at(results, study, (second, 0), loss, ended_s=second)
    assert [item.best_score for item in spent(results, study)] == [0.5, 0.75, 0.75], "an accuracy here is 1 - loss / 4"


def test_proposals_come_in_the_order_in_which_they_were_named_whenever_they_ended(results: Path) -> None:
    study = searched(BASE, [(2, 0), (-2, 0), (0, 0)])
    for ended_s, lr_steps in ((30, 2), (10, -2), (20, 0)):
        finish_at(results, study, (lr_steps, 0), 0.5, ended_s=ended_s)
    finish_at(results, study, (1, 0), 0.5, ended_s=5)  # a neighbour, whose file has lost its time
    spent_result = spent(results, study)
    assert [study.centre.moved(steps, 0) for steps in (2, -2, 0, 1)] == [item.point for item in spent_result]
    assert [item.suggestion_number for item in spent_result] == [1, 2, 3, None]


def test_what_no_proposer_named_comes_after_in_the_order_in_which_it_ended(results: Path) -> None:
    study = searched(BASE, [(0, 0)])
    raced = RACING_SEEDS[0]
    for ended_s, (steps, seed) in enumerate([((0, 0), raced), ((1, 0), 0), ((0, 1), 0), ((1, 0), raced)], start=1):
        finish_at(results, study, steps, 0.5, seed=seed, ended_s=ended_s)
    finish_at(results, study, (0, 0), 0.5, ended_s=9)
    spent_result = spent(results, study)
    assert [(item.suggestion_number, item.run.spec.seed) for item in spent_result] == [
        (1, 0),
        (None, raced),
        (None, 0),
        (None, 0),
        (None, raced),
    ]
    assert [item.point for item in spent_result[1:]] == [
        study.centre.moved(*steps) for steps in ((0, 0), (1, 0), (0, 1), (1, 0))
    ]


def test_what_a_grid_had_run_before_comes_first(results: Path) -> None:
    study = searched(BASE, [(0, 0)])
    grid = tuple(study.centre.moved(steps, 0) for steps in (-1, 1))
    study = replace(study, grid_points=grid)
    for ended_s, lr_steps in ((1, 1), (2, 0), (3, -1)):
        finish_at(results, study, (lr_steps, 0), 0.5, ended_s=ended_s)
    spent_result = spent(results, study)
    assert [item.point for item in spent_result] == [grid[1], study.centre, grid[0]]
    assert [item.suggestion_number for item in spent_result] == [None, 1, None]


def test_by_the_papers_rule_a_proposal_asks_for_all_seeds(results: Path) -> None:
    study = replace(searched(BASE, [(0, 0), (1, 0)]), seeds=(0, 1), criterion=Criterion(rule="paper"))
    for ended_s, (lr_steps, seed) in enumerate([(1, 1), (1, 0), (0, 1), (0, 0)]):
        finish_at(results, study, (lr_steps, 0), 0.5, seed=seed, ended_s=ended_s)
    assert [(item.suggestion_number, item.run.spec.seed) for item in spent(results, study)] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]


def test_fresh_seeds_and_unfinished_runs_are_not_spent_on_the_search(results: Path) -> None:
    study = searched(BASE, [(0, 0), (1, 0)])
    finish_at(results, study, (0, 0), 0.5, ended_s=1)
    finish_at(results, study, (0, 0), 0.3, seed=1, ended_s=2)
    assert [item.best_score for item in spent(results, study)] == [0.5]


def test_a_family_that_was_not_searched_has_no_course(results: Path) -> None:
    study = searched(BASE, [])
    finish_at(results, study, (0, 0), 0.5, ended_s=1)
    assert spent(results, study) == ()


def test_runs_whose_times_are_equal_have_one_order(results: Path) -> None:
    study = searched(BASE, [(0, 0)])
    for run in [finish(results, BASE.with_point(BASE.lr * 2.0**k, BASE.wd, 0), 0.5) for k in (1, 0, -1, 2)]:
        os.utime(run.result_path, (7, 7))
    assert [item.point for item in spent(results, study)] == [study.centre.moved(k, 0) for k in (0, -1, 1, 2)]
