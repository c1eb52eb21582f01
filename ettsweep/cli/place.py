"""Where a command's runs train, and where their data are."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ettsweep.errors import InputError

if TYPE_CHECKING:
    from ettsweep.launch.profiles import AnyProfile
    from ettsweep.sweep.request import Request


def _profile(
    results: Path,
    families: set[str],
    launch: str | None,
    launch_set: list[str] | None,
    data: str | None,
    *,
    check: bool = True,
) -> "AnyProfile":
    """Return the launch profile asked for, else that of the grids that these families belong to.

    Raises:
        InputError: their grids were launched differently, so a choice is needed.
        DataMissingError: a data set of theirs is not there.
    """
    from ettsweep.launch.profiles import load_profile
    from ettsweep.sweep.request import load_requests

    ways: dict[tuple[str, tuple[str, ...]], str] = {}
    left = set(families)
    for request in load_requests(results):  # newest first: it governs its families
        mine = {search.family for search in request.searches()} & left
        if mine:
            left -= mine
            request = _where(request, launch, launch_set, data)
            ways.setdefault((request.launch, request.launch_set), request.grid)
            if check:
                _check_data(request)
    if len(ways) > 1:
        told = "; ".join(" ".join((grid, "with", name, *sets)) for (name, sets), grid in ways.items())
        raise InputError(f"these grids were launched differently ({told}); choose with --launch, or narrow the runs")
    name, sets = next(iter(ways), (launch or "local", tuple(launch_set or ())))
    return load_profile(name, sets)


def _where(request: "Request", launch: str | None, launch_set: list[str] | None, data: str | None) -> "Request":
    """Return the request with what the options say of where it trains."""
    given: dict[str, Any] = {}
    if launch is not None:
        given["launch"] = str(Path(launch).resolve()) if Path(launch).is_file() else launch
        given["launch_set"] = ()  # another profile does not inherit what was set in the first
    if launch_set:
        sets = (*given.get("launch_set", request.launch_set), *launch_set)
        given["launch_set"] = tuple(
            {text.partition("=")[0]: text for text in sets}.values()
        )  # the last of a key counts
    if data is not None:
        given["data"] = data
    request = request.model_copy(update=given)
    resolved = _point_at_data(request.data, request.recipe.task.kind)
    return request.model_copy(update={"data": resolved})


def _on_data(request: "Request", data: str | None) -> "Request":
    """Return a grid's request for the text at hand, if it is for text.

    Raises:
        DataMissingError: there is none.
    """
    from ettsweep.sweep.request import with_corpus

    _point_at_data(data or request.data, request.recipe.task.kind)
    return with_corpus(request)


def _point_at_data(data: str | None, task: str) -> str | None:
    """Make the data set of a task known to this process and to the workers that it starts; return it, resolved."""
    from ettsweep.tasks.data import data_env, resolve
    from ettsweep.tasks.kinds import TASKS

    if data is None:
        return None
    if TASKS[task].packaged:
        own = "; for text of your own: --set task=text" if task == "pydoc" else ""
        raise InputError(f"--data: task {task} has its data from a package, and reads no other{own}")
    os.environ[data_env(task)] = data = resolve(data)
    return data


def _data_of(request: "Request") -> str | None:
    """Return where images or text of a grid are, as the grid or the environment says; None where neither does."""
    from ettsweep.tasks.data import said
    from ettsweep.tasks.kinds import task_kind

    task = request.recipe.task
    return None if task_kind(task).packaged else said(task.kind, request.data)


def _check_data(request: "Request", *, counts: bool = False) -> None:
    """Check that the data are there, and at a glance that they are as many as every run will ask for."""
    from ettsweep.tasks.kinds import check_counts, check_data

    task, model = request.recipe.task, request.recipe.model
    check_data(task, model)
    if counts:
        check_counts(task, model)
