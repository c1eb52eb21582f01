"""A check of a scaling from its plan to its result: networks are trained and measured, and held against theory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch

from ettsweep.console import progress
from ettsweep.errors import EttsweepError, InputError, StoppedError
from ettsweep.files import Json
from ettsweep.provenance import provenance, summary
from ettsweep.strategies.strategy import map_point, strategy_name
from ettsweep.theory.check_plan import CheckPlan
from ettsweep.theory.expectations import HEAD, Expectations, Prediction
from ettsweep.theory.exponents import ExponentTest
from ettsweep.theory.judge import Judgement, judge
from ettsweep.theory.judgement_text import findings
from ettsweep.theory.measure import activation_changes, measure
from ettsweep.theory.measurement import Changes, Measurement
from ettsweep.theory.probe import SAMPLES, Probe, checkable, make_probe

MOVE = 0.01
"""By how much the trained outputs should move in a step at the narrowest: little, so that changes are linear in lr."""

MOVE_LEAST, MOVE_MOST = 1e-4, 0.3
"""By how much a given learning rate may move them."""
TRIAL_LR = 2.0**-10

LearningRates = Mapping[float | None, float]
"""Of standard (None), and of the strategy by its s; each the same at all widths."""


@dataclass(frozen=True)
class CoordinateCurves:
    """How activations and outputs change in the first steps of training under one strategy.

    Attributes:
        changes: of each stage, for each step, at each width: the rms change, mean over seeds.
        hidden_power: power of the width that is implied for hidden activations; None where none is.
        output_power: that of the outputs.
    """

    strategy: str
    lr: float
    changes: Mapping[str, tuple[tuple[float, ...], ...]]
    hidden_power: float | None
    output_power: float | None


@dataclass(frozen=True)
class CheckResult:
    """A finished check.

    `settings` say all of what was built, trained and measured, `about` the same in a line; `findings` are the judgement
    in words; `curves` those of the strategy, after standard's where it is another.
    """

    settings: Json
    about: str
    widths: tuple[int, ...]
    judgement: Judgement
    findings: tuple[str, ...]
    curves: tuple[CoordinateCurves, ...]

    @property
    def verdict(self) -> ExponentTest:
        """Return that of the judgement."""
        return self.judgement.verdict


def check_scaling(plan: CheckPlan) -> CheckResult:
    """Carry a plan out, and judge what its networks show.

    Raises:
        InputError: the given learning rate tells nothing.
        EttsweepError: training does not move the outputs, so that no learning rate can be chosen.
        StoppedError: Ctrl-C.
    """
    try:
        probes = [make_probe(model) for model in plan.models]
        with _one_thread():
            lrs = _learning_rates(plan, probes[0])
            measurements, changes = _train_and_measure(plan, probes, lrs)
        expected = expect(plan, probes[0])
        judgement = judge(expected, measurements, plan.model.heads, SAMPLES)
        return CheckResult(
            settings=_settings(plan, lrs),
            about=_about(plan, lrs),
            widths=plan.widths,
            judgement=judgement,
            findings=findings(judgement, plan.s),
            curves=tuple(_curves(replace(expected, s=s), changes[s], lr) for s, lr in lrs.items()),
        )
    except KeyboardInterrupt:
        raise StoppedError("interrupted; nothing has been written") from None


@contextmanager
def _one_thread() -> Iterator[None]:
    """So few tokens leave little for a second thread, which waits, and makes all wait, where its core is taken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train_and_measure(
    plan: CheckPlan, probes: Sequence[Probe], lrs: LearningRates
) -> tuple[list[Measurement], dict[float | None, list[Changes]]]:
    """Return what the strategy's networks show and, by s, the changes of all: a width's seeds, then the next one's."""
    measurements: list[Measurement] = []
    changes: dict[float | None, list[Changes]] = {s: [] for s in lrs}
    total = len(lrs) * len(plan.seeds) * sum(n**2 for n in plan.widths)
    with progress(f"width {plan.widths[0]}", total, "share") as advance:  # narrow networks say nothing of wide ones
        for probe, seed, s in product(probes, plan.seeds, lrs):
            n, steps, first = probe.model.width, plan.request.steps, seed == plan.seeds[0]
            spec = plan.spec(probe.model, seed, s, lrs[s])
            if s == plan.s:
                measurements.append(measure(spec, probe, steps, decay=first, by_layer=first and n == plan.widths[-1]))
                changes[s].append(measurements[-1].changes)
            else:
                changes[s].append(activation_changes(spec, probe, steps))
            advance(n**2, f"width {n}")
    return measurements, changes


def expect(plan: CheckPlan, probe: Probe) -> Expectations:
    """Return what the strategy implies for what networks are shown, the same at all widths."""
    kernels = checkable(plan.model).kernels(plan.models, plan.s, probe.batch)
    predictions = [Prediction.of(model, k) for model, k in zip(plan.models, kernels, strict=True)]
    return Expectations(predictions, plan.s, plan.request.optimizer, plan.request.mlp_factor)


def _curves(expected: Expectations, changes: Sequence[Changes], lr: float) -> CoordinateCurves:
    """Return the changes by stage, step and width, as the mean over seeds."""

    def means(stage: str) -> tuple[tuple[float, ...], ...]:
        table = np.array([[step[stage] for step in steps] for steps in changes])
        by_width = table.reshape(len(expected.widths), -1, table.shape[1])
        return tuple(map(tuple, by_width.mean(1).T.tolist()))

    def power(stage: str) -> float | None:
        change = expected.change(stage)
        return None if change is None else change.power

    return CoordinateCurves(
        strategy=strategy_name(expected.s),
        lr=lr,
        changes={stage: means(stage) for stage in expected.stages},
        hidden_power=power(expected.stages[-2]),
        output_power=power(HEAD),
    )


def _settings(plan: CheckPlan, lrs: LearningRates) -> Json:
    request = plan.request
    return {
        "model": request.model,
        "strategy": strategy_name(plan.s),
        "optimizer": request.optimizer,
        "mlp_factor": request.mlp_factor,
        "widths": list(plan.widths),
        "seeds": list(plan.seeds),
        "steps": request.steps,
        "lr": lrs[plan.s],
        "standard_lr": lrs[None],
        "samples": SAMPLES,
        "at_the_widest": plan.model.model_dump(),
        "provenance": summary(provenance()),
    }


def _about(plan: CheckPlan, lrs: LearningRates) -> str:
    request, model = plan.request, plan.model
    standard_note = "" if plan.s is None else f" (beside it, standard at {lrs[None]:.2g}: the same bulk step at the widest)"
    return (
        f"{request.model} under {strategy_name(plan.s)}: {model.heads} heads, {checkable(model).about(model)}; "
        f"{len(plan.seeds)} seeds, {request.steps} steps of {request.optimizer} at lr {lrs[plan.s]:.2g}{standard_note}"
    )


# --- learning rates -------------------------------------------------------------------------------------------------


def _learning_rates(plan: CheckPlan, probe: Probe) -> LearningRates:
    """Return learning rates of standard and of the strategy.

    The family's is the given one, or moves the trained outputs by MOVE in a step of the narrowest. Standard's is its
    image at the widest, where the steps of the bulk are then alike.

    Raises:
        InputError: the given one moves the outputs by too much or too little to tell powers.
        EttsweepError: none can be chosen.
    """
    requested_lr, s = plan.request.lr, plan.s
    if s is None and requested_lr is not None:
        return {None: _checked(plan, probe, requested_lr)}
    lr = _moving(plan, probe, s or 0.0, TRIAL_LR) if requested_lr is None else _checked(plan, probe, requested_lr)
    standard_lr, _ = map_point(lr, 0.0, s or 0.0, None, plan.widths[-1], plan.request.optimizer)
    return {None: standard_lr} if s is None else {None: standard_lr, s: lr}


def _moving(plan: CheckPlan, probe: Probe, s: float | None, trial_lr: float) -> float:
    """Return the learning rate that moves the outputs by MOVE in the first step of the narrowest, to two digits."""
    change = _moved(plan, probe, s, trial_lr)
    if not 0 < change < math.inf:
        raise EttsweepError(f"a step at lr {trial_lr:.2g} moves the outputs by {change:.2g}; choose another with --lr")
    return float(f"{trial_lr * MOVE / change:.2g}")


def _checked(plan: CheckPlan, probe: Probe, lr: float) -> float:
    change = _moved(plan, probe, plan.s, lr)
    if MOVE_LEAST <= change <= MOVE_MOST:
        return lr
    n, amount = plan.widths[0], "little" if change < MOVE else "much"
    trial_lr = TRIAL_LR if plan.s is not None else map_point(TRIAL_LR, 0.0, 0.0, None, n, plan.request.optimizer)[0]
    raise InputError(
        f"--lr {lr:g}: a step at width {n} moves the outputs by {change:.2g}, which is too {amount} to tell powers "
        f"({MOVE_LEAST:g} to {MOVE_MOST:g} do); {_moving(plan, probe, plan.s, trial_lr):.2g} moves them by {MOVE:g}"
    )


def _moved(plan: CheckPlan, probe: Probe, s: float | None, lr: float) -> float:
    return activation_changes(plan.spec(probe.model, plan.seeds[0], s, lr), probe, 1)[0][HEAD]
