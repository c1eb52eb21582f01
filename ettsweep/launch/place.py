"""Where runs train, and where their data are: what the options of a command say, else what their grids do."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ettsweep.errors import InputError
from ettsweep.launch.profiles import AnyProfile, LocalProfile, load_profile
from ettsweep.spec import RunSpec
from ettsweep.sweep.request import Request, as_before, load_requests, with_corpus
from ettsweep.tasks.data import resolve, said
from ettsweep.tasks.kinds import TASKS, check_counts, check_data


@dataclass(frozen=True)
class Place:
    """What options say.

    Attributes:
        launch: name or file of the launch profile; None leaves it to the grid.
        launch_set: `key=value` for its fields.
        data: where the data set is; None leaves it to the grid, and to the user's environment.
    """

    launch: str | None = None
    launch_set: tuple[str, ...] = ()
    data: str | None = None

    def of(self, request: Request) -> Request:
        """Return a request with what the options say of where it trains, and of where its data are."""
        given: dict[str, Any] = {}
        if self.launch is not None:
            given["launch"] = str(Path(self.launch).resolve()) if Path(self.launch).is_file() else self.launch
            given["launch_set"] = ()  # another profile does not inherit what was set in the first
        if self.launch_set:
            sets = (*given.get("launch_set", request.launch_set), *self.launch_set)
            last = {text.partition("=")[0]: text for text in sets}  # of a key, the last counts
            given["launch_set"] = tuple(last.values())
        data = self.data or request.data
        given["data"] = located(data, request.recipe.task.kind) if data else None
        return request.model_copy(update=given)

    def settle(self, request: Request, results: Path) -> Request:
        """Return a grid's request for the data at hand; it trains where the options say, else where it did before.

        Raises:
            DataMissingError: its runs are bound to data that are not there.
        """
        request = self.of(request)
        return self.of(as_before(results, with_corpus(request, request.data)))

    def of_families(
        self, results: Path, families: Collection[str], *, check: bool = True
    ) -> tuple[AnyProfile, dict[str, str]]:
        """Return the profile of the grids that some families belong to, and where data are by kind of task.

        Args:
            results: results folder.
            families: ids.
            check: check that the data are there.

        Raises:
            InputError: their grids were launched differently, so a choice is needed.
            DataMissingError: a data set of theirs is not there.
        """
        ways: dict[tuple[str, tuple[str, ...]], str] = {}
        data: dict[str, str] = {}
        left = set(families)
        for request in load_requests(results):  # newest first: it governs its families
            mine = {search.family for search in request.searches()} & left
            if mine:
                left -= mine
                placed = self.of(request)
                ways.setdefault((placed.launch, placed.launch_set), placed.grid)
                data |= data_by_kind(placed)
                if check:
                    check_data_of(placed)
        if len(ways) > 1:
            told = "; ".join(" ".join((grid, "with", name, *sets)) for (name, sets), grid in ways.items())
            raise InputError(
                f"these grids were launched differently ({told}); choose with --launch, or narrow the runs"
            )
        name, sets = next(iter(ways), (self.launch or "local", self.launch_set))
        return load_profile(name, sets), data

    def here(self, spec: RunSpec) -> tuple[LocalProfile, str | None]:
        """Return the profile by which a run trains in this process, and where its data are said to be.

        Raises:
            DataMissingError: its data are not there.
            InputError: the profile is for another machine.
        """
        data = located(self.data, spec.task.kind) if self.data else None
        check_data(spec.task, spec.model, data)
        profile = load_profile(self.launch or "local", self.launch_set)
        if not isinstance(profile, LocalProfile):
            raise InputError(
                f"--launch {self.launch}: `train` trains here, in this process; `grid` and `retry` submit to SLURM"
            )
        return profile, data


def located(data: str, task: str) -> str:
    """Return where the data of a kind of task are said to be, so that it holds in any folder.

    Raises:
        InputError: the task has its data from a package.
    """
    if TASKS[task].packaged:
        own = "; for text of your own: --set task=text" if task == "pydoc" else ""
        raise InputError(f"--data: task {task} has its data from a package, and reads no other{own}")
    return resolve(data)


def data_of(request: Request) -> str | None:
    """Return where the data of a grid are, as the grid or the user's environment says; None where neither does."""
    kind = request.recipe.task.kind
    return None if TASKS[kind].packaged else said(kind, request.data)


def data_by_kind(request: Request) -> dict[str, str]:
    """Return where the data of a grid are said to be, under the kind of its task."""
    return {request.recipe.task.kind: request.data} if request.data else {}


def check_data_of(request: Request, *, counts: bool = False) -> None:
    """Check that the data are there and, with `counts`, at a glance that they are as many as every run will ask for.

    Raises:
        DataMissingError: they are not.
    """
    task, model = request.recipe.task, request.recipe.model
    check_data(task, model, request.data)
    if counts:
        check_counts(task, model, request.data)
