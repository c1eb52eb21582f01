"""The contents of a report: families with their verdicts, grouped into comparisons of strategies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ettsweep.metric import Metric
from ettsweep.report.formats import strategy_rank
from ettsweep.report.verdict_view import VerdictView, make_views
from ettsweep.runs.index import Run, RunIndex, group_by_point
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.study.judgement import evaluate
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState
from ettsweep.study.verdict import Verdict

RunsByPoint = dict[Point, list[Run]]
"""Runs of a family by lattice point, lowest seed first."""


@dataclass(frozen=True)
class JudgedFamily:
    """A verdict, its texts, and the runs of its family."""

    verdict: Verdict
    view: VerdictView
    points: RunsByPoint

    @property
    def study(self) -> Study:
        return self.verdict.study

    @property
    def candidate(self) -> Point | None:
        return self.verdict.point

    @cached_property
    def neighbours(self) -> set[Point]:
        """Neighbours of the candidate."""
        return {neighbour.point for neighbour in self.verdict.neighbours}

    @property
    def as_good(self) -> tuple[Point, ...]:
        """Points that are as good as the candidate within the margin."""
        return self.verdict.bound.plateau if self.verdict.bound else ()

    def role(self, point: Point) -> str:
        """Return the role of a point in the verdict: candidate, neighbour or other."""
        return "candidate" if point == self.candidate else "neighbour" if point in self.neighbours else "other"

    @property
    def runs(self) -> list[Run]:
        """All runs, point by point."""
        return [run for members in self.points.values() for run in members]

    @property
    def optimum(self) -> list[Run]:
        """Runs of the candidate, all seeds; none without a candidate."""
        return self.points.get(self.candidate, []) if self.candidate else []

    @cached_property
    def study_state(self) -> StudyState:
        """The family's points and scores, as the verdict rule of its sweep sees them."""
        return evaluate(self.study, self.runs)

    def counted_runs(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs whose seeds count for the verdict.

        Those are the sweep's seeds and, under the rule of the bound, those of racing.
        """
        return [run for run in runs if self.study_state.is_verdict_seed(run.seed)]


@dataclass(frozen=True)
class StrategyComparison:
    """Families of one sweep that differ only in strategy: they share the figures that compare strategies."""

    title: str
    families: tuple[JudgedFamily, ...]

    @property
    def metric(self) -> Metric:
        """The score that the families are compared by."""
        return self.families[0].study.metric


def runs_by_point(runs: Iterable[Run], study: Study | None = None) -> RunsByPoint:
    """Group runs of one family by point; with a study, only those on its lattice, at the points it requested."""
    if study is None:
        groups = group_by_point(runs)
    else:
        on_lattice = [run for run in runs if study.is_on_lattice(study.point_of(run))]
        groups = group_by_point(on_lattice, study.seeds_by_point, study.point_of)
    return {point: sorted(members, key=lambda run: run.seed) for point, members in groups.items()}


def runs_by_family(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by family id."""
    families: dict[str, list[Run]] = {}
    for run in runs:
        families.setdefault(run.family, []).append(run)
    return families


def with_verdict_runs(runs: Iterable[Run], verdicts: Iterable[Verdict]) -> list[Run]:
    """Return the runs together with those that the verdicts rest on, each once."""
    evidence = (run for verdict in verdicts for run in verdict.runs)
    return list({run.id: run for run in (*runs, *evidence)}.values())


def judged_families(runs: Iterable[Run], verdicts: Sequence[Verdict]) -> list[JudgedFamily]:
    """Return each verdict with its family's runs on the lattice of its sweep."""
    run_index = RunIndex({run.id: run for run in runs}, {})
    return [
        JudgedFamily(
            verdict, view, runs_by_point(run_index.family_runs(verdict.study.base, verdict.study.axes), verdict.study)
        )
        for verdict, view in zip(verdicts, make_views(verdicts), strict=True)
    ]


def strategy_comparisons(families: Sequence[JudgedFamily]) -> list[StrategyComparison]:
    """Group families of one sweep that differ only in strategy, strategies in their usual order; sort by title."""
    recipes: dict[tuple[object, ...], list[JudgedFamily]] = {}
    # Sorted first: each comparison keeps this order of strategies.
    for family in sorted(families, key=lambda family: strategy_rank(family.study.strategy)):
        study = family.study
        recipe = ", ".join(study.variant) or study.base.info.key
        recipes.setdefault((study.sweep, recipe, study.metric), []).append(family)
    studies = [members[0].study for members in recipes.values()]
    comparisons = [
        StrategyComparison(_comparison_title(study, studies), tuple(members))
        for study, members in zip(studies, recipes.values(), strict=True)
    ]
    return sorted(comparisons, key=lambda comparison: comparison.title)


def _comparison_title(study: Study, studies: Sequence[Study]) -> str:
    """Return model and task, the sweep if there are several, and up to four fields that differ from comparisons."""
    labels = study.base.info.labels
    title = labels.title
    title += f", sweep {study.sweep}" if len({s.sweep for s in studies}) > 1 else ""
    recipe = _flat_recipe(study.base)
    same_task = [
        _flat_recipe(s.base)
        for s in studies
        if (s.base.info.labels.model, s.base.info.labels.task) == (labels.model, labels.task)
    ]
    # A field that another recipe lacks is no difference: models of other kinds have other fields.
    different = sorted(
        name for name in recipe if any(flat.get(name, recipe[name]) != recipe[name] for flat in same_task)
    )
    differences = [f"{name.removesuffix('.kind')} {recipe[name]}" for name in different[:4]]
    return title + (f" ({', '.join(differences)})" if differences else "")


def _flat_recipe(spec: RunSpec) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in spec.model_dump(include=set(spec.recipe_class.model_fields)).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat
