"""The made sweep, built once."""

import pytest
from support.made_sweep import FRESH, SEEDS, Made, digits_spec, finish, loss_at, read, search

from ettsweep.runs.folder import RunDir
from ettsweep.sweep.search import Point


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Standard: nine points, optimal, fresh seeds. ntk: an unfinished neighbour. hybrid: one axis. mup: none yet.

    Two neighbours of standard's corner diverged for one seed each.
    """
    results = tmp_path_factory.mktemp("made") / "results"
    standard, ntk, hybrid, mup = (digits_spec(s) for s in (None, 0.0, 0.5, 1.0))
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            for seed in SEEDS:
                diverged = (i, j) == (1, 1) and seed == 2
                at = Point(standard.lr, standard.wd).moved(i, j)
                finish(results, standard.at(*at, seed), loss_at(i, j, seed), diverged)
                if (i, j) == (1, 0) and seed == 1:
                    RunDir.create(results, ntk.at(*at, seed))
                else:
                    finish(results, ntk.at(*at, seed), loss_at(i, j, seed))
                if j == 0:
                    finish(results, hybrid.at(*at, seed), loss_at(i, j, seed), diverged=i == 1)
    for seed in FRESH:
        finish(results, standard.at(standard.lr, standard.wd, seed), loss_at(0, 0, seed) + 0.01)
    searches = [search(standard), search(ntk), search(hybrid, wd_fixed=True), search(mup)]
    return read(results, searches)
