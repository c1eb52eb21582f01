"""Marks: none hides a test that starts no process, and those selected decide how many processes there are."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.scheduling import selects_clusters

TESTS = Path(__file__).parent
OWN = """
import pytest

@pytest.fixture
def cluster():
    return "a stand-in, which starts nothing"

def test_of_the_stand_in(cluster):
    pass
"""


def test_a_fixture_that_takes_the_name_of_a_marking_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(OWN)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--collect-only", "-q", "-c", "/dev/null"]
    completed = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=TESTS)
    refusal = "test_own.py: the fixture 'cluster' hides the one that marks tests: rename it"
    assert refusal in completed.stdout + completed.stderr
    assert completed.returncode == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("markers", "selected"),
    [("", True), ("not (cluster and slow)", True), ("cluster", True), ("not (cluster or statistics or slow)", False)],
)
def test_clusters_get_processes_of_their_own_where_tests_on_them_are_selected(markers: str, selected: bool) -> None:
    assert selects_clusters(markers) is selected
