"""What is to be built and trained for a check, from what is asked for."""

from bisect import bisect_right
from dataclasses import dataclass

from ettsweep.errors import DeviceMemoryError, InputError
from ettsweep.processes import GIB
from ettsweep.runs.spec import ModelSpec, RunSpec, ScheduleSpec, StrategySpec, indivisible
from ettsweep.strategies.factors import MlpFactor, Optimizer
from ettsweep.strategies.optimizers import OPTIMIZERS
from ettsweep.strategies.strategy import parse_strategy, strategy_name
from ettsweep.theory.exponents import ENOUGH, least_error
from ettsweep.theory.probe import SAMPLES, small_model
from ettsweep.trainer.models.registry import model_spec, parameter_count
from ettsweep.trainer.tasks.images.image_task import DigitsTask

CHANNELS = (8, 16, 32, 64)
"""Channels per head of the widths, unless they are given."""

SEEDS, SEEDS_OF_SMALL = 3, 12
SMALL = 5_000_000
"""Parameters at the widest below which more seeds take no time."""

BYTES = 22
"""Bytes for each parameter: in fp32 values, those before training, gradients and AdamW's two; then one copy in fp64."""
REST_BYTES = 2**29


@dataclass(frozen=True)
class CheckRequest:
    """What to check; None where it follows from the model.

    The optimizer has its defaults and no decay; `seeds` is how many networks of each width; `lr` is the strategy's, the
    same at all widths.
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
class CheckPlan:
    """What will be built and trained: `model` is at the widest, with few tokens; s is None for standard."""

    request: CheckRequest
    model: ModelSpec
    s: float | None
    widths: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return what tells this check from others."""
        suffix = "-include" if self.request.mlp_factor == "include" else ""
        return f"{self.request.model}-{strategy_name(self.s)}-{self.request.optimizer}{suffix}"

    @property
    def models(self) -> list[ModelSpec]:
        """Return the model at each width."""
        return [self.model.model_copy(update={"width": width}) for width in self.widths]

    def spec(self, model: ModelSpec, seed: int, s: float | None, lr: float) -> RunSpec:
        """Return a run of a model under a strategy; its task and schedule are not looked at."""
        steps, optimizer = self.request.steps, self.request.optimizer
        return RunSpec(
            model=model,
            task=DigitsTask(),
            optimizer=OPTIMIZERS[optimizer].spec(kind=optimizer),
            schedule=ScheduleSpec(total_steps=steps, warmup_steps=0, eval_every=steps),
            batch_size=SAMPLES,
            strategy=StrategySpec(s=s, mlp_factor=self.request.mlp_factor),
            lr=lr,
            wd=0.0,
            seed=seed,
        )


def make_plan(request: CheckRequest, free_bytes: int) -> CheckPlan:
    """Resolve what is asked for.

    Raises:
        InputError: an unknown model or strategy, or widths that cannot be.
        DeviceMemoryError: the widest does not fit into the memory.
    """
    s = parse_strategy(request.strategy)
    model = small_model(model_spec(request.model), request.depth)
    widths = tuple(sorted(set(request.widths or (model.heads * channels for channels in CHANNELS))))
    problems = [f"width {n} is below the model's {model.heads} heads" for n in widths if n < model.heads]
    problems += [p for n in widths if n >= model.heads for p in indivisible("width", n, "heads", model.heads)]
    if len(widths) < 3:
        problems.append(f"a power is fitted to at least three different ones, got {len(widths)}")
    if problems:
        raise InputError.of([f"--widths: {problem}" for problem in problems])
    if (floor := least_error(widths, [n // model.heads for n in widths])) > ENOUGH:
        raise InputError(
            f"--widths: {', '.join(map(str, widths))} tell a power to {floor:.2f} at best, since corrections are of "
            f"order heads / width; {ENOUGH:g} is needed: take wider ones, or farther apart"
        )
    widest = model.model_copy(update={"width": widths[-1]})
    _check_memory(widest, free_bytes)
    seeds = request.seeds or (SEEDS_OF_SMALL if parameter_count(widest) < SMALL else SEEDS)
    return CheckPlan(request, widest, s, widths, tuple(range(seeds)))


def _check_memory(model: ModelSpec, free_bytes: int) -> None:
    def required_bytes(width: int) -> int:
        return BYTES * parameter_count(model.model_copy(update={"width": width})) + REST_BYTES

    if required_bytes(model.width) <= free_bytes:
        return
    multiples = range(model.heads, model.width, model.heads)
    below = bisect_right(multiples, free_bytes, key=required_bytes)
    fits = multiples[below - 1] if below else None
    hint = f"--widths up to {fits} or a smaller --depth would fit" if fits else "a smaller --depth may fit"
    demand = f"width {model.width} at depth {model.depth} takes about {required_bytes(model.width) / GIB:.1f} GiB"
    raise DeviceMemoryError(f"{demand}, and {free_bytes / GIB:.1f} GiB are free; {hint}")
