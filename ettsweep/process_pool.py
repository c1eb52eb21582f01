"""Work on all cores: a pool of processes that end with the command, however that ends."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import Any, Literal, ParamSpec, TypeVar, TypeVarTuple

from ettsweep.processes import blocked

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Pool(ProcessPoolExecutor):
    """An executor whose processes never see Ctrl-C: the command itself stops."""

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Give work to a process, which may be started for it."""
        with blocked(signal.SIGINT):
            return super().submit(work, *arguments, **named)

    def end(self) -> None:
        """End the processes, whatever they are at."""
        with blocked(signal.SIGINT):
            for process in active_children():  # they may wait for a disk, for ever
                process.terminate()
            self.shutdown(cancel_futures=True)


@contextmanager
def open_pool(
    workers: int, method: Literal["fork", "spawn"], prepare: Callable[[*Ts], None], *arguments: *Ts
) -> Iterator[Pool]:
    """Give a pool of processes; whatever ends the body, they are gone after it.

    Each calls `prepare` before any work. The method `fork` shares what is in memory here, for a process without
    threads; `spawn` begins anew.
    """
    to_pipes = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # work may be on its way to processes that are gone
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
    """Prepare a process of a pool: it ends with the one that started it, even if that was killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
    prepare(*arguments)
