"""A run folder without attempts."""

from pathlib import Path

import pytest

from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec


@pytest.fixture
def run(results: Path, spec: RunSpec) -> RunDir:
    return RunDir.create(results, spec)
