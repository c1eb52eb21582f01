"""The command init: five questions, or options, and a commented grid file that runs as it is."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli import completion
from ettsweep.cli.conduct import Questions, confirm
from ettsweep.cli.options import Data, Strategies
from ettsweep.errors import InputError
from ettsweep.files import chosen_by, write_atomic
from ettsweep.output import count, note, power

if TYPE_CHECKING:
    from ettsweep.sweep.drafting import Ground
    from ettsweep.sweep.search import Request

LATER = "later"
"""The answer of who has no data at hand."""


def init(
    task: Annotated[
        str | None, typer.Option(help="What to train on, such as digits or imagenet.", autocompletion=completion.tasks)
    ] = None,
    data: Data = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model name, or WIDTHxDEPTH for one of your own.", autocompletion=completion.models),
    ] = None,
    strategy: Strategies = None,
    lr_range: Annotated[str | None, typer.Option(help="low:high[:step] in log2 from the centre, or fixed.")] = None,
    wd_range: Annotated[str | None, typer.Option(help="The same for wd.")] = None,
    epochs: Annotated[
        float | None, typer.Option(min=0, help="Length of a run, where the size of the data is known.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Length of a run in steps instead.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples of a step; not asked for.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2; not asked for.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; a name by model and task by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask: take the default of all that is not given.")
    ] = False,
) -> None:
    """Write a commented grid file for a first sweep: asks five questions, each of which is an option too."""
    from ettsweep.config import parse_numbers
    from ettsweep.sweep.changes import check_name
    from ettsweep.sweep.drafting import Wish, draft

    if out is not None:
        check_name(out.stem, "--out")
        _check_free(out, force, asks=not yes)
    given = {
        "--task": task,
        "--model": model,
        "--strategy": ",".join(strategy or []),
        "--lr-range": lr_range,
        "--wd-range": wd_range,
        "--epochs": epochs if steps is None else steps,
    }
    questions = Questions(yes, [option for option, value in given.items() if value in (None, "")])
    ground = _ask_ground(questions, task, data, model)
    names = _ask_strategies(questions, ground, strategy)
    ranges = _ask_ranges(questions, ground, lr_range, wd_range)
    length = (epochs, steps) if given["--epochs"] is not None else _ask_length(questions, ground, batch_size)
    wish = Wish(names, *ranges, *length, batch_size, tuple(parse_numbers(seeds, "--seeds", "0,1,2")))
    path = out or Path(f"{ground.name}.yaml")
    text, request = draft(ground, wish, path)
    if out is None:
        _check_free(path, force, asks=not yes)
    with chosen_by("--out", path.parent):
        write_atomic(path, text)
    _note_written(path, request)


def _ask_ground(questions: Questions, task: str | None, data: str | None, model: str | None) -> "Ground":
    """Ask for the task, for its data where it needs any, and for the model."""
    from ettsweep.launch.demand import located
    from ettsweep.sweep.drafting import fitting_models, prepare, usual_model, usual_task
    from ettsweep.tasks.data import said
    from ettsweep.tasks.kinds import TASKS, check_data, task_spec

    def known(name: str) -> str:
        return task_spec(name).kind

    def there(where: str) -> str | None:
        if where in ("", LATER):
            return None
        check_data(task_spec(kind), None, located(where, kind))
        return located(where, kind)

    usual = usual_task(model) if model and not task else "digits"
    packaged = ", ".join(name for name, of in TASKS.items() if of.packaged)
    text = f"1/5 What to train on\n    {', '.join(TASKS)}; {packaged} need no data of yours"
    kind = known(task) if task else questions.ask(text, ["--task"], usual, known)
    if data is not None or TASKS[kind].packaged:
        where = there(data or "")
    else:
        text = f"    Where its data are: a folder; or {LATER}, with --data"
        where = questions.ask(text, [], said(kind, None) or LATER, there)
    text = f"2/5 Model\n    {', '.join(fitting_models(kind))}; or WIDTHxDEPTH, such as 64x4"
    if model:
        return prepare(kind, model, where)
    return questions.ask(text, ["--model"], usual_model(kind), lambda name: prepare(kind, name, where))


def _ask_strategies(questions: Questions, ground: "Ground", given: Sequence[str] | None) -> tuple[str, ...]:
    from ettsweep.scaling.strategies import STRATEGIES, parse_strategy

    def known(text: str) -> tuple[str, ...]:
        names = tuple(filter(None, re.split(r"[\s,]+", text)))
        for name in names:
            parse_strategy(name)
        return names

    if given:
        return known(",".join(given))
    text = f"3/5 Strategies, with commas between them\n    {', '.join(STRATEGIES)}, or s=0.25 and the like"
    return questions.ask(text, ["--strategy"], ",".join(ground.strategies), known)


def _ask_ranges(questions: Questions, ground: "Ground", lr: str | None, wd: str | None) -> tuple[str, str]:
    """Ask for the ranges of lr and wd, of which one may be given already."""
    from ettsweep.sweep.drafting import axis_text

    usual = ground.ranges

    def ranges(text: str) -> tuple[str, str]:
        first, _, second = text.partition(",")
        for name, given in (("lr", first), ("wd", second or first)):
            axis_text(name, given.strip())
        return first.strip(), (second or first).strip()

    if lr and wd:
        return ranges(f"{lr},{wd}")
    strategy, centre = ground.start
    around = f"around {power(centre[0])} and {power(centre[1])} ({strategy})"
    text = f"4/5 Ranges of lr and wd {around}, in powers of two\n    LOW:HIGH or LOW:HIGH:STEP or fixed, for each"
    return questions.ask(text, ["--lr-range", "--wd-range"], f"{lr or usual[0]},{wd or usual[1]}", ranges)


def _ask_length(questions: Questions, ground: "Ground", batch_size: int | None) -> tuple[float | None, int | None]:
    """Ask how long a run is; return epochs, or steps where their number in an epoch is not known."""

    def number(text: str) -> float:
        try:
            found = float(text) if ground.in_epochs else int(text)
        except ValueError:
            found = 0
        if not 0 < found <= 1e9:
            raise InputError(f"a number above 0 is expected, got {text!r}")
        return found

    unit = "Epochs" if ground.in_epochs else "Steps"
    size = batch_size or ground.batch_size
    text = f"5/5 {unit} of a run\n    {size} {ground.sample}s a step"
    found = questions.ask(text, ["--epochs"], f"{ground.length:.10g}", number)
    return (found, None) if ground.in_epochs else (None, int(found))


def _check_free(path: Path, force: bool, asks: bool) -> None:
    """Ask a person, where one is there, whether a file may be written over.

    Raises:
        InputError: nobody said so.
    """
    if force or not path.exists():
        return
    if not (asks and sys.stdin.isatty()):
        raise InputError(f"{path} is there already: --force writes over it, --out FILE names another")
    confirm(f"{path} is there already; write over it?", yes=False)


def _note_written(path: Path, request: "Request") -> None:
    """Say what was written, and the next command."""
    from ettsweep.launch.demand import data_of
    from ettsweep.tasks.kinds import TASKS

    runs, steps = len(request.specs()), request.recipe.schedule.last_step
    note(f"wrote {path}: {count(runs, 'run')} of {count(steps, 'step')} to begin with")
    kind = request.recipe.task.kind
    data = "" if TASKS[kind].packaged or data_of(request) else " --data PATH"
    asked = f"--grid {shlex.quote(str(path))}{data}"
    if not TASKS[kind].packaged:
        note(f"`ettsweep doctor {asked}` examines the data")
    note(f"`ettsweep grid {asked} --dry-run` prints the plan, `ettsweep grid {asked}` trains it")
