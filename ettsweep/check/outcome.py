"""A check of a scaling from its plan to its result: what networks show, held against what theory implies for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ettsweep.check.expectations import HEAD, Expectations, Prediction
from ettsweep.check.experiment import Experiment, train_and_measure
from ettsweep.check.findings import findings
from ettsweep.check.judgement import Changes, Judgement, judge
from ettsweep.check.plan import CheckPlan
from ettsweep.check.powers import Agreement
from ettsweep.check.probe import SAMPLES, checkable, make_probe
from ettsweep.errors import StoppedError
from ettsweep.files import Json
from ettsweep.provenance import provenance, summary
from ettsweep.scaling.strategies import strategy_name


@dataclass(frozen=True)
class Curves:
    """How activations and outputs change in the first steps of training under one strategy.

    Attributes:
        strategy: its name.
        lr: learning rate, the same at all widths.
        changes: of each stage, for each step, at each width: the rms change, mean over seeds.
        hidden_power: power of the width that is implied for hidden activations; None where none is.
        output_power: that of the outputs.
    """

    strategy: str
    lr: float
    changes: Mapping[str, tuple[tuple[float, ...], ...]]
    hidden_power: float | None
    output_power: float | None


@dataclass(frozen=True)
class CheckResult:
    """A finished check.

    Attributes:
        name: of the model, the strategy and the optimizer, such as `vit-b16-ntk-adamw`.
        settings: all that says what was built, trained and measured.
        about: the same in a line.
        widths: n, ascending.
        judgement: of the strategy.
        findings: in words.
        curves: of the strategy, after those of standard where it is another.
    """

    name: str
    settings: Json
    about: str
    widths: tuple[int, ...]
    judgement: Judgement
    findings: tuple[str, ...]
    curves: tuple[Curves, ...]

    @property
    def verdict(self) -> Agreement:
        """Return that of the judgement."""
        return self.judgement.verdict


def check_scaling(plan: CheckPlan) -> CheckResult:
    """Carry a plan out, and judge what its networks show.

    Raises:
        InputError: the given learning rate tells nothing.
        EttsweepError: training does not move the outputs, so that no learning rate can be chosen.
        StoppedError: Ctrl-C.
    """
    try:
        return _check(plan)
    except KeyboardInterrupt:
        raise StoppedError("interrupted; nothing has been written") from None


def _check(plan: CheckPlan) -> CheckResult:
    experiment = train_and_measure(plan)
    expected = expect(plan)
    judgement = judge(expected, experiment.measured, plan.model.heads, SAMPLES)
    return CheckResult(
        name=plan.name,
        settings=_settings(plan, experiment.lrs),
        about=_about(plan, experiment.lrs),
        widths=plan.widths,
        judgement=judgement,
        findings=findings(judgement, plan.s),
        curves=tuple(_all_curves(plan, expected, experiment)),
    )


def expect(plan: CheckPlan) -> Expectations:
    """Return what the strategy implies."""
    models, batch = plan.models, make_probe(plan.model).batch
    kernels = checkable(plan.model).kernels(models, plan.s, batch)
    predictions = [Prediction.of(model, k) for model, k in zip(models, kernels, strict=True)]
    return Expectations(predictions, plan.s, plan.question.optimizer, plan.question.mlp_factor)


def _all_curves(plan: CheckPlan, expected: Expectations, experiment: Experiment) -> Iterator[Curves]:
    if plan.s is not None:
        yield _curves(replace(expected, s=None), experiment.beside, experiment.lrs[None])
    mine = {n: [m.changes for m in experiment.measured if m.width == n] for n in plan.widths}
    yield _curves(expected, mine, experiment.lrs[plan.s])


def _curves(expected: Expectations, changes: Mapping[int, Sequence[Changes]], lr: float) -> Curves:
    """Return the changes by stage, step and width, as the mean over seeds."""

    def means(stage: str) -> tuple[tuple[float, ...], ...]:
        table = [[[step[stage] for step in steps] for steps in changes[n]] for n in expected.widths]
        return tuple(tuple(row) for row in np.array(table).mean(1).T.tolist())

    def power(stage: str) -> float | None:
        change = expected.change(stage)
        return None if change is None else change.power

    return Curves(
        strategy=strategy_name(expected.s),
        lr=lr,
        changes={stage: means(stage) for stage in expected.stages},
        hidden_power=power(expected.stages[-2]),
        output_power=power(HEAD),
    )


def _settings(plan: CheckPlan, lrs: Mapping[float | None, float]) -> Json:
    question = plan.question
    return {
        "model": question.model,
        "strategy": strategy_name(plan.s),
        "optimizer": question.optimizer,
        "mlp_factor": question.mlp_factor,
        "widths": list(plan.widths),
        "seeds": list(plan.seeds),
        "steps": question.steps,
        "lr": lrs[plan.s],
        "standard_lr": lrs[None],
        "samples": SAMPLES,
        "at_the_widest": plan.model.model_dump(),
        "provenance": summary(provenance()),
    }


def _about(plan: CheckPlan, lrs: Mapping[float | None, float]) -> str:
    question, model = plan.question, plan.model
    beside = "" if plan.s is None else f" (beside it, standard at {lrs[None]:.2g}: the same bulk step at the widest)"
    return (
        f"{question.model} under {strategy_name(plan.s)}: {model.heads} heads, {checkable(model).about(model)}; "
        f"{len(plan.seeds)} seeds, {question.steps} steps of {question.optimizer} at lr {lrs[plan.s]:.2g}{beside}"
    )
