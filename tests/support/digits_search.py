"""A search of vit-digits around one point, for tests of verdicts on made scores."""

import math
from collections.abc import Sequence
from pathlib import Path

from ettsweep.runs.point import Point
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.study import Study

CENTRE = Point.of(lr=2.0**-7, wd=0.5)


def digits_search(folder: Path, lr: str, wd: str, seeds: Sequence[int], criterion: str) -> Study:
    """Return the search of a grid file with these axes, seeds and criterion, in YAML."""
    path = folder / "g.yaml"
    path.write_text(
        f"""
        model: vit-digits
        task: digits
        recipe:
          batch_size: 64
          schedule: {{total_steps: 24, warmup_steps: 2, eval_every: 12}}
        centre: {{standard: {{lr: {CENTRE["lr"]}, wd: {CENTRE["wd"]}}}}}
        lr: {lr}
        wd: {wd}
        strategies: [standard]
        seeds: {list(seeds)}
        criterion: {criterion}
        """
    )
    return load_sweep_spec(path).studies()[0]


def offset_of(point: Point | None) -> tuple[float, float]:
    """Return the lattice steps (lr, wd) of a point from the centre."""
    assert point is not None
    return round(math.log2(point["lr"] / CENTRE["lr"]), 6), round(math.log2(point["wd"] / CENTRE["wd"]), 6)
