"""Why a verdict is what it is, in words."""

import re

import pytest
from support.made_sweep import Made, changed, digits_spec, search

from ettsweep.quantities import score_text
from ettsweep.report.reason_text import better_means, reason_text
from ettsweep.study.judgement import evaluate
from ettsweep.study.reason import Code, Reason
from ettsweep.study.verdict import Verdict
from ettsweep.trainer.tasks.registry import LOWEST_LOSS


@pytest.mark.parametrize(
    ("code", "facts", "text"),
    [
        (
            "too_few_seeds",
            {"value": 0.05, "confidence": 0.95, "seeds": 3, "runs": None, "device_s": None},
            "the candidate and the deciding neighbour must share 3 seeds; the missing runs are under way",
        ),
        (
            "noise_unknown",
            {"lack": "seeds", "seeds": 1, "runs": 7, "device_s": 0.0, "paper": None},
            "each point has one score; the candidate and its neighbours need 1 more seed each",
        ),
        ("within_margin", {"value": 0.05, "confidence": 0.95}, ""),
    ],
)
def test_reasons_add_details_to_the_answer(code: Code, facts: dict[str, object], text: str) -> None:
    assert reason_text(Verdict(search(digits_spec(None)), "unresolved", Reason(code, facts), None)) == text


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
    better = {run.id for run in runs if run.point == neighbour.point and run.spec.seed in scores}
    tied = [r if r.id not in better else changed(r, result={"score": 0.998 * scores[r.spec.seed]}) for r in runs]
    with_tie = evaluate(study, tied)
    text = better_means(with_tie.verdict(best.point), with_tie)
    score = score_text(0.998 * best.candidate.score, LOWEST_LOSS)
    assert f"{neighbour.point} has {score} over the same {neighbour.runs} seeds, " in text
    assert re.search(r", but the fit puts it [\d.]+ ± [\d.]+% behind", text)
    assert re.search(r"one run is off by [\d.]+%", text)
