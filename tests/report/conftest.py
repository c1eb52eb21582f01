"""Made sweeps, each built once."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from support.made_sweep import FRESH, SEEDS, Made, digits_spec, finish, loss_at, read, search
from support.points import moved

from ettsweep.runs.folder import RunDir
from ettsweep.study.criterion import Criterion
from ettsweep.study.lattice import Axis
from ettsweep.study.seeds import RACING_SEEDS


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Standard: nine points, optimal, fresh seeds. ntk: an unfinished neighbour. hybrid: one axis. mup: none yet.

    Two neighbours of standard's corner diverged for one seed each. Hybrid is judged by the paper's rule.
    """
    results = tmp_path_factory.mktemp("made") / "results"
    standard, ntk, hybrid, mup = (digits_spec(s) for s in (None, 0.0, 0.5, 1.0))
    for i, j, seed in product((-1, 0, 1), (-1, 0, 1), SEEDS):
        at = moved(standard.point, i, j)
        finish(results, standard.with_point(at, seed), loss_at(i, j, seed), diverged=(i, j, seed) == (1, 1, 2))
        if (i, j, seed) == (1, 0, 1):
            RunDir.create(results, ntk.with_point(at, seed))
        else:
            finish(results, ntk.with_point(at, seed), loss_at(i, j, seed))
        if j == 0:
            finish(results, hybrid.with_point(at, seed), loss_at(i, j, seed), diverged=i == 1)
    for seed in FRESH:
        finish(results, standard.with_point(standard.point, seed), loss_at(0, 0, seed) + 0.01)
    by_paper = replace(search(hybrid, wd_fixed=True), criterion=Criterion(rule="paper"))
    return read(results, [search(standard), search(ntk), by_paper, search(mup)])


@pytest.fixture(scope="session")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Noise of 1% around bowls: standard's optimum lies a third of a step in lr and -0.2 in wd from the candidate.

    Racing ran two seeds more of standard's candidate and neighbours. hybrid has one axis, mup one seed.
    """
    results, draw = tmp_path_factory.mktemp("noisy") / "results", np.random.default_rng(3)
    standard, hybrid, mup = (digits_spec(s) for s in (None, 0.5, 1.0))
    for i, j in product(range(-2, 3), repeat=2):
        bowl = 0.1 * (1 + 0.06 * ((i - 1 / 3) ** 2 + (i - 1 / 3) * (j + 0.2) + (j + 0.2) ** 2))
        is_near = max(abs(i), abs(j)) < 2
        raced = RACING_SEEDS[:2] if is_near and abs(i + j) < 2 else ()
        for base, seeds in (
            (standard, (*SEEDS, *raced)),
            (hybrid, SEEDS if j == 0 else ()),
            (mup, (0,) if is_near else ()),
        ):
            for seed in seeds:
                at = moved(base.point, i, j)
                finish(results, base.with_point(at, seed), bowl * math.exp(draw.normal(0, 0.01)))
    axis = Axis(low=-2, high=2)
    values = search(standard), search(hybrid, wd_fixed=True), search(mup, seeds=(0,))
    return read(results, [replace(study, axes=study.axes | dict.fromkeys(study.free, axis)) for study in values])
