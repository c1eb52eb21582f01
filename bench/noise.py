"""What real seeds do on recorded lattices, as tables: `python -m bench.noise results/lattices/*.csv`.

Of log losses (of accuracies where a table has no losses, in points), means of points and of seeds are taken out; what is
left are residuals. Lattices have five values or more along each axis. Shapes: L values of lr, W of wd, S seeds, P points, D draws.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import linregress

from bench.recorded import Table, read_table
from bench.tables import Row, show
from ettsweep.seeding import derive_seed
from ettsweep.study.surface import Array

AXES = ("lr", "wd")
DRAWS = 400
"""Lattices of independent noise that each table is held against."""

FAR = 3
"""Points that are apart by this many steps, along lr or wd, are far from each other."""


def main() -> None:
    """Print a table on what is left once seeds have their means, and one on what a seed does to all points."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    tables = {path.stem: read_table(path) for path in parser.parse_args().tables}
    show(residual_row(name, table) for name, table in tables.items())
    print()
    show(total_row(name, table) for name, table in tables.items())
    print()
    lrs = max(len(table.log2_lr) for table in tables.values())
    show(share_row(name, table, lrs) for name, table in tables.items())


def residual_row(name: str, table: Table) -> Row:
    """Return the noise of a table; in brackets what independent normal noise gives, and by how much it varies.

    That noise has as many points and seeds and the same sd at each point, so that it shows what taking out means does.
    """
    y_LWS = table.values
    measured, (expected, chance) = residual_statistics(y_LWS), independent_noise(y_LWS)
    steps = [f"{axis[1] - axis[0]:g}" for axis in (table.log2_lr, table.log2_wd)]
    return {
        "table": name,
        "lattice": " x ".join(map(str, y_LWS.shape[:2])) + f", steps {', '.join(steps)}",
        "seeds": y_LWS.shape[2],
        "noise in a seed, %": f"{100 * noise_sd(y_LWS):.3g}",
        "common to a seed, %": f"{100 * common_sd(y_LWS):.3g}",
        **{key: f"{measured[key]:+.2f} ({expected[key]:+.2f} ± {chance[key]:.2f})" for key in measured},
    }


def total_row(name: str, table: Table) -> Row:
    """Return correlations over seeds of two points, with what is common to a seed: only means of points are out."""
    z_LWS = standardised(table.values - table.values.mean(2, keepdims=True))
    lags = {
        f"{axis}, {step}": f"{correlation(z_LWS, step, k):+.2f}" for k, axis in enumerate(AXES) for step in (1, 2, 3, 4)
    }
    return {"table": name, **lags, "far": f"{far_correlation(z_LWS):+.2f}"}


def share_row(name: str, table: Table, lrs: int) -> Row:
    """Return how much of their noise runs of one seed and one lr share, from the lowest of up to so many lr on.

    That of the best mean is in bold.
    """
    cells = [f"{share:.2f}" for share in shares_by_lr(table.values).tolist()]
    best = int(np.argmin(table.values.mean(2).min(1)))
    cells[best] = f"**{cells[best]}**"
    keys = [f"lr {k + 1}" for k in range(lrs)]
    return {"table": name, **dict.fromkeys(keys, ""), **dict(zip(keys, cells, strict=False))}


# --- quantities of scores y_LWS ---------------------------------------------------------------------------------------


def residuals(y_LWS: Array) -> Array:
    """Return scores less means of points and of seeds."""
    return np.asarray(y_LWS - y_LWS.mean(2, keepdims=True) - y_LWS.mean((0, 1)) + y_LWS.mean())


def noise_sd(y_LWS: Array) -> float:
    """Return the sd of a run within its seed, pooled over points."""
    lrs, wds, seeds = y_LWS.shape
    return float(np.sqrt((residuals(y_LWS) ** 2).sum() / ((lrs * wds - 1) * (seeds - 1))))


def common_sd(y_LWS: Array) -> float:
    """Return the sd of what a seed adds to all points alike."""
    points = y_LWS.shape[0] * y_LWS.shape[1]
    variance = y_LWS.mean((0, 1)).var(ddof=1) - noise_sd(y_LWS) ** 2 / points
    return float(np.sqrt(max(0.0, variance)))


def standardised(r_LWS: Array) -> Array:
    """Return residuals in units of the sd of their point."""
    return np.asarray(r_LWS / np.sqrt((r_LWS**2).mean(2, keepdims=True)))


def correlation(z_LWS: Array, step: int, axis: int) -> float:
    """Return the correlation over seeds of two points that are `step` apart along lr (axis 0) or wd (1)."""
    z = np.moveaxis(z_LWS, axis, 0)
    return float((z[step:] * z[:-step]).mean())


def shares_by_lr(y_LWS: Array) -> Array:
    """Return which share of their noise two runs of one seed have in common that are one step of wd apart, [L].

    That is what the variance of their difference lacks to the sum of both variances.
    """
    r_LWS = residuals(y_LWS)
    both_L = (r_LWS[:, 1:] ** 2 + r_LWS[:, :-1] ** 2).sum((1, 2))
    return np.asarray(1 - (np.diff(r_LWS, axis=1) ** 2).sum((1, 2)) / both_L)


def far_correlation(z_LWS: Array) -> float:
    """Return the correlation over seeds of two points that are far from each other."""
    lrs, wds, seeds = z_LWS.shape
    z_PS = z_LWS.reshape(-1, seeds)
    at_P2 = np.stack(np.divmod(np.arange(lrs * wds), wds), 1)
    far_PP = np.abs(at_P2[:, None] - at_P2).max(2) >= FAR
    return float((z_PS @ z_PS.T / seeds)[far_PP].mean())


def residual_statistics(y_LWS: Array) -> dict[str, float]:
    """Return what residuals tell: correlations of a seed's at points 1 and 2 steps apart, growth of the sd, tails.

    Growth is that of the log of the sd, for each step up in lr and in wd, and for each unit of the mean log loss.
    """
    r_LWS = residuals(y_LWS)
    z_LWS, variance_LW = standardised(r_LWS), (r_LWS**2).mean(2)
    return {
        **{f"r, {axis} {step}": correlation(z_LWS, step, k) for k, axis in enumerate(AXES) for step in (1, 2)},
        "log sd a step of lr": growth(np.log(variance_LW.mean(1)) / 2),
        "log sd a step of wd": growth(np.log(variance_LW.mean(0)) / 2),
        "log sd by log loss": float(linregress(y_LWS.mean(2).ravel(), np.log(variance_LW).ravel() / 2).slope),
        "excess kurtosis": float((z_LWS**4).mean()) - 3,
    }


def growth(value_N: Array) -> float:
    """Return the slope of values that are one step from each other."""
    return float(linregress(range(len(value_N)), value_N).slope)


def independent_noise(y_LWS: Array) -> tuple[dict[str, float], dict[str, float]]:
    """Return mean and sd of `residual_statistics` of independent normal noise around the means of the points."""
    r_LWS, seeds = residuals(y_LWS), y_LWS.shape[2]
    f_LW1, sd_LW1 = y_LWS.mean(2, keepdims=True), np.sqrt((r_LWS**2).sum(2, keepdims=True) / (seeds - 1))
    rng = np.random.default_rng(derive_seed(0, "independent", 0))
    draws = [residual_statistics(f_LW1 + sd_LW1 * rng.standard_normal(y_LWS.shape)) for _ in range(DRAWS)]
    frame = pd.DataFrame(draws)
    return frame.mean().to_dict(), frame.std(ddof=0).to_dict()


if __name__ == "__main__":
    main()
