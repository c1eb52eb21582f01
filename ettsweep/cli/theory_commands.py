"""Commands on scaling theory: map, scales, check-scaling."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli.options import DEFAULT_RESULTS, Form, ModelOptions, Results
from ettsweep.cli.parsers import parse_path, power_option
from ettsweep.console import Format, print_note, print_table
from ettsweep.errors import InputError
from ettsweep.files import naming_option

if TYPE_CHECKING:
    from ettsweep.strategies.factors import Optimizer

Strategy = Annotated[
    str,
    typer.Option(help="Scaling strategy: standard, ntk, hybrid, mup or s=0.25."),
]


def map_(
    *,
    lr: Annotated[float, power_option("Learning rate under --from.")],
    wd: Annotated[float, power_option("Weight decay under --from.")],
    from_: Annotated[str, typer.Option("--from", help="Strategy that lr and wd belong to.")],
    to: Annotated[str, typer.Option("--to", help="Strategy to map to.")],
    width: Annotated[int | None, typer.Option(min=1, help="Width n, in place of a model.")] = None,
    model_options: ModelOptions,
    form: Form = Format.TABLE,
) -> None:
    """Convert (lr, wd) from one strategy to another.

    The factor is a power of the width. Nothing is trained.
    """
    from ettsweep.schema import validate
    from ettsweep.strategies.optimizers import factor_rule
    from ettsweep.strategies.strategy import map_point, parse_strategy
    from ettsweep.study.lattice import POINT_OPTIONS, Centre

    if [width, model_options.model, model_options.grid].count(None) != 2:
        raise InputError("pass a width: --width N, --model NAME, --model WIDTHxDEPTH or a grid file")
    # The checks of a grid's centre apply: finite, positive lr.
    point = validate(Centre, {"lr": lr, "wd": wd}, POINT_OPTIONS)
    factors: Optimizer = model_options.optimizer or "adamw"
    if width is None:
        model, optimizer, _ = model_options.load()
        width, factors = model.width, factor_rule(optimizer)
    lr_to, wd_to = map_point(point.lr, point.wd, parse_strategy(from_), parse_strategy(to), width, factors)
    row = {"lr": lr_to, "wd": wd_to}
    print_table([row], form, data=row)


def scales(
    *,
    model_options: ModelOptions,
    strategy: Strategy = "ntk",
    lr: Annotated[float | None, power_option("Learning rate; adds a column of effective learning rates.")] = None,
    form: Form = Format.TABLE,
) -> None:
    """Print the scales of a model's parameter groups.

    Shape, initial standard deviation, and factors of learning rate and weight decay.
    """
    _check_lr(lr)
    data = model_options.load().scales(strategy, lr)
    columns = [c for c in data["groups"][0] if c != "effective_lr" or lr is not None]
    print_table(data["groups"], form, columns, data=data)
    if form is Format.TABLE:
        rescale = "" if data["output_rescale"] is None else f", logits times {data['output_rescale']:.4g}"
        about = f"width {data['width']}, {data['parameters']:,} parameters{rescale}"
        print_note(f"{data['model']} under {data['strategy']}: {about}")
        if beyond := data["beyond_theory"]:
            print_note(f"not covered by the theory: {', '.join(beyond)}")


def _check_lr(lr: float | None) -> None:
    if lr is not None and not 0 < lr <= 1e30:
        raise InputError(f"--lr: must be between 0 and 1e30, got {lr}")


def check_scaling(
    *,
    model_options: ModelOptions,
    strategy: Strategy = "ntk",
    widths: Annotated[
        str | None, typer.Option(help="Widths, such as 96,192,384,768; by default 8, 16, 32 and 64 times the heads.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Blocks; by default the model's, at most 8 for text.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 5,
    seeds: Annotated[int | None, typer.Option(min=3, help="Seeds per width; by default 3, or 12 if small.")] = None,
    lr: Annotated[
        float | None,
        power_option("Learning rate at all widths; by default one that changes the outputs by about 0.01."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=parse_path, metavar="DIR", help="Folder for check.json and the figure; in RESULTS by default."
        ),
    ] = None,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Train networks of several widths; compare with theory.

    A row per block has its kernel at the largest width (mean over tokens, and between samples), measured and predicted.
    It also has the powers of the width with which kernel and change of activations scale. A row per parameter group has
    its contribution to the tangent kernel at the largest width, and that power of the width. It also has the powers of
    the change of outputs by this group alone, of its initial std and of its learning-rate factor, and its decay divided
    by lr wd. The exit code is 0 if all rows are ok.
    """
    from ettsweep.processes import signals_blocked

    with signals_blocked(signal.SIGINT):  # the import of torch would swallow a Ctrl-C
        from ettsweep.theory.check_tables import results_folder, show_check, write_check
        from ettsweep.theory.measure import free_bytes
        from ettsweep.theory.scaling_check import check_scaling as run_check
        from ettsweep.theory.scaling_check import make_check_plan
    from ettsweep.config import parse_integers
    from ettsweep.strategies.optimizers import factor_rule

    _check_lr(lr)
    model, optimizer, mlp_factor = model_options.load()
    plan = make_check_plan(
        model,
        strategy,
        free_bytes(),
        optimizer=factor_rule(optimizer),
        mlp_factor=mlp_factor,
        widths=parse_integers(widths, "--widths", "96,192,384,768"),
        steps=steps,
        seeds=seeds,
        lr=lr,
        depth=depth,
    )
    folder = out or results / "check-scaling" / plan.folder_name
    with naming_option("--out", folder):
        # Made before the check, which takes minutes: a folder that cannot be written fails at once.
        with results_folder(folder):
            check = run_check(plan)
        show_check(check, form)
        paths = write_check(folder, check)
    print_note(f"wrote {', '.join(map(str, paths))}")
    raise typer.Exit(0 if check.judgement.verdict == "ok" else 1)
