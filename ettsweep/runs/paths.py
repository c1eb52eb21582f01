"""Where all lies in a results folder.

requests/               what was asked for
jobs/<submission>/      jobs that were submitted
code/<digest>/          snapshots of the code
runs/<run id>/          runs, see `runs.folder`
"""

from pathlib import Path


def requests_dir(results: Path) -> Path:
    """Return the folder of all that was asked for."""
    return results / "requests"


def jobs_dir(results: Path) -> Path:
    """Return the folder of all submissions of a results folder."""
    return results / "jobs"


def code_dir(results: Path) -> Path:
    """Return the folder of all snapshots of a results folder."""
    return results / "code"


def runs_dir(results: Path) -> Path:
    """Return the folder of all runs of a results folder."""
    return results / "runs"


def is_run_id(name: str) -> bool:
    """Say whether `name` can be a run id: only then does it become a path."""
    return len(name) == 12 and all(c in "0123456789abcdef" for c in name)
