"""Steps of a small model on several threads, on cores that are idle and on cores that other work uses too.

Threads of OpenMP wait for each other by spinning, or, as workers have them, by going to sleep after a moment:

    make bench-busy

prints steps a second of vit-digits, medians, each way in a process of its own, in turn.
"""

import argparse
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack

from ettsweep.processes import cores

STEPS = """
import sys, time, torch
from bench.ensemble import DIGITS, made
threads, seconds = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(threads)
trainer = made(DIGITS, torch.device("cpu"))
batches = trainer.task.batches(1)
trainer.train_step(0.0, batches)
began_s, steps = time.perf_counter(), 0
while time.perf_counter() - began_s < seconds:
    trainer.train_step(0.0, batches)
    steps += 1
print(steps / (time.perf_counter() - began_s))
"""


def steps_a_second(threads: int, bounded: bool, seconds: float) -> float:
    """Measure in a process of its own, since how threads wait is settled when torch is imported."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    bound = "from ettsweep.trainer.device import limit_spinning; limit_spinning()\n" if bounded else ""
    command = [sys.executable, "-c", bound + STEPS, str(threads), str(seconds)]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(completed.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    values = [(1, True), (2, False), (2, True)]
    print(f"{'beside':>8}  " + "  ".join(f"{n} thread{'s' * (n > 1)}{'' if b else ', spinning'}" for n, b in values))
    for busy in (0, cores()):
        with ExitStack() as beside:
            for _ in range(busy):
                loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                beside.callback(loop.wait)
                beside.callback(loop.kill)
            turns = [[steps_a_second(*method, args.seconds) for method in values] for _ in range(args.turns)]
        medians = [statistics.median(method) for method in zip(*turns, strict=True)]
        print(f"{busy:>8}  " + "  ".join(f"{rate:,.1f}" for rate in medians), flush=True)


if __name__ == "__main__":
    main()
