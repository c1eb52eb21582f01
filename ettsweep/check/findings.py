"""A judgement in words: one line for each cause, the first cause first."""

from collections.abc import Iterator, Sequence

from ettsweep.check.judgement import GroupRow, Judgement, Quantity
from ettsweep.check.powers import APART, Agreement
from ettsweep.scaling.factors import Group


def findings(judgement: Judgement, s: float | None) -> tuple[str, ...]:
    """Return what is wrong, causes before what follows from them, and what could not be told.

    Args:
        judgement: all rows.
        s: the strategy's; of standard (None), a group is off in comparison with the bulk.
    """
    causes = [*_initial_values(judgement), *_output_scale(judgement), *_factors(judgement), *_decays(judgement)]
    lines = [line for _, line in causes]
    if not causes:
        lines += _behaviour(judgement, s)
    elif rest := _off(judgement, {group for group, _ in causes}):
        lines.append(f"off as well, as may follow from that: {', '.join(rest)}")
    return (*lines, *_unclear(judgement))


# --- what can be read off a network and its optimizer: (group, line) ------------------------------------------------


def _initial_values(judgement: Judgement) -> Iterator[tuple[Group, str]]:
    for row in judgement.groups:
        if row.init is not None and row.init.verdict is Agreement.OFF:
            yield row.group, f"{row.group}: the std of initial values {_instead(row.init)}"


def _output_scale(judgement: Judgement) -> Iterator[tuple[Group, str]]:
    """Yield that the outputs alone have a wrong scale, though their weights start as they should."""
    *hidden, outputs = judgement.stages
    head = next(row for row in judgement.groups if row.group in (Group.HEAD, Group.WE))
    hidden_off = any(row.kernel.verdict is Agreement.OFF for row in hidden)
    if outputs.kernel.verdict is Agreement.OFF and not hidden_off and head.init and head.init.verdict is Agreement.OK:
        what = "the outputs' kernel" if head.group is Group.HEAD else "the outputs' kernel (output rescale)"
        yield head.group, f"{head.group}: {what} {_instead(outputs.kernel)}, while hidden kernels are right"


def _factors(judgement: Judgement) -> Iterator[tuple[Group, str]]:
    for row in judgement.groups:
        if row.factor.verdict is Agreement.OFF:
            yield row.group, f"{row.group}: the learning-rate factor {_instead(row.factor)}"


def _decays(judgement: Judgement) -> Iterator[tuple[Group, str]]:
    for row in judgement.groups:
        if row.decay.verdict is Agreement.OFF:
            yield row.group, f"{row.group}: the decay of a step, divided by lr wd, {_instead(row.decay)}"


# --- what shows in behaviour alone ------------------------------------------------------------------------------------


def _behaviour(judgement: Judgement, s: float | None) -> Iterator[str]:
    """Yield groups, then the first stage whose kernel is off, then stages that change otherwise."""
    for row in judgement.groups:
        if row.verdict is Agreement.OFF:
            yield _group_line(row, s)
    off = [row for row in judgement.stages if Agreement.OFF in (row.kernel.verdict, row.between.verdict)]
    for stage in off[:1]:
        own = stage.kernel.verdict is Agreement.OFF
        what, wrong = ("kernel", stage.kernel) if own else ("kernel between samples", stage.between)
        behind = f"; so are {len(off) - 1} others" if len(off) > 1 else ""
        yield f"{stage.stage}: the {what} {_instead(wrong)}{behind}"
    if moved := [
        stage.stage for stage in judgement.stages if stage.change.verdict is Agreement.OFF and stage not in off
    ]:
        yield f"activations change as another power of the width in {_listed(moved)}"


def _group_line(row: GroupRow, s: float | None) -> str:
    off_by = row.off_by
    if s is None and off_by is not None and abs(off_by) > APART:
        return f"{row.group}: steps {'fall' if off_by < 0 else 'grow'} as {_power(off_by)} against the bulk's"
    if row.change.verdict is Agreement.OFF:
        return f"{row.group}: the change of the outputs in training {_instead(row.change)}"
    return f"{row.group}: the contribution to the tangent kernel {_instead(row.contribution)}"


def _off(judgement: Judgement, named: set[Group]) -> list[str]:
    groups = [str(row.group) for row in judgement.groups if row.verdict is Agreement.OFF and row.group not in named]
    stages = [row.stage for row in judgement.stages if row.verdict is Agreement.OFF]
    return [*groups, *([_listed(stages)] if stages else [])]


def _unclear(judgement: Judgement) -> Iterator[str]:
    rows = [(str(row.group), row.quantities) for row in judgement.groups]
    rows += [(row.stage, row.quantities) for row in judgement.stages]
    names = [f"{name} ({what})" for name, parts in rows for what, q in parts.items() if q.verdict is Agreement.UNCLEAR]
    if names:
        yield f"too noisy to judge: {_listed(names)}; give more --seeds, or --widths farther apart"


# --- words ----------------------------------------------------------------------------------------------------------


def _instead(quantity: Quantity) -> str:
    """Return what a power is instead of what it should be, or a value, if one is predicted and the power is right."""
    off_by = quantity.off_by
    speaks = off_by is not None and (quantity.predicted is None or abs(off_by) > APART)
    if quantity.power is not None and off_by is not None and speaks:
        wrong, right = _power(quantity.power.value), _power(quantity.power.value - off_by)
        return f"goes as {wrong}, not {right} (off by {off_by:+.2f})"
    if quantity.measured is None or quantity.predicted is None:
        return "vanishes or is not finite"
    return f"is {quantity.measured:.3g} at the widest, not {quantity.predicted:.3g}"


def _power(value: float) -> str:
    return f"width^{round(value, 2) + 0.0:+.2f}"  # no -0.00


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
