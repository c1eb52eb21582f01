"""The networks of a check, built and trained: which learning rates they have, and what they show."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ettsweep.check.expectations import HEAD
from ettsweep.check.judgement import Changes, Measured
from ettsweep.check.measure import activation_changes, measure
from ettsweep.check.plan import CheckPlan
from ettsweep.check.probe import Probe, make_probe
from ettsweep.errors import EttsweepError, InputError
from ettsweep.output import progress
from ettsweep.scaling.strategies import map_point

MOVE = 0.01
"""By how much the trained outputs should move in a step at the narrowest: little, so that changes are linear in lr."""

MOVE_LEAST, MOVE_MOST = 1e-4, 0.3
"""By how much a given learning rate may move them."""
TRIAL_LR = 2.0**-10


@dataclass(frozen=True)
class Experiment:
    """What the networks of a check showed.

    Attributes:
        lrs: learning rates of standard and of the strategy, by s.
        measured: under the strategy, at each width, one network for each seed.
        beside: under standard, where the strategy is another: at each width, the changes of one network for each seed.
    """

    lrs: Mapping[float | None, float]
    measured: Sequence[Measured]
    beside: Mapping[int, Sequence[Changes]]


@contextmanager
def _one_thread() -> Iterator[None]:
    """So few tokens leave little for a second thread, which waits, and makes all wait, where its core is taken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def train_and_measure(plan: CheckPlan) -> Experiment:
    """Build, train and measure all networks.

    Raises:
        InputError: the given learning rate tells nothing.
        EttsweepError: training does not move the outputs, so that no learning rate can be chosen.
    """
    probes, steps = [make_probe(model) for model in plan.models], plan.question.steps
    lrs = _learning_rates(plan, probes[0])
    measured: list[Measured] = []
    beside: dict[int, list[Changes]] = {n: [] for n in plan.widths}
    total = len(lrs) * len(plan.seeds) * sum(n**2 for n in plan.widths)
    with progress(f"width {plan.widths[0]}", total, "share") as advance:  # narrow networks say nothing of wide ones
        for probe, seed in ((probe, seed) for probe in probes for seed in plan.seeds):
            n = probe.model.width
            if plan.s is not None:
                beside[n].append(activation_changes(plan.spec(probe.model, seed, None, lrs[None]), probe, steps))
                advance(n**2, f"width {n}")
            spec = plan.spec(probe.model, seed, plan.s, lrs[plan.s])
            measured.append(measure(spec, probe, steps, decay=seed == plan.seeds[0]))
            advance(n**2, f"width {n}")
    return Experiment(lrs, measured, beside)


# --- learning rates -------------------------------------------------------------------------------------------------


def _learning_rates(plan: CheckPlan, probe: Probe) -> dict[float | None, float]:
    """Return the learning rates of standard and of the strategy by s, each the same at all widths.

    The family's moves the trained outputs by MOVE in a step of the narrowest. Standard's is its image at the widest,
    where the steps of the bulk are then alike.

    Raises:
        InputError: the given one moves the outputs by too much or too little to tell powers.
        EttsweepError: none can be chosen.
    """
    given, s = plan.question.lr, plan.s
    if s is None and given is not None:
        return {None: _checked(plan, probe, given)}
    lr = _moving(plan, probe, s or 0.0, TRIAL_LR) if given is None else _checked(plan, probe, given)
    standard, _ = map_point(lr, 0.0, s or 0.0, None, plan.widths[-1], plan.question.optimizer)
    return {None: standard} if s is None else {None: standard, s: lr}


def _moving(plan: CheckPlan, probe: Probe, s: float | None, trial: float) -> float:
    """Return the learning rate that moves the outputs by MOVE in the first step of the narrowest, to two digits."""
    moved = _moved(plan, probe, s, trial)
    if not 0 < moved < math.inf:
        raise EttsweepError(f"a step at lr {trial:.2g} moves the outputs by {moved:.2g}; choose another with --lr")
    return float(f"{trial * MOVE / moved:.2g}")


def _checked(plan: CheckPlan, probe: Probe, lr: float) -> float:
    moved = _moved(plan, probe, plan.s, lr)
    if MOVE_LEAST <= moved <= MOVE_MOST:
        return lr
    n, how = plan.widths[0], "little" if moved < MOVE else "much"
    trial = TRIAL_LR if plan.s is not None else map_point(TRIAL_LR, 0.0, 0.0, None, n, plan.question.optimizer)[0]
    raise InputError(
        f"--lr {lr:g}: a step at width {n} moves the outputs by {moved:.2g}, which is too {how} to tell powers "
        f"({MOVE_LEAST:g} to {MOVE_MOST:g} do); {_moving(plan, probe, plan.s, trial):.2g} moves them by {MOVE:g}"
    )


def _moved(plan: CheckPlan, probe: Probe, s: float | None, lr: float) -> float:
    return activation_changes(plan.spec(probe.model, plan.seeds[0], s, lr), probe, 1)[0][HEAD]
