"""What the output of a command tells of its end, torchrun's above all: whose exit code is 1 whatever has happened."""

import re
import signal
from collections.abc import Iterator, Sequence
from itertools import dropwhile, takewhile

_KILLED_BELOW = re.compile(r"Signal \d+ \((SIG(?:KILL|TERM|USR1|USR2))\) received by PID (\d+)")
"""What torchrun says of each of its processes that was killed, by others or by itself."""

_CLOSED_BELOW = re.compile(r"Sending process (\d+) closing signal")
"""What torchrun says where it ends those that are left, since one of them has failed."""

_TOLD_TO_END = re.compile(r"SignalException: Process \d+ got signal: (\d+)")
"""What torchrun says where it was told to end."""

_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
"""What torchrun says last of which process was the first to fail."""

_RANK_LINE = re.compile(r"\[rank(\d+)\]: (.*)")
"""How a process of torch.distributed prints the exception that ends it."""

_TRACEBACK = "Traceback (most recent call last)"

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |:?$)")
"""How the line of a traceback begins that names the exception."""

_CHILD_FAILED = re.compile(r"(\w+\.)*(CalledProcessError|ChildFailedError)\b")
"""Exceptions of accelerate, torchrun and others that start a program, which has printed its own reason before."""

_SAYS_ERROR = re.compile(r"(.*: )?error(\[\w+\])?: |Error: |Error in |FATAL\b")
"""How the line of a program begins that names its error itself; an exception before it was caught, and only logged."""

_ROOT_SIGNAL = re.compile(r"Root Cause .*?(Signal \d+ \(SIG\w+\)) received by PID", re.DOTALL)

_FOOTER = re.compile(
    r"Set the environment variable HYDRA_FULL_ERROR|Pass --helpshort or --helpfull|wandb: (?!ERROR)|"
    r"Calls: |Execution halted$|note: run with `RUST_BACKTRACE|.*torch[./]distributed"
)
"""Lines of frameworks, of R and of Rust below the reason."""

NOTHING = "it printed nothing"
"""What is said of output that says nothing."""

MOST_LINES = 8
"""Lines of Hydra that are taken for one reason."""

_HYDRA = "Error executing job with overrides"

_SIGNALS = {str(-each): each.name for each in (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}


def signal_below(output: Sequence[str]) -> str:
    """Return which signal has ended torchrun, or one of its processes, from outside; empty for none."""
    text = "\n".join(output)
    # One for each node that has failed: where a process was killed, those on other nodes fail for lack of it.
    if causes := _ROOT_CAUSE.findall(text):
        return next((_SIGNALS[cause] for cause in causes if cause in _SIGNALS), "")
    closed = set(_CLOSED_BELOW.findall(text))
    killed = [name for name, pid in _KILLED_BELOW.findall(text) if pid not in closed]
    told = list(map(int, _TOLD_TO_END.findall(text)))
    killed += [signal.Signals(number).name for number in told if number in list(signal.Signals)]
    return killed[0] if killed else ""


def last_words(output: Sequence[str]) -> str:
    """Return the line that tells best why a command has failed: the exception, or else the last one of its own."""
    # The errors of other ranks follow from the first; what torchrun says then, has a frame and no reason.
    lines = [(match[1], match[2]) for match in map(_RANK_LINE.match, output) if match]
    if first := next((rank for rank, text in lines if text.startswith(_TRACEBACK)), None):
        output = [text for rank, text in lines if rank == first]
    while exceptions := list(_exceptions(output)):
        start, exception = exceptions[-1]
        if not _CHILD_FAILED.match(exception):
            return [exception, *filter(_SAYS_ERROR.match, _own_lines(output[start:]))][-1]
        if killed := _ROOT_SIGNAL.search("\n".join(output)):
            return killed[1]
        if not _own_lines(output[:start]):
            return exception
        output = output[:start]
    own = _own_lines(output)
    if any("HYDRA_FULL_ERROR" in line for line in output):  # several lines, of which the first says most
        return " ".join(own[-MOST_LINES:])
    return own[-1] if own else NOTHING


def _exceptions(output: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the exceptions of Python's tracebacks, each with the number of the line at which its traceback begins."""
    for start, line in enumerate(output):
        if _TRACEBACK in line and not (start and output[start - 1].startswith("Exception ignored in")):
            rest = takewhile(lambda text: _TRACEBACK not in text, output[start + 1 :])
            named = dropwhile(lambda text: not _EXCEPTION.match(text), map(str.rstrip, rest))
            if exception := next(named, ""):
                more = next(filter(str.strip, named), "") if exception.endswith(":") else ""
                yield start, f"{exception} {more.strip()}".strip()


def _own_lines(output: Sequence[str]) -> list[str]:
    """Return the lines that say something, without frames around them and without those of frameworks."""
    own = list[str]()
    for line in (each.strip(" \t│|") for each in output):
        if line.startswith(_HYDRA):
            own.clear()
        elif any(map(str.isalnum, line)) and not _FOOTER.match(line):
            own.append(line)
    return own
