"""What is concluded from curves and files: against draws whose origin is known."""

import os
import random
from pathlib import Path

import pytest
from support.commandline import wait_for

from ettsweep.doctor.observations import _resolution, repeats_batches
from ettsweep.doctor.written_files import named_paths, now_ns, written_since

STEPS, STEP = 60, 20


def curve(batches: random.Random, first: int, noise: float) -> list[dict[str, float]]:
    """Return losses that fall, with a share that each batch adds."""
    return [{"step": s, "loss": 2 * 0.95**s + batches.gauss(0, noise)} for s in range(first, STEPS + 1)]


def resumed(undisturbed: list[dict[str, float]], batches: random.Random, noise: float) -> list[dict[str, float]]:
    return undisturbed[:STEP] + curve(batches, STEP + 1, noise)


@pytest.mark.parametrize("seed", range(20))
def test_batches_that_come_again_are_told_from_others(seed: int) -> None:
    undisturbed = curve(random.Random(seed), 1, 0.1)
    assert repeats_batches(undisturbed, resumed(undisturbed, random.Random(seed), 0.1), STEP)
    assert not repeats_batches(undisturbed, resumed(undisturbed, random.Random(seed + 100), 0.1), STEP)
    assert not repeats_batches(undisturbed, undisturbed, STEP), "as if it had never been killed"


def test_a_smooth_curve_says_nothing_of_batches() -> None:
    smooth = curve(random.Random(0), 1, 0.0)
    assert not repeats_batches(smooth, resumed(smooth, random.Random(0), 0.0), STEP)
    assert not repeats_batches(smooth[:25], smooth[:25], STEP), "too short"


def test_the_step_of_scores_is_that_of_their_last_digit() -> None:
    assert _resolution([3.2, 3.21]) == 0.01
    assert _resolution([3.0, 4.0]) == 0.1
    assert _resolution([1e-05]) == 1e-05


def test_files_that_a_script_names_are_found_as_they_change(tmp_path: Path) -> None:
    outside, script = tmp_path / "outside", tmp_path / "train.py"
    outside.mkdir()
    script.write_text(f"open('{outside}/best.txt', 'w')  # and not {tmp_path}/nowhere\nsave(\"{outside}\")\n")
    (outside / "old.txt").touch()
    os.utime(outside / "old.txt", ns=(0, 0))
    since_ns = now_ns(tmp_path)
    wait_for(lambda: now_ns(tmp_path) > since_ns, "a tick of the file system's clock")
    (outside / "best.txt").touch()
    assert list(named_paths([script], ["train.py", "/usr/bin/python3"])) == [outside, outside / "best.txt"]
    assert written_since(since_ns, outside, ()) == {"best.txt"}
    assert written_since(since_ns, tmp_path, {outside}) == set()
    assert written_since(since_ns, outside / "best.txt", ()) == {""}
