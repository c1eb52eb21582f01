"""Find the columns lr, wd, seed and score of a table, and whether low or high scores are better."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from ettsweep.errors import InputError, nearest_name

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
    source: str, columns: Sequence[str], names: Mapping[str, str], keys: Sequence[str], needed: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Find the columns of a table.

    Args:
        source: of the table, for messages.
        columns: the names of all.
        names: stated ones, by key.
        keys: of the columns to find: lr, wd, seed, score.
        needed: keys of columns that must exist, beside the score.

    Returns:
        Names by key, where they differ, and a note on guessed ones.

    Raises:
        InputError: columns are missing; one message names all, with the options that help.
    """
    found, guessed, missing = dict(names), dict[str, str](), list[str]()
    for key in keys:
        name = names.get(key, key)
        if name in columns:
            continue
        near = [] if key in names else _scores(columns) if key == "score" else columns_like(columns, OTHER_NAMES[key])
        if near:
            # Trainers also log the lr of a step, which decays.
            logged = [name for name in near if not re.match(r"train|metrics", name, re.IGNORECASE)]
            found[key] = guessed[key] = near[0] if key == "score" else min(logged or near, key=len)
        elif key in names or key in (*needed, "score"):
            missing.append(key)
    if missing:
        raise InputError(_missing_text(source, columns, names, missing))
    read = ", ".join(f"{key} is {name}" for key, name in guessed.items())
    return found, [f"{source}: {read}; --column {next(iter(guessed))}=NAME changes it"] if guessed else []


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


def _missing_text(source: str, columns: Sequence[str], names: Mapping[str, str], missing: Sequence[str]) -> str:
    if any(name.endswith("__MIN") for name in columns):
        return (
            f"{source}: it looks like a chart of Weights & Biases, with a column for each run; export the table of "
            "runs instead, with a row for each"
        )
    if len(columns) == 1 and any(key in columns[0] for key in missing):
        return f"{source}: it has one column, {columns[0]}; commas, semicolons or tabs separate columns"
    lacking = " and ".join(names.get(key, key) for key in missing)
    stated = [f"--column {key}={nearest_name(names.get(key, key), columns) or 'NAME'}" for key in missing]
    if "score" in missing:
        stated.append("--min (or --max)")
    return f"{source}: no column {lacking}. It has {', '.join(columns)}. Add {' '.join(stated)}"
