"""Another process that asks for the status again and again, while a test does something to the runs."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from support.commandline import PATIENCE_S, status


class Onlooker:
    """Asks once a second, from the moment that there is a results folder."""

    def __init__(self, results: Path) -> None:
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.onlooker", str(results)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        self._rows: list[dict[str, Any]] | None = None

    def __call__(self) -> list[dict[str, Any]]:
        """Have it stop, and return all rows that it ever saw."""
        if self._rows is None:
            out, _ = self._process.communicate(timeout=PATIENCE_S)
            assert self._process.returncode == 0
            self._rows = [row for line in out.splitlines() for row in json.loads(line)]
            assert self._rows
        return self._rows

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.communicate()


def main(results: Path) -> None:
    """Print what is seen, a line of JSON a look, until nobody listens."""
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    while not over.wait(1.0):
        if results.exists():
            print(json.dumps(list(status(results).values())), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
