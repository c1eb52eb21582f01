"""Points beside others."""

from ettsweep.runs.point import Point


def moved(point: Point, *log2_steps: float) -> Point:
    """Return the point with each value times 2**step of its axis; further axes stay."""
    steps = dict(zip(point.values, log2_steps, strict=False))
    return Point({name: value * 2.0 ** steps.get(name, 0.0) for name, value in point.values.items()})
