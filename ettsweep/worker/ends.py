"""Find the reason of a command's end in its output: torchrun, above all, exits with 1 for any reason."""

import re
import signal
from collections.abc import Iterator, Sequence
from itertools import dropwhile, takewhile

_KILLED_BELOW = re.compile(r"Signal \d+ \((SIG(?:KILL|TERM|USR1|USR2))\) received by PID (\d+)")
"""Line of torchrun on each killed process."""

_CLOSED_BELOW = re.compile(r"Sending process (\d+) closing signal")
"""Line of torchrun when it ends the remaining processes after a failure."""

_TOLD_TO_END = re.compile(r"SignalException: Process \d+ got signal: (\d+)")
"""Line of torchrun that was signalled to end."""

_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
"""Last line of torchrun, on the process that failed first."""

_RANK_LINE = re.compile(r"\[rank(\d+)\]: (.*)")
"""Prefix of a process of torch.distributed before its exception."""

_TRACEBACK = "Traceback (most recent call last)"

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |:?$)")
"""Beginning of a traceback's line with the exception."""

_CHILD_FAILED = re.compile(r"(\w+\.)*(CalledProcessError|ChildFailedError)\b")
"""Exceptions of accelerate, torchrun and other launchers: the program has printed its own reason before."""

_SAYS_ERROR = re.compile(r"(.*: )?error(\[\w+\])?: |Error: |Error in |FATAL\b")
"""Beginning of a program's own line on its error; an exception before it was caught and logged."""

_ROOT_SIGNAL = re.compile(r"Root Cause .*?(Signal \d+ \(SIG\w+\)) received by PID", re.DOTALL)

_FOOTER = re.compile(
    r"Set the environment variable HYDRA_FULL_ERROR|Pass --helpshort or --helpfull|wandb: (?!ERROR)|"
    r"Calls: |Execution halted$|note: run with `RUST_BACKTRACE|.*torch[./]distributed"
)
"""Lines of frameworks, of R and of Rust below the reason."""

NOTHING = "it printed nothing"
"""Reason of a program without output."""

MOST_LINES = 8
"""Most lines of Hydra in a reason."""

_HYDRA = "Error executing job with overrides"

_SIGNALS = {str(-each): each.name for each in (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}


def signal_below(output: Sequence[str]) -> str:
    """Return the signal from outside that ended torchrun or one of its processes; empty for none."""
    text = "\n".join(output)
    # One per failed node: if a process is killed, those on other nodes fail too.
    if causes := _ROOT_CAUSE.findall(text):
        return next((_SIGNALS[cause] for cause in causes if cause in _SIGNALS), "")
    closed = set(_CLOSED_BELOW.findall(text))
    killed = [name for name, pid in _KILLED_BELOW.findall(text) if pid not in closed]
    told = list(map(int, _TOLD_TO_END.findall(text)))
    killed += [signal.Signals(number).name for number in told if number in list(signal.Signals)]
    return killed[0] if killed else ""


def last_words(output: Sequence[str]) -> str:
    """Return the line with the best reason of a command's failure: the exception, else the last one of its own."""
    # Errors of other ranks follow from the first; later lines of torchrun have no reason.
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
    if any("HYDRA_FULL_ERROR" in line for line in output):  # the first of its lines has the reason
        return " ".join(own[-MOST_LINES:])
    return own[-1] if own else NOTHING


def _exceptions(output: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the exceptions of Python's tracebacks with the numbers of their tracebacks' first lines."""
    for start, line in enumerate(output):
        if _TRACEBACK in line and not (start and output[start - 1].startswith("Exception ignored in")):
            rest = takewhile(lambda text: _TRACEBACK not in text, output[start + 1 :])
            named = dropwhile(lambda text: not _EXCEPTION.match(text), map(str.rstrip, rest))
            if exception := next(named, ""):
                more = next(filter(str.strip, named), "") if exception.endswith(":") else ""
                yield start, f"{exception} {more.strip()}".strip()


def _own_lines(output: Sequence[str]) -> list[str]:
    """Return the meaningful lines, without frames around them and lines of frameworks."""
    own = list[str]()
    for line in (each.strip(" \t│|") for each in output):
        if line.startswith(_HYDRA):
            own.clear()
        elif any(map(str.isalnum, line)) and not _FOOTER.match(line):
            own.append(line)
    return own
