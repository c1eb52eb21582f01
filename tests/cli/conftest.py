"""Commands as people call them, for tests of what they say."""

import io
from pathlib import Path

import pytest
from support.commandline import Call, Done, ettsweep


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Return a function that runs a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int | None = 0, stdin: str = "") -> Done:
        result = ettsweep(*arguments, code=code, stdin=io.StringIO(stdin))
        return Done(result.returncode, result.stdout, result.stderr)

    return run
