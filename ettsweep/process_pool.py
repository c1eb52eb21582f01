"""A pool of processes that end with the command, however it ends."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import Any, Literal, ParamSpec, TypeVar, TypeVarTuple

from ettsweep.processes import signals_blocked

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Pool(ProcessPoolExecutor):
    """An executor whose processes ignore Ctrl-C, which their command handles."""

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Future[T]:
        """Submit work; a new process inherits the blocked signal."""
        with signals_blocked(signal.SIGINT):
            return super().submit(work, *arguments, **keywords)

    def end(self) -> None:
        """Terminate the processes, whatever they do."""
        with signals_blocked(signal.SIGINT):
            for process in active_children():  # one that waits for a disk never notices a shutdown
                process.terminate()
            self.shutdown(cancel_futures=True)


@contextmanager
def open_pool(
    workers: int, method: Literal["fork", "spawn"], prepare: Callable[[*Ts], None], *arguments: *Ts
) -> Iterator[Pool]:
    """Yield a pool of processes that end with the body, however it ends.

    Each process calls `prepare` first. `fork` shares this process's memory and needs one without threads; `spawn`
    starts a fresh interpreter.
    """
    to_pipes = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # writing to a dead process would kill this one
    pool = Pool(workers, get_context(method), _start, (prepare, arguments))
    try:
        yield pool
    except BaseException:
        pool.end()
        raise
    else:
        pool.shutdown()
    finally:
        signal.signal(signal.SIGPIPE, to_pipes)


def _start(prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Prepare a process of a pool, which exits as soon as its parent is gone, even by SIGKILL."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
    prepare(*arguments)
