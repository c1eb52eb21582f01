"""Describe a judgement in words: one line for each fault, causes before consequences."""

from collections.abc import Iterator, Sequence

from ettsweep.strategies.factors import Group
from ettsweep.theory.exponents import POWER_TOLERANCE, ExponentTest, format_exponent
from ettsweep.theory.judge import GroupRow, JudgedQuantity, JudgedRow, Judgement
from ettsweep.theory.measurement import LayerCheck

DIRECT_TEXT = {
    "initial std": "the std of initial values",
    "learning-rate factor": "the learning-rate factor",
    "decay": "the decay of a step, divided by lr wd,",
}
"""Words for the quantities that are read directly off a network and its optimizer."""

LAYER_TEXT = {
    LayerCheck.MEAN: "the mean of tokens after LayerNorm, relative to their rms,",
    LayerCheck.VARIANCE: "the variance of tokens after LayerNorm, over what it should be,",
    LayerCheck.WEIGHT: "the weight in the residual stream",
    LayerCheck.BLOCK_REMAINDER: "the part of the residual stream that input and branches do not explain",
    LayerCheck.LOGITS: "the scale of the logits, over 1/sqrt(C),",
    LayerCheck.ATTENTION_REMAINDER: "the part of attention's output that masked softmax does not explain",
    LayerCheck.ACTIVATION: "the difference from the GELU, relative to it,",
    LayerCheck.CAUSALITY: "the change of outputs by a later token, relative to its own,",
    LayerCheck.PADDING: "the change of outputs by [pad] after the source, relative to them,",
}
"""Words for the exact properties of layers."""


def findings(judgement: Judgement, s: float | None) -> tuple[str, ...]:
    """Return one line for each fault, causes first, then what is too noisy to judge; empty if all is ok.

    Under standard (s is None), groups are compared with the bulk.
    """
    stds, factors, decays = (list(_direct_findings(judgement, quantity_name)) for quantity_name in DIRECT_TEXT)
    layers = list(_layer_findings(judgement))
    # A faulty layer rescales the outputs as well, so the output scale is a cause only if all layers are right.
    outputs = [] if layers else list(_output_scale_findings(judgement))
    causes = [*stds, *outputs, *factors, *decays]
    lines = [*(line for _, line in stds), *layers, *(line for _, line in (*outputs, *factors, *decays))]
    # What follows from a cause is only listed; it is described in full if no cause is known.
    if not lines:
        lines += _behaviour_findings(judgement, s)
    elif consequences := _rows_off(judgement, {group for group, _ in causes}):
        lines.append(f"also off, possibly as a consequence: {', '.join(consequences)}")
    return (*lines, *_unclear_findings(judgement))


def _direct_findings(judgement: Judgement, quantity_name: str) -> Iterator[tuple[str, str]]:
    """Yield (group, line) for each group whose quantity is off."""
    for row in judgement.groups:
        if quantity_name in row.quantities and _is_off(row, quantity_name):
            quantity = row.quantities[quantity_name]
            tensors = f", in {_join_names(quantity.off_tensors)}" if quantity.off_tensors else ""
            yield row.name, f"{row.name}: {DIRECT_TEXT[quantity_name]} {_describe_miss(quantity)}{tensors}"


def _layer_findings(judgement: Judgement) -> Iterator[str]:
    """Yield a line for each layer check that is off: all its locations, and the value at the one farthest off."""
    for row in judgement.layers:
        off = [location for location, quantity in row.quantities.items() if quantity.verdict is ExponentTest.OFF]
        if off and row.name == LayerCheck.GRADIENT:
            yield f"no gradient reaches {_join_names(off)}"
        elif off:
            yield f"{_join_names(off)}: {LAYER_TEXT[LayerCheck(row.name)]} {_describe_layer_miss(row.farthest_off[1])}"


def _output_scale_findings(judgement: Judgement) -> Iterator[tuple[str, str]]:
    """Yield a line if only the outputs have a wrong scale, although the head's weights start right."""
    *hidden, outputs = judgement.stages
    # Text has no head of its own: the word embedding is tied to it.
    head = next(row for row in judgement.groups if row.name in (Group.HEAD, Group.WE))
    is_hidden_off = any(_is_off(row, "kernel") for row in hidden)
    if _is_off(outputs, "kernel") and not is_hidden_off and head.quantities["initial std"].verdict is ExponentTest.OK:
        label = "the outputs' kernel" if head.name == Group.HEAD else "the outputs' kernel (output rescale)"
        yield (
            head.name,
            f"{head.name}: {label} {_describe_miss(outputs.quantities['kernel'])}, while hidden kernels are right",
        )


def _behaviour_findings(judgement: Judgement, s: float | None) -> Iterator[str]:
    """Yield groups that are off, the first stage whose kernel is off, and stages that change with a wrong power."""
    for row in judgement.groups:
        if row.verdict is ExponentTest.OFF:
            yield _group_line(row, s)
    kernels = ("kernel", "kernel between samples")
    off = [row for row in judgement.stages if any(_is_off(row, quantity_name) for quantity_name in kernels)]
    for stage in off[:1]:
        quantity_name = next(quantity_name for quantity_name in kernels if _is_off(stage, quantity_name))
        suffix = f"; so are {len(off) - 1} others" if len(off) > 1 else ""
        # Later stages are made of this one, so they are only counted.
        yield f"{stage.name}: the {quantity_name} {_describe_miss(stage.quantities[quantity_name])}{suffix}"
    if names := [row.name for row in judgement.stages if _is_off(row, "activation change") and row not in off]:
        yield f"activations change as another power of the width in {_join_names(names)}"


def _group_line(row: GroupRow, s: float | None) -> str:
    off_by = row.off_by
    if s is None and off_by is not None and abs(off_by) > POWER_TOLERANCE:
        verb = "fall" if off_by < 0 else "grow"
        return f"{row.name}: steps {verb} as width^{format_exponent(off_by)} against the bulk's"
    if _is_off(row, "function change"):
        return f"{row.name}: the change of the outputs in training {_describe_miss(row.quantities['function change'])}"
    return (
        f"{row.name}: the contribution to the tangent kernel {_describe_miss(row.quantities['tangent contribution'])}"
    )


def _rows_off(judgement: Judgement, excluded: set[str]) -> list[str]:
    # Groups that are causes have lines of their own.
    groups = [row.name for row in judgement.groups if row.verdict is ExponentTest.OFF and row.name not in excluded]
    stages = [row.name for row in judgement.stages if row.verdict is ExponentTest.OFF]
    return [*groups, *([_join_names(stages)] if stages else [])]


def _unclear_findings(judgement: Judgement) -> Iterator[str]:
    quantities = [
        (row.name, *item) for row in (*judgement.groups, *judgement.stages) for item in row.quantities.items()
    ]
    if noisy := [
        f"{name} ({quantity_name})" for name, quantity_name, q in quantities if q.verdict is ExponentTest.UNCLEAR
    ]:
        yield f"too noisy to judge: {_join_names(noisy)}; use more --seeds, or --widths farther apart"


def _is_off(row: JudgedRow, quantity_name: str) -> bool:
    return row.quantities[quantity_name].verdict is ExponentTest.OFF


# --- words ----------------------------------------------------------------------------------------------------------


def _describe_miss(quantity: JudgedQuantity) -> str:
    """Return measured and implied power; or measured and predicted value, if there is one and the power is right."""
    off_by = quantity.off_by
    is_power_wrong = off_by is not None and (quantity.predicted is None or abs(off_by) > POWER_TOLERANCE)
    if quantity.power is not None and off_by is not None and is_power_wrong:
        wrong, right = format_exponent(quantity.power.value), format_exponent(quantity.power.value - off_by)
        return f"scales as width^{wrong}, not width^{right} (off by {off_by:+.2f})"
    if quantity.measured is None or quantity.predicted is None:
        return "vanishes or is not finite"
    return f"is {quantity.measured:.3g} at the widest, not {quantity.predicted:.3g}"


def _describe_layer_miss(quantity: JudgedQuantity) -> str:
    """Return measured and exact value of a layer check."""
    if quantity.measured is None:
        return "cannot be measured: not finite, or not computed by F.linear with the weights"
    # Adding 0.0 turns -0.0 into 0.0.
    return f"is {round(quantity.measured, 6) + 0.0:.4g}, not {quantity.predicted:g}"


def _join_names(names: Sequence[str], limit: int = 4) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
