"""The process that measures items: reads them from its input, and answers through a pipe whose number it was given."""

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from pkgutil import resolve_name
from subprocess import CalledProcessError
from typing import Any

from bench.session import NotMeasuredError


def answer(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a function gave: rows; or why there are none."""
    try:
        rows = [plain(row) for row in resolve_name(function)(**arguments)]
        json.dumps(rows, allow_nan=False)
        return {"state": "done", "rows": rows}
    except ModuleNotFoundError as error:
        return {"state": "not measured", "message": f"no module {error.name}"}
    except NotMeasuredError as error:
        return {"state": "not measured", "message": str(error)}
    except BaseException as error:
        traceback.print_exc()
        return {"state": "failed", "message": reason(error)}


def reason(error: BaseException) -> str:
    """Return an error in a line: the first of its text, and the last, where a command that failed says why."""
    said = getattr(error, "stderr", None) or str(error)  # of a program that failed, what it said
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kind = "out of memory" if "out of memory" in text.lower() else type(error).__name__
    ends = lines[-1:] if isinstance(error, SystemExit | CalledProcessError) else [*lines[:1], *lines[1:][-1:]]
    return f"{kind}: {' ... '.join(line[:300] for line in ends)}"


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can hold it: what is not finite is a word."""
    return {key: str(value) if isinstance(value, float) and value - value != 0 else value for key, value in row.items()}


def main() -> None:
    """Answer until there is no more to do."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the process that asks
    with contextlib.suppress(ModuleNotFoundError):  # each item will say what is missing
        from ettsweep.worker.devices import bound_spinning

        bound_spinning()  # as workers do, before torch is imported
    answers = int(sys.argv[1])
    os.set_inheritable(answers, False)  # what items start must not keep the pipe open
    for line in sys.stdin:
        asked = json.loads(line)
        os.write(answers, json.dumps(answer(asked["function"], asked["arguments"])).encode() + b"\n")
        forget()


def forget() -> None:
    """Give back what the item has left on the device, and what was compiled for it."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
