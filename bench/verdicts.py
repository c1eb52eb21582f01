"""Measure whether verdicts are as sure as they say, on worlds whose truth is known: `make bench-verdicts`.

It prints a row for each world, margin and confidence, and as many for the paper's rule. Each row is of simulated sweeps
that ask for the centre alone, with two seeds, and go on through the real rounds. The truth of a world is known exactly
and its seeds are fresh, so nothing is allowed for: a row falls short where bounds hold, or declared optima are right,
less often than stated by more than chance explains, at 99% over the whole table (Holm).
"""

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import islice, product
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from bench.chance import DOUBT, too_small
from bench.recorded import Recorded, Table, read_table
from bench.simulate import Outcome, Series, centre_alone, open_workers, run_series, summary
from bench.tables import chosen, facts, formatted, print_header, print_line, rows_with_kept, write_json
from bench.worlds import Made
from ettsweep.process_pool import Pool
from ettsweep.processes import cores
from ettsweep.study.budget import Budget
from ettsweep.study.criterion import Criterion

CONFIDENCES = (0.8, 0.9, 0.95)
MARGINS = (0.02, 0.05)
PAPER_SEEDS = (1, 3, 10)
MADE = ("bowl .04", "bowl .12", "ridge .06", "plateau .06", "cliff .06", "several .06", "rough .06", "ripples .04")
MADE += ("growing .06", "uneven .06", "heavy .06", "edge .06", "tilting .06", "shifting .06", "brink .06")
MADE += ("sharp stability .04", "stability .04", "wide stability .04")
"""Surfaces with the noise of a run on them; `heavy` is a bowl whose noise has heavy tails."""

LATTICES = Path(__file__).parents[1] / "results" / "lattices"
MAX_RUNS, SLOTS = 300, 4

MORE = 4
"""Times as many sweeps for rows that may fall short: so one whose bounds hold in 0.90 instead of 0.95 is found with a
probability of 0.97, and rows that are far from it cost no more."""

STEP = 20
"""Sweeps after which they are kept, so that a benchmark that is stopped goes on there."""

COLUMNS = ("world", "rule", "stated", "margin", "sweeps", "declared", "right", "open", "holds", "from", "to", "gross")
COLUMNS += ("edge", "runs", "median", "90%", "foreseen", "within", "regret")

FORMATS = dict.fromkeys(("runs", "median", "90%", "sweeps"), ".0f") | {"margin": ".3g%", "regret": ".3g%"}

Row = dict[str, float | str | None]


@cache
def worlds() -> dict[str, tuple[Made | Recorded, Table | None]]:
    """Return all worlds by name, each with the table that it was recorded in.

    A recorded lattice is held to each form of its truth, and once to seeds drawn from the recorded ones themselves.
    """
    by_name = dict[str, tuple[Made | Recorded, Table | None]]()
    for name in MADE:
        surface, _, noise = name.rpartition(" ")
        heavy = surface == "heavy"
        by_name[name] = Made("bowl", float(noise), "heavy") if heavy else Made(surface, float(noise)), None
    for path in sorted(LATTICES.glob("*.csv")):
        table, name = read_table(path), path.stem
        for truth in table.truths:
            by_name[f"{name}, {truth}"] = Recorded(table, truth), table
        by_name[f"{name}, bootstrap"] = Recorded(table, noise="bootstrap"), table
    return by_name


class Kept:
    """Sweeps of series in a file of JSON lines, so that a benchmark that was stopped goes on there.

    A line has what the sweep was of, its outcomes, and a digest of the code: those of other code do not count.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.sweeps = path, dict[tuple[str, float, str, int], list[list[Outcome]]]()
        self.code = code_digest()
        if path and path.exists():
            for line in path.read_text().splitlines():
                *key, code, outcomes = json.loads(line)
                if code == self.code:
                    found = [Outcome(**outcome | {"foreseen": tuple(outcome["foreseen"])}) for outcome in outcomes]
                    self.sweeps.setdefault(tuple(key), []).append(found)

    def run(self, pool: Pool, name: str, rule: str, series: Series, sweeps: int) -> list[list[Outcome]]:
        """Return the first sweeps of a series, that many; those that are not kept yet are run, and kept."""
        key = name, series.study.criterion.margin or 0.0, rule, series.slots
        done = self.sweeps.setdefault(key, [])
        running = run_series(pool, series, range(len(done), sweeps))
        while chunk := list(islice(running, STEP)):
            done += chunk
            if self.path:
                with self.path.open("a") as file:
                    for outcomes in chunk:
                        file.write(json.dumps([*key, self.code, [asdict(item) for item in outcomes]]) + "\n")
        return done[:sweeps]


def code_digest() -> str:
    """Return a digest of what a simulated sweep depends on: all of the planner, and the worlds."""
    root = Path(__file__).parents[1]
    files = [*sorted((root / "ettsweep" / "study").glob("*.py"))]
    files += [root / "bench" / name for name in ("simulate.py", "worlds.py", "recorded.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def row(name: str, rule: str, declared: float | None, margin: float, result: Sequence[Outcome]) -> Row:
    """Return what became of sweeps; `from` and `to` hold the share of bounds that hold, each with a doubt of 1%."""
    holds = [item.holds for item in result if item.holds is not None]
    undecided = [item.holds for item in result if item.holds is not None and not item.declared]
    low, high = binomtest(sum(holds), len(holds)).proportion_ci(1 - 2 * DOUBT) if holds else (None, None)
    told = summary(result)
    return {
        "world": name,
        "rule": rule,
        "stated": declared,
        "margin": margin,
        "sweeps": len(result),
        "declared": told["declared"],
        "right": told["right"],
        "open": float(np.mean(undecided)) if undecided else None,
        "holds": told["bound holds"],
        "from": low,
        "to": high,
        "gross": told["gross"],
        "edge": float(np.mean([item.is_beside_edge for item in result])) if rule == "bound" else None,
        **{key: told[key] for key in ("runs", "median", "90%", "foreseen", "within", "regret")},
    }


def rows(pool: Pool, options: argparse.Namespace) -> Iterator[Row]:
    kept, *weaker, most = Kept(options.kept), *CONFIDENCES
    for name in chosen(worlds(), options.only):
        world, table = worlds()[name]
        for margin in MARGINS:
            study = centre_alone((0, 1), Criterion(confidence=most, margin=margin), table)
            series, found = Series(study, world, Budget(MAX_RUNS), SLOTS, confidences=tuple(weaker)), list[Row]()
            for sweeps in (options.sweeps, MORE * options.sweeps):
                if not found or any(map(may_fall_short, found)):
                    by_confidence = zip(*kept.run(pool, name, "bound", series, sweeps), strict=True)
                    pairs = zip(CONFIDENCES, by_confidence, strict=True)
                    found = [row(name, "bound", confidence, margin, result) for confidence, result in pairs]
            yield from found
        for seeds in PAPER_SEEDS:
            rule = f"paper, {seeds} seed{'s' * (seeds > 1)}"
            study = centre_alone(tuple(range(seeds)), Criterion(rule="paper"), table)
            result = kept.run(pool, name, rule, Series(study, world, Budget(10 * MAX_RUNS)), options.sweeps)
            for margin in MARGINS:  # means ask for none
                yield row(name, rule, None, margin, [replace(item, margin=margin) for (item,) in result])


def may_fall_short(item: Row) -> bool:
    """`True` if bounds hold, or declared optima are right, less often than stated: such a row gets more sweeps."""
    stated = float(item["stated"] or 0)
    return any(item[column] is not None and float(item[column] or 0) < stated for column in ("right", "holds"))


def told(row: Row, columns: Sequence[str] = COLUMNS) -> list[str]:
    """Return cells of a row as the table has them."""
    return [formatted(row[column], FORMATS.get(column, ".2f")) for column in columns]


def falling_short(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Return the rows whose bounds hold, or whose declared optima are right, too rarely, each with which of both."""
    tests = list[tuple[int, int, float, tuple[Row, str]]]()
    for item, column in product(rows, ("holds", "right")):
        if item["stated"] is not None and item[column] is not None:
            n = round(float(item["sweeps"] or 0) * (1.0 if column == "holds" else float(item["declared"] or 0)))
            tests.append((round(float(item[column] or 0) * n), n, float(item["stated"]), (item, column)))
    return too_small(tests)


def order(row: Row) -> tuple[object, ...]:
    """Return where a row stands in the table."""
    return [*worlds()].index(str(row["world"])), row["rule"], row["margin"], row["stated"] or 0


def main() -> int:
    """Print the table as markdown and what falls short, and write it as JSON where asked; 1 if anything falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=[], help="worlds whose names hold one of these")
    parser.add_argument("--kept", type=Path, help="a file of sweeps: it goes on where it was stopped")
    parser.add_argument("--json", type=Path, help="a file for all of it; other rows that it has are kept")
    options = parser.parse_args()
    start_s, result = time.perf_counter(), []
    print_header(COLUMNS)
    with open_workers(cores()) as pool:
        for item in rows(pool, options):
            result.append(item)
            print_line(told(item))
    versions = facts("numpy") | {"wall_s": math.ceil(time.perf_counter() - start_s)}
    print(json.dumps(versions))
    if options.json:
        result = sorted(rows_with_kept(options.json, result, ("world", "rule", "stated", "margin")), key=order)
        write_json(options.json, {"versions": versions, "rows": result})
    short = falling_short(result)
    for item, column in short:
        world, stated, margin, share = told(item, ("world", "stated", "margin", column))
        print(f"falls short: {world}, stated {stated}, margin {margin}: {column} in {share}")
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
