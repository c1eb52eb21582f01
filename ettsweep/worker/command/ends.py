"""What the output of a command tells of its end, torchrun's above all: whose exit code is 1 whatever has happened."""

import re
import signal
from collections.abc import Sequence
from itertools import dropwhile

_KILLED_BELOW = re.compile(r"Signal \d+ \(SIG(?:KILL|TERM|USR1|USR2)\) received by PID (\d+)")
"""What torchrun says of each of its processes that was killed, by others or by itself."""

_CLOSED_BELOW = re.compile(r"Sending process (\d+) closing signal")
"""What torchrun says where it ends those that are left, since one of them has failed."""

_TOLD_TO_END = re.compile(r"SignalException: Process \d+ got signal")
"""What torchrun says where it was told to end."""

_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
"""What torchrun says last of which process was the first to fail."""

_RANK_LINE = re.compile(r"\[rank(\d+)\]: (.*)")
"""How a process of torch.distributed prints the exception that ends it."""

_NO_REASONS = ("Traceback (", "During handling of ", "The above exception ")

_SIGNALS = {str(-number) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}


def was_killed_below(output: Sequence[str]) -> bool:
    """Whether lines of output are those of torchrun that another process has ended, or one of its processes."""
    text = "\n".join(output)
    # One for each node that has failed: where a process was killed, those on other nodes fail for lack of it.
    if causes := _ROOT_CAUSE.findall(text):
        return not _SIGNALS.isdisjoint(causes)
    closed = set(_CLOSED_BELOW.findall(text))
    return bool(_TOLD_TO_END.search(text) or set(_KILLED_BELOW.findall(text)) - closed)


def last_words(output: Sequence[str]) -> str:
    """Return the line that tells best why a command has failed: its last one, or that of the first rank that raised."""
    # The errors of other ranks follow from the first; what torchrun says then, has a frame and no reason.
    lines = [(match[1], match[2]) for match in map(_RANK_LINE.match, output) if match]
    raised = dropwhile(lambda line: not line[1].startswith("Traceback ("), lines)
    if first := next(raised, None):
        errors = [text for rank, text in raised if rank == first[0] and text[:1].strip()]
        if errors := [text for text in errors if not text.startswith(_NO_REASONS)]:
            return errors[-1]
    telling = (line.strip() for line in reversed(output) if any(map(str.isalnum, line)))  # no rules
    return next(telling, "it printed nothing")
