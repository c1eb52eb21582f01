"""The check of a scaling: networks of several widths, built and trained for a few steps, held against theory."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ettsweep.check.expectations import HEAD, Expectations, Prediction
from ettsweep.check.findings import findings
from ettsweep.check.judgement import Measured, judge
from ettsweep.check.measure import CPU, Changes, activation_changes, counts, measure
from ettsweep.check.outcome import Check, Curves
from ettsweep.check.powers import ENOUGH, least_error
from ettsweep.check.probe import SAMPLES, Probe, make_probe, small_model
from ettsweep.errors import EttsweepError, InputError, StoppedError
from ettsweep.files import Json
from ettsweep.models.architectures import model_spec
from ettsweep.models.shapes import parameter_count
from ettsweep.models.vit import patchify
from ettsweep.output import progress
from ettsweep.provenance import provenance, summary
from ettsweep.scaling.factors import MlpFactor, Optimizer
from ettsweep.scaling.kernels import at_width, encdec_kernels, vit_kernels
from ettsweep.scaling.map import map_point
from ettsweep.scaling.optimizers import AdamWSpec, SgdSpec
from ettsweep.scaling.strategies import parse_strategy, strategy_name
from ettsweep.spec import EncDecSpec, ModelSpec, RunSpec, ScheduleSpec, StrategySpec, VitSpec, indivisible
from ettsweep.tasks.images.spec import DigitsTask
from ettsweep.tasks.text.spec import PydocTask
from ettsweep.training.fit import available_bytes
from ettsweep.training.memory import GIB, DeviceMemoryError

CHANNELS = (8, 16, 32, 64)
"""Channels per head of the widths, unless they are given."""

SEEDS, SEEDS_OF_SMALL = 3, 12
SMALL = 5_000_000
"""Parameters at the widest below which more seeds take no time."""

DRAWS = 64
"""Samples of each attention for the predictions: their errors are then far below those of the measurements."""

MOVE = 0.01
"""By how much the trained outputs should move in a step at the narrowest: little, so that changes are linear in lr."""

MOVE_LEAST, MOVE_MOST = 1e-4, 0.3
"""By how much a given learning rate may move them."""
TRIAL_LR = 2.0**-10

BYTES = 22
"""Bytes for each parameter: values and those before training in fp32, then the latter in fp64 with a group's twice."""
REST_BYTES = 2**29


@dataclass(frozen=True)
class Question:
    """What to check; None where it follows from the model.

    Attributes:
        model: its name.
        strategy: `standard`, `ntk`, `hybrid`, `mup` or `s=0.25`.
        optimizer: with its defaults and no decay.
        mlp_factor: whether M enters the learning-rate factors.
        widths: n, each divisible by the model's heads.
        steps: of training.
        seeds: networks of each width.
        lr: learning rate of the strategy, the same at all widths.
        depth: blocks.
    """

    model: str
    strategy: str
    optimizer: Optimizer = "adamw"
    mlp_factor: MlpFactor = "ignore"
    widths: tuple[int, ...] | None = None
    steps: int = 5
    seeds: int | None = None
    lr: float | None = None
    depth: int | None = None


@dataclass(frozen=True)
class Plan:
    """What will be built and trained.

    Attributes:
        question: what is asked for.
        model: at the widest, with few tokens.
        s: the strategy's; None for standard.
        widths: n, ascending.
        seeds: of each width.
    """

    question: Question
    model: ModelSpec
    s: float | None
    widths: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return what tells this check from others."""
        included = "-include" if self.question.mlp_factor == "include" else ""
        return f"{self.question.model}-{strategy_name(self.s)}-{self.question.optimizer}{included}"

    def at(self, width: int) -> ModelSpec:
        """Return the model at a width."""
        return self.model.model_copy(update={"width": width})

    def spec(self, width: int, seed: int, s: float | None, lr: float) -> RunSpec:
        """Return a run under a strategy; its task and schedule are not looked at."""
        text, steps = isinstance(self.model, EncDecSpec), self.question.steps
        return RunSpec(
            model=self.at(width),
            task=PydocTask() if text else DigitsTask(),
            optimizer=AdamWSpec() if self.question.optimizer == "adamw" else SgdSpec(),
            schedule=ScheduleSpec(total_steps=steps, warmup_steps=0, eval_every=steps),
            batch_size=SAMPLES,
            strategy=StrategySpec(s=s, mlp_factor=self.question.mlp_factor),
            lr=lr,
            wd=0.0,
            seed=seed,
        )


def make_plan(question: Question) -> Plan:
    """Resolve what is asked for.

    Raises:
        InputError: an unknown model or strategy, or widths that cannot be.
        DeviceMemoryError: the widest does not fit into the memory.
    """
    s = parse_strategy(question.strategy)
    model = small_model(model_spec(question.model), question.depth)
    widths = tuple(sorted(set(question.widths or (model.heads * channels for channels in CHANNELS))))
    problems = [f"--widths: {problem}" for n in widths for problem in _misfits(n, model.heads)]
    if len(widths) < 3:
        problems.append(f"--widths: a power is fitted to at least three different ones, got {len(widths)}")
    if problems:
        raise InputError.of(problems)
    if (floor := least_error(widths, [n // model.heads for n in widths])) > ENOUGH:
        raise InputError(
            f"--widths: {', '.join(map(str, widths))} tell a power to {floor:.2f} at best, since corrections are of "
            f"order heads / width; {ENOUGH:g} is needed: take wider ones, or farther apart"
        )
    widest = model.model_copy(update={"width": widths[-1]})
    _check_memory(widest)
    seeds = question.seeds or (SEEDS_OF_SMALL if parameter_count(widest) < SMALL else SEEDS)
    return Plan(question, widest, s, widths, tuple(range(seeds)))


def _misfits(width: int, heads: int) -> Iterator[str]:
    if width < heads:
        yield f"width {width} is below the model's {heads} heads"
    else:
        yield from indivisible("width", width, "heads", heads)


def _check_memory(model: ModelSpec) -> None:
    def needed(width: int) -> int:
        return BYTES * parameter_count(model.model_copy(update={"width": width})) + REST_BYTES

    free = available_bytes(CPU)
    if needed(model.width) <= free:
        return
    multiples = range(model.heads, model.width, model.heads)
    below = bisect_right(multiples, free, key=needed)
    fits = multiples[below - 1] if below else None
    hint = f"--widths up to {fits} or a smaller --depth would fit" if fits else "a smaller --depth may fit"
    takes = f"width {model.width} at depth {model.depth} takes about {needed(model.width) / GIB:.1f} GiB"
    raise DeviceMemoryError(f"{takes}, and {free / GIB:.1f} GiB are free; {hint}")


def check_scaling(plan: Plan) -> Check:
    """Build, train and measure all networks, and judge what they show.

    Raises:
        EttsweepError: training does not move the outputs, so that no learning rate can be chosen.
        StoppedError: Ctrl-C.
    """
    threads = torch.get_num_threads()
    # So few tokens leave little for a second thread, which waits, and makes all wait, where its core is taken.
    torch.set_num_threads(1)
    try:
        return _check(plan)
    except KeyboardInterrupt:
        raise StoppedError("interrupted; nothing has been written") from None
    finally:
        torch.set_num_threads(threads)


def _check(plan: Plan) -> Check:
    probes = {n: make_probe(plan.at(n)) for n in plan.widths}
    lrs = _learning_rates(plan, probes[plan.widths[0]])
    measured: list[Measured] = []
    beside: dict[int, list[Changes]] = {n: [] for n in plan.widths}
    total = len(lrs) * len(plan.seeds) * sum(n**2 for n in plan.widths)
    with progress(f"width {plan.widths[0]}", total, "share") as advance:  # narrow networks say nothing of wide ones
        for n, seed in ((n, seed) for n in plan.widths for seed in plan.seeds):
            if plan.s is not None:
                spec = plan.spec(n, seed, None, lrs[None])
                beside[n].append(activation_changes(spec, probes[n], plan.question.steps))
                advance(n**2, f"width {n}")
            spec = plan.spec(n, seed, plan.s, lrs[plan.s])
            measured.append(measure(spec, probes[n], plan.question.steps, decay=seed == plan.seeds[0]))
            advance(n**2, f"width {n}")
    expected = expect(plan, probes)
    judgement = judge(expected, measured, plan.model.heads, SAMPLES)
    mine = {n: [list(m.changes) for m in measured if m.width == n] for n in plan.widths}
    curves = [_curves(expected, mine, lrs[plan.s])]
    if plan.s is not None:
        curves.insert(0, _curves(replace(expected, s=None), beside, lrs[None]))
    return Check(
        name=plan.name,
        settings=_settings(plan, lrs),
        about=_about(plan, lrs),
        widths=plan.widths,
        judgement=judgement,
        findings=findings(judgement, plan.s),
        curves=tuple(curves),
    )


def expect(plan: Plan, probes: Mapping[int, Probe]) -> Expectations:
    """Return what the strategy implies; the kernels of a Vision Transformer are computed once for all widths."""
    predictions: list[Prediction] = []
    for n in reversed(plan.widths):
        model, inputs = plan.at(n), probes[n].batch.inputs
        if isinstance(model, EncDecSpec):
            kernels = encdec_kernels(model, plan.s, inputs[0].numpy(), inputs[1].numpy(), draws=DRAWS)
        elif isinstance(model, VitSpec) and predictions:
            kernels = at_width(predictions[-1].kernels, model, plan.s)
        else:
            assert isinstance(model, VitSpec)
            patches = patchify(inputs[0], model.patch_size).flatten(0, 1).double().numpy()
            kernels = vit_kernels(model, plan.s, patches @ patches.T / patches.shape[1], draws=DRAWS)
        predictions.append(Prediction(model, kernels))
    question, sizes = plan.question, counts(plan.model)
    return Expectations(plan.widths, predictions[::-1], plan.s, question.optimizer, question.mlp_factor, sizes)


# --- learning rates -------------------------------------------------------------------------------------------------


def _learning_rates(plan: Plan, probe: Probe) -> dict[float | None, float]:
    """Return the learning rates of standard and of the strategy, each the same at all widths.

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


def _moving(plan: Plan, probe: Probe, s: float | None, trial: float) -> float:
    """Return the learning rate that moves the outputs by MOVE in the first step of the narrowest, to two digits."""
    moved = _moved(plan, probe, s, trial)
    if not 0 < moved < math.inf:
        raise EttsweepError(f"a step at lr {trial:.2g} moves the outputs by {moved:.2g}; choose another with --lr")
    return float(f"{trial * MOVE / moved:.2g}")


def _checked(plan: Plan, probe: Probe, lr: float) -> float:
    moved = _moved(plan, probe, plan.s, lr)
    if MOVE_LEAST <= moved <= MOVE_MOST:
        return lr
    n, how = plan.widths[0], "little" if moved < MOVE else "much"
    trial = TRIAL_LR if plan.s is not None else map_point(TRIAL_LR, 0.0, 0.0, None, n, plan.question.optimizer)[0]
    raise InputError(
        f"--lr {lr:g}: a step at width {n} moves the outputs by {moved:.2g}, which is too {how} to tell powers "
        f"({MOVE_LEAST:g} to {MOVE_MOST:g} do); {_moving(plan, probe, plan.s, trial):.2g} moves them by {MOVE:g}"
    )


def _moved(plan: Plan, probe: Probe, s: float | None, lr: float) -> float:
    spec = plan.spec(plan.widths[0], plan.seeds[0], s, lr)
    return activation_changes(spec, probe, 1)[0][HEAD]


# --- what is said of it ---------------------------------------------------------------------------------------------


def _curves(expected: Expectations, changes: Mapping[int, Sequence[Changes]], lr: float) -> Curves:
    """Return the changes by stage, step and width, as the mean over seeds."""

    def means(stage: str) -> tuple[tuple[float, ...], ...]:
        table = [[[step[stage] for step in steps] for steps in changes[n]] for n in expected.widths]
        return tuple(tuple(row) for row in np.array(table).mean(1).T.tolist())

    def power(stage: str) -> float | None:
        change = expected.change(stage)
        return None if change is None else change.power

    return Curves(
        strategy=strategy_name(expected.s),
        lr=lr,
        changes={stage: means(stage) for stage in expected.stages},
        hidden_power=power(expected.stages[-2]),
        output_power=power(HEAD),
    )


def _settings(plan: Plan, lrs: Mapping[float | None, float]) -> Json:
    question = plan.question
    return {
        "model": question.model,
        "strategy": strategy_name(plan.s),
        "optimizer": question.optimizer,
        "mlp_factor": question.mlp_factor,
        "widths": list(plan.widths),
        "seeds": list(plan.seeds),
        "steps": question.steps,
        "lr": lrs[plan.s],
        "standard_lr": lrs[None],
        "samples": SAMPLES,
        "at_the_widest": plan.model.model_dump(),
        "provenance": summary(provenance()),
    }


def _about(plan: Plan, lrs: Mapping[float | None, float]) -> str:
    question, model = plan.question, plan.model
    if isinstance(model, EncDecSpec):
        sample = f"texts of {model.tokens} tokens of a vocabulary of {model.vocabulary}"
        depth = f"{model.depth} + {model.depth} blocks"
    else:
        assert isinstance(model, VitSpec)
        sample = f"images of {(model.image_size // model.patch_size) ** 2} patches"
        depth = f"{model.depth} blocks"
    beside = "" if plan.s is None else f" (beside it, standard at {lrs[None]:.2g}: the same bulk step at the widest)"
    return (
        f"{question.model} under {strategy_name(plan.s)}: {model.heads} heads, {depth}, {SAMPLES} {sample}; "
        f"{len(plan.seeds)} seeds, {question.steps} steps of {question.optimizer} at lr {lrs[plan.s]:.2g}{beside}"
    )
