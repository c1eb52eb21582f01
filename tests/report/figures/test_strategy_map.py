"""The map of all strategies: each in its own coordinates, or mapped to where equal bulk steps lie on each other."""

import pytest
from support.made_sweep import digits_spec, finish, loss_at, read, search
from support.points import moved
from support.scene import Mark, Scene, scene

from ettsweep.files import Json
from ettsweep.report.families import judged_families
from ettsweep.report.figures import strategies
from ettsweep.report.formats import strategy_colour
from ettsweep.report.frames import points_frame
from ettsweep.runs.point import Point
from ettsweep.strategies.factors import Dims, Group, lr_factor

DIMS = Dims("vision", width=32, n_patch=16, n_out=10, mlp_ratio=4)
NAMES = {"standard": None, "ntk": 0.0, "hybrid": 0.5, "mup": 1.0}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Four families with the same bulk step, and the same decay a step, at points that correspond."""
    results = tmp_path_factory.mktemp("mapped") / "results"
    collected = []
    for s in NAMES.values():
        factor = lr_factor(Group.Q, DIMS, s, "adamw", "ignore")
        base = digits_spec(s)
        base = base.with_point(Point.of(lr=base.lr / factor, wd=base.wd * factor), 0)
        for i, j in ((0, 0), (1, 0), (0, 1), (-1, 1)):
            finish(results, base.with_point(moved(base.point, i, j), 0), loss_at(i, j, 0))
        collected.append(search(base, seeds=(0,)))
    text = read(results, collected)
    return strategies(points_frame(judged_families(text.runs, text.verdicts)).dropna(subset="score"))


def candidates(result: Scene) -> dict[str, Mark]:
    large = [mark for mark in result.of("symbol") if mark.size >= 230]
    return {mark.told["strategy"]: mark for mark in large}


def test_each_strategy_is_in_its_own_coordinates(spec: Json) -> None:
    drawing = scene(spec)
    assert drawing.names == {"x": "log2 lr", "y": "log2 wd"}
    for name, s in NAMES.items():
        shift = 0 if s is None else 5 * (3 - s) / 2  # 32 is 2^5, and the bulk's factor n^((s - 3) / 2)
        ((x, y),) = drawing.at(candidates(drawing)[name])
        assert (x, y) == (pytest.approx(-6 + shift, abs=0.01), pytest.approx(-1 - shift, abs=0.01))


def test_mapped_points_with_the_same_bulk_step_lie_on_each_other(spec: Json) -> None:
    drawing = scene(spec, mapped=True)
    best = candidates(drawing).values()
    assert [drawing.at(mark)[0] for mark in best] == [(pytest.approx(-6), pytest.approx(-1))] * 4
    assert sorted(mark.size for mark in best) == [230, 560, 890, 1220], "rings around each other"
    assert len({text.dy for text in drawing.of("text")}) == 4, "names above names"
    values = {(round(x), round(y)) for mark in drawing.of("symbol") for x, y in drawing.at(mark)}
    assert values == {(-6, -1), (-5, -1), (-6, 0), (-7, 0)}


def test_strategies_differ_in_colour_and_in_shape_and_are_named(spec: Json) -> None:
    drawing = scene(spec)
    assert drawing.legend == list(NAMES)
    assert [mark.stroke for mark in drawing.entries.values()] == [strategy_colour(name) for name in NAMES]
    assert len({mark.shape for mark in drawing.entries.values()}) == 4
    assert sorted(drawing.texts()) == sorted(NAMES)
