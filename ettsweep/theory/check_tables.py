"""Print a finished check as tables, and write it as JSON and a figure."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

from ettsweep.console import Format, format_cell, print_note, print_table
from ettsweep.files import Json, dumps, storage_errors, write_atomic
from ettsweep.strategies.factors import Group
from ettsweep.theory.coordinate_check import coordinates_figure
from ettsweep.theory.exponents import (
    MAX_POWER_ERROR,
    POWER_ERRORS,
    POWER_TOLERANCE,
    ExponentTest,
    format_exponent,
    worst_verdict,
)
from ettsweep.theory.judge import (
    CONTRIBUTION_ALLOWANCE,
    KERNEL_ALLOWANCE,
    VALUE_ERRORS,
    Kind,
    Row,
    group_off_by,
)
from ettsweep.theory.scaling_check import CheckResult

LEGEND = (
    f"ok: within {POWER_TOLERANCE:g} of the implied power, with an error of at most {MAX_POWER_ERROR:g}; "
    f"off: beyond {POWER_TOLERANCE:g} and {POWER_ERRORS} errors, "
    f"or a value misses theory by {VALUE_ERRORS} errors and {KERNEL_ALLOWANCE:g}/C of itself "
    f"(tangent: {CONTRIBUTION_ALLOWANCE:g}/C; C channels a head), "
    "or initial values, factor, decay or a layer are wrong; "
    "unclear: all else; off by: power of the change less the implied one"
)

TEXT_NOTE = (
    "text: initial stds are 0.02 at every width, so the implied powers of the bulk are not 0: ok means that the "
    "scaling is as implied, not that one lr suits all widths"
)

NOT_COVERED = "not covered"
"""Cell for quantities of a model that the theory does not cover."""

NOT_IN_ALL_GROUPS = ("initial_shape", "tangent_contribution", "function_change")
"""Quantities that `judge` leaves out of some groups; null in JSON."""

OPTIONAL = ("between", "between theory", "implied", "change implied", "init", "factor", "decay")
"""Columns that a narrow terminal leaves out."""


def show_check(check: CheckResult, form: Format) -> None:
    """Print a check: three tables with findings and legend, one long table as CSV, or everything as JSON.

    Tables go to stdout, explanations to stderr.
    """
    match form:
        case Format.JSON:
            print_table([], form, data=check_json(check))
        case Format.CSV:
            rows = (dataclasses.asdict(row) for row in check.judgement.rows)
            print_table([{name: row[name] for name in row if name != "sentence"} for row in rows], form)
        case Format.TABLE | Format.MARKDOWN:
            print_note(check.about)
            blocks, groups = check.judgement.by_name("block"), check.judgement.by_name("group")
            if blocks:
                print_table(
                    [_cells("block", name, rows, BLOCK_COLUMNS) for name, rows in blocks.items()],
                    form,
                    optional=OPTIONAL,
                )
                print()
            print_table(
                [_cells("group", name, rows, GROUP_COLUMNS) for name, rows in groups.items()], form, optional=OPTIONAL
            )
            print()
            print_table([_layer_cells(name, rows) for name, rows in check.judgement.by_name("layers").items()], form)
            for line in (*_model_notes(check), *check.judgement.findings, LEGEND):
                print_note(line)


@contextmanager
def results_folder(folder: Path) -> Iterator[None]:
    """Create the results folder before training, since a bad path must fail at once; remove it if the body raises.

    Raises:
        StorageError: the folder cannot be created.
    """
    try:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield
    # Not only Exception: Ctrl-C must not leave an empty folder either.
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # fails if it has files of an earlier check, which must stay
        raise


def write_check(folder: Path, check: CheckResult) -> list[Path]:
    """Write check.json and the figure as PNG, SVG and PDF, and return their paths.

    Raises:
        StorageError: a file cannot be written.
    """
    data = folder / "check.json"
    write_atomic(data, dumps(check_json(check)))
    return [data, *coordinates_figure(check.about, check.widths, check.curves).save(folder)]


# --- JSON -------------------------------------------------------------------------------------------------------------


def check_json(check: CheckResult) -> Json:
    """Return the whole check as JSON; numbers that are not finite become null."""
    judgement = check.judgement
    blocks, groups, layers = map(judgement.by_name, get_args(Kind))
    return {
        **check.settings,
        "about": check.about,
        "verdict": judgement.verdict,
        "findings": list(judgement.findings),
        "layers": [
            {
                "layers": name,
                "verdict": _verdict(rows),
                "places": [{"place": place, **_numbers(row)} for place, row in rows.items()],
            }
            for name, rows in layers.items()
        ],
        "blocks": [{"block": name, "verdict": _verdict(rows), **_quantities(rows)} for name, rows in blocks.items()],
        "groups": [
            {
                "group": name,
                "verdict": _verdict(rows),
                "off_by": group_off_by(rows),
                **_quantities(rows, NOT_IN_ALL_GROUPS),
            }
            for name, rows in groups.items()
        ],
        "contact_logit": None
        if judgement.contact is None
        else dict(zip(("predicted", "measured"), map(_finite, judgement.contact), strict=True)),
        "curves": [
            {
                "strategy": curves.strategy,
                "lr": curves.lr,
                "hidden_power": curves.hidden_power,
                "output_power": curves.output_power,
                "rms_change": {
                    stage: [[_finite(value) for value in step] for step in steps]
                    for stage, steps in curves.changes.items()
                },
            }
            for curves in check.curves
        ],
    }


def _quantities(rows: Mapping[str, Row], absent: Iterable[str] = ()) -> Json:
    """Return the numbers of each quantity, null for those that are absent."""
    numbers = {name.replace(" ", "_").replace("-", "_"): _numbers(row) for name, row in rows.items()}
    return dict.fromkeys(absent) | numbers


def _numbers(row: Row) -> Json:
    return {name: value for name, value in vars(row).items() if name not in ("kind", "name", "quantity", "sentence")}


def _verdict(rows: Mapping[str, Row]) -> ExponentTest:
    return worst_verdict([row.verdict for row in rows.values()])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- cells ------------------------------------------------------------------------------------------------------------


def _value_cell(row: Row) -> str:
    return "not finite" if row.measured is None else f"{row.measured:.3g} ± {row.error:.2g}"


def _measured_cell(row: Row) -> str:
    return format_cell(row.measured)


def _theory_cell(row: Row) -> str:
    return "-" if row.predicted is None else format_cell(row.predicted)


def _power_cell(row: Row) -> str:
    if row.power is None:
        # Off without a power: a value vanished or blew up. Otherwise no power is fitted to this quantity.
        return "none" if row.verdict is ExponentTest.OFF else ""
    # Powers of noiseless quantities (stds, factors) have error 0.
    return format_exponent(row.power) + (f" ± {row.power_error:.2f}" if row.power_error else "")


def _implied_cell(row: Row) -> str:
    return "-" if row.implied is None else format_exponent(row.implied)


Column = tuple[str, Callable[[Row], str]]
"""A column: its quantity, and its cell."""

BLOCK_COLUMNS: dict[str, Column] = {
    "kernel": ("kernel", _value_cell),
    "theory": ("kernel", _theory_cell),
    "between": ("kernel between samples", _value_cell),
    "between theory": ("kernel between samples", _theory_cell),
    "power": ("kernel", _power_cell),
    "implied": ("kernel", _implied_cell),
    "change": ("activation change", _power_cell),
    "change implied": ("activation change", _implied_cell),
}

GROUP_COLUMNS: dict[str, Column] = {
    "tangent": ("tangent contribution", _value_cell),
    "theory": ("tangent contribution", _theory_cell),
    "power": ("tangent contribution", _power_cell),
    "change": ("function change", _power_cell),
    "implied": ("function change", _implied_cell),
    "init": ("initial std", _power_cell),
    "factor": ("learning-rate factor", _power_cell),
    "decay": ("decay", _measured_cell),
}


def _cells(title: str, name: str, rows: Mapping[str, Row], columns: Mapping[str, Column]) -> dict[str, str]:
    """Return the cells of one block or group."""
    cells = {column: show(rows[quantity]) if quantity in rows else "" for column, (quantity, show) in columns.items()}
    if title == "group":
        off_by = group_off_by(rows)
        cells |= {"off by": "" if off_by is None else format_exponent(off_by)}
        if "tangent contribution" not in rows:
            cells["tangent"] = NOT_COVERED
    return {title: name, **cells, "verdict": _verdict(rows)}


def _layer_cells(name: str, rows: Mapping[str, Row]) -> dict[str, str]:
    """Return the cells of one exact property: the value at the place that is farthest off."""
    row, verdict = max(rows.values(), key=lambda row: row.distance), _verdict(rows)
    return {
        "layers": name,
        "farthest off": "none" if row.measured is None else f"{row.measured:.4g}",
        "theory": format_cell(row.predicted),
        "in": row.quantity if verdict is ExponentTest.OFF else f"any of {len(rows)}",
        "verdict": verdict,
    }


def _model_notes(check: CheckResult) -> Iterator[str]:
    """Yield notes on `ok` for text and beyond the theory, and the contact logit, which is not judged."""
    if beyond := check.settings["beyond_theory"]:
        yield f"{NOT_COVERED} by the theory: {', '.join(beyond)}; initial values, factors and decay are checked"
        return
    if Group.WE in check.judgement.by_name("group"):
        yield TEXT_NOTE
    if check.judgement.contact is not None:
        predicted, measured = check.judgement.contact
        yield f"mean logit of the token that the decoder reads: {measured:.4g}, predicted {predicted:.4g}; not judged"
