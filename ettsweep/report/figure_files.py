"""The figures of a report: one specification each, for the page and for the files that papers use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.files import Json
from ettsweep.report import family_charts
from ettsweep.report.families import StrategyComparison
from ettsweep.report.family_charts import FamilyFrames
from ettsweep.report.figure_export import export, file_spec
from ettsweep.report.figures.chart_data import FILE_WIDTH
from ettsweep.report.run_histories import RunHistories
from ettsweep.study.study import Study, StudyKey


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        kind: such as map, curves or seeds.
        name: of its files, without the suffix.
        title: the comparison, and the strategy if it shows only one.
        caption: a description.
        spec: a Vega-Lite specification, with its data under `datasets`.
    """

    kind: str
    name: str
    title: str
    caption: str
    spec: Json

    @property
    def file_spec(self) -> str:
        """The specification of the figure's files, as JSON."""
        return file_spec(self.spec, self.title, FILE_WIDTH)

    def save(self, folder: Path) -> list[Path]:
        """Write the figure as SVG, PNG and PDF; return the paths.

        Raises:
            StorageError: a file cannot be written.
        """
        return export(self.file_spec, folder / self.name)


# --- drawing --------------------------------------------------------------------------------------------------------


class FigureBuilder:
    """Draws the figures of comparisons, each with a unique file name."""

    def __init__(self, histories: RunHistories) -> None:
        self._histories = histories
        self._used_names: set[str] = set()

    def build(self, comparison: StrategyComparison) -> Iterator[tuple[StudyKey, Figure]]:
        """Yield the figures of a comparison that have data, each with the key of its family.

        Figures of all strategies have the key of the first.
        """
        families, first = comparison.families, comparison.families[0].study
        frames = FamilyFrames(families, self._histories)
        title, name = comparison.title, self._unique_name(_series_name(first), first.family)
        for kind, caption, spec in _comparison_specs(frames):
            yield first.key, Figure(kind, f"{name}-{kind}", title, caption, spec)
        for family in families:
            study, own_title = family.study, title
            if study.has_strategies:
                name = self._unique_name(f"{_series_name(study)}-{study.strategy}", study.family)
                own_title = f"{title}: {study.strategy}"
            for kind, caption, spec in _single_family_specs(frames.for_families([family])):
                yield study.key, Figure(kind, f"{name}-{kind}", own_title, caption, spec)

    def _unique_name(self, name: str, family: str) -> str:
        """Return a unique ASCII file name; a duplicate gets the family's id or a number.

        s=0.25 becomes s0p25, since LaTeX reads a file type after a dot.
        """
        file_name = name.replace("=", "").replace(".", "p")
        ascii_name = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in file_name)
        # Sweeps a_b, a-b and a.b may share a family, so a number may be needed too.
        candidates = chain([ascii_name], (f"{ascii_name}-{suffix}" for suffix in chain([family[:6]], count(2))))
        # Some file systems ignore case.
        unique_name = next(candidate for candidate in candidates if candidate.casefold() not in self._used_names)
        self._used_names.add(unique_name.casefold())
        return unique_name


def _series_name(study: Study) -> str:
    return study.sweep or study.model


CaptionedSpecs = Iterator[tuple[str, str, Json]]
"""Kind, caption and specification of some figures."""


def _comparison_specs(frames: FamilyFrames) -> CaptionedSpecs:
    """Draw the figures that compare strategies."""
    if spec := family_charts.strategies(frames):
        plateau = ", with a ring around those as good as the candidate within the margin" * bool(
            frames.points["as_good"].any()
        )
        yield "strategies", f"Points that were run{plateau}, and the candidates, labelled.", spec
    yield from _with_captions(frames, {"seeds": family_charts.seeds, "scores": family_charts.scores})


def _single_family_specs(frames: FamilyFrames) -> CaptionedSpecs:
    """Draw the figures of one family."""
    if spec := family_charts.lattice(frames):
        yield "map", _map_caption(frames), spec
    yield from _with_captions(frames, {"curves": family_charts.curves})


def _with_captions(frames: FamilyFrames, kinds: Mapping[str, Callable[[FamilyFrames], Json | None]]) -> CaptionedSpecs:
    seeds = frames.histories.seeds
    if seeds and all(len(runs) <= seeds for family in frames.families for runs in family.points.values()):
        seeds = None
    for kind, draw in kinds.items():
        if spec := draw(frames):
            spikes = SPIKES.get(kind, "") if frames.has_marked_spikes else ""
            fewer = FEWER_CURVES.get(kind, "").format(seeds=seeds) if seeds else ""
            yield kind, CAPTIONS[kind] + spikes + fewer, spec


SPIKES = {"curves": " Triangles: spikes of the candidate and its neighbours."}
"""Added to captions if spikes are marked."""

FEWER_CURVES = {"curves": " Shown: the first {seeds} runs of each point."}
"""Added to captions if some runs are not drawn."""


CAPTIONS = {
    "seeds": (
        "Optima, one line for each fresh seed, or for each search seed if there are none. "
        "In brackets: mean ± standard error, and the number of seeds."
    ),
    "scores": (
        "Scores of the optima, mean ± standard error: open circles are the search's seeds, filled ones fresh seeds."
    ),
    "curves": ("Means over the search's seeds, in brackets ± standard error."),
}
"""Captions that do not depend on the data."""


def _map_caption(frames: FamilyFrames) -> str:
    family, points = frames.families[0], frames.points
    if len(family.study.free) > 1:
        sentences, best = ["Colour: mean over the search's seeds."], "Thick frame"
    else:
        sentences, best = ["Dots: mean over the search's seeds ± standard error."], "Ring"
    sentences += [f"{best}: the best point."] * (family.candidate is not None)
    if len(family.neighbours) == 6:
        sentences.append("Thin frames: its six neighbours.")
    elif len(frames.optimum):
        sentences.append("Curve: fitted, with its standard error; its optimum is the cross.")
    if off_lattice := int(points["x_steps"].isna().sum()):
        sentences.append(
            f"{format_count(off_lattice, 'point')} off this lattice {'is' if off_lattice == 1 else 'are'} not drawn."
        )
    if family.study.suggested_points:
        sentences.append("Numbers: order of suggestion; grey line: the searched ranges.")
    return " ".join(sentences)
