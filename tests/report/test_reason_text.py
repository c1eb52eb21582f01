"""Why a verdict is what it is, in words."""

import re

from support.made_sweep import Made, changed

from ettsweep.quantities import score_text
from ettsweep.report.reason_text import better_means
from ettsweep.runs.point import snap_point
from ettsweep.study.judgement import evaluate
from ettsweep.trainer.tasks.registry import LOWEST_LOSS


def test_a_better_mean_than_the_candidates_is_explained(noisy: Made) -> None:
    study = noisy.verdict("standard").study
    runs = [run for run in noisy.runs if run.family == study.family]
    state = evaluate(study, runs)
    best = state.verdict()
    assert best.candidate is not None
    assert best.candidate.score is not None
    assert better_means(best, state) == ""
    # A neighbour whose every seed is a little better: the fit weighs all others too.
    neighbour = max(best.neighbours, key=lambda scored: scored.runs)
    assert neighbour.runs == best.candidate.runs
    scores = {run.spec.seed: run.score or 0.0 for run in best.runs if run.point == best.point}
    tied = [
        changed(run, result={"score": 0.998 * scores[run.spec.seed]})
        if run.point == neighbour.point and run.spec.seed in scores
        else run
        for run in runs
    ]
    with_tie = evaluate(study, tied)
    text = better_means(with_tie.verdict(best.point), with_tie)
    score = score_text(0.998 * best.candidate.score, LOWEST_LOSS)
    assert f"{neighbour.point} has {score} over the same {neighbour.runs} seeds, " in text
    assert re.search(r", but is [\d.]+ ± [\d.]+% worse as fitted|, and is [\d.]+ ± [\d.]+% better as fitted", text)
    assert re.search(r"one run is off by [\d.]+%", text)
    # A single lucky run two steps away: the candidate stays, and the run is named.
    lucky_point = best.candidate.point.moved(2, 0)
    at_point = [run for run in runs if snap_point(run.point, [lucky_point]) == lucky_point]
    lucky = changed(at_point[0], result={"score": 0.99 * best.candidate.score})
    with_luck = evaluate(study, [run for run in runs if run not in at_point] + [lucky])
    text = better_means(with_luck.verdict(best.point), with_luck)
    assert f"{lucky.point} has {score_text(0.99 * best.candidate.score, LOWEST_LOSS)} by a single run" in text
    # Another number of seeds: a point two steps away has those of the sweep, and racing's were left out.
    few = [
        changed(run, result={"score": 0.99 * scores[run.spec.seed]}) if run in at_point else run
        for run in runs
        if run not in at_point or run.spec.seed in study.seeds
    ]
    assert len(at_point) == len(study.seeds) < best.candidate.runs
    with_few = evaluate(study, few)
    text = better_means(with_few.verdict(best.point), with_few)
    assert re.search(
        rf"{re.escape(str(lucky.point))} has [\d.]+ over {len(study.seeds)} seeds, not the same ones", text
    )
