"""Somebody who asks for the status again and again, in processes of its own, while a test does something to the runs."""

import threading
from pathlib import Path
from typing import Any

from support.commandline import status, typed


class Onlooker:
    """Asks once a second, from the moment that there is a results folder."""

    def __init__(self, results: Path) -> None:
        self._results, self._over = results, threading.Event()
        self._rows: list[dict[str, Any]] = []
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(1.0) and self._problem is None:
            try:
                self._rows += status(self._results, typed).values() if self._results.exists() else ()
            except BaseException as error:
                self._problem = error

    def __call__(self) -> list[dict[str, Any]]:
        """Have it stop, and return all rows that it ever saw."""
        self.close()
        assert self._problem is None, self._problem
        assert self._rows
        return self._rows

    def close(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join()
