"""Metric loggers beside the run folder: TensorBoard and Weights & Biases. They never fail a run."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ettsweep.errors import short_message
from ettsweep.extras import check_installed
from ettsweep.files import Json

SERVER_TIMEOUT_S = 20.0
"""Most seconds that a run waits for a server at its start, and for unwritten lines at its end."""

OpenLogger = tuple[Callable[[Mapping[str, float], int], object], Callable[[], object]]
"""An opened logger: a function that writes the scalars of a step, and one that finishes."""


class MetricLoggers:
    """The open metric loggers of a run. One that fails warns once, and the run continues without it.

    Args:
        names: keys of `METRIC_LOGGERS`.
        results: each logger writes in a folder of its name there.
        run_id: names the logged run; lines continue those of earlier attempts.
        config: hyperparameters to show, as plain data.
        from_step: step from which this attempt resumed; lines of earlier attempts after it are replaced.
        warn: takes one line of text.
    """

    def __init__(
        self,
        names: Iterable[str],
        results: Path,
        run_id: str,
        config: Json,
        from_step: int,
        warn: Callable[[str], None],
    ) -> None:
        self._warn = warn
        self._open_loggers: dict[str, OpenLogger] = {}
        for name in names:
            with self._dropped_if_it_fails(name):
                check_installed(f"log: [{name}]", name)
                self._open_loggers[name] = METRIC_LOGGERS[name](results, run_id, config, from_step, warn)

    def write(self, line: Json) -> None:
        """Write one line of metrics.jsonl."""
        # Values that are not finite are null in JSON.
        scalars = {name: math.nan if value is None else float(value) for name, value in line.items()}
        step = int(scalars.pop("step"))
        scalars.pop("nonfinite", None)
        for name, (put, _) in list(self._open_loggers.items()):
            with self._dropped_if_it_fails(name):
                put(scalars, step)

    def close(self) -> None:
        """Finish, which may wait for servers."""
        for name, (_, finish) in list(self._open_loggers.items()):
            with self._dropped_if_it_fails(name):
                finish()

    @contextmanager
    def _dropped_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the package raises
            self._open_loggers.pop(name, None)
            self._warn(f"{name}: stopped writing: {short_message(error)}")


def _open_tensorboard(
    results: Path, run_id: str, config: Json, from_step: int, warn: Callable[[str], None]
) -> OpenLogger:
    """Write event files in RESULTS/tensorboard/<run id>/; repeated steps replace earlier ones."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(results / "tensorboard" / run_id), purge_step=from_step + 1, flush_secs=10)
    table = "".join(f"| {name} | {value} |\n" for name, value in config.items())
    writer.add_text("run", f"| | |\n|---|---|\n{table}", 0)

    def put(scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return put, writer.close


def _open_wandb(results: Path, run_id: str, config: Json, from_step: int, warn: Callable[[str], None]) -> OpenLogger:
    """Write a run of Weights & Biases with the run's id; offline in RESULTS/wandb/ without a login."""
    import wandb

    offline = "WANDB_MODE" not in os.environ and not wandb.login(prompt=False, verify=False)
    if offline:
        warn(f"wandb: not logged in, so it writes offline; upload with `wandb sync {results}/wandb/*{run_id}`")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "ettsweep"),
        id=run_id,
        name="strategy {strategy} lr {lr:.4g} wd {wd:.4g} seed {seed}".format_map(config),
        dir=results,
        config=config,
        mode="offline" if offline else None,
        resume="allow",
        reinit="create_new",  # an earlier run of this process may still be uploading
        settings=wandb.Settings(
            silent=True, console="off", init_timeout=SERVER_TIMEOUT_S, finish_timeout=SERVER_TIMEOUT_S
        ),
    )
    # wandb's own step must increase; a resumed run repeats steps.
    run.define_metric("*", step_metric="step")
    return lambda scalars, step: run.log({"step": step, **scalars}), run.finish


METRIC_LOGGERS = {"tensorboard": _open_tensorboard, "wandb": _open_wandb}
