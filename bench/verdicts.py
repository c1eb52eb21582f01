"""Measure whether verdicts are as sure as they say, on worlds whose truth is known: `make bench-verdicts`.

It prints a row for each surface, margin and confidence, and as many for the paper's rule. Each row is of simulated
sweeps that ask for the centre alone, with two seeds, and go on through the real rounds.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import beta

from bench.recorded import Recorded, Table, read_table
from bench.simulate import Outcome, Series, centre_alone, open_workers, outcomes, summary
from bench.tables import facts
from bench.worlds import Made
from ettsweep.process_pool import Pool
from ettsweep.study.budget import Budget
from ettsweep.study.criterion import Criterion

CONFIDENCES = (0.8, 0.9, 0.95, 0.99)
MARGINS = (0.01, 0.02, 0.05)
PAPER_SEEDS = (1, 3, 6, 10)
MADE = {
    "bowl .04": Made("bowl", 0.04),
    "bowl .12": Made("bowl", 0.12),
    "ridge .06": Made("ridge", 0.06),
    "plateau .06": Made("plateau", 0.06),
    "cliff .06": Made("cliff", 0.06),
    "several .06": Made("several", 0.06),
    "rough .06": Made("rough", 0.06),
    "growing .06": Made("growing", 0.06),
    "heavy .06": Made("bowl", 0.06, "heavy"),
}
RECORDED = Path(__file__).parents[1] / "results" / "benchmarks"
MAX_RUNS = 300
DOUBT = 0.01
"""Of the one-sided bound that a share of bounds that hold is given, from below and from above."""

COLUMNS = ("world", "rule", "stated", "margin", "sweeps", "declared", "right", "holds", "from", "to", "caveat")
COLUMNS += ("runs", "median", "90%", "regret")

Row = dict[str, float | str | None]


def worlds() -> dict[str, tuple[Made | Recorded, Table | None]]:
    """Return all worlds by name, each with the table that it was recorded in."""
    by_name: dict[str, tuple[Made | Recorded, Table | None]] = {name: (world, None) for name, world in MADE.items()}
    for path in sorted(RECORDED.glob("digits-*.json.gz")):
        table = read_table(path)
        by_name[f"recorded {path.name.removesuffix('.json.gz')}"] = Recorded(table), table
    return by_name


def row(name: str, rule: str, declared: float | None, margin: float, result: Sequence[Outcome]) -> Row:
    """Return what became of sweeps; `from` and `to` hold the share of bounds that hold, each with a doubt of 1%."""
    holds = [item.holds for item in result if item.holds is not None]
    n, k = len(holds), sum(holds)
    told = summary(result)
    return {
        "world": name,
        "rule": rule,
        "stated": declared,
        "margin": margin,
        "sweeps": len(result),
        "declared": told["declared"],
        "right": told["right"],
        "holds": told["bound holds"],
        "from": (float(beta.ppf(DOUBT, k, n - k + 1)) if k else 0.0) if n else None,
        "to": (float(beta.ppf(1 - DOUBT, k + 1, n - k)) if k < n else 1.0) if n else None,
        "caveat": float(np.mean([bool(item.caveat) for item in result])) if rule == "bound" else None,
        **{key: told[key] for key in ("runs", "median", "90%", "regret")},
    }


def rows(pool: Pool, options: argparse.Namespace) -> Iterator[Row]:
    for name, (world, table) in worlds().items():
        if options.only and not any(section in name for section in options.only):
            continue
        for margin in options.margins:
            for confidence in options.confidences:
                study = centre_alone((0, 1), Criterion(confidence=confidence, margin=margin), table)
                budget = Budget(MAX_RUNS, table.seeds() if table else None)
                outcomes_result = list(outcomes(pool, Series(study, world, budget), options.sweeps))
                yield row(name, "bound", confidence, margin, outcomes_result)
        for seeds in options.paper_seeds:
            study = centre_alone(tuple(range(seeds)), Criterion(rule="paper"), table)
            outcomes_result = list(outcomes(pool, Series(study, world, Budget(10 * MAX_RUNS)), options.sweeps))
            for margin in options.margins:  # means ask for none
                replaces = [replace(item, margin=margin) for item in outcomes_result]
                yield row(name, f"paper, {seeds} seed{'s' * (seeds > 1)}", None, margin, replaces)


def told(column: str, value: float | str | None) -> str:
    """Return a cell as the table has it."""
    if value is None or isinstance(value, str):
        return value or ""
    if column in ("runs", "median", "90%", "sweeps"):
        return f"{value:.0f}"
    return f"{100 * value:.3g}%" if column in ("margin", "regret") else f"{value:.2f}"


def short(result: Row) -> bool:
    """Say whether bounds hold less often than stated, beyond what chance explains."""
    return result["stated"] is not None and result["to"] is not None and float(result["to"]) < float(result["stated"])


def beside(path: Path, result: Sequence[Row]) -> list[Row]:
    """Return rows with those of a file that were not measured again, so that it may be made in parts."""
    data = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {tuple(row[key] for key in ("world", "rule", "stated", "margin")): row for row in [*data, *result]}
    return [
        rows[key] for key in sorted(rows, key=lambda key: ([*worlds()].index(key[0]), key[1:2], key[3], key[2] or 0))
    ]


def main() -> None:
    """Print the table as markdown, flag what falls short, and write all of it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=[], help="worlds whose names hold one of these")
    parser.add_argument("--confidences", type=float, nargs="*", default=list(CONFIDENCES))
    parser.add_argument("--margins", type=float, nargs="*", default=list(MARGINS))
    parser.add_argument("--paper-seeds", type=int, nargs="*", default=list(PAPER_SEEDS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for all of it; other rows that it has are kept")
    options = parser.parse_args()
    start_s, result = time.perf_counter(), []
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with open_workers(options.workers) as pool:
        for item in rows(pool, options):
            result.append(item)
            cells = [told(column, item[column]) for column in COLUMNS]
            print(f"| {' | '.join(cells)} |{' falls short' if short(item) else ''}", flush=True)
    versions = facts("numpy") | {"wall_s": math.ceil(time.perf_counter() - start_s)}
    print(json.dumps(versions))
    if options.json:
        options.json.write_text(
            json.dumps({"versions": versions, "rows": beside(options.json, result)}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
