"""Write what a results folder has of whole lattices as tables: `python -m bench.lattice RESULTS FOLDER`.

One file a strategy, `TASK-STRATEGY.csv`, which `bench.simulate --table` and `make bench-verdicts` read. Made of
`ettsweep grid --model vit-digits --strategy ntk --range lr=-3:3 --range wd=-3:3 --seeds 100,101,...,119`.
The folder has the runs of one model and recipe. Points that lack a seed that others have are left out, and said.
"""

import argparse
from pathlib import Path

import pandas as pd

from bench.recorded import METRICS, read_table
from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.runs.index import load_run_index
from ettsweep.strategies.strategy import strategy_name

AXES, COLUMNS = ["lr", "wd"], ["lr", "wd", "seed", *METRICS]


def main() -> None:
    """Write the tables, and say of each how large it is; one with holes is left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", help="instead of the task's name, such as that of the images")
    options = parser.parse_args()
    rows = [
        {"model": run.labels.model, "task": run.labels.task, "strategy": strategy_name(run.spec.strategy.s)}
        | dict(zip(COLUMNS, (run.spec.lr, run.spec.wd, run.spec.seed, *map(run.result.get, METRICS)), strict=True))
        for run in load_run_index(options.results).runs.values()
        if run.result
    ]
    for (model, task, strategy), table in pd.DataFrame(rows).groupby(["model", "task", "strategy"]):
        seeds = table.groupby(AXES)["seed"].transform("size")
        whole = table[seeds == table["seed"].nunique()]
        if incomplete := len(table[AXES].drop_duplicates()) - len(whole[AXES].drop_duplicates()):
            print(f"{model}, {strategy}: left out {format_count(incomplete, 'point')} without all seeds")
        path = options.folder / f"{options.name or task}-{strategy}.csv"
        whole.sort_values(COLUMNS)[COLUMNS].to_csv(path, index=False)
        try:
            read = read_table(path)
        except InputError as error:
            path.unlink()
            print(f"left out: {error}")
        else:
            print(f"{path}: {len(read.log2_lr)} x {len(read.log2_wd)} points, {read.seeds()} seeds")


if __name__ == "__main__":
    main()
