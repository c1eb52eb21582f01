"""Metric loggers beside the run folder: TensorBoard and Weights & Biases. They never delay a step or fail a run."""

import importlib.util
import math
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ettsweep.errors import InputError, short_message
from ettsweep.files import Json

WriteLine = Callable[[Json], object]
"""Writes one line of metrics.jsonl."""

OpenLogger = tuple[WriteLine, Callable[[], object]]
"""An opened logger: a function that writes a line, and one that finishes."""

SERVER_TIMEOUT_S = 20.0
"""Most seconds that a run waits for a server at its start, and for unwritten lines at its end."""


class MetricLogger:
    """Writes lines of metrics.jsonl in a thread of its own, so that a slow disk or network holds up no step."""

    def __init__(self, name: str, put: WriteLine, finish: Callable[[], object], warn: Callable[[str], None]) -> None:
        self._name, self._put, self._finish, self._warn = name, put, finish, warn
        self._lines: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        # A daemon: a server that hangs must not keep the process from exiting.
        self._thread = threading.Thread(target=self._serve, name=f"metric logger {name}", daemon=True)
        self._thread.start()

    def write(self, line: Json) -> None:
        """Queue one line; dropped if the writer has failed."""
        if self._thread.is_alive():
            self._lines.put(line)

    def close(self) -> None:
        """Wait for the queued lines, for at most SERVER_TIMEOUT_S seconds, and finish."""
        self._lines.put(None)  # ends the iteration in _serve
        self._thread.join(SERVER_TIMEOUT_S)
        if self._thread.is_alive():
            self._warn(
                f"{self._name}: still not written after {SERVER_TIMEOUT_S:.0f} s; giving up on the remaining lines"
            )

    def _serve(self) -> None:
        try:
            for line in iter(self._lines.get, None):
                self._put(line)
            self._finish()
        except Exception as error:
            self._warn(f"{self._name}: no longer written: {short_message(error)}")


def check_loggers(names: Iterable[str]) -> None:
    """Check that the packages of metric loggers are installed, without importing them.

    Raises:
        InputError: a package is missing.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError.of(f"log: {name} is not installed: pip install {name}" for name in missing)


def open_loggers(
    names: Iterable[str], results_dir: Path, run_id: str, config: Json, from_step: int, warn: Callable[[str], None]
) -> list[MetricLogger]:
    """Open the metric loggers of a run. One that fails, now or later, gives one warning, and the run continues.

    Args:
        names: `tensorboard`, `wandb`.
        results_dir: each logger writes in a folder of its name there.
        run_id: names the logged run; lines continue those of earlier attempts.
        config: hyperparameters to show (lr, wd, seed, strategy, ...), as plain data.
        from_step: step from which this attempt resumed; lines of earlier attempts after it are discarded.
        warn: takes one line of text, from any thread.
    """
    loggers: list[MetricLogger] = []
    for name in names:
        try:
            check_loggers([name])
            loggers.append(
                MetricLogger(name, *METRIC_LOGGERS[name](results_dir, run_id, config, from_step, warn), warn)
            )
        except Exception as error:  # whatever the package raises
            warn(f"{name}: not written: {short_message(error)}")
    return loggers


def _tensorboard(
    results_dir: Path, run_id: str, config: Json, from_step: int, warn: Callable[[str], None]
) -> OpenLogger:
    """Write event files in RESULTS/tensorboard/<run id>/; repeated steps replace earlier ones."""
    from torch.utils.tensorboard import SummaryWriter

    folder = results_dir / "tensorboard" / run_id
    writer = SummaryWriter(str(folder), purge_step=from_step + 1, flush_secs=10)
    table = "".join(f"| {name} | {value} |\n" for name, value in config.items())
    writer.add_text("run", f"| | |\n|---|---|\n{table}", 0)

    def put(line: Json) -> None:
        for name, value in _scalars(line):
            writer.add_scalar(name, value, line["step"])

    return put, writer.close


def _wandb(results_dir: Path, run_id: str, config: Json, from_step: int, warn: Callable[[str], None]) -> OpenLogger:
    """Write a run of Weights & Biases with the run's id; offline in RESULTS/wandb/ if nobody is logged in."""
    import wandb

    offline = "WANDB_MODE" not in os.environ and not wandb.login(prompt=False, verify=False)
    if offline:
        warn(f"wandb: nobody is logged in, so it writes offline; `wandb sync {results_dir}/wandb/*{run_id}` uploads")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "ettsweep"),
        id=run_id,
        name=" ".join(f"{name} {_format_value(config[name])}" for name in LABELS if name in config),
        dir=results_dir,
        config=config,
        mode="offline" if offline else None,
        resume="allow",
        reinit="create_new",  # an earlier run of this process may still be uploading
        settings=wandb.Settings(
            silent=True, console="off", init_timeout=SERVER_TIMEOUT_S, finish_timeout=SERVER_TIMEOUT_S
        ),
    )
    # wandb's own step must increase; this one may go back, because a resumed run repeats steps.
    run.define_metric("*", step_metric="step")
    return lambda line: run.log({"step": line["step"], **dict(_scalars(line))}), run.finish


METRIC_LOGGERS = {"tensorboard": _tensorboard, "wandb": _wandb}

LABELS = ("strategy", "lr", "wd", "seed")
"""Entries of `config` that form the display name of a run."""


def _scalars(line: Json) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if name not in ("step", "nonfinite"):
            # metrics.jsonl has null for values that are not finite, since JSON has no NaN.
            yield name, math.nan if value is None else float(value)


def _format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
