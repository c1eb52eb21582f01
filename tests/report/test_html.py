"""The page as text: answers, what is left out, escaping, and nothing fetched from anywhere."""

import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from support.made_sweep import Made, changed

from ettsweep.report.answer import answer
from ettsweep.report.families import StrategyComparison, judged_families
from ettsweep.report.page import render
from ettsweep.report.spike_rates import SPIKE_LABELS
from ettsweep.report.verdict_view import headline
from ettsweep.runs.point import Point
from ettsweep.study.reason import Reason, StuckRun

HOSTILE = '<script>alert("x")</script>&\'"'


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:  # neither a script nor a style
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(
    sample: Made,
    results: str = "results",
    corrupt: Mapping[str, str] | None = None,
    title: str = "vit-digits on digits",
) -> str:
    """Return the page of a made sweep without its figures: what is tested here are words and tables."""
    comparison = StrategyComparison(title, tuple(judged_families(sample.runs, sample.verdicts)))
    studies = sample.studies_by_family
    return render(Path(results), Path("out"), [comparison], {}, sample.runs, studies, corrupt or {})


def test_the_answer_is_on_the_page(sample: Made) -> None:
    text = Page(page_of(sample)).text
    assert "Best of 2 verified optima: standard at lr 0.0156, wd 0.5, lowest validation loss" in text, "and hybrid"
    assert "over 3 search seeds" in text, "hybrid has no fresh ones"
    assert "candidate 2^-6 (0.015625) 2^-1 (0.5) 0.1004 ± 0.0002" in text, "the search's seeds: 0.1000, 0.1004, 0.1008"
    assert "0.1106 ± 0.0002" in text, "the fresh seeds: 0.1104, 0.1108"
    assert "optimal by the paper's comparison of means" in text, "hybrid"
    # 0.1106 against 0.1004, of seeds that differ by 0.4%.
    fresh = r"optimal within 2% \(95%\) fresh seeds ([\d.]+) ± ([\d.]+)% worse than fitted"
    ((worse, _),) = re.findall(fresh, text)
    assert 9 < float(worse) < 11
    assert "2 fresh seeds gave 0.1106, the search's seeds 0.1004" in text
    assert text.count("+17%") == 2, "(lr / 2, wd) of ntk and hybrid; where a bound is known, shares with errors"
    assert all(answer(verdict) in text for verdict in sample.verdicts)
    assert "60 done, 4 diverged" in text
    assert "1 missing" in text


def test_what_is_empty_or_never_happened_is_left_out(sample: Made) -> None:
    page = Page(page_of(sample)).text
    assert "number steps diverged train loss gradient norm in all per run per 1,000 steps in all" in page
    assert "standard at the candidate 5 1,200 0 6 1.2 5 5 1 4.17 whole search 29" in page
    assert "overflow steps" not in page.split("How it is measured")[0]
    calm = {**dict.fromkeys(SPIKE_LABELS, 0), "utilisation": None}
    runs = [changed(run, result=run.result and run.result | calm) for run in sample.runs if run.state != "diverged"]
    replaces = [replace(v, fresh_scores={}, neighbours=()) for v in sample.verdicts]
    quiet = [replace(v, bound=v.bound and replace(v.bound, differences=())) for v in replaces]
    page = Page(page_of(Made(sample.results, runs, quiet))).text
    assert "No spikes, and nothing diverged: 60 finished runs, 14,400 steps." in page
    for absent in ("at the candidate", "over fresh seeds", "worse by", "utilisation (data sheet)"):
        assert absent not in page
    nothing = [replace(v, fresh_scores={}, neighbours=(), candidate=None, bound=None) for v in sample.verdicts]
    page = Page(page_of(Made(sample.results, [], nothing))).text
    assert "No optimum is verified yet." in page
    assert not [absent for absent in ("Speed", "Spikes", "Runs", "device hours", "best accuracy") if absent in page]
    assert "There is no sweep yet: ettsweep grid" in Page(render(Path("results"), Path("out"), [], {}, [], {}, {})).text


def test_what_is_known_is_told_with_its_errors(noisy: Made) -> None:
    text = Page(page_of(noisy)).text
    verdict = noisy.verdict("standard")
    assert verdict.bound is not None
    assert text.count(headline(verdict)) >= 2, "in the table, and over what is known"
    for difference in filter(None, verdict.bound.differences):  # in percent of the loss, with a standard error
        assert f"{100 * difference.mean:+.2f} ± {100 * difference.error:.2f}%" in text
    assert "Probability that it beats all its neighbours: more than 99%" in text
    assert re.search(r"Noise of a run: [\d.]+%, measured by repeated seeds \(\d+ degrees of freedom\)", text)
    bound = noisy.verdict("hybrid").bound
    assert bound is not None
    beside = replace(bound, value=0.031, plateau=(Point.of(lr=2.0**-5, wd=0.5),))
    facts = {"value": 0.031, "confidence": 0.95, "margin": 0.02, "runs": 24, "runs_range": [10, 60], "device_s": 0.0}
    reason = Reason("beyond_margin", facts)
    open_ = [replace(noisy.verdict("hybrid"), verdict="unresolved", reason=reason, bound=beside)]
    text = Page(page_of(Made(noisy.results, noisy.runs, open_))).text
    assert "unresolved: within 3.1% (95%), margin 2%" in text
    assert "A neighbour may be better by up to 3.1% (95%); your margin is 2%." in text
    assert text.count("bout 24 more runs decide it, likely 10 to 60") == 2, "as the reason and as the next step"


def test_speed_is_told_by_medians_and_starving_in_words(sample: Made) -> None:
    text = Page(page_of(sample)).text
    # Seeds 0, 1, 2 take 10, 20 and 30 ms a step; standard has fresh ones of 110 and 120 ms at one of nine points.
    assert "seconds a step utilisation (data sheet) waits" in text
    assert "standard 29 2 3200 0.02 50% 4% 11.2" in text
    assert "ntk 26 2 3200 0.02 – 34% 11.2" in text
    assert "ntk: the device waits for data during 34% of the time. Set more trainer.loader_workers" in text


def test_hostile_names_are_escaped(sample: Made) -> None:
    stuck = Reason("single_point", stuck=[StuckRun(HOSTILE, HOSTILE)], next=[("ettsweep", "retry", HOSTILE)])
    verdicts = [replace(v, study=replace(v.study), reason=stuck) for v in sample.verdicts]
    for verdict in verdicts:
        vars(verdict.study).update(strategy=verdict.strategy + HOSTILE, model=HOSTILE)
    hostile = Made(sample.results, sample.runs, verdicts)
    page = page_of(hostile, HOSTILE, {HOSTILE: HOSTILE}, HOSTILE)
    parsed, calm = Page(page), Page(page_of(sample))
    assert "<script>alert" not in page
    assert sum(tag == "script" for tag, _ in parsed.tags) == sum(tag == "script" for tag, _ in calm.tags)
    assert parsed.text.count('<script>alert("x")</script>&\'"') >= 4


def test_commands_are_set_as_they_are_typed(sample: Made) -> None:
    stuck = Reason("single_point", stuck=[StuckRun("a<b", "failed")], next=[("ettsweep", "retry", "a<b")])
    verdicts = [replace(verdict, reason=stuck, fresh_scores={}) for verdict in sample.verdicts]
    unreadable = {"0123456789ab": "`ettsweep data check x` says"}
    page = page_of(Made(sample.results, sample.runs, verdicts), "my <rc>", unreadable)
    folder = " --results &#39;my &lt;rc&gt;&#39;"
    assert f"a&lt;b failed; <code>ettsweep retry &#39;a&lt;b&#39;{folder}</code> trains it again." in page
    assert "</code>: <code>ettsweep data check x</code> says</li>" in page


def test_nothing_is_fetched(sample: Made) -> None:
    parsed = Page(page_of(sample))
    assert {tag for tag, _ in parsed.tags}.isdisjoint({"link", "iframe", "object", "embed", "base", "img"})
    assert not [tag for tag, attributes in parsed.tags if attributes.keys() & {"src", "srcset", "data", "action"}]
    (policy,) = (a["content"] for tag, a in parsed.tags if tag == "meta" and "http-equiv" in a)
    assert policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.partition("script-src")[2], "no other script runs"
