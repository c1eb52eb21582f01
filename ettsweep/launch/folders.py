"""The folders from which a submission executes something, each checked by the one rule of `ownership`."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from ettsweep.errors import DataMissingError
from ettsweep.launch.profile import PROFILES_HERE
from ettsweep.launch.submissions import Submission
from ettsweep.ownership import check_folder, check_run_folder
from ettsweep.runs.folder import code_dir, jobs_dir, runs_dir, sweeps_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.trainable import Trainable


def check_folders(results: Path, specs: Iterable[RunSpec]) -> None:
    """Check, before runs are submitted or trained, that nobody else may change what they execute.

    Raises:
        InputError: somebody else may.
    """
    runs = {spec.run_id: spec for spec in specs}
    for spec in {spec.recipe_key: spec for spec in runs.values()}.values():
        check_project(spec)
    if PROFILES_HERE.is_dir():
        check_folder(PROFILES_HERE)
    check_results(results)
    for run_id in runs:
        check_run_folder(runs_dir(results) / run_id)


def check_project(recipe: Trainable) -> None:
    """Check the folders and files of a user's own code.

    Raises:
        InputError: somebody else may change it.
    """
    if code := recipe.own_code():
        paths = [code.folder, *code.other_folders]
        with contextlib.suppress(DataMissingError):  # runs train in an earlier copy of it
            paths += [each for path in recipe.code_paths() for each in (path.parent, path)]
        for path in dict.fromkeys(paths):
            check_folder(path)


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
    copies = [code_dir(submission.results) / name for name in submission.projects.values()]
    for folder in (*([Path(submission.code)] if submission.code else []), *copies):
        check_folder(folder, whole=True)
    for path in (submission.path, submission.path / "submission.json"):
        check_folder(path)
