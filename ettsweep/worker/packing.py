"""Which runs a worker trains in one pack: how many its profile, list of runs and memory allow, and which ones."""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ettsweep.console import format_count
from ettsweep.errors import CorruptError
from ettsweep.launch.profile import AnyProfile
from ettsweep.processes import GIB
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import Liveness, State
from ettsweep.trainer.models.model_cost import activation_bytes
from ettsweep.trainer.models.registry import architecture, parameter_count
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.settings import TrainerSettings
from ettsweep.worker.work_list import CLAIMABLE_STATES, claimable

if TYPE_CHECKING:
    import torch


def transformer_spec(run: RunDir) -> TransformerRun:
    """Return the spec of a run of the built-in trainer.

    Raises:
        CorruptError: it cannot be read.
    """
    spec = run.spec()
    assert isinstance(spec, TransformerRun)
    return spec


IN_TRAINING = (State.RUNNING, State.UNKNOWN)
"""States of runs that other workers train; their untrained fraction counts as work left."""

PACK_MEMORY_FRACTION = 0.5
"""Share of the free memory for a pack; the rest covers what the estimate of weights, moments and activations omits."""

MAX_STACK = {"cpu": 8, "cuda": 32}
"""Most runs of a stack under `auto`, by device: activations of more runs no longer fit the caches of some CPUs."""

DEFAULT_PACK = 8

MIN_TRIAL_STEPS = 5000
"""Least steps of all runs left to a worker for which `auto` tries a stack. A trial takes as long as some 200 steps of
the smallest models, at 2 to 4 ms each: half a second to trace the stack, and five steps of each member."""


class RemainingRuns:
    """The runs of a list that are not finished yet; reads states lazily, so a long list stays cheap.

    Args:
        runs: the worker's list.
        liveness: tells whether owners of runs are alive.
    """

    def __init__(self, runs: Iterable[RunDir], liveness: Liveness) -> None:
        self._all = tuple(runs)
        self._runs = dict.fromkeys(self._all)
        self._liveness = liveness
        self._recipe_numbers: dict[object, int] = {}
        self._recipes: dict[RunDir, tuple[int, int]] = {}

    def count_left(self, limit: int) -> float:
        """Count the runs left, up to `limit`; a run that other workers train counts by its untrained fraction.

        Runs that neither wait nor train are dropped, and not read again.
        """
        runs_left = 0.0
        for run in tuple(self._runs):
            if runs_left >= limit:
                return limit
            status = run.status(self._liveness)
            if status.state in CLAIMABLE_STATES:
                runs_left += 1
            elif status.state in IN_TRAINING:
                # The owner is about to claim another one, so a part of its time is still available to the list.
                runs_left += 1 - run.attempt(run.attempt_numbers()[-1]).progress()
            else:
                del self._runs[run]
        return runs_left

    def companions(self, spec: TransformerRun) -> Iterator[RunDir]:
        """Yield the waiting runs of the recipe of `spec`: first those of its seed, which share its batches.

        Other seeds need batches of their own; they follow only if the data come with a package, not from files.
        """
        recipe, other_seeds = self._recipe_number(spec), []
        for run in tuple(self._runs):
            its_recipe, its_seed = self._recipe_and_seed(run)
            if its_recipe != recipe:
                continue
            if its_seed != spec.seed:
                other_seeds.append(run)
            elif claimable(run, self._liveness):
                yield run
        if not spec.data_kind:
            yield from (run for run in other_seeds if claimable(run, self._liveness))

    def count_same_recipe(self, spec: TransformerRun) -> int:
        """Count the runs of the recipe of `spec` in the list, finished ones included."""
        recipe = self._recipe_number(spec)
        return sum(self._recipe_and_seed(run)[0] == recipe for run in self._all)

    def _recipe_and_seed(self, run: RunDir) -> tuple[int, int]:
        """Return a number that stands for a run's recipe, and the run's seed; each spec is read once."""
        if run not in self._recipes:
            try:
                spec = transformer_spec(run)
            except CorruptError:
                return -1, 0  # no recipe; training says so in the run's own folder
            self._recipes[run] = self._recipe_number(spec), spec.seed
        return self._recipes[run]

    def _recipe_number(self, spec: TransformerRun) -> int:
        return self._recipe_numbers.setdefault(spec.recipe_key, len(self._recipe_numbers))


class PackSize(NamedTuple):
    """How many runs a worker trains at once.

    Attributes:
        size: number of runs.
        stack_size: the only stack size to try; 0 disables stacks, None allows any size.
        remark: line for the logs of these runs; empty for none.
    """

    size: int
    stack_size: int | None = None
    remark: str = ""


SINGLE_RUN = PackSize(1)


class PackQueue:
    """The size of a pack and the queue of runs that may join it.

    Attributes:
        size: number of places, including that of the first run.
        stack_size, remark: as in `PackSize`.
    """

    def __init__(self, size: PackSize = SINGLE_RUN, others: Iterable[RunDir] = ()) -> None:
        self.size, self.stack_size, self.remark = size
        self._others = iter(others)
        self._queue = deque[RunDir]()

    def count_waiting(self, limit: int) -> int:
        """Return how many runs are known to wait; reads states only until there are `limit`."""
        self._queue.extend(itertools.islice(self._others, max(0, limit - len(self._queue))))
        return len(self._queue)

    def next(self) -> RunDir | None:
        """Remove and return the next queued run; None if there is none."""
        return self._queue.popleft() if self.count_waiting(1) else None


def runs_for_largest_pack(settings: TrainerSettings, spec: TransformerRun) -> int:
    """Return the number of runs left per worker beyond which a pack grows no further."""
    if settings.pack != "auto":
        return settings.pack
    return max(*MAX_STACK.values(), math.ceil(MIN_TRIAL_STEPS / spec.steps))


def pack_size(profile: AnyProfile, spec: TransformerRun, device: "torch.device", left: float, workers: int) -> PackSize:
    """Return how many runs of a recipe a worker trains at once.

    Args:
        profile: launch profile, whose `trainer.pack` is a number or `auto`.
        spec: any run of the recipe.
        device: the worker's device.
        left: runs left in the list, see `RemainingRuns.count_left`; the other workers keep their share of them.
        workers: number of workers that share the list.
    """
    fair_share, settings = math.ceil(left / workers), profile.settings(TrainerSettings)
    if fair_share < 2 or profile.devices_per_run > 1 or settings.pack == 1:
        return SINGLE_RUN
    from ettsweep.trainer.training.memory import STATE_BYTES, available_bytes

    free_bytes = available_bytes(device) // (workers if device.type == "cpu" else 1)  # workers share the host's memory
    state_bytes = STATE_BYTES * parameter_count(spec.model)
    fitting = int(PACK_MEMORY_FRACTION * free_bytes / state_bytes)
    if settings.pack != "auto":
        wanted = min(settings.pack, fair_share)
        if fitting >= 2:
            return PackSize(min(wanted, fitting))
        remark = (
            f"trains alone: of the {format_count(wanted, 'run')} that could train at once, with "
            f"{state_bytes / GIB:.2g} GiB of weights and moments each, no two fit into half of the "
            f"{free_bytes / GIB:.2g} GiB that are free"
        )
        return PackSize(1, remark=remark)
    each_bytes = state_bytes + spec.batch_size * activation_bytes(spec.model, recompute=False)
    size = min(MAX_STACK[device.type], fair_share, int(PACK_MEMORY_FRACTION * free_bytes / each_bytes))
    reason = auto_stack_obstacle(settings, spec, device, size, fair_share)
    if not reason:
        return PackSize(size, stack_size=size)
    size = max(1, min(DEFAULT_PACK if spec.data_kind else 1, fair_share, fitting))
    return PackSize(size, 0, f"no stack: {reason}" if size > 1 else f"trains alone, without a stack: {reason}")


def auto_stack_obstacle(
    settings: TrainerSettings, spec: TransformerRun, device: "torch.device", size: int, runs: int
) -> str:
    """Return why `auto` tries no stack of this size for `runs` runs like `spec`; "" if it tries one."""
    from ettsweep.trainer.ensemble.stack import stack_decision

    if not architecture(spec.model).can_stack:
        return f"models of kind {spec.model.kind} cannot be stacked"
    if settings.compile is True or settings.activation_checkpointing is True:
        return "the profile compiles blocks or checkpoints activations"
    if size < 2:
        return "no two runs fit into half of the free memory"
    if device.type != "cpu" and settings.pack_mode == "exact":
        return "a GPU rounds differently in a stack; trainer.pack_mode=fast allows that"
    decision = stack_decision(spec, device, size, settings.pack_mode)
    if decision:
        return "" if decision.is_accepted else decision.reason
    if runs * spec.steps < MIN_TRIAL_STEPS:
        work = f"{format_count(runs, 'run')} of {format_count(spec.steps, 'step')}"
        return f"{work} are too few to pay for a trial; trainer.pack=K requests one"
    return ""
