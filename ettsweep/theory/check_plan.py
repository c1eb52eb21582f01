"""Resolve a requested check into the networks to build and train."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from ettsweep.errors import DeviceMemoryError, InputError
from ettsweep.processes import GIB
from ettsweep.runs.spec import StrategySpec
from ettsweep.schema import validate
from ettsweep.strategies.factors import MlpFactor, Optimizer
from ettsweep.strategies.optimizers import OPTIMIZERS
from ettsweep.strategies.strategy import check_strategy, parse_strategy, strategy_name
from ettsweep.theory.exponents import MAX_POWER_ERROR, error_floor
from ettsweep.theory.probe import SAMPLES, small_model
from ettsweep.trainer.models.registry import model_name, parameter_count
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec, ScheduleSpec
from ettsweep.trainer.tasks.images.image_task import DigitsTask

DEFAULT_CHANNELS = (8, 16, 32, 64)
"""Channels per head at each width, unless --widths is given."""

DEFAULT_SEEDS, SEEDS_FOR_SMALL = 3, 12
SMALL_PARAMETERS = 5_000_000
"""Models with fewer parameters than this at the widest get more seeds, which cost them seconds."""

BYTES_PER_PARAMETER = 22
"""Bytes per parameter, with some slack: values, initial values, gradients and AdamW's two moments in fp32 (20). After
training a copy in fp64 takes the place of the moments."""
OVERHEAD_BYTES = 2**29
"""Bytes for everything that does not grow with the number of parameters."""


_OPTION = "--widths"


@dataclass(frozen=True)
class CheckRequest:
    """A requested check, as typed on the command line; None stands for a default that depends on the model.

    Attributes:
        model: the model.
        strategy: name of a strategy, or `s=<number>`.
        optimizer: used with its default settings and without weight decay.
        mlp_factor: whether the learning-rate factors contain the MLP ratio M.
        widths: widths to compare.
        steps: training steps.
        seeds: networks per width.
        lr: base learning rate of the strategy, the same at all widths.
        depth: blocks; by default the model's, at most 8 for text.
    """

    model: ModelSpec
    strategy: str
    optimizer: Optimizer = "adamw"
    mlp_factor: MlpFactor = "ignore"
    widths: tuple[int, ...] | None = None
    steps: int = 5
    seeds: int | None = None
    lr: float | None = None
    depth: int | None = None


@dataclass(frozen=True)
class CheckPlan:
    """The networks that a check builds and trains.

    Attributes:
        request: the request that this plan resolves.
        model: the model at the largest width, with few tokens.
        s: meta-parameter of the strategy; None for standard.
        widths: in ascending order.
        seeds: one network each per width.
    """

    request: CheckRequest
    model: ModelSpec
    s: float | None
    widths: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the check's results folder."""
        suffix = "-include" if self.request.mlp_factor == "include" else ""
        return f"{model_name(self.request.model)}-{strategy_name(self.s)}-{self.request.optimizer}{suffix}"

    @property
    def models(self) -> list[ModelSpec]:
        """The model at each width."""
        return [self.model.model_copy(update={"width": width}) for width in self.widths]

    def spec(self, model: ModelSpec, seed: int, s: float | None, lr: float) -> TransformerRun:
        """Return the spec of one network to train."""
        # A spec must have a task and a schedule, but checks train on the probe at a constant lr and ignore both.
        steps, optimizer = self.request.steps, self.request.optimizer
        return TransformerRun(
            model=model,
            task=DigitsTask(),
            optimizer=OPTIMIZERS[optimizer].spec(kind=optimizer),
            schedule=ScheduleSpec(total_steps=steps, warmup_steps=0, eval_every=steps),
            batch_size=SAMPLES,
            strategy=StrategySpec(s=s, mlp_factor=self.request.mlp_factor),
            lr=lr,
            # Without decay, what changes is due to gradients alone; `measure.shrinkage` measures decay by itself.
            wd=0.0,
            seed=seed,
        )


def make_check_plan(request: CheckRequest, free_bytes: int) -> CheckPlan:
    """Fill in a request's defaults and check that it can be carried out.

    Raises:
        InputError: unknown strategy, or one that the optimizer does not have, or widths that the model cannot have or
            that cannot determine a power.
        DeviceMemoryError: the widest network needs more than `free_bytes`.
    """
    s = parse_strategy(request.strategy)
    check_strategy(s, request.optimizer)
    model = small_model(request.model, request.depth)
    # Ascending and distinct: the last is taken as the widest, and a repeated width would count twice in fits.
    widths = tuple(sorted(set(request.widths or (model.heads * channels for channels in DEFAULT_CHANNELS))))
    problems = [f"width {n} is below the model's {model.heads} heads" for n in widths if n < model.heads]
    # Widths below the number of heads have their line already.
    problems += [problem for n in widths if n >= model.heads for problem in _width_problems(model, n)]
    # A line through two points leaves no residuals: `fit_power` would divide by 0.
    if len(widths) < 3:
        problems.append(f"fitting a power takes at least three different widths, got {len(widths)}")
    if problems:
        raise InputError.of([f"{_OPTION}: {problem}" for problem in problems])
    # Corrections of order 1/C do not shrink with more seeds: no number of them could make a power ok.
    if (floor := error_floor(widths, [n // model.heads for n in widths])) > MAX_POWER_ERROR:
        raise InputError(
            f"--widths: {', '.join(map(str, widths))} determine a power to {floor:.2f} at best, since corrections are "
            f"of order heads / width; {MAX_POWER_ERROR:g} is needed: use wider ones, or ones farther apart"
        )
    widest = model.model_copy(update={"width": widths[-1]})
    _check_memory(widest, free_bytes)
    seeds = request.seeds or (SEEDS_FOR_SMALL if parameter_count(widest) < SMALL_PARAMETERS else DEFAULT_SEEDS)
    return CheckPlan(request, widest, s, widths, tuple(range(seeds)))


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
