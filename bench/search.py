"""Measure what finds an optimum, and verifies it, with the fewest runs: `make bench-search`.

It prints a row for each world, way to search, start and number of slots. Each row is of simulated sweeps that are
searched so, with one seed a point, and then go through the same rounds until their verdict stands. `global` is the share
whose candidate is within the margin of the best point of the lattice; `wall` counts rounds of runs that train at once.
On a recorded lattice `off` may be `mapped`: the search starts from the optimum of the other strategy that was recorded.
"""

import argparse
import math
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from bench.recorded import Recorded, Table
from bench.simulate import WAYS, Series, Way, centre_alone, open_workers, run_series, summary
from bench.tables import chosen, facts, formatted, print_header, print_line, rows_with_kept, write_json
from bench.verdicts import MAX_RUNS, worlds
from bench.worlds import Made, Place
from ettsweep.process_pool import Pool
from ettsweep.processes import cores
from ettsweep.study.budget import Budget
from ettsweep.study.criterion import Criterion

MAPPED = "mapped"
OFF = ("0", "1", "2", "4", MAPPED)
SLOTS = (1, 8)
MARGINS = {"bowl .12": 0.05, "digits-ntk, process": 0.05, "digits-standard, process": 0.05}
"""Margins of worlds whose noise is high; of others 2%."""

BEYOND = {"gp": 24, "factorial": 24}
"""Sweeps at most of ways that take long to simulate."""

UNTRIED = ("surface", "climb", "factorial")
"""Ways to which nobody says how many points they may propose."""

COLUMNS = ("world", "margin", "slots", "off", "way", "trials", "sweeps", "declared", "runs", "median", "90%", "wall")
COLUMNS += ("global", "regret", "bound holds")

FORMATS = dict.fromkeys(("declared", "global", "bound holds"), ".2f") | {"margin": ".3g%", "regret": ".3g%"}
KEYS = ("world", "slots", "off", "way", "trials")

Row = dict[str, float | str | None]


def searched() -> dict[str, tuple[Made | Recorded, Table | None]]:
    """Return the worlds that are searched: of each recorded lattice the smooth one."""
    return {name: item for name, item in worlds().items() if not item[1] or name.endswith(", process")}


def rows(pool: Pool, options: argparse.Namespace) -> Iterator[Row]:
    worlds_result = searched()
    for name in chosen(worlds_result, options.only):
        (world, table), other = worlds_result[name], other_best(name, worlds_result)
        margin = MARGINS.get(name, 0.02)
        study = centre_alone((0,), Criterion(margin=margin), table)
        for slots, off, method in product(options.slots, options.off, options.ways):
            if off == MAPPED and other is None:
                continue
            start = {"start": other} if off == MAPPED else {"off": int(off)}
            sweeps = min(options.sweeps, BEYOND.get(method, options.sweeps))
            for trials in (None,) if method in UNTRIED else options.trials:
                series = Series(study, world, Budget(MAX_RUNS), slots, Way(method, trials, **start))
                told = summary([outcome for (outcome,) in run_series(pool, series, range(sweeps))])
                values = (name, margin, slots, off, method, trials, sweeps, *(told[key] for key in COLUMNS[7:]))
                yield dict(zip(COLUMNS, values, strict=True))


def other_best(name: str, reference: dict[str, tuple[Made | Recorded, Table | None]]) -> Place | None:
    """Return the best place of the same model's lattice of another strategy; None if there is none.

    The centre of each is the map of that of the other.
    """
    model = name.partition("-")[0]
    others = [world for item, (world, table) in reference.items() if table and item != name and item.startswith(model)]
    return others[0].best if reference[name][1] and others else None


def told(row: Row) -> list[str]:
    """Return the cells of a row as the table has them."""
    return [formatted(row[column], FORMATS.get(column, ".3g")) for column in COLUMNS]


def main() -> None:
    """Print the table as markdown, and write it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=48)
    parser.add_argument("--only", nargs="*", default=[], help="worlds whose names hold one of these")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--off", nargs="*", default=list(OFF), choices=OFF)
    parser.add_argument("--slots", type=int, nargs="*", default=list(SLOTS))
    parser.add_argument("--trials", type=int, nargs="*", default=[15, 30])
    parser.add_argument("--json", type=Path, help="a file for all of it; other rows that it has are kept")
    parser.add_argument("--kept", action="store_true", help="print the rows of the file of --json and measure nothing")
    options = parser.parse_args()
    start_s, result = time.perf_counter(), list[Row]()
    print_header(COLUMNS)
    if options.kept:
        for row in in_order(options.json, []):
            print_line(told(row))
        return
    with open_workers(cores()) as pool:
        for row in rows(pool, options):
            result.append(row)
            print_line(told(row))
            if options.json:
                versions = facts("numpy") | {"wall_s": math.ceil(time.perf_counter() - start_s)}
                write_json(options.json, {"versions": versions, "rows": in_order(options.json, result)})


def in_order(path: Path, result: list[Row]) -> list[Row]:
    """Return rows with those of a file that were not measured again, of worlds that there still are."""
    return sorted((row for row in rows_with_kept(path, result, KEYS) if row["world"] in searched()), key=order)


def order(row: Row) -> tuple[int, ...]:
    """Return where a row stands in the table."""
    world, off, method = [*searched()].index(row["world"]), OFF.index(row["off"]), WAYS.index(row["way"])
    return world, row["slots"], off, method, row["trials"] or 0


if __name__ == "__main__":
    main()
