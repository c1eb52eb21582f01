"""How tests are shared out among the processes of pytest-xdist: a process a core, and one more for each cluster.

Tests on a cluster mostly wait, each alone on its cluster. They go one by one to as many processes as there are clusters;
all others go file by file, those that take longest first, so that what a file's tests share is made once.
(`--dist loadgroup` would be the way, but pytest-xdist 3.8 does not group under pytest 9.2.)
"""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from ettsweep.processes import cores
from support.devcluster import running_clusters

WEIGHTS = {"cluster": 500, "slow": 200, "statistics": 200, "process": 100}
"""About how much longer than others a test with such a mark takes."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files first whose tests take longest."""
    weight: Counter[Path] = Counter()
    for item in items:
        weight[item.path] += max((WEIGHTS.get(mark.name, 1) for mark in item.iter_markers()), default=1)
    items.sort(key=lambda item: -weight[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return a process a core, and one for each cluster if tests on it are wanted."""
    return cores() + selects_clusters(config.option.markexpr) * len(running_clusters())


def selects_clusters(markers: str) -> bool:
    """Return whether pytest's option `-m` selects a test whose one mark is `cluster`."""
    return not markers or Expression.compile(markers).evaluate(lambda name, /, **_: name == "cluster")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share out tests on a cluster one by one, and all others by file."""
    from xdist.scheduler import LoadScopeScheduling

    class TwoQueues(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return nodeid if _on_cluster(config.rootpath / path) else path

        def _assign_work_unit(self, node: Any) -> None:
            """Assign the first unit of the kind that this process is for, or of the other where none is left."""
            holds, units = self.nodes.index(node) < clusters, self.workqueue
            units.move_to_end(next((u for u in units if ("::" in u) == holds), next(iter(units))), last=False)
            super()._assign_work_unit(node)

    clusters = len(running_clusters())
    config.option.loadscopereorder = False
    return TwoQueues(config, log)


@functools.cache
def _on_cluster(path: Path) -> bool:
    return path.exists() and "import Cluster" in path.read_text()
