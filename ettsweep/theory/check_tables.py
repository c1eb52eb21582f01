"""Print a finished check as tables, and write it as JSON and a figure."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ettsweep.console import Format, format_cell, print_note, print_table
from ettsweep.files import Json, dumps, storage_errors, write_atomic
from ettsweep.strategies.factors import Group
from ettsweep.theory.coordinate_check import coordinates_figure
from ettsweep.theory.exponents import MAX_POWER_ERROR, POWER_ERRORS, POWER_TOLERANCE, ExponentTest, format_exponent
from ettsweep.theory.judge import (
    CONTRIBUTION_ALLOWANCE,
    KERNEL_ALLOWANCE,
    VALUE_ERRORS,
    JudgedQuantity,
    JudgedRow,
    LayerRow,
)
from ettsweep.theory.scaling_check import CheckResult

LEGEND = (
    f"ok: within {POWER_TOLERANCE:g} of the implied power, with an error of at most {MAX_POWER_ERROR:g}; "
    f"off: beyond {POWER_TOLERANCE:g} and {POWER_ERRORS} errors, "
    f"or a value misses theory by {VALUE_ERRORS} errors and {KERNEL_ALLOWANCE:g}/C of itself "
    f"(tangent: {CONTRIBUTION_ALLOWANCE:g}/C; C channels a head), "
    "or initial values, factor, decay or a layer are wrong; "
    "unclear: neither; off by: power of the change less the implied one"
)

TEXT_NOTE = (
    "text: initial stds are 0.02 at every width, so the implied powers of the bulk are not 0: ok means that the "
    "scaling is as implied, not that one lr suits all widths"
)

NOT_COVERED = "not covered"
"""What tables show of a model that the theory does not cover."""

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
            print_table(list(_quantity_rows(check)), form)
        case Format.TABLE | Format.MARKDOWN:
            print_note(check.about)
            if stages := list(_stage_rows(check)):
                print_table(stages, form, optional=OPTIONAL)
                print()
            print_table(list(_group_rows(check)), form, optional=OPTIONAL)
            print()
            print_table(list(_layer_rows(check)), form)
            for line in (*_model_notes(check), *check.findings, LEGEND):
                print_note(line)


def make_folder(folder: Path) -> None:
    """Create the results folder before training, so that a bad path fails at once and not after minutes.

    Raises:
        StorageError: the folder cannot be created.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def remove_folder_on_error(folder: Path) -> Iterator[None]:
    """Remove the folder if the body raises. The body creates it: Ctrl-C between creation and entry would leave it."""
    try:
        yield
    # Not only Exception: Ctrl-C must not leave an empty folder either.
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # fails if an earlier check's files are in it, which must stay
        raise


def write_check(folder: Path, check: CheckResult) -> list[Path]:
    """Write check.json and the figure as PNG, SVG and PDF, and return their paths.

    Raises:
        StorageError: a file cannot be written.
    """
    data = folder / "check.json"
    write_atomic(data, dumps(check_json(check)))
    return [data, *coordinates_figure(check.about, check.widths, check.curves).save(folder)]


# --- rows -------------------------------------------------------------------------------------------------------------


def _stage_rows(check: CheckResult) -> Iterator[dict[str, str]]:
    """Yield, per stage, kernels at the widest and powers of the kernel and of the change in training."""
    for row in check.judgement.stages:
        kernel, between_samples, change = row.quantities.values()  # in the order in which `judge` adds them
        yield {
            "block": row.name,
            "kernel": _value_cell(kernel),
            "theory": _theory_cell(kernel),
            "between": _value_cell(between_samples),
            "between theory": _theory_cell(between_samples),
            "power": _power_cell(kernel),
            "implied": _implied_cell(kernel),
            "change": _power_cell(change),
            "change implied": _implied_cell(change),
            "verdict": row.verdict.value,
        }


def _group_rows(check: CheckResult) -> Iterator[dict[str, str]]:
    """Yield, per group, its tangent-kernel contribution and decay at the widest, and all fitted powers."""
    for row in check.judgement.groups:
        init, factor, decay = (row.quantities[name] for name in ("initial std", "learning-rate factor", "decay"))
        effects = {"tangent": NOT_COVERED, "theory": "", "power": "", "change": "", "implied": ""}
        if contribution := row.quantities.get("tangent contribution"):
            change = row.quantities["function change"]
            effects = {
                "tangent": _value_cell(contribution),
                "theory": _theory_cell(contribution),
                "power": _power_cell(contribution),
                "change": _power_cell(change),
                "implied": _implied_cell(change),
            }
        yield {
            "group": row.name,
            **effects,
            "init": _power_cell(init),
            "factor": _power_cell(factor),
            "decay": format_cell(decay.measured),
            "off by": "" if row.off_by is None else format_exponent(row.off_by),
            "verdict": row.verdict.value,
        }


def _layer_rows(check: CheckResult) -> Iterator[dict[str, str]]:
    """Yield, per layer check, the value at the location farthest off."""
    for row in check.judgement.layers:
        location, quantity = row.farthest_off
        yield {
            "layers": row.name,
            "farthest off": "none" if quantity.measured is None else f"{quantity.measured:.4g}",
            "theory": format_cell(quantity.predicted),
            "in": location if row.verdict is ExponentTest.OFF else f"any of {len(row.quantities)}",
            "verdict": row.verdict.value,
        }


def _quantity_rows(check: CheckResult) -> Iterator[dict[str, Any]]:
    """Yield a row for each judged quantity."""
    judgement = check.judgement
    for kind, rows in (("block", judgement.stages), ("group", judgement.groups), ("layers", judgement.layers)):
        for row in rows:
            for quantity_name, quantity in row.quantities.items():
                yield {"kind": kind, "name": row.name, "quantity": quantity_name, **_quantity_json(quantity)}


def _quantity_json(quantity: JudgedQuantity) -> dict[str, Any]:
    power = quantity.power
    return {
        "measured": quantity.measured,
        "error": quantity.error,
        "predicted": quantity.predicted,
        "power": None if power is None else power.value,
        "power_error": None if power is None else power.error,
        "implied": quantity.implied_power,
        "off_by": quantity.off_by,
        "verdict": quantity.verdict.value,
    }


def check_json(check: CheckResult) -> Json:
    """Return the whole check as JSON; numbers that are not finite become null."""
    judgement = check.judgement
    return {
        **check.settings,
        "about": check.about,
        "verdict": check.verdict.value,
        "findings": list(check.findings),
        "layers": [_layer_json(row) for row in judgement.layers],
        "blocks": [
            {"block": row.name, "verdict": row.verdict.value} | _quantities_json(row) for row in judgement.stages
        ],
        "groups": [
            {"group": row.name, "verdict": row.verdict.value, "off_by": row.off_by}
            | dict.fromkeys(NOT_IN_ALL_GROUPS)
            | _quantities_json(row)
            for row in judgement.groups
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


def _layer_json(row: LayerRow) -> Json:
    locations = [{"place": location, **_quantity_json(quantity)} for location, quantity in row.quantities.items()]
    return {"layers": row.name, "verdict": row.verdict.value, "places": locations}


def _quantities_json(row: JudgedRow) -> Json:
    return {
        quantity_name.replace(" ", "_").replace("-", "_"): _quantity_json(q)
        for quantity_name, q in row.quantities.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- cells ------------------------------------------------------------------------------------------------------------


def _value_cell(quantity: JudgedQuantity) -> str:
    return "not finite" if quantity.measured is None else f"{quantity.measured:.3g} ± {quantity.error:.2g}"


def _theory_cell(quantity: JudgedQuantity) -> str:
    return "-" if quantity.predicted is None else format_cell(quantity.predicted)


def _power_cell(quantity: JudgedQuantity) -> str:
    if quantity.power is None:
        # Off without a power: a value vanished or blew up. Otherwise no power is fitted to this quantity.
        return "none" if quantity.verdict is ExponentTest.OFF else ""
    # Powers of noiseless quantities (stds, factors) have error 0.
    error = f" ± {quantity.power.error:.2f}" if quantity.power.error else ""
    return format_exponent(quantity.power.value) + error


def _implied_cell(quantity: JudgedQuantity) -> str:
    return "-" if quantity.implied_power is None else format_exponent(quantity.implied_power)


def _model_notes(check: CheckResult) -> Iterator[str]:
    """Yield what `ok` means for text and beyond the theory, and the contact logit, which is not judged."""
    if beyond := check.settings["beyond_theory"]:
        yield f"{NOT_COVERED} by the theory: {', '.join(beyond)}; initial values, factors and decay are checked"
        return
    if any(row.name == Group.WE for row in check.judgement.groups):
        yield TEXT_NOTE
    if check.judgement.contact is not None:
        predicted, measured = check.judgement.contact
        yield f"mean logit of the token that the decoder reads: {measured:.4g}, predicted {predicted:.4g}; not judged"
