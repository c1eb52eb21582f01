"""Work in parts: what stops it says how much is kept."""

from multiprocessing import active_children

import pytest

from ettsweep.errors import StoppedError
from ettsweep.pool import open_pool
from ettsweep.tasks.preparation import in_parts


def test_what_is_kept_is_counted_once_nobody_adds_to_it() -> None:
    def stop(part: float) -> None:
        assert active_children()
        raise KeyboardInterrupt

    def finished() -> int:
        return len(active_children())

    with (
        pytest.raises(StoppedError, match="interrupted; 0 of 2 parts are finished and kept"),
        open_pool(2, "spawn", int) as pool,
    ):
        in_parts(pool, abs, [1, 2], float, stop, finished)
