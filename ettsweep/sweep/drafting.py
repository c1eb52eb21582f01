"""A first grid file: the shipped grid that is nearest to what a person wants, changed to that, with comments."""

import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from ettsweep.config import parse_yaml, read_yaml
from ettsweep.errors import InputError, unknown_name
from ettsweep.models.architectures import model_spec, named_models
from ettsweep.output import cell, count, power, typed
from ettsweep.resources import shipped
from ettsweep.scaling.optimizers import OPTIMIZERS
from ettsweep.scaling.strategies import STRATEGIES, carry_point, parse_strategy
from ettsweep.schema import validate
from ettsweep.spec import ModelSpec, Precision, ScheduleSpec, TaskSpec
from ettsweep.sweep.criterion import MARGINS, Criterion, Rule
from ettsweep.sweep.gridfile import load_request, make_request, parse_range
from ettsweep.sweep.recipe import EPOCHS
from ettsweep.sweep.search import Axis, Request
from ettsweep.tasks.data import data_env
from ettsweep.tasks.kinds import TASKS, check_data, check_fits, steps_per_epoch, task_kind, task_spec

NEAREST = {
    "digits": ("vit-digits",),
    "imagenet": ("vit-b16",),
    "cifar10": ("vit-cifar10",),
    "cifar100": ("vit-cifar100",),
    "pydoc": ("encdec-pydoc",),
    "text": ("encdec-pydoc", "bart-large", "r2c2"),
}
"""The shipped grids that a grid for a task may start from: of several, the one whose width is nearest."""

OWN = re.compile(r"([0-9]{1,6})x([0-9]{1,4})")
"""A model of one's own: its width and depth."""

BATCHES = 10
"""Of an epoch, at least: a small data set gets smaller batches than the grid that is started from."""

Start = tuple[float, float]


@dataclass(frozen=True)
class Ground:
    """A task and a model, with the shipped grid that is nearest to them.

    Attributes:
        label: the model as a person named it.
        data: where the data are; None where nobody has said so, or they come with a package.
        file: what the shipped grid says, as it is written.
        request: what that resolves to.
    """

    label: str
    task: TaskSpec
    model: ModelSpec
    data: str | None
    file: Mapping[str, Any]
    request: Request

    @property
    def name(self) -> str:
        """A name for the grid file, and so for its sweep."""
        label = f"{self.model.kind}-{self.label}" if OWN.fullmatch(self.label) else self.label
        return label if self.task.kind in label else f"{label}-{self.task.kind}"

    @property
    def sample(self) -> str:
        """What one sample is called."""
        return task_kind(self.task).sample

    @property
    def strategies(self) -> tuple[str, ...]:
        """Those of the shipped grid."""
        return tuple(self.file["strategies"])

    @property
    def ranges(self) -> tuple[str, str]:
        """The ranges of lr and wd of the shipped grid, as they are typed."""
        return _typed(self.request.lr), _typed(self.request.wd)

    @property
    def in_epochs(self) -> bool:
        """Whether the length of a run may be said in epochs."""
        return task_kind(self.task).train_size is not None

    @cached_property
    def batch_size(self) -> int:
        """That of the shipped grid, or less for few samples."""
        usual = self.request.recipe.batch_size
        if (size := task_kind(self.task).train_size) is None:
            return usual
        most = int(math.log2(max(2, size(self.task) / BATCHES)))
        return min(usual, int(2**most))

    @cached_property
    def length(self) -> float:
        """How long a run of the shipped grid is, in epochs where these are known, else in steps."""
        recipe = self.request.recipe
        steps = recipe.schedule.total_steps
        return steps / steps_per_epoch(recipe.task, recipe.batch_size) if self.in_epochs else steps

    @cached_property
    def starts(self) -> dict[str, dict[str, Start]]:
        """Where the search starts, by key of the file and strategy.

        As the shipped grid has it, for its own model; for another width its centres are carried there, to the nearest
        power of two.
        """
        stated = {
            key: {name: (typed(str(at["lr"])), typed(str(at["wd"]))) for name, at in value.items()}
            for key, value in self.file.items()
            if key.startswith("centre")
        }
        if self.model.width == self.request.recipe.model.width:
            return stated
        return {
            key: {name: self._carried(key, name, start) for name, start in centres.items()}
            for key, centres in stated.items()
        }

    def _carried(self, key: str, name: str, start: Start) -> Start:
        """Return a centre of the shipped grid, under a key and a strategy, at the width of the model."""
        recipe, s = self.request.recipe, parse_strategy(name)
        kind = _optimizer_of(key) or recipe.optimizer.kind
        widths = (s, recipe.model.width), (s, self.model.width)
        lr, wd = carry_point(*start, *widths, OPTIMIZERS[kind].factors)
        return _rounded(lr), _rounded(wd)

    @property
    def start(self) -> tuple[str, Start]:
        """The strategy of the first centre, and its lr and wd."""
        return next(iter(self.starts["centre"].items()))


def usual_task(model: str) -> str:
    """Return the task of the shipped grid for a model, else the first that it fits."""
    _width(model, named_models())
    if OWN.fullmatch(model):
        return "digits"
    wanted = model_spec(model)
    alike = (task for task, grids in NEAREST.items() if any(read_yaml(_grid(name))["model"] == model for name in grids))
    fitting = (task for task in TASKS if not TASKS[task].misfits(task_spec(task), wanted, 2))
    return next(chain(alike, fitting))


def fitting_models(task: str) -> list[str]:
    """Return the models with a name that can be trained on a task."""
    spec = task_spec(task)
    return [name for name, model in named_models().items() if not task_kind(spec).misfits(spec, model, 2)]


def usual_model(task: str) -> str:
    """Return the model of the first shipped grid for a task."""
    return str(read_yaml(_grid(NEAREST[task][0]))["model"])


def prepare(task: str, model: str, data: str | None = None) -> Ground:
    """Return what a grid file for a task and a model starts from; with data at hand, it fits these.

    Args:
        task: its name.
        model: a name, or WIDTHxDEPTH.
        data: where the data are, resolved.

    Raises:
        InputError: there is no such task or model, or they do not go together.
        DataMissingError: there are no such data.
    """
    spec = task_spec(task)
    bases = [(read_yaml(_grid(name)), load_request(_grid(name))) for name in NEAREST[task]]
    width = _width(model, fitting_models(task))
    file, request = min(bases, key=lambda base: abs(math.log2(base[1].recipe.model.width / width)))
    wanted = _model(model, request.recipe.model)
    if request.recipe.task.kind == task:
        spec = request.recipe.task
    if type(wanted) is type(request.recipe.model) and data is not None:
        check_data(spec, None, data)
        spec, wanted = task_kind(spec).fitted(spec, wanted, data)
        check_data(spec, wanted, data)
        task_kind(spec).check_counts(spec, wanted, data)
    check_fits(spec, wanted, 2)
    return Ground(model, spec, wanted, data, file, request)


def _grid(name: str) -> Path:
    return shipped("grids") / f"{name}.yaml"


def _width(model: str, known: Iterable[str]) -> int:
    """Return the width of a model.

    Raises:
        InputError: it is neither a name nor WIDTHxDEPTH; `known` are the names that would do.
    """
    if found := OWN.fullmatch(model):
        return max(1, int(found[1]))
    if model not in named_models():
        raise InputError(f"{unknown_name('model', model, known)}; or WIDTHxDEPTH, such as 64x4")
    return model_spec(model).width


def _model(name: str, like: ModelSpec) -> ModelSpec:
    """Return the model of a name, or one of WIDTHxDEPTH that is otherwise like another."""
    found = OWN.fullmatch(name)
    if not found:
        return model_spec(name)
    width, depth = map(int, found.groups())
    shape = {"width": width, "depth": depth, "heads": _heads(width, like.width // like.heads)}
    return validate(type(like), like.model_dump() | shape, "model")


def _heads(width: int, channels: int) -> int:
    """Return into how many heads a width is divided, of at least so many channels each where that is possible."""
    return max(heads for heads in range(1, max(1, width // channels) + 1) if width % heads == 0)


def _typed(axis: Axis) -> str:
    """Return an axis as it is typed: `low:high`, `low:high:step` or `fixed`."""
    step = f":{axis.step:g}" if axis.step != 1 else ""
    return "fixed" if axis.fixed else f"{axis.low:g}:{axis.high:g}{step}"


def _rounded(value: float) -> float:
    """Return the nearest power of two."""
    return 2.0 ** round(math.log2(value)) if value > 0 else value


# --- the file ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """What a person wants of a grid; None, or nothing, leaves it to the shipped grid.

    Attributes:
        lr_range, wd_range: `low:high`, `low:high:step` or `fixed`.
        epochs, steps: how long a run is; one of them.
    """

    strategies: tuple[str, ...] = ()
    lr_range: str | None = None
    wd_range: str | None = None
    epochs: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    seeds: tuple[int, ...] = ()


def draft(ground: Ground, wish: Wish, path: Path) -> tuple[str, Request]:
    """Return the text of a grid file that is to lie at a path, and what it asks for.

    Raises:
        InputError: what is wished for is not possible.
    """
    if wish.epochs is not None and wish.steps is not None:
        raise InputError("--epochs and --steps both say how long a run is; give one of them")
    if wish.epochs is not None and not 0 < wish.epochs <= 1e9:
        raise InputError(f"--epochs: a number above 0 is expected, got {wish.epochs:g}")
    body = "\n".join(chain.from_iterable(_written(*line) for line in _lines(ground, wish)))
    request = make_request(parse_yaml(body, str(path)), path)
    runs, schedule = len(request.specs()), request.recipe.schedule
    own = f"{ground.model.kind} " if OWN.fullmatch(ground.label) else ""
    head = (
        f"# {own}{ground.label} on {ground.task.kind}, written by `ettsweep init`: {count(runs, 'run')} of "
        f"{schedule.last_step} steps to begin with.",
        f"# Train it: ettsweep grid --grid {cell(path.name)}",
        "# There, --set key=value sets any field of recipe, model and task: --set batch_size=32 --set model.depth=2",
    )
    return "\n".join((*head, body, "")), request


def _optimizer_of(key: str) -> str:
    """Return which optimizer a key of centres is for; empty where it is for that of the recipe."""
    return key.removeprefix("centre").removeprefix("_")


Line = tuple[str, str, str]
"""A key with its indentation, its value as YAML, and what is said of it."""

CENTRE = "where the search starts: 2^-7, or 0.0078125; what is not stated is mapped from a strategy that is"

CRITERION = (
    f"by how much a neighbour of the optimum may be better; also rule: {' or '.join(get_args(Rule))}, "
    f"confidence: {Criterion().confidence:g}"
)

COMMENT_AT, WIDEST = 40, 116
"""Columns: where comments stand that fit beside their line, and how far they go."""


def _written(key: str, value: str, comment: str) -> list[str]:
    """Return a line of the file with its comment, beside it or, where that is too long, above it."""
    line = f"{key}: {value}".rstrip()
    beside = f"{line:<{COMMENT_AT - 2}}  # {comment}" if comment else line
    return [beside] if len(beside) <= WIDEST else [*_comment(comment, key), line]


def _comment(text: str, below: str = "") -> list[str]:
    indent = " " * (len(below) - len(below.lstrip()))
    return textwrap.wrap(
        text, WIDEST, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ", break_on_hyphens=False
    )


def _lines(ground: Ground, wish: Wish) -> Iterator[Line]:
    """Yield all lines of the file; what else would be valid is read off the tables."""
    kind = ground.task.kind
    named = f"{_listed(fitting_models(kind))}; or its kind and fields"
    yield "model", _model_text(ground.model), f"{named}: {_listed(type(ground.model).model_fields)}"
    fields = ground.task.model_dump(exclude_defaults=True, exclude={"kind"})
    yield "task", "" if fields else kind, f"or {_listed(_others(kind))}; or its kind and fields of its own"
    for field, value in {"kind": kind, **fields}.items() if fields else ():
        yield f"  {field}", _flow(value), ""
    if not task_kind(ground.task).packaged:
        key, where = ("data", ground.data) if ground.data else ("# data", "PATH")
        yield key, _flow(where), f"where the data are; else --data or {data_env(kind)} says it"
    yield "recipe", "", "what all runs share; another recipe makes other runs"
    yield from _recipe_lines(ground, wish)
    yield from _search_lines(ground, wish)
    yield "seeds", _flow(wish.seeds or ground.request.seeds), "to begin with: a race adds more where they decide"
    yield "criterion", f"{{margin: {_margin(ground.request, ground.task)}}}", CRITERION


def _search_lines(ground: Ground, wish: Wish) -> Iterator[Line]:
    """Yield where the search starts, how far it goes, and under which strategies."""
    for key, starts in ground.starts.items():
        optimizer = _optimizer_of(key)
        yield key, "", f"the same for --set optimizer={optimizer}" if optimizer else CENTRE
        for name, (lr, wd) in starts.items():
            yield f"  {name}", f"{{lr: {_power(lr)}, wd: {_power(wd)}}}", ""
    lr_range, wd_range = wish.lr_range or ground.ranges[0], wish.wd_range or ground.ranges[1]
    yield "lr", axis_text("lr", lr_range), "log2 from the centre, multiples of the step; or fixed"
    yield "wd", axis_text("wd", wd_range), "the same"
    strategies = wish.strategies or ground.strategies
    yield "strategies", _flow(strategies), f"of {_listed(STRATEGIES)}, or s=0.25 for any number from 0 to 1"


def _recipe_lines(ground: Ground, wish: Wish) -> Iterator[Line]:
    """Yield the recipe: the shipped one's, as long as it is wished for."""
    recipe, kind = ground.request.recipe, task_kind(ground.task)
    others = _listed(name for name in get_args(Precision) if name != recipe.precision)
    size = str(wish.batch_size or ground.batch_size)
    yield "  batch_size", size, f"{kind.sample}s of a step, of all devices together"
    yield "  precision", recipe.precision, f"or {others}; fp16 has loss scaling"
    optimizer = recipe.optimizer.model_dump(exclude_none=True, exclude={"decay_pe"})
    rest = [name for name in OPTIMIZERS if name != recipe.optimizer.kind]
    starts = (f"{name}, which {_starts_from(f'centre_{name}', ground)}" for name in rest)
    yield "  optimizer", _flow(optimizer), f"or {_listed(starts)}"
    yield "  schedule", "", "linear warm-up, then decay"
    for key, value, comment in _schedule(ground, wish):
        yield f"    {key}", value, comment


def _starts_from(key: str, ground: Ground) -> str:
    return f"starts from {key}" if key in ground.starts else f"needs a {key}"


def _schedule(ground: Ground, wish: Wish) -> Iterator[Line]:
    """Yield a schedule with the shares of the shipped one, and as many evaluations, in epochs or in steps."""
    like = ground.request.recipe.schedule
    in_epochs = wish.epochs is not None or (ground.in_epochs and wish.steps is None)
    total: float = wish.epochs or wish.steps or ground.length

    def share(steps: int) -> float:
        return round(total * steps / like.total_steps, 6) if in_epochs else total * steps // like.total_steps

    names = EPOCHS if in_epochs else EPOCHS.values()
    length, warmup, every, stop = names
    yield length, _plain(total), "or total_steps" if in_epochs else "or epochs, where the size of the data is known"
    yield warmup, _plain(share(like.warmup_steps)), "lr rises to its peak"
    if like.stop_step:
        ends = share(like.stop_step) if in_epochs else max(1, share(like.stop_step))
        yield stop, _plain(ends), "a run ends here, on the curve of the whole schedule"
    decays = _listed(name for name in get_args(ScheduleSpec.model_fields["decay"].annotation) if name != like.decay)
    yield "decay", like.decay, f"or {decays}"
    yield "lr_min", _plain(like.lr_min), "what lr decays to"
    evaluations = max(1, round(share(like.eval_every))) if total >= 1 else total
    yield every, _plain(evaluations), "how often the validation set is measured"


def axis_text(name: str, given: str) -> str:
    """Return the axis of lr or wd as a grid file has it, given as on the command line.

    Raises:
        InputError: it is no range.
    """
    where = f"--{name}-range"
    parsed = parse_range(given, where)
    if parsed == "fixed":
        return "fixed"
    axis = validate(Axis, parsed, where)
    return f"{{range: [{_plain(axis.low)}, {_plain(axis.high)}], step: {_plain(axis.step)}}}"


def _model_text(model: ModelSpec) -> str:
    """Return a model by its name, else by the fields that are not at their defaults."""
    name = next((name for name, known in named_models().items() if known == model), None)
    return name or _flow({"kind": model.kind, **model.model_dump(exclude_defaults=True)})


def _flow(value: object) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_flow(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _plain(value)
    return str(value) if re.fullmatch(r"[\w./+=-]+", str(value)) else json.dumps(str(value))


def _plain(value: float) -> str:
    """Return a number that is read back as it is."""
    return str(int(value)) if value == round(value) and abs(value) < 2**53 else repr(value)


def _power(value: float) -> str:
    """Return a power of two as tables have it, another number as it is."""
    return power(value) if value > 0 and math.log2(value).is_integer() else _plain(value)


def _others(task: str) -> list[str]:
    """Return the other tasks whose samples are of the same sort."""
    return [name for name, kind in TASKS.items() if name != task and kind.sample == TASKS[task].sample]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _margin(request: Request, task: TaskSpec) -> str:
    stated = request.criterion.margin if request.criterion else None
    return f"{_plain(100 * (MARGINS[task_kind(task).score.metric] if stated is None else stated))}%"
