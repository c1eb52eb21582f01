"""The code of an existing sweep: compare the project as it is now with the sweep's copy."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.errors import SweepNameTakenError
from ettsweep.launch.follow import read_run_index
from ettsweep.launch.project_copy import find_copy
from ettsweep.project_code import NO_CODE, ProjectCode
from ettsweep.runs.spec import Recipe, kind_of
from ettsweep.runs.state import State
from ettsweep.study.sweep import Sweep
from ettsweep.study.sweep_spec import SweepSpec

MAX_NAMED = 5
"""Most edited files listed in a message."""


def with_code_of(
    sweep: Sweep | None,
    sweep_spec: SweepSpec,
    results: Path,
    free_name: str,
    *,
    same_numbers: bool = False,
) -> tuple[SweepSpec, str]:
    """Return a request with the code of its sweep, and a line on it for people.

    Args:
        sweep: to extend; None for a new one.
        sweep_spec: the request.
        results: the results folder.
        free_name: for another sweep.
        same_numbers: whether to treat the code as it is now as that of the sweep.

    Raises:
        SweepNameTakenError: files were edited, and the sweep has finished runs.
    """
    code = sweep_spec.recipe.info.code
    project = kind_of(sweep_spec.recipe).project_code(sweep_spec.recipe)
    if project is None or code is None:
        return sweep_spec, ""
    digest, note = project.digest, ""
    if sweep is not None:
        edits = _edits(sweep, results, sweep_spec.recipe, project)
        if same_numbers or not edits:
            digest = sweep.codes[-1].digest
            if edits:
                note = f"; sweep {sweep.name} trains with it from now on"
        else:
            note = _new_code_note(sweep, results, edits, free_name)
    return sweep_spec.with_code(replace(code, digest=digest, copy=project.digest)), _count(project) + note


def _new_code_note(sweep: Sweep, results: Path, edits: Sequence[str], free_name: str) -> str:
    """Return a line on a sweep that takes new code, since none of its runs has finished.

    Raises:
        SweepNameTakenError: one has.
    """
    families = {study.family for study in sweep.studies}
    runs = [run for run in read_run_index(results).runs.values() if run.family in families]
    named = ", ".join(edits[:MAX_NAMED]) + (f" and {len(edits) - MAX_NAMED} more" if edits[MAX_NAMED:] else "")
    if any(run.state.finished for run in runs):
        raise SweepNameTakenError(
            f"you edited the code of sweep {sweep.name}, which has finished runs: {named}. If the edit changes no "
            "number, pass --same-numbers; if a file is not code, exclude it by `code: {exclude: [...]}` under `run:`",
            free_name,
        )
    left = f"; it drops {format_count(len(runs), 'unfinished run')} of the old code" if runs else ""
    active = [run.id for run in runs if run.state in (State.RUNNING, State.QUEUED)]
    stop = f": `ettsweep cancel {' '.join(active)}` stops those in training" if active else ""
    return f"; sweep {sweep.name} takes the edited code: {named}{left}{stop}"


def _edits(sweep: Sweep, results: Path, recipe: Recipe, project: ProjectCode) -> list[str]:
    """Return the changes of the project since the sweep's copy; empty for code that the sweep has had."""
    before, now = sweep.codes[-1], recipe.info.code
    known = {digest for each in sweep.codes if each.digest == before.digest for digest in (each.digest, each.copy)}
    if now is None or project.digest in known:
        return []
    copy = find_copy(results, before.copy)
    if copy is None and before.copy != NO_CODE:
        return ["its copy is gone, and no file can be compared"]
    return project.differences(copy.files if copy else {}, before.rule, now.rule)


def _count(project: ProjectCode) -> str:
    if not project.files:
        return (
            f"code of the runs: no file of {project.root}: edits make no new runs. Each attempt records the version "
            "of an installed program"
        )
    return f"code of the runs: {format_count(len(project.files), 'file')} of {project.root}"
