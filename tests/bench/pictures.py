"""Take the pictures of README from the real program: `make pictures`, after `make demo`; needs Chromium and tmux."""

import argparse
import io
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text
from support.browser import chromium, opened

DOCS = Path(__file__).parents[2] / "docs"

ANSWER_AND_FIRST_STRATEGY = """
    main > :not(#answer, #families), #families article:not(:first-of-type), .bar { display: none; }
    #families article { border: 0; }
"""
"""What of the page is in its picture, as a style sheet."""

ETTSWEEP = (sys.executable, "-m", "ettsweep")

PATIENCE_S = 300


def main() -> None:
    """Write page.png and watch.svg into docs/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the results of `make demo`")
    results = parser.parse_args().results
    page(results / "report" / "report.html", DOCS / "page.png")
    with tempfile.TemporaryDirectory() as folder:
        ettsweep("grid", "--model", "vit-digits", "--follow", folder=folder)
        race = subprocess.Popen([*ETTSWEEP, "verify-optimum", "--follow", "--max-runs", "60"], cwd=folder)
        with Screen(112, 36, "watch", folder) as screen:
            screen.save(screen.when(lambda text: "reached" in text and "running " in text), DOCS / "watch.svg")
            screen.type("q")
        race.wait()


def page(report: Path, picture: Path) -> None:
    """Take a picture of the answer on the page and of its first strategy."""
    with chromium() as browser, opened(browser, report) as shown:
        shown.page.add_style_tag(content=ANSWER_AND_FIRST_STRATEGY)
        height = shown.page.evaluate("document.querySelector('#families').getBoundingClientRect().bottom + scrollY")
        shown.page.screenshot(path=picture, full_page=True, clip={"x": 0, "y": 0, "width": 1280, "height": height})


def ettsweep(*arguments: str, folder: str) -> None:
    subprocess.run([*ETTSWEEP, *arguments], check=True, cwd=folder)


class Screen:
    """A terminal in which the program runs."""

    def __init__(self, columns: int, rows: int, arguments: str, folder: str) -> None:
        self._size, self._arguments, self._folder = (columns, rows), arguments, folder
        self._socket = f"ettsweep-pictures-{os.getpid()}"

    def __enter__(self) -> "Screen":
        size = ["-x", str(self._size[0]), "-y", str(self._size[1]), "-c", self._folder]
        command = f"{shlex.join(ETTSWEEP)} {self._arguments}; cat"
        self._tmux("new-session", "-d", *size, f"COLORTERM=truecolor TERM=xterm-256color {command}")
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def type(self, keys: str) -> None:
        self._tmux("send-keys", keys)

    def when(self, condition: Callable[[str], bool]) -> str:
        """Return what is on the screen as soon as a condition on its text holds, with colours as escape sequences."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < PATIENCE_S:
            seen = self._tmux("capture-pane", "-p", "-e")
            if condition(Text.from_ansi(seen).plain):
                return seen
            time.sleep(0.2)
        raise TimeoutError(f"{self._arguments}: what was waited for never came:\n{seen}")

    def save(self, seen: str, picture: Path) -> None:
        """Write what was seen as SVG."""
        console = Console(record=True, width=self._size[0], file=io.StringIO(), color_system="truecolor")
        console.print(Text.from_ansi(seen.rstrip("\n")), soft_wrap=True)
        picture.write_text(console.export_svg(title=f"ettsweep {self._arguments}"))

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, *arguments], check=True, capture_output=True, text=True)
        return done.stdout


if __name__ == "__main__":
    main()
