"""Commands whose time is measured."""

import resource
import sys
from pathlib import Path

ETTSWEEP = str(Path(sys.executable).with_name("ettsweep"))


def children_s() -> float:
    """Return the CPU seconds of all processes that have ended and been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
