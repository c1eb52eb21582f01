"""What the output of a command tells of its end, torchrun's above all: whose exit code is 1 whatever has happened."""

import re
from collections.abc import Sequence

_KILLED_BELOW = re.compile(r"Signal \d+ \(SIG(?:KILL|TERM|USR1|USR2)\) received by PID (\d+)")
"""What torchrun says of each of its processes that was killed, by others or by itself."""

_CLOSED_BELOW = re.compile(r"Sending process (\d+) closing signal")
"""What torchrun says where it ends those that are left, since one of them has failed."""

_TOLD_TO_END = re.compile(r"SignalException: Process \d+ got signal")
"""What torchrun says where it was told to end."""

_RANK_ERROR = re.compile(r"\[rank\d+\]: (?!Traceback\b)(\S.*)")
"""How a process of torch.distributed prints the exception that ends it."""


def was_killed_below(output: Sequence[str]) -> bool:
    """Whether lines of output are those of torchrun that another process has ended, or one of its processes."""
    text = "\n".join(output)
    closed = set(_CLOSED_BELOW.findall(text))
    return bool(_TOLD_TO_END.search(text) or set(_KILLED_BELOW.findall(text)) - closed)


def last_words(output: Sequence[str]) -> str:
    """Return the line that tells best why a command has failed: its last one, or the first error of any rank."""
    # The errors of other ranks follow from the first; what torchrun says then, has a frame and no reason.
    if error := next(filter(None, map(_RANK_ERROR.match, output)), None):
        return error[1]
    return next((line.strip() for line in reversed(output) if line.strip()), "it printed nothing")
