"""The short form of chaos: some strikes at a small sweep on the real cluster; `make chaos` is the long one."""

from pathlib import Path

from support.chaos import attempts, chaos
from support.devcluster import Cluster


def test_a_sweep_under_strikes_ends_as_a_calm_one(cluster: Cluster, tmp_path: Path) -> None:
    collected: list[str] = []
    storm = chaos(cluster, tmp_path, runs=6, seconds=30, seed=7, log=collected.append)
    print("\n".join(collected))
    assert sum(storm.done.values()) >= 3, "it was over before it had begun"
    assert sum(attempts(storm.results).values()) == 6
