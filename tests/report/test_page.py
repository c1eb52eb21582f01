"""The page in a browser: hover, click, dark, a phone, print."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import Opened, chromium, opened
from support.made_sweep import Made, strategy_of

from ettsweep.report.families import judged_families, strategy_comparisons
from ettsweep.report.figure_files import FigureBuilder
from ettsweep.report.formats import point_powers
from ettsweep.report.page import collect_datasets, encode_column, render, script_json, without_data
from ettsweep.report.run_histories import RunHistories


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as chromium_result:
        yield chromium_result


@pytest.fixture(scope="module")
def report(sample: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep with all states: of its runs, one of each strategy in each state."""
    runs = {(strategy_of(run), run.state): run for run in sample.runs}
    (comparison,) = strategy_comparisons(judged_families(sample.runs, sample.verdicts))
    figures = {(key, figure.kind): figure for key, figure in FigureBuilder(RunHistories(60)).build(comparison)}
    page, studies = tmp_path_factory.mktemp("page") / "report.html", sample.studies_by_family
    page.write_text(render(sample.results, page.parent, [comparison], figures, [*runs.values()], studies, {}))
    return page


@pytest.fixture(scope="module")
def shown_page(browser: Any, report: Path) -> Iterator[Opened]:
    """The page, opened once for all tests that look at it as it is."""
    with opened(browser, report) as opened_result:
        yield opened_result


def family(sample: Made, strategy: str) -> str:
    """Return what selects the part of a strategy."""
    return f'article[id="{"-".join(sample.verdict(strategy).key)}"]'


# --- figures ----------------------------------------------------------------------------------------------------------


def test_hovering_over_a_hexagon_tells_its_score_error_seeds_state_and_runs(sample: Made, shown_page: Opened) -> None:
    scored = sample.verdict("standard").neighbours[2]
    points = sorted({run.point for run in sample.runs if strategy_of(run) == "standard"}, key=tuple)
    on_top = shown_page.page.locator(f"{family(sample, 'standard')} figure.map g.mark-symbol.role-mark").last
    on_top.locator("path").nth(points.index(scored.point)).hover()  # they are in order of lr, then wd
    tooltip = shown_page.page.locator("#vg-tooltip-element")
    tooltip.wait_for(state="visible")
    told = dict(
        zip(tooltip.locator("td.key").all_inner_texts(), tooltip.locator("td.value").all_inner_texts(), strict=True)
    )
    runs = [run for run in sample.runs if strategy_of(run) == "standard" and run.point == scored.point]
    mean, error = statistics.fmean(r.score for r in runs), statistics.stdev(r.score for r in runs) / math.sqrt(3)
    log2_decay = math.log2(scored.point["lr"] * scored.point["wd"])
    assert told.pop("lr * wd") == f"2^{log2_decay:g}"
    steps = 2.0**-log2_decay
    assert told.pop("time scale") == f"{steps:g} steps, {steps / runs[0].spec.info.steps_per_epoch:.3g} epochs"
    assert told == {
        "(lr, wd)": point_powers(scored.point), "state": "done", "score": "lowest validation loss",
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


def test_every_figure_is_drawn_with_links_to_its_files(sample: Made, shown_page: Opened) -> None:
    figures = shown_page.page.locator("figure[data-figure]")
    kinds = Counter(figures.evaluate_all("all => all.map(one => one.dataset.kind)"))
    assert kinds == {"strategies": 1, "seeds": 1, "scores": 1, "map": 3, "curves": 3}, "mup has none"
    assert shown_page.page.locator("figure[data-figure] svg").count() == figures.count()
    hrefs = figures.first.locator("figcaption a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert hrefs == [f"figures/vit-digits-strategies.{suffix}" for suffix in ("svg", "pdf", "png")]


# --- how it looks -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_page_is_accessible_and_fits(browser: Any, report: Path, scheme: str, width: int) -> None:
    with opened(browser, report, width=width, scheme=scheme) as shown:
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
        assert (button.is_visible(), paper(shown)) == (False, LIGHT)


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
