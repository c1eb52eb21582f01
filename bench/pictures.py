"""Take the pictures of README and docs: `make pictures RESULTS=examples/command/results`; needs Chromium and tmux."""

import argparse
import io
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text
from support.browser import chromium, opened
from support.commandline import ETTSWEEP
from support.watched import Terminal

DOCS = Path(__file__).parents[1] / "docs"

COLUMNS, ROWS = 112, 36
"""Of the terminal."""


def main() -> None:
    """Write page.png and watch.svg into docs/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="results with a report")
    page(parser.parse_args().results.resolve() / "report" / "report.html", DOCS / "page.png")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ETTSWEEP, "grid", "--model", "vit-digits", "--follow"], check=True, cwd=folder)
        race = subprocess.Popen([ETTSWEEP, "verify-optimum", "--follow", "--max-runs", "60"], cwd=folder)
        watch(folder, DOCS / "watch.svg")
        race.wait()


def page(report: Path, picture: Path) -> None:
    """Take a picture of the answer on a page."""
    with chromium() as browser, opened(browser, report) as opened_result:
        opened_result.page.add_style_tag(content=".bar { display: none; }")
        height = opened_result.page.evaluate("document.querySelector('#answer').getBoundingClientRect().bottom")
        opened_result.page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": 1280, "height": height})


def watch(folder: str, picture: Path) -> None:
    """Take a picture of `watch` while runs train and a verdict has been reached."""
    with Terminal(COLUMNS, ROWS, COLORTERM="truecolor") as terminal:
        terminal.type(f"cd {folder} && {ETTSWEEP} watch")
        terminal.wait_for("(?s) optimal within .* running +[1-9].* reached ")
        observed = terminal.seen(colours=True)
        terminal.press("q")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(observed.rstrip("\n")), soft_wrap=True)
    picture.write_text(console.export_svg(title="ettsweep watch"))


if __name__ == "__main__":
    main()
