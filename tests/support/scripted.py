"""What runs of `tests/worker/test_training.py` do, each in a program of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ettsweep.run import Run
from support.holds import parent


def count_to(run: Run, last: int = 100) -> None:
    """Count, and save how far it is now and then."""
    state = int(run.resume_from.read_text()) if run.resume_from else 0
    assert state == run.resume_step
    for step in range(state + 1, last + 1):
        run.log(step, loss=1 / step, val_loss=1 / step)
        if step % 5 == 0:
            run.save(step, lambda path, step=step: path.write_text(str(step)))


def fill(run: Run, ballast: str) -> None:
    count_to(run, 20)
    with open(ballast, "wb") as file:  # noqa: PTH123
        try:
            while True:
                file.write(bytes(4096))
                file.flush()
        except OSError:
            pass
    for step in range(21, 50_000):
        run.log(step, loss=1 / step)


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "weights").write_bytes(bytes(2**20))


def as_torch_says_it(path: Path) -> None:
    try:
        path.write_bytes(bytes(2**20))
    except OSError:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed") from None


WRITERS: dict[str, Callable[[Path], object]] = {"a folder": a_folder, "as torch says it": as_torch_says_it}


def save_much(run: Run, writer: str) -> None:
    count_to(run, 20)
    run.log(21, loss=1.0)
    run.save(21, WRITERS[writer])


def lose_the_run(run: Run) -> None:
    from ettsweep.runs.folder import RunDir

    count_to(run, 10)
    RunDir(run.out.parent).claim({}, after=1)
    while True:
        run.log(11, loss=1.0)
        time.sleep(0.001)


def fail_in_a_save(run: Run) -> None:
    def half(path: Path) -> None:
        path.write_text("half of")
        raise RuntimeError("out of ideas")

    count_to(run, 10)
    run.log(11, loss=1.0)
    run.save(11, half)


WRONG: dict[str, Callable[[Run], object]] = {
    "back": lambda run: (run.log(2, loss=1.0), run.log(1, loss=1.0)),
    "text": lambda run: run.log(1, loss="low"),  # type: ignore[arg-type]
    "names": lambda run: run.log(1, **{f"m{k}": 1.0 for k in range(60)}),
    "no save": lambda run: (run.log(9, loss=1.0), run.save(9, lambda path: None)),
    "late": lambda run: (count_to(run, 10), run.log(10, val_loss=0.1)),
}


def go_wrong(run: Run, how: str) -> None:
    WRONG[how](run)


def show_progress(run: Run) -> None:
    for step in range(20_000):
        sys.stdout.write(f"\r{step} of 20000")
    count_to(run, 10)


def heed_by_itself(run: Run) -> None:
    """Leave early by a handler of its own."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    count_to(run, 10)
    os.kill(parent(os.getppid()), signal.SIGTERM)
    while not told:
        time.sleep(0.001)


ENDS: dict[str, BaseException] = {
    "KeyboardInterrupt": KeyboardInterrupt(),
    "it called sys.exit(3)": SystemExit(3),
}


def end_by(run: Run, reason: str) -> None:
    run.log(1, loss=1.0, val_loss=1.0)
    raise ENDS[reason]


def crash(run: Run, how: str) -> None:
    run.log(1, loss=1.0, val_loss=1.0)
    if how in ("exits", "leaves"):
        os._exit(5 if how == "exits" else 0)
    os.kill(os.getpid(), signal.SIGSEGV)


def leave_behind(run: Run, what: str) -> None:
    """End, and leave something of it in the process."""
    assert "LEFT" not in os.environ
    count_to(run, 10)
    print("pid", os.getpid())
    if what == "a failure":
        raise ValueError
    if what == "an orphan":
        subprocess.run(["sh", "-c", "sleep 600 &"], check=True)
    if what == "a folder":
        os.chdir("/")
    if what == "a variable":
        os.environ["LEFT"] = "1"


def pid_of(run: Run) -> None:
    count_to(run, 10)
    print("pid", os.getpid())
