"""The lines of metrics.jsonl of a run by a command: in order, and not too many."""

from collections.abc import Sequence

from ettsweep.files import Json
from ettsweep.run import finite

MAX_LINES = 10_000
"""Most lines of metrics.jsonl beside those with the score; beyond, every second one is left out, and so on."""


def put_in_order(history: Sequence[Json], score: str) -> list[Json]:
    """Return one line a step, in order; of values that were recorded twice, the later. All with the score stay.

    Names are in order too: which of two files is read first depends on when somebody looks.
    """
    by_step: dict[int, Json] = {}
    for line in history:
        by_step.setdefault(line["step"], {"step": line["step"]}).update(line)
    lines = [finite({"step": step} | dict(sorted(by_step[step].items()))) for step in sorted(by_step)]
    others = [line for line in lines if score not in line]
    while len(others) > MAX_LINES:
        others = others[1::2]
    kept = {line["step"] for line in others}
    return [line for line in lines if score in line or line["step"] in kept]
