"""Which runs a worker trains at once: how many its launch profile, its list and the memory allow, and of what kind."""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ettsweep.errors import CorruptError
from ettsweep.launch.fields import PackMode
from ettsweep.launch.profiles import AnyProfile
from ettsweep.models.architectures import architecture, parameter_count
from ettsweep.models.cost import activation_bytes, train_flops_per_sample
from ettsweep.output import count
from ettsweep.processes import GIB
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import Outlook, State
from ettsweep.spec import RunSpec
from ettsweep.tasks.kinds import task_kind

if TYPE_CHECKING:
    import torch

WAITING = (State.MISSING, State.INTERRUPTED)
"""States of runs that wait for someone to train them."""

TRAINED = (State.RUNNING, State.UNKNOWN)
"""States of runs that others train, which is of their part of what is left."""

FILLED = 0.5
"""Share of the free memory that a pack may take, as far as it is reckoned here."""

STACK = 32
"""Runs of a stack unless a profile says how many; where that does not pay, LEAST_STACK may: caches hold fewer."""

SEEN = 4
"""Stacks that a worker looks ahead for, to have them of one size: each other size is traced, tried or compiled anew."""

LEAST_STACK, STACK_PAYS = 8, 1.15
"""Runs below which no stack is tried, and how many times as fast it has to be, unless a profile asks for one."""

TRIAL_FLOPS = 2e11
"""Work of a trial beyond which a CPU takes none: it would take more than some ten seconds, and models of which a step
takes so long leave nothing to save."""

WORTH_A_TRIAL = 5000
"""Steps of all runs of a worker below which it takes no trial, whose some 200 steps would be a part of them."""

WORTH_COMPILING = 25_000
"""Steps of all runs of a worker below which it compiles no stack unless a profile asks for one: 20 seconds or more on a
CPU, for which some 2 ms of a step of the smallest models are saved."""


def claimable(run: RunDir, outlook: Outlook) -> bool:
    """Say whether a run waits for someone to train it."""
    return run.status(outlook).state in WAITING


class Remaining:
    """What is left of a list of runs, as far as a worker has looked: of a long list, no further than it needs."""

    def __init__(self, runs: Iterable[RunDir], outlook: Outlook) -> None:
        self._all = tuple(runs)
        self._runs = dict.fromkeys(self._all)
        self._outlook = outlook
        self._kinds: dict[object, int] = {}
        self._read: dict[RunDir, tuple[int, int]] = {}

    def left(self, most: int) -> float:
        """Count the runs that are left, up to `most`; those that are over are not looked at again.

        Of those that are in training, what is yet to train counts: who trains them is about to take more.
        """
        found = 0.0
        for run in tuple(self._runs):
            if found >= most:
                return most
            status = run.status(self._outlook)
            if status.state in WAITING:
                found += 1
            elif status.state in TRAINED:
                found += 1 - run.attempt(run.numbers()[-1]).progress()
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
        return self._kinds.setdefault(spec.kind, len(self._kinds))


class Size(NamedTuple):
    """How many runs a worker takes at once.

    Attributes:
        mode: of their stacks.
        remark: what the log should say of that.
    """

    size: int
    mode: PackMode
    remark: str = ""


ONE = Size(1, "exact")


class Places:
    """The places of a pack: how many there are, and which runs may have them.

    Attributes:
        size: how many there are, with that of the run that the pack begins with.
        mode: of its stacks.
        remark: what the log should say of that.
    """

    def __init__(self, size: Size = ONE, others: Iterable[RunDir] = ()) -> None:
        self.size, self.mode, self.remark = size
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
    worth = WORTH_COMPILING if profile.pack_mode == "fast" else WORTH_A_TRIAL
    return STACK * max(SEEN, math.ceil(worth / spec.schedule.last_step / STACK))


def alike(runs: int, most: int) -> int:
    """Return the size of the packs that so many runs are cut into, as few and as alike as can be."""
    return math.ceil(runs / math.ceil(runs / most))


def pack_size(profile: AnyProfile, spec: RunSpec, device: "torch.device", left: float, workers: int) -> Size:
    """Return how many runs like one a worker takes at once, leaving the others their part of the runs that are left."""
    mode = profile.pack_mode
    fair = math.ceil(left / workers)
    if fair < 2 or profile.devices_per_run > 1 or profile.pack == 1:
        return Size(1, mode)
    from ettsweep.training.memory import STATE_BYTES, available_bytes

    free_bytes = available_bytes(device) // (workers if device.type == "cpu" else 1)  # they share it
    state_bytes = STATE_BYTES * parameter_count(spec.model)
    fitting = int(FILLED * free_bytes / state_bytes)
    if profile.pack != "auto":
        if fitting >= 2:
            return Size(min(profile.pack, fair, fitting), mode)
        remark = (
            f"trains alone: of the {count(min(profile.pack, fair), 'run')} that could train at once, with "
            f"{state_bytes / GIB:.2g} GiB of weights and moments each, no two fit into half of the "
            f"{free_bytes / GIB:.2g} GiB that are free"
        )
        return Size(1, mode, remark)
    stack = int(FILLED * free_bytes / (state_bytes + spec.batch_size * activation_bytes(spec.model, recompute=False)))
    remark = ""
    if mode == "fast" and fair * spec.schedule.last_step < WORTH_COMPILING:
        mode = "exact"
        remark = f"{_work(spec, fair)} are too few to compile a stack for; pack=K asks for one"
    size, why = stack_size(profile, spec, device, fair, stack, mode)
    if not why:
        return Size(size, mode, remark)
    together = max(1, min(profile.together(spec.task), fair, fitting))
    return Size(together, mode, f"no stack: {why}" if together > 1 else f"trains alone, without a stack: {why}")


def _work(spec: RunSpec, runs: int) -> str:
    return f"{count(runs, 'run')} of {count(spec.schedule.last_step, 'step')}"


def stack_size(
    profile: AnyProfile, spec: RunSpec, device: "torch.device", runs: int, fitting: int, mode: PackMode
) -> tuple[int, str]:
    """Return how many of so many runs like one should train in a stack, of which so many fit, or why none should."""
    if not architecture(spec.model).stacks:
        return 1, f"models of kind {spec.model.kind} have none"
    if profile.compile is True or profile.activation_checkpointing is True:
        return 1, "the profile has blocks compiled, or activations computed again"
    if min(runs, fitting) < LEAST_STACK:
        which = "are left for each worker" if runs < LEAST_STACK else "fit into half of the free memory"
        return 1, f"fewer than {LEAST_STACK} runs {which}"
    largest = alike(runs, min(fitting, STACK))
    if mode == "fast":
        return largest, ""
    from ettsweep.training.stack import rehearse, rehearsed

    why = ""
    for size in dict.fromkeys((largest, LEAST_STACK)):
        members = 2 ** (size.bit_length() - 1)  # few trials serve all packs of a worker
        if runs * spec.schedule.last_step < WORTH_A_TRIAL and not rehearsed(spec.typical, device, members):
            return 1, why or f"{_work(spec, runs)} are too few to try one for; pack=K asks for one"
        flops = 4 * members * spec.batch_size * train_flops_per_sample(spec.model)
        if device.type == "cpu" and flops > TRIAL_FLOPS:
            why = "a step of such a model takes too long to save much of it"
            continue
        tried = rehearse(spec.typical, device, members)
        if tried.error:
            why = f"the trial of one failed, {tried.error}"
        elif not tried.exact and device.type == "cpu":
            why = f"in one of {members} the last bits differ"
        elif tried.speedup >= STACK_PAYS:
            return size, ""
        else:
            why = f"one of {members} finds gradients {tried.speedup:.2f} times as fast"
    return 1, why
