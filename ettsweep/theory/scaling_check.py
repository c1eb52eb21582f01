"""Run a check: train and measure networks, and compare them with theory."""

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
from ettsweep.provenance import provenance
from ettsweep.strategies.strategy import map_point, strategy_name
from ettsweep.theory.check_plan import CheckPlan
from ettsweep.theory.expectations import HEAD, Expectations, Prediction
from ettsweep.theory.exponents import ExponentTest
from ettsweep.theory.judge import Judgement, judge_measurements
from ettsweep.theory.judgement_text import findings
from ettsweep.theory.measure import activation_changes, measure
from ettsweep.theory.measurement import Changes, Measurement
from ettsweep.theory.probe import SAMPLES, Probe, load_checkable, make_probe
from ettsweep.trainer.models.registry import architecture, model_name

TARGET_CHANGE = 0.01
"""Target rms change of the trained outputs in one step at the narrowest: small, so that changes are linear in lr."""

MIN_CHANGE, MAX_CHANGE = 1e-4, 0.3
"""Range of that change that a requested learning rate may cause."""

TRIAL_LR = 2.0**-10
"""Learning rate of the trial step from which one that meets the target is extrapolated."""

LearningRates = Mapping[float | None, float]
"""Learning rate by s: of standard (None), and of the strategy. Each is the same at all widths."""


@dataclass(frozen=True)
class CoordinateCurves:
    """Change of activations and outputs in the first steps of training under one strategy.

    Attributes:
        strategy: its name.
        lr: learning rate at all widths.
        changes: rms change by stage, indexed [step][width], averaged over seeds.
        hidden_power: power of the width implied for hidden activations; None if theory implies none.
        output_power: power of the width implied for the outputs; None if theory implies none.
    """

    strategy: str
    lr: float
    changes: Mapping[str, tuple[tuple[float, ...], ...]]
    hidden_power: float | None
    output_power: float | None


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    Attributes:
        settings: everything that determines what was built, trained and measured.
        about: the same in one line.
        widths: in ascending order.
        judgement: verdicts on all quantities.
        findings: the faults in words; empty if there are none.
        curves: changes in training under standard, then under the strategy if it is another.
    """

    settings: Json
    about: str
    widths: tuple[int, ...]
    judgement: Judgement
    findings: tuple[str, ...]
    curves: tuple[CoordinateCurves, ...]

    @property
    def verdict(self) -> ExponentTest:
        """Verdict of the whole check."""
        return self.judgement.verdict


def check_scaling(plan: CheckPlan) -> CheckResult:
    """Train and measure the networks of a plan, and judge them. Takes seconds to minutes.

    Raises:
        InputError: the requested learning rate changes the outputs too little or too much.
        EttsweepError: no learning rate can be chosen, since training does not change the outputs.
        StoppedError: the user pressed Ctrl-C.
    """
    try:
        probes = [make_probe(model) for model in plan.models]
        with _single_thread():
            lrs = _learning_rates(plan, probes[0])
            measurements, changes = _train_and_measure(plan, probes, lrs)
        expectations = compute_expectations(plan, probes[0])  # the batch is the same at all widths
        judgement = judge_measurements(expectations, measurements, plan.model.heads, SAMPLES)
        return CheckResult(
            settings=_settings(plan, lrs),
            about=_describe_check(plan, lrs),
            widths=plan.widths,
            judgement=judgement,
            findings=findings(judgement, plan.s),
            curves=tuple(_coordinate_curves(replace(expectations, s=s), changes[s], lr) for s, lr in lrs.items()),
        )
    except KeyboardInterrupt:
        raise StoppedError("interrupted; nothing has been written") from None


@contextmanager
def _single_thread() -> Iterator[None]:
    """Run torch on one thread: with so few tokens more threads gain little, and stall if a core is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train_and_measure(
    plan: CheckPlan, probes: Sequence[Probe], lrs: LearningRates
) -> tuple[list[Measurement], dict[float | None, list[Changes]]]:
    """Train all networks, width by width.

    Returns:
        Measurements of the strategy's networks, and by s the changes in training. Within each list, all seeds of the
        first width come first.
    """
    measurements: list[Measurement] = []
    changes: dict[float | None, list[Changes]] = {s: [] for s in lrs}
    # A step costs about width^2, so progress counts that.
    total = len(lrs) * len(plan.seeds) * sum(n**2 for n in plan.widths)
    # "share" shows no time left: narrow networks say nothing about the time that wide ones take.
    with progress(f"width {plan.widths[0]}", total, "share") as advance:
        for probe, seed, s in product(probes, plan.seeds, lrs):
            n, steps, first = probe.model.width, plan.request.steps, seed == plan.seeds[0]
            spec = plan.spec(probe.model, seed, s, lrs[s])
            if s == plan.s:  # standard is only plotted for comparison, for which its changes suffice
                measurements.append(measure(spec, probe, steps, decay=first, by_layer=first and n == plan.widths[-1]))
                changes[s].append(measurements[-1].changes)
            else:
                changes[s].append(activation_changes(spec, probe, steps))
            advance(n**2, f"width {n}")
    return measurements, changes


def compute_expectations(plan: CheckPlan, probe: Probe) -> Expectations:
    """Compute what theory implies for the plan's networks on the probe batch."""
    kernels = load_checkable(plan.model).kernels(plan.models, plan.s, probe.batch)
    predictions = [Prediction.of(model, k) for model, k in zip(plan.models, kernels, strict=True)]
    is_covered = not architecture(plan.model).beyond_theory(plan.model)
    return Expectations(predictions, plan.s, plan.request.optimizer, plan.request.mlp_factor, is_covered)


def _coordinate_curves(expectations: Expectations, changes: Sequence[Changes], lr: float) -> CoordinateCurves:
    """Average changes over seeds, by stage, step and width, and add the implied powers."""

    def means(stage: str) -> tuple[tuple[float, ...], ...]:
        table = np.array([[step[stage] for step in steps] for steps in changes])
        # Changes are ordered by width, then seed; every width has the same number of seeds.
        by_width = table.reshape(len(expectations.widths), -1, table.shape[1])
        return tuple(map(tuple, by_width.mean(1).T.tolist()))

    def power(stage: str) -> float | None:
        change = expectations.change(stage)
        return None if change is None else change.power

    return CoordinateCurves(
        strategy=strategy_name(expectations.s),
        lr=lr,
        changes={stage: means(stage) for stage in expectations.stages},
        hidden_power=power(expectations.stages[-2]),  # the last stage before the outputs
        output_power=power(HEAD),
    )


def _settings(plan: CheckPlan, lrs: LearningRates) -> Json:
    request = plan.request
    return {
        "model": model_name(request.model),
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
        "beyond_theory": list(architecture(plan.model).beyond_theory(plan.model)),
        "provenance": provenance(),
    }


def _describe_check(plan: CheckPlan, lrs: LearningRates) -> str:
    request, model = plan.request, plan.model
    standard_note = (
        "" if plan.s is None else f" (beside it, standard at {lrs[None]:.2g}: the same bulk step at the widest)"
    )
    return (
        f"{model_name(request.model)} under {strategy_name(plan.s)}: {model.heads} heads, "
        f"{load_checkable(model).about(model)}; "
        f"{len(plan.seeds)} seeds, {request.steps} steps of {request.optimizer} at lr {lrs[plan.s]:.2g}{standard_note}"
    )


# --- learning rates -------------------------------------------------------------------------------------------------


def _learning_rates(plan: CheckPlan, probe: Probe) -> LearningRates:
    """Choose the learning rates of standard and of the strategy.

    The strategy's is the requested one, or one that changes the trained outputs by `TARGET_CHANGE` in a step at the
    narrowest. Standard's follows by `map_point` at the widest, so that both take the same step in the bulk there.

    Raises:
        InputError: the requested lr changes the outputs too much or too little to measure powers.
        EttsweepError: no lr can be chosen.
    """
    requested_lr, s = plan.request.lr, plan.s
    if s is None and requested_lr is not None:
        return {None: _check_lr(plan, probe, requested_lr)}
    # Standard's lr is chosen under a strategy of the family and then mapped, since the trial lr suits the family only.
    of_family = _family_s(plan) if s is None else s
    lr = _choose_lr(plan, probe, of_family, TRIAL_LR) if requested_lr is None else _check_lr(plan, probe, requested_lr)
    standard_lr, _ = map_point(lr, 0.0, of_family, None, plan.widths[-1], plan.request.optimizer)
    return {None: standard_lr} if s is None else {None: standard_lr, s: lr}


def _family_s(plan: CheckPlan) -> float:
    """Return the s of a strategy of the family that the optimizer has."""
    return 1.0 if plan.request.optimizer == "muon" else 0.0


def _choose_lr(plan: CheckPlan, probe: Probe, s: float | None, trial_lr: float) -> float:
    """Return the lr, to two digits, that changes the outputs by `TARGET_CHANGE` in the first step at the narrowest."""
    change = _output_change(plan, probe, s, trial_lr)
    if not 0 < change < math.inf:  # also false for nan
        raise EttsweepError(f"a step at lr {trial_lr:.2g} moves the outputs by {change:.2g}; choose another with --lr")
    return float(f"{trial_lr * TARGET_CHANGE / change:.2g}")  # changes are linear in so small an lr


def _check_lr(plan: CheckPlan, probe: Probe, lr: float) -> float:
    change = _output_change(plan, probe, plan.s, lr)
    if MIN_CHANGE <= change <= MAX_CHANGE:
        return lr
    n, amount = plan.widths[0], "little" if change < TARGET_CHANGE else "much"
    # The trial lr suits the family; standard's is its image at this width.
    trial_lr = TRIAL_LR
    if plan.s is None:
        trial_lr, _ = map_point(TRIAL_LR, 0.0, _family_s(plan), None, n, plan.request.optimizer)
    better_lr = _choose_lr(plan, probe, plan.s, trial_lr)
    raise InputError(
        f"--lr {lr:g}: a step at width {n} moves the outputs by {change:.2g}, which is too {amount} to measure powers "
        f"({MIN_CHANGE:g} to {MAX_CHANGE:g} do); {better_lr:.2g} moves them by {TARGET_CHANGE:g}"
    )


def _output_change(plan: CheckPlan, probe: Probe, s: float | None, lr: float) -> float:
    return activation_changes(plan.spec(probe.model, plan.seeds[0], s, lr), probe, 1)[0][HEAD]
