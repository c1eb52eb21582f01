"""The map: what lies beside what, what the colours and signs say, what is written where and can be read."""

import math
import re
from collections import Counter
from itertools import product
from typing import Any

import pandas as pd
import pytest
from support.made_frames import CENTRE, SIX, Steps, neighbours_of, no_surface, points_of, searched
from support.scene import Mark, Scene, scene

from ettsweep.report.figures.chart_data import HEXAGON, STATE_SIGNS
from ettsweep.report.figures.lattice_map import hexagon_xy, lattice
from ettsweep.report.theme import INK, ON_BEST
from ettsweep.study.lattice import Axis
from ettsweep.trainer.tasks.registry import BEST_ACCURACY


def bowl(reach: int = 2, **changes: float | None) -> dict[Steps, float | None]:
    """Return scores around the candidate: all six neighbours are equally good."""
    scores = {(i, j): 0.1 * (1 + i * i + i * j + j * j) for i, j in product(range(-reach, reach + 1), repeat=2)}
    return scores | {(-reach, -reach): None, (reach, reach): None}


def drawn(points: pd.DataFrame, ranges: pd.DataFrame | None = None) -> Scene:
    return scene(lattice(points, *no_surface(), ranges))


def points(**columns: Any) -> pd.DataFrame:
    """Return the points of a bowl: one diverged, one failed."""
    return points_of(bowl(), **{"state": {(2, 2): "failed"}} | columns)


@pytest.fixture(scope="module")
def bowl_map() -> Scene:
    return drawn(points())


def place(scene: Scene, mark: Mark) -> tuple[float, float]:
    """Return where a mark is, where hexagons that touch are 1 apart."""
    (at,) = scene.at(mark)
    return at


def hexagons(scene: Scene, **look: object) -> dict[Steps, Mark]:
    """Return hexagons by the lattice position that they stand for."""
    collected = {}
    for mark in scene.of("symbol", shape=HEXAGON, **look):
        x, y = place(scene, mark)
        wd = y / (math.sqrt(3) / 2)
        collected[round(x - wd / 2), round(wd)] = mark
    return collected


# --- what lies beside what --------------------------------------------------------------------------------------------


def test_hexagons_that_touch_are_the_neighbours_of_a_verdict(bowl_map: Scene) -> None:
    assert sorted(neighbours_of(CENTRE, Axis(low=-3, high=3))) == sorted(SIX)
    framed = hexagons(bowl_map, stroke=INK, strokeWidth=1.5)
    assert sorted(framed) == sorted(SIX)
    (candidate,) = bowl_map.of("symbol", stroke=ON_BEST)
    assert {round(math.dist(mark.xy, candidate.xy)) for mark in framed.values()} == {62}
    numbers = Counter(text for text in bowl_map.texts() if text.startswith("."))
    assert numbers == {".100": 1, ".200": 6}, "of the candidate and its neighbours alone"


def test_axes_are_labelled_along_rows_and_columns(bowl_map: Scene) -> None:
    """wd stands left of its row; lr below its column, which leans to the right by half a hexagon a row."""
    labels = {str(mark.text): place(bowl_map, mark) for mark in bowl_map.of("text", align="right")}
    for j, wd in enumerate(("0.75", "1.5", "3", "6", "12"), -2):
        left, y = hexagon_xy(-2, j)
        assert labels[wd] == (pytest.approx(left - 0.62), pytest.approx(y, abs=1e-4))
    for i in range(-2, 3):
        x, below = hexagon_xy(i, -2)
        assert labels[f"2^{i}"] == (pytest.approx(x), pytest.approx(below - 0.64, abs=1e-4))


# --- what is written ----------------------------------------------------------------------------------------------


def test_what_is_written_can_be_read_on_every_colour() -> None:
    """As the web's guidelines for accessible content have it: small text has a contrast of 4.5 to 1."""

    def luminance(colour: str) -> float:
        channels = {"#000": [0, 0, 0], "#fff": [255] * 3}.get(colour) or map(int, re.findall(r"\d+", colour))
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in channels))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    across = list(product(range(9), repeat=2))
    result = drawn(points_of({steps: 1 + k for k, steps in enumerate(across)}, role="neighbour"))
    texts = [(mark.xy, mark.fill) for mark in result.of("text") if mark.fill in ("#000", "#fff")]
    colours = {mark.xy: mark.fill for mark in hexagons(result, stroke=None).values()}
    assert (len(texts), len(set(colours.values()))) == (81, 81)
    for at, ink in texts:
        low, high = sorted((luminance(ink), luminance(colours[at])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, colours[at])


# --- what colours and signs say ---------------------------------------------------------------------------------------


def test_a_state_without_a_score_has_a_sign_of_its_own_and_a_word_in_the_legend() -> None:
    """They are told apart without any colour: all are ink."""
    states = {(i, 0): state for i, state in enumerate(STATE_SIGNS)}
    result = drawn(points_of(dict.fromkeys(states) | {(0, 1): 0.1, (1, 1): 0.2}, state=states, role="other"))
    signs = result.of("symbol", strokeWidth=1.8)
    assert {name: mark.shape for name, mark in result.entries.items()} == STATE_SIGNS
    # A circle for `missing`, and for a mean of none.
    assert len(set(STATE_SIGNS.values())) == len(STATE_SIGNS) - 1 == len({mark.shape for mark in signs})
    assert {mark.stroke for mark in signs} == {INK}


def test_the_better_accuracies_are_as_bright_as_better_losses_and_in_percent(bowl_map: Scene) -> None:
    by_steps = {steps: None if score is None else 0.9 - score / 10 for steps, score in bowl().items()}
    result = drawn(points_of(by_steps, metric=BEST_ACCURACY, error=0.001))
    assert "89.00" in result.texts()
    coloured = {steps: mark.fill for steps, mark in hexagons(bowl_map, stroke=None).items()}
    assert {steps: mark.fill for steps, mark in hexagons(result, stroke=None).items()} == coloured


# --- what was searched --------------------------------------------------------------------------------------------


def test_proposals_are_numbered_on_their_hexagons_and_the_ranges_outlined_along_them() -> None:
    proposed, reach, across = {(0, 0): 1, (2, -1): 2, (-1, 1): 3}, 2, 5
    result = drawn(points(proposal=proposed), searched((-reach, -reach), (reach, reach)))
    numbers = {str(mark.text): place(result, mark) for mark in result.of("text", fill="#1c1c1e")}
    assert set(numbers) == {"1", "2", "3"}
    for steps, number in proposed.items():
        (left, below), (x, y) = hexagon_xy(*steps), numbers[str(number)]
        assert x == pytest.approx(left, abs=1e-4)
        assert 0.3 < y - below < 1 / math.sqrt(3), "above the score, and within the hexagon"
    sides = [[*result.at(mark), *result.at(mark, "x2", "y2")] for mark in result.of("rule")]
    assert len(sides) == 4 * (across + across) - 2, "of a rhombus of hexagons"
    ends = [end for side in sides for end in side]
    meeting = {sum(math.dist(item, other) < 1e-3 for other in ends) for item in ends}
    assert meeting == {2}, "it is closed"
