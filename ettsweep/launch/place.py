"""Where runs train, and where their data are: what the options of a command say, else what their grids do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ettsweep.errors import InputError
from ettsweep.launch.profiles import AnyProfile, LocalProfile, load_profile
from ettsweep.spec import RunSpec
from ettsweep.sweep.search import Request, as_before, load_requests, with_corpus
from ettsweep.tasks.data import resolve, said
from ettsweep.tasks.kinds import TASKS, check_data

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class How:
    """How a command carries out its plan.

    Attributes:
        data: where data sets are, by kind of task, as far as somebody has said it.
        console: stay, and show on it how far the runs are; None leaves them to the background.
        title: put before what is shown.
    """

    results: Path
    profile: AnyProfile
    data: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    console: "Console | None" = None
    title: str = ""

    @property
    def follows(self) -> bool:
        """Whether the command stays until its runs are finished."""
        return self.console is not None and not self.dry_run


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
        """Return a grid's request for the data at hand; it trains where the options say, else where it did before."""
        request = self.of(request)
        return self.of(as_before(results, with_corpus(request)))

    def how(
        self, results: Path, request: Request, dry_run: bool = False, console: "Console | None" = None, title: str = ""
    ) -> How:
        """Return how a settled request is carried out."""
        profile = load_profile(request.launch, request.launch_set)
        return How(results, profile, _data_by_kind(request), dry_run, console, title)

    def how_again(
        self,
        results: Path,
        families: Collection[str],
        dry_run: bool = False,
        console: "Console | None" = None,
        title: str = "",
    ) -> How:
        """Return how more runs of some families are carried out: as the grids were that they belong to."""
        ways: dict[tuple[str, tuple[str, ...]], str] = {}
        data: dict[str, str] = {}
        left = set(families)
        for request in load_requests(results):  # newest first: it governs its families
            mine = {search.family for search in request.searches()} & left
            if mine:
                left -= mine
                placed = self.of(request)
                ways.setdefault((placed.launch, placed.launch_set), placed.grid)
                data |= _data_by_kind(placed)
                if not dry_run:
                    check_data_of(placed)
        if len(ways) > 1:
            told = "; ".join(" ".join((grid, "with", name, *sets)) for (name, sets), grid in ways.items())
            raise InputError(
                f"these grids were launched differently ({told}); choose with --launch, or narrow the runs"
            )
        name, sets = next(iter(ways), (self.launch or "local", self.launch_set))
        return How(results, load_profile(name, sets), data, dry_run, console, title)

    def here(self, spec: RunSpec) -> tuple[LocalProfile, str | None]:
        """Return the profile by which a run trains in this process, and where its data are said to be."""
        data = located(self.data, spec.task.kind) if self.data else None
        check_data(spec.task, spec.model, data)
        profile = load_profile(self.launch or "local", self.launch_set)
        if not isinstance(profile, LocalProfile):
            raise InputError(
                f"--launch {self.launch}: `train` trains here, in this process; `grid` and `retry` submit to SLURM"
            )
        return profile, data


def located(data: str, task: str) -> str:
    """Return where the data of a kind of task are said to be, so that it holds in any folder."""
    if TASKS[task].packaged:
        own = "; for text of your own: --set task=text" if task == "pydoc" else ""
        raise InputError(f"--data: task {task} has its data from a package, and reads no other{own}")
    return resolve(data)


def data_of(request: Request) -> str | None:
    """Return where the data of a grid are, as the grid or the user's environment says; None where neither does."""
    kind = request.recipe.task.kind
    return None if TASKS[kind].packaged else said(kind, request.data)


def _data_by_kind(request: Request) -> dict[str, str]:
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
        TASKS[task.kind].check_counts(task, model, data_of(request))
