"""Attempts: owners, lineages, checkpoints, logs."""

import pytest
from support.claims import claimed, train

from ettsweep.errors import CorruptError
from ettsweep.runs.folder import RunDir


def test_attempt_knows_when_it_is_superseded(run: RunDir) -> None:
    first = claimed(run)
    assert not first.is_superseded()
    second = claimed(run)
    assert first.is_superseded()
    assert not second.is_superseded()
    assert run.attempt_numbers() == [1, 2]


def test_history_is_stitched_along_the_lineage(run: RunDir) -> None:
    first, second, third = claimed(run), claimed(run), claimed(run)
    train(first, 1, 10, "first")
    second.record_resume(1, 6)
    train(second, 7, 12, "second")
    third.record_resume(2, 8)
    train(third, 9, 11, "third")
    with third.metrics_path.open("a") as file:
        file.write('{"step": 12, "lo')
    lines = [(line["step"], line["by"], "loss" in line) for line in third.history()]
    assert lines == [
        *((step, "first", True) for step in (1, 2, 3, 4)),
        (4, "first", False),
        *((step, "first", True) for step in (5, 6)),
        *((step, "second", True) for step in (7, 8)),
        (8, "second", False),
        *((step, "third", True) for step in (9, 10, 11)),
    ]
    assert [line["step"] for line in third.history(until=5)] == [1, 2, 3, 4, 4, 5]
    assert [line["by"] for line in second.history(until=8)][-3:] == ["second"] * 3


@pytest.mark.parametrize("steps", [[2, 3, 4], [1, 3, 3, 4], [1, 2, 3]], ids=["start", "hole and twice", "end"])
def test_missing_steps_are_noticed(run: RunDir, steps: list[int]) -> None:
    attempt = claimed(run)
    attempt.append(attempt.metrics_path, [{"step": s, "loss": 1.0} for s in steps])
    with pytest.raises(CorruptError, match="steps are missing before step 4") as error:
        attempt.history(until=4)
    assert str(attempt.metrics_path) in str(error.value)


def test_log_tells_how_an_attempt_ended(run: RunDir) -> None:
    attempt = claimed(run)
    assert attempt.log_text() == "(it logged nothing)\n"
    attempt.log_path.write_bytes(b"step 1\n\xff\n")
    attempt.record_failure("error", "ValueError: no")
    assert attempt.log_text() == "step 1\n\N{REPLACEMENT CHARACTER}\nended: ValueError: no\n"
