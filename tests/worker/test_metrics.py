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


def test_lines_are_in_the_order_of_steps_and_the_later_value_of_a_step_counts() -> None:
    history = [{"step": 9, "err": 2.0}, {"step": 2, "err": 7.0}, {"step": 5, "loss": 1.0}, {"step": 2, "err": 3.0}]
    assert put_in_order(history, "err") == [{"step": 2, "err": 3.0}, {"step": 5, "loss": 1.0}, {"step": 9, "err": 2.0}]
