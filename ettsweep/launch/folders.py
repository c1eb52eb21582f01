"""The folders from which a submission executes something, each checked by the one rule of `ownership`."""

from collections.abc import Iterable
from pathlib import Path

from ettsweep.launch.submissions import Submission
from ettsweep.ownership import check_folder, check_run_folder
from ettsweep.runs.folder import code_dir, jobs_dir, runs_dir, sweeps_dir
from ettsweep.runs.spec import Recipe, RunSpec


def check_folders(results: Path, specs: Iterable[RunSpec]) -> None:
    """Check, before runs are submitted or trained, that nobody else may change what they execute.

    Raises:
        InputError: somebody else may.
    """
    check_results(results)
    for run_id in dict.fromkeys(spec.run_id for spec in specs):
        check_run_folder(runs_dir(results) / run_id)


def check_source(recipe: Recipe, source: Path) -> None:
    """Check that nobody else may change the file that states what runs of a user's own code execute.

    Args:
        recipe: of the file.
        source: the absolute path of a grid file or a spec.json, or a grid file's name beside the code.

    Raises:
        InputError: somebody else may.
    """
    if code := recipe.info.code:
        check_folder(code.folder / source)


def check_results(results: Path) -> None:
    """Check a results folder, in which sweeps say what is executed.

    Raises:
        InputError: somebody else may change it.
    """
    check_folder(results)
    check_folder(sweeps_dir(results), whole=True)
    for folder in (runs_dir(results), jobs_dir(results), code_dir(results)):
        check_folder(folder)


def check_submission(submission: Submission) -> None:
    """Check, before a worker starts and when it has, that nobody else may change what it executes.

    Raises:
        InputError: somebody else may.
    """
    check_results(submission.results)
    if submission.code:
        check_folder(Path(submission.code), whole=True)
    for path in (submission.path, submission.path / "submission.json"):
        check_folder(path)
