"""The screen at its smallest and at a large size, its keys, and its first seconds."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import PATIENCE_S
from support.made_sweep import finish
from support.watched import ask, at, claim, finish_all, watcher
from textual.app import App
from textual.pilot import Pilot

from ettsweep.runs.folder import RunDir
from ettsweep.study.study import Study
from ettsweep.watch.app import WatchScreen

SMALL, LARGE = (80, 24), (200, 60)

Act = Callable[[WatchScreen, "Pilot[None]"], Awaitable[None]]


def show(results: Path, act: Act, size: tuple[int, int] = SMALL) -> WatchScreen:
    """Show the screen, and act on it once all verdicts are there."""

    async def run() -> WatchScreen:
        app = WatchScreen(results, watcher(results))
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: app.view.status and all(family.verdict for family in app.view.families.values()))
            await until(pilot, lambda: "q quit" in seen(app))
            await act(app, pilot)
        return app

    return asyncio.run(run())


async def until(pilot: "Pilot[None]", condition: Callable[[], Any]) -> None:
    """Wait for something that the thread that looks, or the screen, is about to do."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < PATIENCE_S, seen(pilot.app)
        await pilot.pause(0.02)


def seen(app: "App[None]") -> str:
    """Return what is seen, line by line."""
    update = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in update)


@pytest.fixture
def small(results: Path) -> list[Study]:
    """Two families: one is finished and optimal; of the other a run trains, one failed, one diverged, one waits."""
    result, other = ask(results, strategies=["standard", "ntk"])
    finish_all(results, result)
    claim(results, at(other, 0, 0), step=60, loss=1.25)
    claim(results, at(other, 0, 1)).record_failure("error", "RuntimeError: out of luck\nsecond line")
    finish(results, at(other, 1, 0), 0.5, diverged=True)
    RunDir.create(results, at(other, -1, 0))
    return [result, other]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_all_parts_are_seen_at_once(results: Path, size: tuple[int, int]) -> None:
    async def act(app: WatchScreen, pilot: "Pilot[None]") -> None:
        text = seen(app)
        lines = text.splitlines()
        assert len(lines) == size[1]
        assert max(map(len, lines)) <= size[0]
        assert re.search(r"19/22 runs finished +about \d+ s left", lines[0])
        assert re.search(r"^ small standard +18/18 +unresolved: within 5% \(95%\), too few seeds", text, re.MULTILINE)
        assert re.search(r"^ small ntk +1/18 +1 +incomplete", text, re.MULTILINE)
        assert re.search(r"\[ *\.10. *\]", text), "the candidate"
        assert len(re.findall(r"\( *\.\d\d\d *\)", text)) == 6, "its neighbours"
        assert re.search(r"running +60/240 +1\.25 +9 s", text)
        assert "? help" in lines[-1]
        if size == LARGE:
            assert re.search(r"failed +60/240 .* RuntimeError: out of luck$", text, re.MULTILINE)

    show(results, act, size)


@pytest.mark.usefixtures("small")
def test_keys_change_the_family_in_view_and_help_says_what_they_do(results: Path) -> None:
    async def act(app: WatchScreen, pilot: "Pilot[None]") -> None:
        assert app.family
        assert app.family.study.strategy == "standard"
        for key, strategy in (("down", "ntk"), ("down", "ntk"), ("up", "standard"), ("down", "ntk")):
            await pilot.press(key)
            await pilot.pause()
            assert app.family.study.strategy == strategy, key
            assert f"small {strategy}: lr across, wd up" in seen(app)
        assert {"▸", "!", "·"} <= set(seen(app)), "training, failed, to come"
        await pilot.press("question_mark")
        await until(pilot, lambda: "cancel the selected run, after confirmation" in seen(app))
        assert "● finished" in seen(app)
        await pilot.press("escape")
        await until(pilot, lambda: "runs finished" in seen(app))

    show(results, act)


def test_a_log_is_followed_until_somebody_comes_back(results: Path, small: list[Study]) -> None:
    run = RunDir.create(results, at(small[1], 0, 0))
    log = run.attempt(1).log_path
    log.write_text("first \x1b[2J\x07[red]line\n")

    async def act(app: WatchScreen, pilot: "Pilot[None]") -> None:
        await pilot.press("tab", "l")
        await until(pilot, lambda: r"first \x07[red]line" in seen(app))
        with log.open("a") as file:
            file.write("second line\n")
        await until(pilot, lambda: "second line" in seen(app))
        await pilot.press("c")
        assert not run.cancel_path.exists()
        assert "cancel run" not in seen(app), "keys of the screen below do nothing"
        await pilot.press("q")
        await until(pilot, lambda: "runs finished" in seen(app))

    show(results, act)


def test_a_run_is_cancelled_after_a_question_that_names_it(results: Path, small: list[Study]) -> None:
    run = RunDir.create(results, at(small[1], 0, 0))

    async def act(app: WatchScreen, pilot: "Pilot[None]") -> None:
        await pilot.press("tab", "c")
        await until(pilot, lambda: f"cancel run {run.id[:8]} ntk (" in seen(app))
        await pilot.press("n")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert not run.cancel_path.exists()
        await pilot.press("c")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("y")
        await until(pilot, run.cancel_path.exists)
        await until(pilot, lambda: "1 run cancelled" in seen(app))
        await pilot.press("down", "c")
        await until(pilot, lambda: any(" is failed: nothing to cancel" in each.message for each in app._notifications))
        assert len(app.screen_stack) == 1

    show(results, act)
