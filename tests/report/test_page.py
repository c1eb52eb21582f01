"""The page in a browser: hover, click, dark, a phone, print, the keyboard; and bad input."""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.browser import Opened, chromium, opened
from support.drawn_figures import figures_of
from support.made_sweep import Made, changed, digits_spec, read, search, strategy_of

from ettsweep.report.families import StrategyComparison, judged_families, strategy_comparisons
from ettsweep.report.formats import point_powers
from ettsweep.report.page import collect_datasets, encode_column, render, script_json, to_columns, without_data
from ettsweep.report.page_sections import Figures
from ettsweep.runs.folder import RunDir
from ettsweep.study.reason import Reason, StuckRun

HOSTILE = "\"}}</script><img src=x onerror=alert(1)><script>alert(2)</script>\u2028&'ж名"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as chromium_result:
        yield chromium_result


@cache
def drawn(sample: Made) -> tuple[list[StrategyComparison], Figures]:
    """Return the comparisons of a made sweep and their figures, which are drawn once."""
    comparisons = strategy_comparisons(judged_families(sample.runs, sample.verdicts))
    return comparisons, figures_of(comparisons)


def page_of(sample: Made, out: Path, **changes: Any) -> Path:
    """Write the page of a made sweep, and return it."""
    out.mkdir(parents=True, exist_ok=True)
    comparisons, figures = drawn(sample)
    told: dict[str, Any] = {
        "comparisons": comparisons,
        "figures": figures,
        "runs": sample.runs,
        "corrupt": {},
    } | changes
    page = out / "report.html"
    page.write_text(render(sample.results, out, **told, studies_by_family=sample.studies_by_family))
    return page


@pytest.fixture(scope="module")
def report(sample: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep with all states, beside its results."""
    return page_of(sample, sample.results / "report")


@pytest.fixture(scope="module")
def short(sample: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the same sweep with few rows in its tables: a run of each strategy in each state."""
    mapping = {(strategy_of(run), run.state): run for run in sample.runs}
    return page_of(sample, tmp_path_factory.mktemp("short"), runs=list(mapping.values()))


@pytest.fixture(scope="module")
def shown_page(browser: Any, report: Path) -> Iterator[Opened]:
    """The page, opened once for all tests that look at it as it is."""
    with opened(browser, report) as opened_result:
        yield opened_result


def family(sample: Made, strategy: str) -> str:
    """Return what selects the part of a strategy."""
    return f'article[id="{"-".join(sample.verdict(strategy).key)}"]'


# --- figures ----------------------------------------------------------------------------------------------------------


def hexagon(sample: Made, shown_page: Opened, strategy: str, neighbour: int) -> tuple[str, Any]:
    """Return a neighbour's point as people read it, and its hexagon: the points lie on top, in order of lr, then wd."""
    verdict = sample.verdict(strategy)
    points = sorted({run.point for run in sample.runs if strategy_of(run) == strategy}, key=tuple)
    point = verdict.neighbours[neighbour].point
    on_top = shown_page.page.locator(f"{family(sample, strategy)} figure.map g.mark-symbol.role-mark").last
    return point_powers(point), on_top.locator("path").nth(points.index(point))


def test_hovering_over_a_hexagon_tells_its_score_error_seeds_state_and_runs(sample: Made, shown_page: Opened) -> None:
    point, drawn = hexagon(sample, shown_page, "standard", 2)
    drawn.hover()
    tooltip = shown_page.page.locator("#vg-tooltip-element")
    tooltip.wait_for(state="visible")
    told = dict(
        zip(tooltip.locator("td.key").all_inner_texts(), tooltip.locator("td.value").all_inner_texts(), strict=True)
    )
    scored = sample.verdict("standard").neighbours[2]
    runs = [run for run in sample.runs if strategy_of(run) == "standard" and run.point == scored.point]
    mean, error = statistics.fmean(r.score for r in runs), statistics.stdev(r.score for r in runs) / math.sqrt(3)
    log2_decay = math.log2(scored.point["lr"] * scored.point["wd"])
    assert told.pop("lr * wd") == f"2^{log2_decay:g}"
    steps = 2.0**-log2_decay
    assert told.pop("time scale") == f"{steps:g} steps, {steps / runs[0].spec.info.steps_per_epoch:.3g} epochs"
    assert told == {
        "(lr, wd)": point, "state": "done", "score": "lowest validation loss",
        "mean ± standard error": f"{mean:.4f} ± {error:.4f}", "seeds": "3", "runs": " ".join(run.id for run in runs),
    }  # fmt: skip


def axis_title(shown_page: Opened, article: str) -> str:
    return str(shown_page.page.locator(f"{article} figure.curves .role-title-text").text_content())


@pytest.mark.slow
def test_curves_show_the_quantity_that_is_asked_for(sample: Made, shown_page: Opened) -> None:
    """The choices of one family leave those of the others alone."""
    standard, ntk = family(sample, "standard"), family(sample, "ntk")
    assert axis_title(shown_page, standard) == "validation loss (nats)"
    for article in (standard, ntk):
        assert (
            shown_page.page.locator(f"{article} figure.curves").get_by_label("validation loss", exact=True).is_checked()
        )
    shown_page.page.locator(f"{standard} figure.curves").get_by_label("gradient norm").check()
    text = f"document.querySelector('{standard} figure.curves .role-title-text').textContent === 'gradient norm'"
    shown_page.page.wait_for_function(text)
    assert axis_title(shown_page, ntk) == "validation loss (nats)"
    assert shown_page.page.locator(f"{ntk} figure.curves").get_by_label("validation loss", exact=True).is_checked()


def labels(shown_page: Opened, selector: str) -> list[str]:
    return list(shown_page.page.locator(f"{selector} .role-axis-label text").all_text_contents())


def test_every_figure_is_drawn_with_links_to_its_files(sample: Made, shown_page: Opened) -> None:
    figures = shown_page.page.locator("figure[data-figure]")
    kinds = Counter(figures.evaluate_all("all => all.map(one => one.dataset.kind)"))
    assert kinds == {"strategies": 1, "seeds": 1, "scores": 1, "map": 3, "curves": 3}, "mup has none"
    assert shown_page.page.locator("figure[data-figure] svg").count() == figures.count()
    hrefs = figures.first.locator("figcaption a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert hrefs == [f"figures/vit-digits-strategies.{suffix}" for suffix in ("svg", "pdf", "png")]


# --- the table of runs ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_links_lead_to_the_folder_and_to_the_log_of_a_run(sample: Made, browser: Any, tmp_path: Path) -> None:
    base = digits_spec(None)
    run = RunDir.create(tmp_path / "a b#c", base)
    attempt = run.claim({}, after=0)
    assert attempt
    attempt.log_path.write_text("step 1\n")
    text = read(tmp_path / "a b#c", [search(base, seeds=(0,))])
    for out in (tmp_path / "a b#c" / "report", tmp_path / "elsewhere"):
        with opened(browser, page_of(text, out)) as shown:
            links = shown.page.locator("#runs tbody a").evaluate_all("all => all.map(one => one.href)")
        assert links == [f"{run.path.as_uri()}/", attempt.log_path.as_uri()]


# --- how it looks -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_page_is_accessible_and_fits(browser: Any, short: Path, scheme: str, width: int) -> None:
    with opened(browser, short, width=width, scheme=scheme) as shown:
        assert shown.overflow <= 0
        assert shown.violations() == []


def paper(shown_page: Opened) -> tuple[str, str]:
    """Return the colours of the page's background and of an axis' labels."""
    axis = "document.querySelector('figure.curves .role-axis-label text')"
    return (
        shown_page.page.evaluate("getComputedStyle(document.body).backgroundColor"),
        shown_page.page.evaluate(f"getComputedStyle({axis}).fill"),
    )


LIGHT, DARK = ("rgb(255, 255, 255)", "rgb(27, 28, 30)"), ("rgb(22, 24, 27)", "rgb(232, 232, 228)")


@pytest.mark.slow
def test_the_theme_follows_the_system_and_the_button(browser: Any, report: Path) -> None:
    with opened(browser, report, scheme="dark") as shown:
        assert paper(shown) == DARK, "figures too"
        button = shown.page.locator("#theme")
        assert button.inner_text() == "Theme: auto"
        button.click()
        assert (button.inner_text(), paper(shown)) == ("Theme: light", LIGHT)
        button.click()
        shown.page.reload()
        shown.ready()
        assert (button.inner_text(), paper(shown)) == ("Theme: dark", DARK)
        shown.page.emulate_media(media="print")
        assert paper(shown) == LIGHT
        button.evaluate("button => button.click()")
        shown.page.emulate_media(media="screen", color_scheme="light")
        assert (button.inner_text(), paper(shown)) == ("Theme: auto", LIGHT)


@pytest.mark.slow
def test_it_prints(browser: Any, report: Path, tmp_path: Path) -> None:
    with opened(browser, report, scheme="dark") as shown:
        data = shown.page.pdf(path=tmp_path / "report.pdf")
        shown.page.emulate_media(media="print")
        assert not shown.page.locator("#theme").is_visible()
        assert shown.page.locator("#runs tbody tr").last.is_visible()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) >= 3
    assert len(data) > 50_000


@pytest.mark.slow
def test_the_keyboard_reaches_everything_in_order(shown_page: Opened) -> None:
    shown_page.page.reload()  # so that it begins at the top
    shown_page.ready()
    collected = []
    for _ in range(80):
        shown_page.page.keyboard.press("Tab")
        collected.append(
            shown_page.page.evaluate("(one => one.id || one.className || one.textContent)(document.activeElement)")
        )
    assert collected[:2] == ["Answer", "Strategies"]
    assert collected.index("theme") < collected.index("copy"), "commands come after the bar"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert shown_page.page.evaluate(outline) != "none"


@pytest.mark.slow
def test_a_command_is_copied(browser: Any, report: Path, sample: Made) -> None:
    """And the page says so, for two seconds."""
    saw = "new MutationObserver(() => { window.saw ||= document.body.innerText.includes('Copied'); })"
    with opened(browser, report) as shown:
        shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        shown.page.evaluate(f"{saw}.observe(document.body, {{subtree: true, childList: true, characterData: true}})")
        shown.page.locator(".copy").first.click()
        shown.page.wait_for_function("window.saw")
        copied = shown.page.evaluate("navigator.clipboard.readText()")
        assert copied == shown.page.locator(".command code").first.inner_text()
        assert copied.startswith("ettsweep show ")
        assert copied.endswith(f" --results {sample.results}")


def test_without_scripts_the_answer_and_a_table_are_there(browser: Any, report: Path) -> None:
    with opened(browser, report, script=False) as shown:
        assert shown.page.locator(".card").count() == 4
        assert not shown.page.locator(".copy").first.is_visible()
        assert shown.page.get_by_text("65 of 65 runs,").is_visible()
        assert shown.page.get_by_role("region", name="Table of runs").locator("tr").count() == 66


# --- bad input --------------------------------------------------------------------------------------------------------


def texts(browser: Any, page: Path) -> str:
    with opened(browser, page) as shown:
        assert shown.overflow <= 0
        assert shown.violations() == []
        return str(shown.page.locator("body").inner_text())


@pytest.mark.slow
def test_no_run_and_none_that_is_finished(browser: Any, tmp_path: Path) -> None:
    text = texts(browser, page_of(Made(tmp_path / "results", [], []), tmp_path / "report"))
    assert "There is no sweep yet: ettsweep grid" in text
    assert "0 runs in" in text
    base = digits_spec(None)
    RunDir.create(tmp_path / "results", base)
    text = texts(browser, page_of(read(tmp_path / "results", [search(base)]), tmp_path / "report"))
    assert "No answer yet." in text
    assert "ettsweep verify-optimum --follow" in text


@pytest.mark.slow
def test_names_in_any_script_and_hostile_ones_are_texts(sample: Made, browser: Any, tmp_path: Path) -> None:
    verdicts = [
        replace(v, study=replace(v.study), reason=Reason("single_point", stuck=[StuckRun(HOSTILE, HOSTILE)]))
        for v in sample.verdicts
    ]
    for verdict in verdicts:
        vars(verdict.study).update(model=HOSTILE, strategy=f"{verdict.strategy} {HOSTILE}", sweep=HOSTILE)
    hostile = Made(sample.results, sample.runs, verdicts)
    comparison = StrategyComparison(HOSTILE, tuple(judged_families(hostile.runs, hostile.verdicts)))
    runs = [changed(run, status=replace(run.status, reason=HOSTILE)) for run in sample.runs]
    page = page_of(
        hostile, tmp_path, runs=runs, comparisons=[comparison], figures=figures_of([comparison]),
        corrupt={HOSTILE: HOSTILE},
    )  # fmt: skip
    with opened(browser, page) as shown:
        assert shown.page.locator("img").count() == 0
        assert shown.page.locator("h3", has_text=HOSTILE.replace("\u2028", "")[:20]).count() >= 1
        shown.page.locator("figure.strategies .mark-symbol.role-mark path").last.hover()
        tooltip = shown.page.locator("#vg-tooltip-element")
        tooltip.wait_for(state="visible")
        assert "<img src=x onerror=alert(1)>" in tooltip.inner_text()
        assert shown.page.locator("img").count() == 0
        assert shown.violations() == []
        assert shown.overflow <= 0
    assert "<img src=x" not in page.read_text()


@pytest.mark.slow
def test_a_script_that_got_in_would_not_run(browser: Any, report: Path, tmp_path: Path) -> None:
    """The policy of the page lets its own scripts run alone."""
    page = tmp_path / "report.html"
    page.write_text(report.read_text().replace("<main>", "<main><script>window.got = 1</script>", 1))
    with pytest.raises(AssertionError, match="Content Security Policy"), opened(browser, page) as shown:
        assert shown.page.evaluate("window.got") is None


def test_no_text_closes_the_element_and_all_of_it_comes_back() -> None:
    value = {"</script><!--": ["<b>&amp;\u2028\u2029", "ж", "\udcff", 1e-9, None, True]}
    text = str(script_json(value))
    assert not set(text) & set("<>&\u2028\u2029")
    assert text.isascii()
    assert json.loads(text) == value
    assert json.loads(script_json({"a": [math.nan, math.inf, (1.5,)]})) == {"a": [None, None, [1.5]]}


def test_data_sets_of_figures_are_held_once_by_columns_and_texts_that_recur_once() -> None:
    assert encode_column(["a", "b", "a", "a"]) == {"texts": ["a", "b"], "at": [0, 1, 0, 0]}
    assert encode_column([1, "a", "a", "a"]) == [1, "a", "a", "a"]
    rows = [{"x": 1, "y": "a"}, {"x": 2}]
    specs = [{"mark": "point", "datasets": {"one": rows}}, {"datasets": {"one": rows, "two": []}}, {"mark": "line"}]
    assert collect_datasets(specs) == {
        "one": {"rows": 2, "columns": {"x": [1, 2], "y": ["a", None]}},
        "two": {"rows": 0, "columns": {}},
    }
    assert without_data(specs[0]) == {"mark": "point", "datasets": ["one"]}
    assert to_columns([]) == {"rows": 0, "columns": {}}
