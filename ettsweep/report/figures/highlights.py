"""Which points of a family stand out among its curves: the candidate and its neighbours in colours, all others grey."""

import pandas as pd

from ettsweep.report.formats import GREY, strategy_colour

NEIGHBOUR_COLOURS = ("#e69f00", "#009e73", "#56b4e9", "#8c510a", "#0072b2", "#d55e00", "#cc79a7")
"""Okabe and Ito's colour-blind-safe palette and a brown, for the neighbours of a candidate."""

OTHER_POINTS = "other points"
"""Label of all points that do not stand out."""


def label_points(points: pd.DataFrame, max_others: int | None = None) -> pd.DataFrame:
    """Return the points to draw: others, the best first, after the candidate and its neighbours by score.

    Columns: point, role, label (of the legend), colour.
    """
    ranked = points.sort_values("score", ascending=points["metric"].iloc[0].mode == "min", na_position="last")
    candidate, neighbours, others = (ranked[ranked["role"] == role] for role in ("candidate", "neighbour", "other"))
    others = others.head(len(others) if max_others is None else max_others)
    colour = strategy_colour(str(points["strategy"].iloc[0]))
    # The palette contains the colours of ntk and mup.
    palette = [other for other in NEIGHBOUR_COLOURS if other != colour]
    colours = [*[colour] * len(candidate), *palette[: len(neighbours)], *[GREY] * len(others)]
    selected = pd.concat([candidate, neighbours, others])[["point", "role", "told", "state"]]
    best = selected["told"].where(selected["told"] != "", selected["state"])
    label = (selected["point"] + " [" + best + "]").where(selected["role"] != "other", OTHER_POINTS)
    return selected.assign(label=label, colour=colours)[["point", "role", "label", "colour"]].reset_index(drop=True)
