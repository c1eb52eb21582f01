"""Measure all that is worth knowing on a GPU, in steps of less than eight minutes: `make bench-all-gpu`.

Each step leaves a JSON file, written after each of its items, and needs no other. At the end there is a table of what was
measured against what is aimed at. An item that fails says why, and the next one goes on.
"""

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [folder for folder in map(str, (CHECKOUT, CHECKOUT / "tests")) if folder not in sys.path]

from bench.session import offline  # noqa: E402 (also called as a file, of a checkout that is not installed)
from bench.session.frame import take  # noqa: E402
from bench.session.steps import BUDGET_S, NAMES, make_step  # noqa: E402


def steps_asked(text: str) -> list[int]:
    """Return the steps that are to be taken; none for the table alone."""
    if text in ("all", "table"):
        return list(NAMES) if text == "all" else []
    if set(numbers := text.split(",")) <= set(map(str, NAMES)):
        return [int(number) for number in numbers]
    raise argparse.ArgumentTypeError(f"one of 1 to {max(NAMES)}, several as in 2,5, all, or table; not {text}")


def main() -> None:
    """Take the steps asked for, and print the table of all that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    named = ", ".join(f"{number} {name}" for number, name in NAMES.items())
    parser.add_argument("--step", type=steps_asked, default="all", metavar="N", help=f"{named}; 2,5; all; table")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "results" / "benchmarks" / "gpu", metavar="DIR")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try all of it on a CPU")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="seconds of a step")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="packages for a Python that lacks some")
    parser.add_argument("--target", type=Path, metavar="DIR", help="where these are put; a temporary folder by default")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ettsweep-gpu-") as folder:
        work = Path(folder)
        (work / "tmp").mkdir()
        target = (asked.target or work / "packages").resolve() if asked.wheels else None
        if asked.wheels and target:
            offline.install(asked.wheels, target)
        os.environ |= offline.environment(work, target)
        if target:
            sys.path.insert(0, str(target))
        header = {"command": shlex.join(sys.orig_argv), "small": asked.small}
        for number in asked.step:
            step = make_step(number, work, small=asked.small, budget_s=asked.budget_s)
            print(f"step {number}, {step.name}: {len(step.items)} items, {step.budget_s:.0f} s at most", flush=True)
            take(step, out, work / f"{step.name}.log", header)
        try:
            from bench.session import targets  # needs packages that may have come just now

            targets.show(out)
        except ModuleNotFoundError as error:
            print(f"no table: no module {error.name}; --step table makes it where that is, of the files in {out}")


if __name__ == "__main__":
    main()
