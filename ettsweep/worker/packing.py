"""Which runs a worker trains at once: how many its launch profile, its list and the memory allow, and of what kind."""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ettsweep.console import count
from ettsweep.errors import CorruptError
from ettsweep.launch.profile import AnyProfile
from ettsweep.processes import GIB
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import Liveness, State
from ettsweep.trainer.models.model_cost import activation_bytes
from ettsweep.trainer.models.registry import architecture, parameter_count
from ettsweep.trainer.tasks.registry import task_kind

if TYPE_CHECKING:
    import torch

WAITING = (State.MISSING, State.INTERRUPTED)
"""States of runs that wait for someone to train them."""

TRAINED = (State.RUNNING, State.UNKNOWN)
"""States of runs that others train, which is of their part of what is left."""

FILLED = 0.5
"""Share of the free memory that a pack may take, as far as it is reckoned here."""

STACKED = {"cpu": 8, "cuda": 32}
"""Runs of a stack under `auto`: what more of them keep for the backward pass leaves the caches of some CPUs."""

WORTH_A_TRIAL = 5000
"""Steps of all runs that a worker has before it below which `auto` tries no stack. A trial takes as long as some 200 of
the smallest models, whose steps take 2 to 4 ms: half a second to trace the stack, and five steps of each member."""


def claimable(run: RunDir, liveness: Liveness) -> bool:
    """Say whether a run waits for someone to train it."""
    return run.status(liveness).state in WAITING


class RemainingRuns:
    """What is left of a list of runs, as far as a worker has looked: of a long list, no further than it needs."""

    def __init__(self, runs: Iterable[RunDir], liveness: Liveness) -> None:
        self._all = tuple(runs)
        self._runs = dict.fromkeys(self._all)
        self._liveness = liveness
        self._kinds: dict[object, int] = {}
        self._read: dict[RunDir, tuple[int, int]] = {}

    def left(self, limit: int) -> float:
        """Count the runs that are left, up to `most`; those that are over are not looked at again.

        Of those that are in training, what is yet to train counts: who trains them is about to take more.
        """
        runs_left = 0.0
        for run in tuple(self._runs):
            if runs_left >= limit:
                return limit
            status = run.status(self._liveness)
            if status.state in WAITING:
                runs_left += 1
            elif status.state in TRAINED:
                runs_left += 1 - run.attempt(run.numbers()[-1]).progress()
            else:
                del self._runs[run]
        return runs_left

    def companions(self, spec: RunSpec) -> Iterator[RunDir]:
        """Yield the runs of one recipe with another that wait: of its seed, which see the same batches, then others.

        These have batches of their own, and come only where batches need not be loaded.
        """
        recipe, other_seeds = self._number(spec), []
        for run in tuple(self._runs):
            its_recipe, its_seed = self._recipe_and_seed(run)
            if its_recipe != recipe:
                continue
            if its_seed != spec.seed:
                other_seeds.append(run)
            elif claimable(run, self._liveness):
                yield run
        if task_kind(spec.task).packaged:
            yield from (run for run in other_seeds if claimable(run, self._liveness))

    def alike(self, spec: RunSpec) -> int:
        """Count the runs of one recipe in the list, finished ones too."""
        recipe = self._number(spec)
        return sum(self._recipe_and_seed(run)[0] == recipe for run in self._all)

    def _recipe_and_seed(self, run: RunDir) -> tuple[int, int]:
        """Return the number of a run's recipe, and its seed; each spec is read once."""
        if run not in self._read:
            try:
                spec = run.spec()
            except CorruptError:
                return -1, 0  # no recipe; training says so in the run's own folder
            self._read[run] = self._number(spec), spec.seed
        return self._read[run]

    def _number(self, spec: RunSpec) -> int:
        return self._kinds.setdefault(spec.recipe_key, len(self._kinds))


class PackSize(NamedTuple):
    """How many runs a worker takes at once.

    Attributes:
        stack: the one size of which a stack is tried; 0 for none, None for any.
        remark: what the log should say of that.
    """

    size: int
    stack: int | None = None
    remark: str = ""


ONE = PackSize(1)


class PackPlaces:
    """The places of a pack: how many there are, and which runs may have them.

    Attributes:
        size: how many there are, with that of the run that the pack begins with.
        stack, remark: as in `Size`.
    """

    def __init__(self, size: PackSize = ONE, others: Iterable[RunDir] = ()) -> None:
        self.size, self.stack, self.remark = size
        self._others = iter(others)
        self._seen = deque[RunDir]()

    def waiting(self, limit: int) -> int:
        """Count the runs that wait for a place; none is looked for beyond `most`."""
        self._seen.extend(itertools.islice(self._others, max(0, limit - len(self._seen))))
        return len(self._seen)

    def next(self) -> RunDir | None:
        """Return the next run that may have a place, or None where there is none."""
        return self._seen.popleft() if self.waiting(1) else None


def enough(profile: AnyProfile, spec: RunSpec) -> int:
    """Return how many runs left to each worker make as large a pack as any more would."""
    if profile.pack != "auto":
        return profile.pack
    return max(*STACKED.values(), math.ceil(WORTH_A_TRIAL / spec.schedule.last_step))


def pack_size(profile: AnyProfile, spec: RunSpec, device: "torch.device", left: float, workers: int) -> PackSize:
    """Return how many runs like one a worker takes at once, leaving the others their part of the runs that are left."""
    fair_share = math.ceil(left / workers)
    if fair_share < 2 or profile.devices_per_run > 1 or profile.pack == 1:
        return ONE
    from ettsweep.trainer.training.memory import STATE_BYTES, available_bytes

    free_bytes = available_bytes(device) // (workers if device.type == "cpu" else 1)  # they share it
    state_bytes = STATE_BYTES * parameter_count(spec.model)
    fitting = int(FILLED * free_bytes / state_bytes)
    if profile.pack != "auto":
        if fitting >= 2:
            return PackSize(min(profile.pack, fair_share, fitting))
        remark = (
            f"trains alone: of the {count(min(profile.pack, fair_share), 'run')} that could train at once, with "
            f"{state_bytes / GIB:.2g} GiB of weights and moments each, no two fit into half of the "
            f"{free_bytes / GIB:.2g} GiB that are free"
        )
        return PackSize(1, remark=remark)
    each_bytes = state_bytes + spec.batch_size * activation_bytes(spec.model, recompute=False)
    size = min(STACKED[device.type], fair_share, int(FILLED * free_bytes / each_bytes))
    reason = against_a_stack(profile, spec, device, size, fair_share)
    if not reason:
        return PackSize(size, stack=size)
    size = max(1, min(profile.together(spec.task), fair_share, fitting))
    return PackSize(size, 0, f"no stack: {reason}" if size > 1 else f"trains alone, without a stack: {reason}")


def against_a_stack(profile: AnyProfile, spec: RunSpec, device: "torch.device", size: int, runs: int) -> str:
    """Return why `auto` tries no stack of a size where so many runs like one are before a worker; "" where it does."""
    from ettsweep.trainer.ensemble.stack import stack_decision

    if not architecture(spec.model).stacks:
        return f"models of kind {spec.model.kind} have none"
    if profile.compile is True or profile.activation_checkpointing is True:
        return "the profile has blocks compiled, or activations computed again"
    if size < 2:
        return "no two runs fit into half of the free memory"
    if device.type != "cpu" and profile.pack_mode == "exact":
        return "a GPU rounds otherwise in one; pack_mode=fast allows that"
    decision = stack_decision(spec, device, size, profile.pack_mode)
    if decision:
        return "" if decision.stacks else decision.why
    if runs * spec.schedule.last_step < WORTH_A_TRIAL:
        work = f"{count(runs, 'run')} of {count(spec.schedule.last_step, 'step')}"
        return f"{work} are too few to try one for; pack=K asks for one"
    return ""
