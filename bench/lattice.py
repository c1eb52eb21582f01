"""Write what a results folder has of whole lattices as tables: `python -m bench.lattice RESULTS FOLDER`.

One file a strategy, `TASK-STRATEGY.csv`, which `bench.simulate --table` and `make bench-verdicts` read. Made of
`ettsweep grid --model vit-digits --strategy ntk --range lr=-3:3 --range wd=-3:3 --seeds 100,101,...,119`.
The folder has the runs of one model and recipe. Points that lack a seed that others have are left out, and said.
"""

import argparse
import csv
from collections import Counter
from itertools import groupby
from pathlib import Path

from bench.recorded import METRICS, read_table
from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.runs.index import Run, load_run_index

COLUMNS = ("lr", "wd", "seed", *METRICS)


def main() -> None:
    """Write the tables, and say of each how large it is; one with holes is left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", help="instead of the task's name, such as that of the images")
    options = parser.parse_args()
    runs = sorted(load_run_index(options.results).runs.values(), key=family)
    for (model, task, strategy), members in groupby(runs, family):
        finished = [(run.spec, run.result) for run in members if run.result]
        rows = sorted(
            [spec.lr, spec.wd, spec.seed, *(result.get(name) for name in METRICS)] for spec, result in finished
        )
        seeds = {row[2] for row in rows}
        points = Counter((lr, wd) for lr, wd, *_ in rows)
        if incomplete := [point for point, count in points.items() if count < len(seeds)]:
            print(f"{model}, {strategy}: left out {format_count(len(incomplete), 'point')} without all seeds")
            rows = [row for row in rows if points[row[0], row[1]] == len(seeds)]
        name = options.name or task
        path = options.folder / f"{name}-{strategy}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
        try:
            table_result = read_table(path)
        except InputError as error:
            path.unlink()
            print(f"left out: {error}")
        else:
            print(
                f"{path}: {len(table_result.log2_lr)} x {len(table_result.log2_wd)} points, {table_result.seeds()} seeds"
            )


def family(run: Run) -> tuple[str, str, str]:
    """Return model, task and strategy."""
    return run.model, run.spec.task.name, run.strategy


if __name__ == "__main__":
    main()
