"""Simulated comparisons: does the interval of `ettsweep compare` hold as often as it says? `make bench-compare`.

Two lists whose means differ by 1 are drawn again and again. It prints a table, and fails where intervals hold less
often than stated by more than chance explains, at 99% over the whole table (Holm).
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.chance import too_small
from bench.tables import chosen, facts, print_header, print_line, write_json
from ettsweep.study.compare import compare

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

NUMBERS = (2, 3, 5, 10, 30)
CONFIDENCES = (0.8, 0.95, 0.99)
COLUMNS = ("case", "seeds", "stated", "holds", "told")


@dataclass(frozen=True)
class Case:
    """How two lists come about.

    Attributes:
        first, second: noise of a score of each; its mean is 0.
        shared: standard deviation of what both lists have in common of a seed; 0: no seeds in common.
        second_number: number of scores of the second for that of the first.
        step: to which scores are rounded; 0 if they are not.
    """

    first: Draw
    second: Draw
    shared: float = 0.0
    second_number: Callable[[int], int] = lambda n: n
    step: float = 0.0


def normal(sd: float = 1.0) -> Draw:
    return lambda rng, n: rng.normal(0.0, sd, n)


def heavy(sd: float = 1.0) -> Draw:
    """Student's t with 3 degrees of freedom: a seed in a hundred is 4.5 off."""
    return lambda rng, n: sd * rng.standard_t(3, n)


CASES = {
    "normal": Case(normal(), normal()),
    "shared noise": Case(normal(), normal(), shared=3.0),
    "little shared noise": Case(normal(), normal(), shared=0.5),
    "shared noise, unequal variances": Case(normal(), normal(4), shared=3.0),
    "shared noise, heavy tails": Case(heavy(), heavy(), shared=3.0),
    "unequal variances": Case(normal(), normal(4)),
    "heavy tails": Case(heavy(), heavy()),
    "heavy tails, unequal variances": Case(heavy(), heavy(4)),
    "twice as many": Case(normal(), normal(), second_number=lambda n: 2 * n),
    "beside 30": Case(normal(), normal(), second_number=lambda n: 30),
    "beside 30 that vary less": Case(normal(4), normal(), second_number=lambda n: 30),
    "beside 30 that vary more": Case(normal(), normal(4), second_number=lambda n: 30),
    "beside 30, heavy tails": Case(heavy(), heavy(), second_number=lambda n: 30),
    "rounded to the noise": Case(normal(), normal(), step=1.0),
    "rounded to twice the noise": Case(normal(), normal(), step=2.0),
    "rounded to ten times the noise": Case(normal(), normal(), step=10.0),
    "shared noise, rounded to twice the noise": Case(normal(), normal(), shared=3.0, step=2.0),
    "shared noise, rounded to ten times the noise": Case(normal(), normal(), shared=3.0, step=10.0),
}


def held_of(name: str, n: int, confidence: float, pairs: int, told: list[str] | None = None) -> int:
    """Return in how many of some pairs of lists the interval holds; verdicts are appended to `told`."""
    case, held = CASES[name], 0
    rng = np.random.default_rng([n, [*CASES].index(name), round(1000 * confidence)])
    m = case.second_number(n)
    for _ in range(pairs):
        common = case.shared * rng.normal(size=max(n, m))
        first = 1.0 + common[:n] + case.first(rng, n)
        second = common[:m] + case.second(rng, m)
        difference = 1.0
        if case.step:  # in units of which it is a tenth, so that a digit is what is lost
            difference = 0.1 / case.step
            offset = case.step * rng.uniform()  # where a mean lies between two steps is luck as well
            first, second = (np.round((each + offset) * difference, 1) for each in (first, second))
        lists = [dict(enumerate(each.tolist())) for each in (first, second)]
        result = compare(*lists, "max", confidence, paired=case.shared > 0)
        held += result.low <= difference <= result.high
        if told is not None:
            told.append(result.verdict)
    return held


def main() -> int:
    """Print the table as markdown, and what falls short; 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of lists of each row")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold one of these")
    parser.add_argument("--json", type=Path, help="a file for all of it")
    options = parser.parse_args()
    start_s, rows, tests = time.perf_counter(), [], []
    print_header(COLUMNS)
    for name, n, confidence in product(chosen(CASES, options.only), NUMBERS, CONFIDENCES):
        told = list[str]()
        held = held_of(name, n, confidence, options.pairs, told)
        share = sum(verdict != "unresolved" for verdict in told) / options.pairs
        row = dict(zip(COLUMNS, (name, n, confidence, held / options.pairs, share), strict=True))
        rows.append(row)
        tests.append((held, options.pairs, confidence, row))
        print_line((name, str(n), str(confidence), f"{row['holds']:.3f}", f"{share:.2f}"))
    versions = facts("numpy", "scipy") | {"pairs": options.pairs, "wall_s": round(time.perf_counter() - start_s)}
    print(json.dumps(versions))
    write_json(options.json, {"versions": versions, "rows": rows})
    short = too_small(tests)
    for row in short:
        print(f"falls short: {row['case']}, {row['seeds']} seeds, stated {row['stated']}: {row['holds']}")
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
