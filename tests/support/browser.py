"""Pages in headless Chromium: what they log, what they ask for, and whether they are accessible."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

PATIENCE_MS = 60_000


@dataclass
class Opened:
    """A page that is open, and all that it has logged and asked for so far."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def ready(self) -> None:
        """Wait until all figures are drawn."""
        self.page.wait_for_function("document.documentElement.dataset.ready === 'true'", timeout=PATIENCE_MS)

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.scrollingElement.scrollWidth - innerWidth"))

    def violations(self) -> list[str]:
        """Return what axe finds: the rule, and the elements that break it."""
        from axe_playwright_python.sync_playwright import Axe

        plain = self.page.add_style_tag(content=".scroll { background: none }")  # over a shadow axe judges no contrast
        response = Axe().run(self.page).response["violations"]
        plain.evaluate("style => style.remove()")
        return [f"{item['id']}: {[node['html'][:200] for node in item['nodes'][:3]]}" for item in response]


@contextmanager
def chromium() -> Iterator[Any]:
    """Give a browser; skip where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="comes with the extra dev: make install")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, *, width: int = 1280, scheme: str = "light") -> Iterator[Opened]:
    """Open a page from its file, ready; at the end it must have logged no problem, and asked for nothing but itself."""
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as context:
        output = Opened(context.new_page())
        output.page.on("console", lambda message: output.said.append(f"{message.type}: {message.text}"))
        output.page.on("pageerror", lambda error: output.said.append(f"error: {error}"))
        output.page.on("request", lambda request: output.asked.append(request.url))
        output.page.goto(path.as_uri())
        output.ready()
        yield output
        assert not output.said
        assert {*output.asked} == {path.as_uri()}
