"""Small figures for tests of the page: specifications as the report draws them, of which every datum is known."""

from collections.abc import Sequence

from ettsweep.report.claims import Key
from ettsweep.report.drawn import Figure
from ettsweep.sweep.verdict import Verdict

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
TOOLTIP = [{"field": name} for name in ("point", "mean", "error", "seeds", "state", "runs")]


def hexagon_map(name: str, points: Sequence[str], runs: str) -> Figure:
    """Return a lattice: a mark for each point, in a row, whose tooltip says all of it."""
    rows = [
        {"point": point, "x": k, "mean": 0.1 + k, "error": 0.01, "seeds": 3, "state": "done", "runs": runs}
        for k, point in enumerate(points)
    ]
    spec = {
        "$schema": SCHEMA,
        "data": {"name": f"{name}-points"},
        "datasets": {f"{name}-points": rows},
        "width": 300,
        "height": 120,
        "params": [{"name": "surface", "value": False, "bind": {"input": "checkbox", "name": "fitted surface"}}],
        "layer": [
            {
                "mark": {
                    "type": "point",
                    "shape": "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
                    "size": 3000,
                    "filled": True,
                },
                "encoding": {
                    "x": {"field": "x", "type": "quantitative", "scale": {"domain": [-1, len(points)]}},
                    "tooltip": TOOLTIP,
                },
            }
        ],
    }
    return Figure("map", f"{name}-map", f"Lattice of {name}", f"Scores on the lattice of {name}.", spec)


def curves(name: str, points: Sequence[str]) -> Figure:
    """Return an explorer: a line for each point or, where one is chosen, for that alone."""
    rows = [
        {"point": point, "step": step, "loss": 1 / (step + k + 1)}
        for k, point in enumerate(points)
        for step in range(20)
    ]
    spec = {
        "$schema": SCHEMA,
        "data": {"name": f"{name}-curves"},
        "datasets": {f"{name}-curves": rows},
        "width": "container",
        "height": 160,
        "params": [
            {"name": "chosen", "value": ""},
            {"name": "smoothing", "value": 0, "bind": {"input": "range", "min": 0, "max": 0.99, "step": 0.01, "name": "smoothing"}},
        ],
        "transform": [{"filter": "chosen === '' || datum.point === chosen"}],
        "mark": "line",
        "encoding": {
            "x": {"field": "step", "type": "quantitative"},
            "y": {"field": "loss", "type": "quantitative"},
            "color": {"field": "point", "type": "nominal"},
        },
    }  # fmt: skip
    return Figure("curves", f"{name}-curves", f"Curves of {name}", f"Training of {name}.", spec)


def dots(kind: str, name: str, labels: Sequence[str]) -> Figure:
    """Return a figure of a dot for each label."""
    spec = {
        "$schema": SCHEMA,
        "data": {"name": f"{name}-{kind}"},
        "datasets": {f"{name}-{kind}": [{"label": label, "x": k} for k, label in enumerate(labels)]},
        "width": "container",
        "height": 120,
        "mark": "point",
        "encoding": {
            "x": {"field": "x", "type": "quantitative"},
            "color": {"field": "label", "type": "nominal"},
            "tooltip": {"field": "label"},
        },
    }
    return Figure(kind, f"{name}-{kind}", f"{kind} of {name}", f"Dots of {name}.", spec)


def figures_of(verdicts: Sequence[Verdict], runs: str = "0123456789ab") -> dict[tuple[Key, str], Figure]:
    """Return all kinds of figures of one comparison; `runs` is what its maps name as ids."""
    if not verdicts:
        return {}
    found: dict[tuple[Key, str], Figure] = {}
    labels = [verdict.strategy for verdict in verdicts]
    for kind in ("strategies", "seeds"):
        found[verdicts[0].key, kind] = dots(kind, "all", labels)
    for number, verdict in enumerate(verdicts):
        if verdict.point is None:
            continue
        name, points = f"family-{number}", [str(one.point) for one in verdict.compared]
        found[verdict.key, "map"] = hexagon_map(name, points, runs)
        found[verdict.key, "curves"] = curves(name, points)
        for kind in ("trajectories", "course"):
            found[verdict.key, kind] = dots(kind, name, points)
    return found
