"""Find the columns of axes, seed and score of a table, and whether low or high scores are better."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from ettsweep.errors import InputError, nearest_name
from ettsweep.study.lattice import MAX_AXES

OTHER_NAMES = {
    "lr": r"lr|base[_ ]?lr|learning[_ -]?rate",
    "wd": r"wd|weight[_ -]?decay",
    "seed": r"(?:random[_ ]?|rng[_ ]?|manual[_ ]?)?seed|random[_ ]?state",
}
"""Names of columns by trackers and trainers, without prefixes such as `params_` and `config/`."""

LOWER = r"loss|nll|perplexity|ppl|bpb|bits_per_byte|bits|err|error|top1_err|mse|rmse|mae|wer|cer|fid"
HIGHER = r"acc|accuracy|top_?1|top1|acc1|f1|auc|auroc|bleu|rouge\w*|map|miou|iou|reward|return|recall|precision|r2"
"""The last words of metrics whose lower, or higher, values are better."""

HELD_OUT = r"val|valid|validation|eval|evaluation|dev|best|final|smooth"
"""Words in the name of a metric that verdicts compare, rather than one of training."""

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Columns:
    """The columns of a table by what they are, as stated or found.

    Attributes:
        axes: columns of the axes by the axes' names.
        score: of the score.
        seed: of the seed; empty without one.
        by: columns whose values each make a table of their own.
    """

    axes: Mapping[str, str]
    score: str = ""
    seed: str = ""
    by: Sequence[str] = ()

    @classmethod
    def stated(cls, axes: str, score: str, seed: str, by: str = "") -> "Columns":
        """Return the columns that options state: axes and `by` are separated by commas, an axis may be NAME=COLUMN.

        Raises:
            InputError: there are more axes than two, or a name is empty or given twice.
        """
        pairs = [(name.strip(), column.strip()) for name, _, column in (each.partition("=") for each in _names(axes))]
        named = {name: column or name for name, column in pairs}
        if "" in named:
            raise InputError(f"--axes: NAME or NAME=COLUMN is expected, such as lr or lr=learning_rate, got {axes}")
        if len(named) < len(pairs) or len({*named.values()}) < len(pairs):
            raise InputError(f"--axes: {axes} names an axis twice")
        if len(named) > MAX_AXES:
            raise InputError(f"--axes: one or two axes are expected, got {', '.join(named)}; --by splits by others")
        return cls(named, score, seed, _names(by))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def mode_of(name: str) -> Mode | None:
    """Return whether low or high values of a metric are better, by its name; None if that is open."""

    def ends_with(pattern: str) -> bool:
        return bool(re.search(rf"(?:^|_)(?:{pattern})(?:_?\d+)?$", _words(name)))

    return "min" if ends_with(LOWER) else "max" if ends_with(HIGHER) else None


def columns_like(columns: Collection[str], names: str) -> list[str]:
    """Return the columns with such a name, in any case and with any prefix of trackers."""
    pattern = re.compile(rf"(?:.*[./]|(?:params|config|hparams|run|trial|job)[_ ])?(?:{names})", re.IGNORECASE)
    return [name for name in columns if names and pattern.fullmatch(name)]


def find_columns(
    source: str, columns: Sequence[str], stated: Columns, has_axes: bool = True
) -> tuple[Columns, list[str]]:
    """Find the columns of a table.

    Args:
        source: of the table, for messages.
        columns: the names of all.
        stated: those that are stated.
        has_axes: whether it has axes; else it is a list of scores.

    Returns:
        The columns, and a note on guessed ones.

    Raises:
        InputError: columns are missing; one message names all, with the options that help. Or a column has two roles.
    """
    guessed, missing = dict[str, tuple[str, str]](), dict[str, str]()
    axes = dict(stated.axes)
    for name, column in axes.items():
        if column not in columns:
            missing[column] = f"--axes {_repaired(axes, name, columns)}"
    for key in ("lr", "wd") if has_axes and not axes else ():
        found = _guess(key, columns)
        if found and (key == "lr" or found not in stated.by):
            axes[key] = found
            guessed.update({key: (found, "--axes NAME,NAME")} if found != key else {})
        elif key == "lr":
            missing["lr"] = f"--axes {_likely_axes(columns, stated)}"
    missing |= {name: f"--by {nearest_name(name, columns) or 'NAME'}" for name in stated.by if name not in columns}
    score, seed = stated.score, stated.seed
    if seed and seed not in columns:
        missing[seed] = f"--seed {nearest_name(seed, columns) or 'NAME'}"
    elif not seed and (seed := _guess("seed", columns)) not in ("", "seed"):
        guessed["seed"] = seed, "--seed NAME"
    if score and score not in columns:
        missing[score] = f"--score {nearest_name(score, columns) or 'NAME'}"
    elif not score:
        score = "score" if "score" in columns else next(iter(_scores(columns)), "")
        if not score:
            missing["score"] = "--score NAME --min (or --max)"
        elif score != "score":
            guessed["score"] = score, "--score NAME"
    if missing:
        raise InputError(_missing_text(source, columns, missing))
    _check_roles(source, Columns(axes, score, seed, stated.by))
    read = ", ".join(f"{key} is {name}" for key, (name, _) in guessed.items())
    options = dict.fromkeys(option for _, option in guessed.values())
    notes = [f"{source}: {read}; {' '.join(options)} changes it"] if guessed else []
    return Columns(axes, score, seed, stated.by), notes


def _check_roles(source: str, columns: Columns) -> None:
    roles = [
        *((column, "an axis", "--axes") for column in columns.axes.values()),
        (columns.score, "the score", "--score"),
        *([(columns.seed, "the seed", "--seed")] if columns.seed else []),
        *((column, "a column of --by", "--by") for column in columns.by),
    ]
    for (column, role, option), (other, other_role, other_option) in combinations(roles, 2):
        if column == other and role != other_role:
            raise InputError(
                f"{source}: {column} is both {role} and {other_role}. Choose another column with {option} or "
                f"{other_option}"
            )


def _guess(key: str, columns: Sequence[str]) -> str:
    """Return the column that is most likely a lr, wd or seed; empty if there is none."""
    if key in columns:
        return key
    near = columns_like(columns, OTHER_NAMES[key])
    # Trainers also log the lr of a step, which decays.
    logged = [name for name in near if not re.match(r"train|metrics", name, re.IGNORECASE)]
    return min(logged or near, key=len, default="")


def _repaired(axes: Mapping[str, str], wrong: str, columns: Sequence[str]) -> str:
    return ",".join(
        (nearest_name(column, columns) or "NAME") if name == wrong else column for name, column in axes.items()
    )


def _likely_axes(columns: Sequence[str], stated: Columns) -> str:
    """Return the first two columns that may be axes, to suggest them."""
    others = [*_scores(columns), *columns_like(columns, OTHER_NAMES["seed"]), *stated.by, stated.score]
    return ",".join([name for name in columns if name not in others][:MAX_AXES]) or "NAME,NAME"


def _scores(columns: Sequence[str]) -> list[str]:
    """Return the columns that look like a score: those of a validation first, losses before others."""

    def rank(name: str) -> tuple[bool, bool, bool, int]:
        held_out, of_training = (
            bool(re.search(rf"(?:^|_)(?:{words})(?:_|$)", _words(name))) for words in (HELD_OUT, "train|training")
        )
        return of_training, not held_out, mode_of(name) != "min", columns.index(name)

    likely = [name for name in columns if mode_of(name) or _words(name) in ("value", "metric", "objective")]
    likely = [name for name in likely if not re.search(r"(?:^|_)(?:std|stderr|sem|var)(?:_|$)", _words(name))]
    return sorted(likely, key=rank)


def _words(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.lower()).strip("_")


def _missing_text(source: str, columns: Sequence[str], missing: Mapping[str, str]) -> str:
    if any(name.endswith("__MIN") for name in columns):
        return (
            f"{source}: it looks like a chart of Weights & Biases, with a column for each run; export the table of "
            "runs instead, with a row for each"
        )
    if len(columns) == 1 and any(key in columns[0] for key in missing):
        return f"{source}: it has one column, {columns[0]}; commas, semicolons or tabs separate columns"
    options = " ".join(dict.fromkeys(missing.values()))
    return f"{source}: no column {' and '.join(missing)}. It has {', '.join(columns)}. Add {options}"
