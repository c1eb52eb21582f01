"""Describe a judgement in words: one line for each fault, causes before consequences."""

from collections.abc import Iterator, Sequence

from ettsweep.strategies.factors import Group
from ettsweep.theory.exponents import POWER_TOLERANCE, ExponentTest, format_exponent
from ettsweep.theory.judge import GroupRow, JudgedQuantity, JudgedRow, Judgement
from ettsweep.theory.measurement import LayerCheck
from ettsweep.theory.paper import MEAN_MAGNITUDE

DIRECT_TEXT = {
    "initial std": "the std of initial values",
    "initial shape": "the mean magnitude of initial values, over their rms,",
    "learning-rate factor": "the learning-rate factor",
    "decay": "the decay of a step, divided by lr wd,",
}
"""Words for the quantities that are read directly off a network and its optimizer."""

LAYER_TEXT = {
    LayerCheck.MEAN: "the mean of tokens after LayerNorm, relative to their rms,",
    LayerCheck.VARIANCE: "the variance of tokens after LayerNorm, over what it should be,",
    LayerCheck.LAYER_NORM_EPS: "the eps of LayerNorm, over the model's,",
    LayerCheck.WEIGHT: "the weight in the residual stream",
    LayerCheck.BLOCK_REMAINDER: "the part of the residual stream that input and branches do not explain",
    LayerCheck.LOGITS: "the scale of the logits, over 1/sqrt(C),",
    LayerCheck.ATTENTION_REMAINDER: "the part of attention's output that masked softmax does not explain",
    LayerCheck.ACTIVATION: "the difference from the GELU, relative to it,",
    LayerCheck.CAUSALITY: "the change of outputs by a later token, relative to its own,",
    LayerCheck.PADDING: "the change of outputs by [pad] after the source, relative to them,",
    LayerCheck.PAD_ROW: "the initial rms of the [pad] row, over that of the other rows,",
    LayerCheck.LOSS: "the loss, over the cross-entropy of the logits,",
    LayerCheck.OPTIMIZER_EPS: "the eps of the optimizer, over the one that it is given,",
}
"""Words for the exact properties of layers."""


def findings(judgement: Judgement, s: float | None) -> tuple[str, ...]:
    """Return one line for each fault, causes first, then what is too noisy to judge; empty if all is ok.

    Under standard (s is None), groups are compared with the bulk.
    """
    stds, shapes, factors, decays = (list(_direct_findings(judgement, quantity_name)) for quantity_name in DIRECT_TEXT)
    layers = list(_layer_findings(judgement))
    # A faulty layer rescales the outputs as well, so the output scale is a cause only if all layers are right.
    outputs = [] if layers else list(_output_scale_findings(judgement))
    causes = [*stds, *shapes, *outputs, *factors, *decays]
    lines = [*(line for _, line in (*stds, *shapes)), *layers, *(line for _, line in (*outputs, *factors, *decays))]
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
            shapes = [f" ({name})" for name, magnitude in MEAN_MAGNITUDE.items() if quantity.predicted == magnitude]
            shape = "".join(shapes) if quantity_name == "initial shape" else ""
            yield row.name, f"{row.name}: {DIRECT_TEXT[quantity_name]} {_describe_miss(quantity)}{shape}{tensors}"


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
    if not judgement.stages:  # the theory does not cover the model
        return
    *hidden, outputs = judgement.stages
    # A tied head is the word embedding.
    rows = {row.name: row for row in judgement.groups}
    head = rows.get(Group.HEAD) or rows[Group.WE]
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
    """Return measured and predicted value; or measured and implied power, if it is wrong or the value is right."""
    off_by, values = quantity.off_by, _format_apart(quantity.measured, quantity.predicted, 3)
    if quantity.power is not None and off_by is not None and (values is None or abs(off_by) > POWER_TOLERANCE):
        wrong, right = format_exponent(quantity.power.value), format_exponent(quantity.power.value - off_by)
        return f"scales as width^{wrong}, not width^{right} (off by {off_by:+.2f})"
    return "vanishes or is not finite" if values is None else f"is {values[0]} at the widest, not {values[1]}"


def _describe_layer_miss(quantity: JudgedQuantity) -> str:
    """Return measured and exact value of a layer check."""
    if quantity.measured is None:
        return "cannot be measured: not finite, or not computed by F.linear with the weights"
    # Without the noise of rounding, unless that is all there is. Adding 0.0 turns -0.0 into 0.0.
    rounded = round(quantity.measured, 6) + 0.0
    values = _format_apart(rounded, quantity.predicted, 4) or _format_apart(quantity.measured, quantity.predicted, 4)
    assert values is not None  # a value that is off differs from the exact one
    return f"is {values[0]}, not {values[1]}"


def _format_apart(measured: float | None, predicted: float | None, digits: int) -> tuple[str, str] | None:
    """Format two numbers with so many digits, or with more that tell them apart, eight at most; None if none do."""
    if measured is None or predicted is None:
        return None
    pairs = ((f"{measured:.{precision}g}", f"{predicted:.{precision}g}") for precision in range(digits, 9))
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


def _join_names(names: Sequence[str], limit: int = 4) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
