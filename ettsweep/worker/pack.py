"""Which runs a worker trains at once: how many its launch profile, its list and the memory allow, and of what kind."""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ettsweep.errors import CorruptError
from ettsweep.launch.profiles import AnyProfile
from ettsweep.models.architectures import architecture, parameter_count
from ettsweep.models.cost import activation_bytes, train_flops_per_sample
from ettsweep.output import count
from ettsweep.processes import GIB
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import Outlook, State
from ettsweep.spec import RunSpec, StrategySpec
from ettsweep.tasks.kinds import task_kind

if TYPE_CHECKING:
    import torch

WAITING = (State.MISSING, State.INTERRUPTED)
"""States of runs that wait for someone to train them."""

LEFT = (*WAITING, State.RUNNING, State.UNKNOWN)
"""States of runs that workers share out among them: what others train now is of their part."""

FILLED = 0.5
"""Share of the free memory that a pack may take, as far as it is reckoned here."""

STACK = 32
"""Runs of a stack unless a profile says how many."""

LEAST_STACK, STACK_PAYS = 8, 1.15
"""Runs below which no stack is tried, and how many times as fast it has to be, unless a profile asks for one."""

TRIAL_FLOPS = 2e11
"""Work of a trial beyond which a CPU takes none: it would take more than some ten seconds, and models of which a step
takes so long leave nothing to save."""

STANDARD = StrategySpec(s=None)
"""A strategy for a trial, since none makes a difference."""

WORTH_A_TRIAL = 5000
"""Steps of all runs of a worker below which it takes no trial, whose some 100 steps would be a part of them."""


def claimable(run: RunDir, outlook: Outlook) -> bool:
    """Say whether a run waits for someone to train it."""
    return run.status(outlook).state in WAITING


class Remaining:
    """What is left of a list of runs, as far as a worker has looked: of a long list, no further than it needs."""

    def __init__(self, runs: Iterable[RunDir], outlook: Outlook) -> None:
        self._runs = dict.fromkeys(runs)
        self._outlook = outlook
        self._kinds: dict[object, int] = {}
        self._read: dict[RunDir, tuple[int, int]] = {}

    def left(self, most: int) -> int:
        """Count the runs that are left, up to `most`; those that are over are not looked at again."""
        found = 0
        for run in tuple(self._runs):
            if found == most:
                break
            if run.status(self._outlook).state in LEFT:
                found += 1
            else:
                del self._runs[run]
        return found

    def companions(self, spec: RunSpec) -> Iterator[RunDir]:
        """Yield the runs of one recipe with another that wait: of its seed, which see the same batches, then others.

        These have batches of their own, and come only where batches need not be loaded.
        """
        recipe, others = self._number(spec), []
        for run in tuple(self._runs):
            its_recipe, its_seed = self._recipe_and_seed(run)
            if its_recipe != recipe:
                continue
            if its_seed != spec.seed:
                others.append(run)
            elif claimable(run, self._outlook):
                yield run
        if task_kind(spec.task).packaged:
            yield from (run for run in others if claimable(run, self._outlook))

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
        return self._kinds.setdefault(spec.kind, len(self._kinds))


class Places:
    """The places of a pack: how many there are, and which runs may have them.

    Attributes:
        size: how many there are, with that of the run that the pack begins with.
        remark: what the log should say of that.
    """

    def __init__(self, size: int = 1, remark: str = "", others: Iterable[RunDir] = ()) -> None:
        self.size = size
        self.remark = remark
        self._others = iter(others)
        self._seen = deque[RunDir]()

    def waiting(self, most: int) -> int:
        """Count the runs that wait for a place; none is looked for beyond `most`."""
        self._seen.extend(itertools.islice(self._others, max(0, most - len(self._seen))))
        return len(self._seen)

    def next(self) -> RunDir | None:
        """Return the next run that may have a place, or None where there is none."""
        return self._seen.popleft() if self.waiting(1) else None


def enough(profile: AnyProfile, spec: RunSpec) -> int:
    """Return how many runs left to each worker make as large a pack as any more would."""
    if profile.pack != "auto":
        return profile.pack
    return max(STACK, math.ceil(WORTH_A_TRIAL / spec.schedule.last_step))


def pack_size(profile: AnyProfile, spec: RunSpec, device: "torch.device", left: int, workers: int) -> tuple[int, str]:
    """Return how many runs like one a worker takes at once, and what the log should say of that.

    It leaves each other of the workers its part of the runs that are left.
    """
    fair = math.ceil(left / workers)
    if fair < 2 or profile.devices_per_run > 1 or profile.pack == 1:
        return 1, ""
    from ettsweep.training.memory import STATE_BYTES, available_bytes

    free_bytes = available_bytes(device) // (workers if device.type == "cpu" else 1)  # they share it
    state_bytes = STATE_BYTES * parameter_count(spec.model)
    fitting = int(FILLED * free_bytes / state_bytes)
    if profile.pack != "auto":
        if fitting >= 2:
            return min(profile.pack, fair, fitting), ""
        return 1, (
            f"trains alone: of the {count(min(profile.pack, fair), 'run')} that could train at once, with "
            f"{state_bytes / GIB:.2g} GiB of weights and moments each, no two fit into half of the "
            f"{free_bytes / GIB:.2g} GiB that are free"
        )
    stack = int(FILLED * free_bytes / (state_bytes + spec.batch_size * activation_bytes(spec.model, recompute=False)))
    worth = fair * spec.schedule.last_step >= WORTH_A_TRIAL
    note = ""
    if worth and min(stack, fair) >= LEAST_STACK:
        pays, note = stack_pays(profile, spec, device, min(stack, fair, STACK))
        if pays:
            return min(stack, fair, STACK), ""
    return max(1, min(profile.together(spec.task), fair, fitting)), note


def stack_pays(profile: AnyProfile, spec: RunSpec, device: "torch.device", members: int) -> tuple[bool, str]:
    """Say whether runs like one train faster in a stack, as a short trial finds, and what the log should say of it."""
    if not architecture(spec.model).stacks or profile.compile is True or profile.activation_checkpointing is True:
        return False, ""
    if profile.pack_mode == "fast":
        return True, ""
    members = 2 ** (members.bit_length() - 1)  # few trials serve all packs of a worker
    flops = 4 * members * spec.batch_size * train_flops_per_sample(spec.model)
    if device.type == "cpu" and flops > TRIAL_FLOPS:
        return False, ""
    from ettsweep.training.stack import rehearse

    tried = rehearse(spec.model_copy(update={"strategy": STANDARD}).at(1.0, 0.0, 0), device, members)
    note = f"no stack: the trial of one failed, {tried.error}" if tried.error else ""
    return (tried.exact or device.type != "cpu") and tried.speedup >= STACK_PAYS, note
