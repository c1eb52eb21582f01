"""Run a check: train and measure networks, and compare them with theory."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch

from ettsweep.console import progress
from ettsweep.errors import DeviceMemoryError, EttsweepError, InputError, StoppedError
from ettsweep.files import Json
from ettsweep.processes import GIB
from ettsweep.provenance import provenance
from ettsweep.runs.spec import StrategySpec
from ettsweep.schema import validate
from ettsweep.strategies.factors import MlpFactor, Optimizer
from ettsweep.strategies.optimizers import OPTIMIZERS
from ettsweep.strategies.strategy import check_strategy, map_point, parse_strategy, strategy_name
from ettsweep.theory.expectations import HEAD, Expectations, Prediction
from ettsweep.theory.exponents import MAX_POWER_ERROR, error_floor
from ettsweep.theory.judge import Judgement, judge_measurements
from ettsweep.theory.measure import Changes, Measurement, activation_changes, measure
from ettsweep.theory.probe import SAMPLES, Probe, load_checkable, make_probe, small_model
from ettsweep.trainer.models.registry import architecture, model_name, parameter_count
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec, ScheduleSpec
from ettsweep.trainer.tasks.images.image_task import DigitsTask

DEFAULT_CHANNELS = (8, 16, 32, 64)
"""Channels per head at each width, unless --widths is given."""

DEFAULT_SEEDS, SEEDS_FOR_SMALL = 3, 12
SMALL_PARAMETERS = 5_000_000
"""Models with fewer parameters than this at the widest get more seeds, at a cost of seconds."""

BYTES_PER_PARAMETER = 22
"""Bytes per parameter, with some slack: values, initial values, gradients and AdamW's two moments in fp32 (20). After
training a copy in fp64 takes the place of the moments."""
OVERHEAD_BYTES = 2**29
"""Bytes for everything that does not grow with the number of parameters."""

_OPTION = "--widths"

TARGET_CHANGE = 0.01
"""Target rms change of the trained outputs in one step at the narrowest: small, to be linear in lr."""

MIN_CHANGE, MAX_CHANGE = 1e-4, 0.3
"""Range of that change that a requested learning rate may cause."""

TRIAL_LR = 2.0**-10
"""Learning rate of the trial step, extrapolated to meet the target."""

LearningRates = Mapping[float | None, float]
"""Learning rate by s: of standard (None), and of the strategy. Each is the same at all widths."""


@dataclass(frozen=True)
class CheckPlan:
    """The networks that a check builds and trains.

    Attributes:
        name: name of the model.
        model: the model at the largest width, with few tokens.
        s: meta-parameter of the strategy; None for standard.
        optimizer: used with its default settings and without weight decay.
        mlp_factor: whether the learning-rate factors contain the MLP ratio M.
        widths: in ascending order.
        seeds: one network each per width.
        steps: training steps.
        lr: base learning rate of the strategy, the same at all widths; None for one that suits the model.
    """

    name: str
    model: ModelSpec
    s: float | None
    optimizer: Optimizer
    mlp_factor: MlpFactor
    widths: tuple[int, ...]
    seeds: tuple[int, ...]
    steps: int
    lr: float | None

    @property
    def folder_name(self) -> str:
        """Name of the check's results folder."""
        suffix = "-include" if self.mlp_factor == "include" else ""
        return f"{self.name}-{strategy_name(self.s)}-{self.optimizer}{suffix}"

    @property
    def models(self) -> list[ModelSpec]:
        """The model at each width."""
        return [self.model.model_copy(update={"width": width}) for width in self.widths]

    def spec(self, model: ModelSpec, seed: int, s: float | None, lr: float) -> TransformerRun:
        """Return the spec of one network to train."""
        # A spec must have a task and a schedule, but checks train on the probe at a constant lr and ignore both.
        return TransformerRun(
            model=model,
            task=DigitsTask(),
            optimizer=OPTIMIZERS[self.optimizer].spec(kind=self.optimizer),
            schedule=ScheduleSpec(total_steps=self.steps, warmup_steps=0, eval_every=self.steps),
            batch_size=SAMPLES,
            strategy=StrategySpec(s=s, mlp_factor=self.mlp_factor),
            lr=lr,
            # Without decay, what changes is due to gradients alone; `measure.shrinkage` measures decay by itself.
            wd=0.0,
            seed=seed,
        )


def make_check_plan(
    model: ModelSpec,
    strategy: str,
    free_bytes: int,
    *,
    optimizer: Optimizer = "adamw",
    mlp_factor: MlpFactor = "ignore",
    widths: Sequence[int] = (),
    steps: int = 5,
    seeds: int | None = None,
    lr: float | None = None,
    depth: int | None = None,
) -> CheckPlan:
    """Fill in the defaults of a check, which depend on the model, and check that it is possible.

    Raises:
        InputError: unknown strategy, or one that the optimizer does not have, or widths that the model cannot have or
            that cannot determine a power.
        DeviceMemoryError: the widest network needs more than `free_bytes`.
    """
    s = parse_strategy(strategy)
    check_strategy(s, optimizer)
    small = small_model(model, depth)
    # Ascending and distinct: the last is taken as the widest, and a repeated width would count twice in fits.
    ascending = tuple(sorted(set(widths or (model.heads * channels for channels in DEFAULT_CHANNELS))))
    problems = [f"width {n} is below the model's {model.heads} heads" for n in ascending if n < model.heads]
    # Widths below the number of heads have their line already.
    problems += [problem for n in ascending if n >= model.heads for problem in _width_problems(small, n)]
    # A line through two points leaves no residuals: `fit_power` would divide by 0.
    if len(ascending) < 3:
        problems.append(f"fitting a power takes at least three different widths, got {len(ascending)}")
    if problems:
        raise InputError.of([f"{_OPTION}: {problem}" for problem in problems])
    # Corrections of order 1/C do not shrink with more seeds: no number of them could make a power ok.
    if (floor := error_floor(ascending, [n // model.heads for n in ascending])) > MAX_POWER_ERROR:
        raise InputError(
            f"--widths: {', '.join(map(str, ascending))} determine a power to {floor:.2f} at best, since corrections "
            f"are of order heads / width; {MAX_POWER_ERROR:g} is needed: use wider widths, or widths farther apart"
        )
    widest = small.model_copy(update={"width": ascending[-1]})
    _check_memory(widest, free_bytes)
    count = seeds or (SEEDS_FOR_SMALL if parameter_count(widest) < SMALL_PARAMETERS else DEFAULT_SEEDS)
    seed_numbers = tuple(range(count))
    return CheckPlan(model_name(model), widest, s, optimizer, mlp_factor, ascending, seed_numbers, steps, lr)


def _width_problems(model: ModelSpec, width: int) -> Iterator[str]:
    try:
        validate(type(model), model.model_dump() | {"width": width}, _OPTION)
    except InputError as error:
        yield str(error).removeprefix(f"{_OPTION}: ")


def _check_memory(model: ModelSpec, free_bytes: int) -> None:
    def required_bytes(width: int) -> int:
        return BYTES_PER_PARAMETER * parameter_count(model.model_copy(update={"width": width})) + OVERHEAD_BYTES

    if required_bytes(model.width) <= free_bytes:
        return
    # Only multiples of the heads can be built; memory grows with the width, so bisection finds the largest.
    multiples = range(model.heads, model.width, model.heads)
    below = bisect_right(multiples, free_bytes, key=required_bytes)
    fits = multiples[below - 1] if below else None
    hint = f"--widths up to {fits} or a smaller --depth would fit" if fits else "a smaller --depth may fit"
    demand = f"width {model.width} at depth {model.depth} takes about {required_bytes(model.width) / GIB:.1f} GiB"
    raise DeviceMemoryError(f"{demand}, and {free_bytes / GIB:.1f} GiB are free; {hint}")


# --- the check --------------------------------------------------------------------------------------------------------


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
        judgement: verdicts on all quantities, and the faults in words.
        curves: changes in training under standard, then under the strategy if it is another.
    """

    settings: Json
    about: str
    widths: tuple[int, ...]
    judgement: Judgement
    curves: tuple[CoordinateCurves, ...]


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
            n, steps, first = probe.model.width, plan.steps, seed == plan.seeds[0]
            spec = plan.spec(probe.model, seed, s, lrs[s])
            if s == plan.s:  # standard is only plotted for comparison, for which its changes suffice
                measurements.append(measure(spec, probe, steps, decay=first, by_layer=first and n == plan.widths[-1]))
                changes[s].append(measurements[-1].changes)
            else:
                changes[s].append(activation_changes(spec, probe, steps))
            advance(n**2, f"width {n}")
    return measurements, changes


def compute_expectations(plan: CheckPlan, probe: Probe) -> Expectations:
    """Compute predictions for the plan's networks on the probe batch."""
    kernels = load_checkable(plan.model).kernels(plan.models, plan.s, probe.batch)
    predictions = [Prediction.of(model, k) for model, k in zip(plan.models, kernels, strict=True)]
    is_covered = not architecture(plan.model).beyond_theory(plan.model)
    return Expectations(predictions, plan.s, plan.optimizer, plan.mlp_factor, is_covered)


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
    return {
        "model": plan.name,
        "strategy": strategy_name(plan.s),
        "optimizer": plan.optimizer,
        "mlp_factor": plan.mlp_factor,
        "widths": list(plan.widths),
        "seeds": list(plan.seeds),
        "steps": plan.steps,
        "lr": lrs[plan.s],
        "standard_lr": lrs[None],
        "samples": SAMPLES,
        "at_the_widest": plan.model.model_dump(),
        "beyond_theory": list(architecture(plan.model).beyond_theory(plan.model)),
        "provenance": provenance(),
    }


def _describe_check(plan: CheckPlan, lrs: LearningRates) -> str:
    standard_note = (
        "" if plan.s is None else f" (beside it, standard at {lrs[None]:.2g}: the same bulk step at the widest)"
    )
    return (
        f"{plan.name} under {strategy_name(plan.s)}: {plan.model.heads} heads, "
        f"{load_checkable(plan.model).about(plan.model)}; "
        f"{len(plan.seeds)} seeds, {plan.steps} steps of {plan.optimizer} at lr {lrs[plan.s]:.2g}{standard_note}"
    )


# --- learning rates -------------------------------------------------------------------------------------------------


def _learning_rates(plan: CheckPlan, probe: Probe) -> LearningRates:
    """Choose the learning rates of standard and of the strategy.

    The strategy's is the requested one, or one that changes the trained outputs by `TARGET_CHANGE` in a step at the
    narrowest. Standard's follows by `map_point` at the widest: both then take the same step in the bulk.

    Raises:
        InputError: the requested lr changes the outputs too much or too little to measure powers.
        EttsweepError: no lr can be chosen.
    """
    requested_lr, s = plan.lr, plan.s
    if s is None and requested_lr is not None:
        return {None: _check_lr(plan, probe, requested_lr)}
    # Standard's lr is chosen under a strategy of the family and then mapped, since the trial lr suits the family only.
    of_family = _family_s(plan) if s is None else s
    lr = _choose_lr(plan, probe, of_family, TRIAL_LR) if requested_lr is None else _check_lr(plan, probe, requested_lr)
    standard_lr, _ = map_point(lr, 0.0, of_family, None, plan.widths[-1], plan.optimizer)
    return {None: standard_lr} if s is None else {None: standard_lr, s: lr}


def _family_s(plan: CheckPlan) -> float:
    """Return the s of a strategy of the family that the optimizer has."""
    return 1.0 if plan.optimizer == "muon" else 0.0


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
        trial_lr, _ = map_point(TRIAL_LR, 0.0, _family_s(plan), None, n, plan.optimizer)
    better_lr = _choose_lr(plan, probe, plan.s, trial_lr)
    raise InputError(
        f"--lr {lr:g}: a step at width {n} moves the outputs by {change:.2g}, which is too {amount} to measure powers "
        f"({MIN_CHANGE:g} to {MAX_CHANGE:g} do); {better_lr:.2g} moves them by {TARGET_CHANGE:g}"
    )


def _output_change(plan: CheckPlan, probe: Probe, s: float | None, lr: float) -> float:
    return activation_changes(plan.spec(probe.model, plan.seeds[0], s, lr), probe, 1)[0][HEAD]
