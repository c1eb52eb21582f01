"""The folders with code of a submission, each checked by `ownership`."""

from collections.abc import Iterable
from pathlib import Path

from ettsweep.launch.submissions import Submission
from ettsweep.ownership import check_folder, check_run_folder
from ettsweep.runs.folder import code_dir, jobs_dir, runs_dir, sweeps_dir
from ettsweep.runs.spec import Recipe, RunSpec


def check_folders(results: Path, specs: Iterable[RunSpec]) -> None:
    """Check, before runs are submitted or trained, that only this user may change their code.

    Raises:
        InputError: somebody else may.
    """
    check_results(results)
    for run_id in dict.fromkeys(spec.run_id for spec in specs):
        check_run_folder(runs_dir(results) / run_id)


def check_source(recipe: Recipe, source: Path) -> None:
    """Check that only this user may change the file that states the command or function of runs.

    Args:
        recipe: of the file.
        source: the absolute path of a grid file or a spec.json, or a grid file's name beside the code.

    Raises:
        InputError: somebody else may.
    """
    if code := recipe.info.code:
        check_folder(code.folder / source)


def check_results(results: Path) -> None:
    """Check a results folder: its sweeps have commands and functions.

    Raises:
        InputError: somebody else may change it.
    """
    check_folder(results)
    check_folder(sweeps_dir(results), whole=True)
    for folder in (runs_dir(results), jobs_dir(results), code_dir(results)):
        check_folder(folder)


def check_submission(submission: Submission) -> None:
    """Check, before and after a worker starts, that only this user may change its code.

    Raises:
        InputError: somebody else may.
    """
    check_results(submission.results)
    if submission.code:
        check_folder(Path(submission.code), whole=True)
    for path in (submission.path, submission.path / "submission.json"):
        check_folder(path)
