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
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.stats import beta, binom

from bench.recorded import Recorded, Table, read_table
from bench.simulate import Outcome, Series, centre_alone, open_workers, run_series, summary
from bench.tables import facts
from bench.worlds import Made
from ettsweep.process_pool import Pool
from ettsweep.study.budget import Budget
from ettsweep.study.criterion import Criterion

CONFIDENCES = (0.8, 0.9, 0.95)
MARGINS = (0.02, 0.05)
PAPER_SEEDS = (1, 3, 10)
MADE = {
    "bowl .04": Made("bowl", 0.04),
    "bowl .12": Made("bowl", 0.12),
    "ridge .06": Made("ridge", 0.06),
    "plateau .06": Made("plateau", 0.06),
    "cliff .06": Made("cliff", 0.06),
    "several .06": Made("several", 0.06),
    "rough .06": Made("rough", 0.06),
    "ripples .04": Made("ripples", 0.04),
    "growing .06": Made("growing", 0.06),
    "uneven .06": Made("uneven", 0.06),
    "heavy .06": Made("bowl", 0.06, "heavy"),
    "edge .06": Made("edge", 0.06),
    "tilting .06": Made("tilting", 0.06),
    "shifting .06": Made("shifting", 0.06),
    "brink .06": Made("brink", 0.06),
    "sharp stability .04": Made("sharp stability", 0.04),
    "stability .04": Made("stability", 0.04),
    "wide stability .04": Made("wide stability", 0.04),
}
LATTICES = Path(__file__).parents[1] / "results" / "lattices"
MAX_RUNS = 300
DOUBT = 0.01
"""Of the one-sided bound that a share of bounds that hold is given, from below and from above; of the whole table."""

MORE = 4
"""Times as many sweeps for rows that may fall short: so one whose bounds hold in 0.90 instead of 0.95 is found with a
probability of 0.97, and rows that are far from it cost no more."""

STEP = 20
"""Sweeps after which they are kept, so that a benchmark that is stopped goes on there."""

COLUMNS = ("world", "rule", "stated", "margin", "sweeps", "declared", "right", "open", "holds", "from", "to", "gross")
COLUMNS += ("edge", "runs", "median", "90%", "foreseen", "within", "regret")

Row = dict[str, float | str | None]


def worlds() -> dict[str, tuple[Made | Recorded, Table | None]]:
    """Return all worlds by name, each with the table that it was recorded in.

    A recorded lattice is held to each form of its truth, and once to seeds drawn from the recorded ones themselves.
    """
    by_name: dict[str, tuple[Made | Recorded, Table | None]] = {name: (world, None) for name, world in MADE.items()}
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
        "open": float(np.mean(undecided)) if undecided else None,
        "holds": told["bound holds"],
        "from": (float(beta.ppf(DOUBT, k, n - k + 1)) if k else 0.0) if n else None,
        "to": (float(beta.ppf(1 - DOUBT, k + 1, n - k)) if k < n else 1.0) if n else None,
        "gross": told["gross"],
        "edge": float(np.mean([item.is_beside_edge for item in result])) if rule == "bound" else None,
        **{key: told[key] for key in ("runs", "median", "90%", "foreseen", "within", "regret")},
    }


def rows(pool: Pool, options: argparse.Namespace) -> Iterator[Row]:
    kept = Kept(options.kept)
    for name, (world, table) in worlds().items():
        if options.only and not any(section in name for section in options.only):
            continue
        for margin in options.margins:
            *weaker, most = sorted(options.confidences) or (None,)
            if most is None:
                break
            # Accuracies have points for shares: a tenth of them is as hard to tell.
            study = centre_alone((0, 1), Criterion(confidence=most, margin=margin), table)
            series = Series(study, world, Budget(MAX_RUNS), options.slots, confidences=tuple(weaker))
            found = _bound_rows(name, [*weaker, most], margin, kept.run(pool, name, "bound", series, options.sweeps))
            if any(may_fall_short(item) for item in found):
                more = kept.run(pool, name, "bound", series, MORE * options.sweeps)
                found = _bound_rows(name, [*weaker, most], margin, more)
            yield from found
        for seeds in options.paper_seeds:
            rule = f"paper, {seeds} seed{'s' * (seeds > 1)}"
            study = centre_alone(tuple(range(seeds)), Criterion(rule="paper"), table)
            result = kept.run(pool, name, rule, Series(study, world, Budget(10 * MAX_RUNS)), options.sweeps)
            for margin in options.margins:  # means ask for none
                yield row(name, rule, None, margin, [replace(item, margin=margin) for (item,) in result])


def _bound_rows(
    name: str, confidences: Sequence[float], margin: float, sweeps: Sequence[Sequence[Outcome]]
) -> list[Row]:
    by_confidence = zip(*sweeps, strict=True)
    pairs = zip(confidences, by_confidence, strict=True)
    return [row(name, "bound", confidence, margin, result) for confidence, result in pairs]


def may_fall_short(item: Row) -> bool:
    """`True` if bounds hold, or declared optima are right, less often than stated: such a row gets more sweeps."""
    stated = float(item["stated"] or 0)
    return any(item[column] is not None and float(item[column] or 0) < stated for column in ("right", "holds"))


def told(column: str, value: float | str | None) -> str:
    """Return a cell as the table has it."""
    if value is None or isinstance(value, str):
        return value or ""
    if column in ("runs", "median", "90%", "sweeps"):
        return f"{value:.0f}"
    return f"{100 * value:.3g}%" if column in ("margin", "regret") else f"{value:.2f}"


def falling_short(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Return the rows whose bounds hold, or whose declared optima are right, too rarely, each with which of both.

    Beyond what chance explains: at 99% over all of them (Holm).
    """
    tests = list[tuple[float, Row, str]]()
    for item in rows:
        if item["stated"] is None:
            continue
        sweeps, stated = int(item["sweeps"] or 0), float(item["stated"])
        for column, share in (("holds", 1.0), ("right", float(item["declared"] or 0))):
            if item[column] is not None:
                n = round(share * sweeps)
                tests.append((float(binom.cdf(round(float(item[column]) * n), n, stated)), item, column))
    tests.sort(key=lambda test: test[0])
    found = []
    for k, (p, item, column) in enumerate(tests):
        if p >= DOUBT / (len(tests) - k):
            break
        found.append((item, column))
    return found


def beside(path: Path, result: Sequence[Row]) -> list[Row]:
    """Return rows with those of a file that were not measured again, so that it may be made in parts."""
    data = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {tuple(row[key] for key in ("world", "rule", "stated", "margin")): row for row in [*data, *result]}
    order = [*worlds()]
    return [rows[key] for key in sorted(rows, key=lambda key: (order.index(key[0]), key[1:2], key[3], key[2] or 0))]


def main() -> int:
    """Print the table as markdown and what falls short, and write it as JSON where asked; 1 if anything falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=[], help="worlds whose names hold one of these")
    parser.add_argument("--confidences", type=float, nargs="*", default=list(CONFIDENCES))
    parser.add_argument("--margins", type=float, nargs="*", default=list(MARGINS))
    parser.add_argument("--paper-seeds", type=int, nargs="*", default=list(PAPER_SEEDS))
    parser.add_argument("--slots", type=int, default=4, help="runs that a sweep trains at a time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kept", type=Path, help="a file of sweeps: it goes on where it was stopped")
    parser.add_argument("--json", type=Path, help="a file for all of it; other rows that it has are kept")
    options = parser.parse_args()
    start_s, result = time.perf_counter(), []
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with open_workers(options.workers) as pool:
        for item in rows(pool, options):
            result.append(item)
            cells = [told(column, item[column]) for column in COLUMNS]
            print(f"| {' | '.join(cells)} |", flush=True)
    versions = facts("numpy") | {"wall_s": math.ceil(time.perf_counter() - start_s)}
    print(json.dumps(versions))
    if options.json:
        result = beside(options.json, result)
        options.json.write_text(json.dumps({"versions": versions, "rows": result}, indent=1) + "\n")
    short = falling_short(result)
    for item, column in short:
        cells = [told(key, item[key]) for key in ("world", "stated", "margin", column)]
        print("falls short: {}, stated {}, margin {}: {} in {}".format(*cells[:3], column, cells[3]))
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
