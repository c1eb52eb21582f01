"""The page in a browser: hover, click, dark, a phone, print, the keyboard; and bad input."""

import itertools
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.browser import Opened, chromium, opened
from support.drawn_figures import figures_of
from support.made_sweep import Made, changed, digits_spec, finish, read, search, strategy_of

from ettsweep.report.families import StrategyComparison, judged_families, strategy_comparisons
from ettsweep.report.formats import point_text
from ettsweep.report.page import collect_datasets, encode_column, render, script_json, to_columns, without_data
from ettsweep.report.page_sections import Figures
from ettsweep.runs.folder import RunDir
from ettsweep.runs.point import Point
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


@pytest.fixture
def shown_page(browser: Any, report: Path) -> Iterator[Opened]:
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
    return point_text(point), on_top.locator("path").nth(points.index(point))


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
    log2_decay = math.log2(scored.point.lr * scored.point.wd)
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


@pytest.mark.slow
def test_axes_of_curves_may_be_logarithmic(sample: Made, shown_page: Opened) -> None:
    figure = f"{family(sample, 'standard')} figure.curves"
    before = labels(shown_page, figure)
    shown_page.page.locator(figure).get_by_label("log scale").check()
    shown_page.page.wait_for_function(
        "([selector, before]) => [...document.querySelectorAll(`${selector} .role-axis-label text`)]"
        ".map(one => one.textContent).join() !== before",
        arg=[figure, ",".join(before)],
    )
    assert {"0.2", "0.5", "1"} <= set(labels(shown_page, figure))


@pytest.mark.slow
def test_an_entry_of_the_legend_hides_and_shows_its_line(sample: Made, shown_page: Opened) -> None:
    figure = f"{family(sample, 'standard')} figure.curves"
    text = "figure => [...document.querySelectorAll(`${figure} .mark-line path`)].filter(one => one.getAttribute('opacity') !== '0').length"
    before = shown_page.page.evaluate(text, figure)
    entry = shown_page.page.locator(f"{figure} .role-legend-label text").first
    for number in (before - 1, before):
        entry.click()
        shown_page.page.wait_for_function(f"figure => ({text})(figure) === {number}", arg=figure)


@pytest.mark.slow
def test_a_switch_brings_strategies_to_common_coordinates(sample: Made, shown_page: Opened) -> None:
    """All strategies ran the same points in coordinates of their own, which differ by powers of the width."""
    text = "[...document.querySelectorAll('figure.strategies .mark-text.role-mark text')].map(one => one.getAttribute('transform')).join()"
    before = shown_page.page.evaluate(text)
    switch = shown_page.page.get_by_label("in the coordinates of standard")
    switch.check()
    shown_page.page.wait_for_function(f"before => {text} !== before", arg=before)
    switch.uncheck()
    shown_page.page.wait_for_function(f"before => {text} === before", arg=before)


def test_every_figure_is_drawn_with_links_to_its_files(sample: Made, shown_page: Opened) -> None:
    figures = shown_page.page.locator("figure[data-figure]")
    kinds = Counter(figures.evaluate_all("all => all.map(one => one.dataset.kind)"))
    assert kinds == {"strategies": 1, "seeds": 1, "scores": 1, "map": 3, "trajectories": 3, "curves": 3}, "mup has none"
    assert shown_page.page.locator("figure[data-figure] svg").count() == figures.count()
    hrefs = figures.first.locator("figcaption a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert hrefs == [f"figures/vit-digits-strategies.{suffix}" for suffix in ("svg", "pdf", "png")]


# --- the table of runs ------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [("light", 390), ("dark", 1280), ("dark", 390)]),
    ],
)
def test_the_page_is_accessible_and_fits(browser: Any, short: Path, scheme: str, width: int) -> None:
    with opened(browser, short, width=width, scheme=scheme) as shown:
        assert shown.overflow <= 0
        assert shown.violations() == []


@pytest.mark.slow
@pytest.mark.parametrize("location", [".claim", ".scroll td"])
def test_axe_sees_what_is_wrong(browser: Any, short: Path, location: str) -> None:
    with opened(browser, short) as shown:
        shown.page.evaluate(f"document.querySelector('{location}').style.color = '#bbb'")
        assert [told.partition(":")[0] for told in shown.violations()] == ["color-contrast"]


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
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_edge_beyond_which_a_table_goes_on_has_a_shadow(browser: Any, report: Path, scheme: str) -> None:
    """Below its last row a table has a margin of plain paper, but for the shadow."""
    with opened(browser, report, width=390, scheme=scheme) as shown:
        table = shown.page.locator(".scroll").first

        def edges(left: float) -> list[bool]:
            """Return whether there is a shadow at the left and at the right edge, scrolled so far."""
            table.evaluate("table => table.scrollIntoView({block: 'center', behavior: 'instant'})")
            table.evaluate("(table, left) => { table.scrollLeft = left; }", left)
            box = table.bounding_box()
            y, right = box["y"] + box["height"] - 5, box["x"] + box["width"]
            strips = [
                shown.page.screenshot(clip={"x": x, "y": y, "width": 3, "height": 4})
                for x in (box["x"] + box["width"] / 2, box["x"] + 1, right - 4)
            ]
            return [strip != strips[0] for strip in strips[1:]]

        assert [edges(left) for left in (0, 60, 10_000)] == [[False, True], [True, True], [True, False]]
        shown.page.emulate_media(media="print")
        assert table.evaluate("table => getComputedStyle(table).backgroundImage") == "none"


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


def copy(shown_page: Opened) -> None:
    """Copy the first command, and wait until the page has said so, which it does for two seconds."""
    saw = "new MutationObserver(() => { window.saw ||= document.body.innerText.includes('Copied'); })"
    shown_page.page.evaluate(f"{saw}.observe(document.body, {{subtree: true, childList: true, characterData: true}})")
    shown_page.page.locator(".copy").first.click()
    shown_page.page.wait_for_function("window.saw")


def test_a_command_is_copied(browser: Any, report: Path, sample: Made) -> None:
    with opened(browser, report) as shown:
        shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        copy(shown)
        copied = shown.page.evaluate("navigator.clipboard.readText()")
        assert copied == shown.page.locator(".command code").first.inner_text()
        assert copied.startswith("ettsweep show ")
        assert copied.endswith(f" --results {sample.results}")


@pytest.mark.slow
def test_a_command_is_copied_where_there_is_no_clipboard_to_ask(browser: Any, report: Path) -> None:
    with opened(browser, report) as shown:
        shown.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        shown.page.evaluate("document.addEventListener('copy', () => { window.taken = String(getSelection()); })")
        copy(shown)
        assert shown.page.evaluate("window.taken") == shown.page.locator(".command code").first.inner_text()


def test_without_scripts_the_answer_and_a_table_are_there(browser: Any, report: Path) -> None:
    with opened(browser, report, script=False) as shown:
        assert shown.page.locator(".card").count() == 4
        assert not shown.page.locator(".copy").first.is_visible()
        assert shown.page.get_by_text("65 of 65 runs,").is_visible()
        assert shown.page.get_by_role("region", name="Table of runs").locator("tr").count() == 66


# --- bad input --------------------------------------------------------------------------------------------------------


def made_of(results: Path, scores: Callable[[int, int, int], float], **how: Any) -> Made:
    """Return a sweep of nine points by three seeds with these scores."""
    base = digits_spec(None)
    for i, j, seed in itertools.product((-1, 0, 1), (-1, 0, 1), range(3)):
        finish(results, base.with_point(*Point(base.lr, base.wd).moved(i, j), seed), scores(i, j, seed), **how)
    return read(results, [search(base)])


def texts(browser: Any, page: Path) -> str:
    with opened(browser, page) as shown:
        assert shown.overflow <= 0
        assert shown.violations() == []
        return str(shown.page.locator("body").inner_text())


def test_no_finished_run(browser: Any, tmp_path: Path) -> None:
    base = digits_spec(None)
    RunDir.create(tmp_path / "results", base)
    text = texts(browser, page_of(read(tmp_path / "results", [search(base)]), tmp_path / "report"))
    assert "No optimum is verified yet: no run is finished." in text
    assert "Next: train the missing runs, and judge again" in text
    assert "ettsweep verify-optimum --follow" in text
    for missing_files in ("device hours", "Speed", "Spikes", "mean ± standard error"):
        assert missing_files not in text


def test_no_run_at_all(browser: Any, tmp_path: Path) -> None:
    text = texts(browser, page_of(Made(tmp_path / "results", [], []), tmp_path / "report"))
    assert "There is no sweep yet: ettsweep grid" in text
    assert "0 runs in" in text


@pytest.mark.slow
def test_one_run(browser: Any, tmp_path: Path) -> None:
    base = digits_spec(None)
    finish(tmp_path / "results", base, 0.1)
    text = texts(browser, page_of(read(tmp_path / "results", [search(base, seeds=(0,))]), tmp_path / "report"))
    assert "1 run in" in text
    assert "1 search seed" in text
    assert "1 finished run" in text
    assert re.search(r"\b1 runs|\b1 finished runs|\b1 points", text) is None


@pytest.mark.slow
def test_all_diverged(browser: Any, tmp_path: Path) -> None:
    made_of_result = made_of(tmp_path / "results", lambda i, j, seed: 9.0, diverged=True)
    text = texts(browser, page_of(made_of_result, tmp_path / "report"))
    assert "No optimum is verified yet; of 27 finished runs, all diverged." in text
    assert "nan" not in text.lower().split()


@pytest.mark.slow
@pytest.mark.parametrize("apart", [1e-9, 1e9])
def test_scores_that_differ_by_very_little_or_very_much(browser: Any, tmp_path: Path, apart: float) -> None:
    made_of_result = made_of(
        tmp_path / "results", lambda i, j, seed: 0.1 + apart * (1 + 3 * (i * i + j * j + i * j) + 0.1 * seed)
    )
    page = page_of(made_of_result, tmp_path / "report")
    with opened(browser, page) as shown:
        assert shown.overflow <= 0
        score = shown.page.locator(".line", has_text="lowest validation loss").locator(".value").inner_text()
    mean, error = re.fullmatch(r"\(?([\d.]+) ± ([\d.]+)(?:\)e9)? 3 search seeds", " ".join(score.split())).groups()  # type: ignore[union-attr]
    scale = 1e9 if ")e9" in score else 1
    assert float(mean) * scale == pytest.approx(0.1 + 1.1 * apart, rel=0.05 * apart / (0.1 + apart))
    assert float(error) * scale == pytest.approx(0.1 * apart / 3**0.5, rel=0.06)
    assert len(score) < 60


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


def test_a_script_that_got_in_would_not_run(browser: Any, report: Path, tmp_path: Path) -> None:
    """The policy of the page lets its own scripts run alone."""
    page = tmp_path / "report.html"
    page.write_text(report.read_text().replace("<main>", "<main><script>window.got = 1</script>", 1))
    with pytest.raises(AssertionError, match="Content Security Policy"), opened(browser, page) as shown:
        assert shown.page.evaluate("window.got") is None


def test_the_page_is_small(report: Path) -> None:
    assert report.stat().st_size < 1.5e6, "the libraries are 0.9 MB of it"


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
