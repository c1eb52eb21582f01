"""What is kept of the metrics of a command."""

import pytest

from ettsweep.files import Json, dumps
from ettsweep.worker.metrics import put_in_order

PRINTED: Json = {"step": 10, "loss": 1.0}
FILED: Json = {"step": 10, "err": 2.0, "acc": 0.5}


@pytest.mark.parametrize("history", [[PRINTED, FILED], [FILED, PRINTED]])
def test_lines_are_the_same_bytes_whichever_of_two_sources_was_read_first(history: list[Json]) -> None:
    (line,) = put_in_order(history, "err")
    assert dumps(line) == dumps({"step": 10, "acc": 0.5, "err": 2.0, "loss": 1.0})
