"""Loggers are read back by the packages that they are for; one that fails is dropped with one warning."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commandline import PATIENCE_S

from ettsweep.runs.metric_loggers import METRIC_LOGGERS, MetricLoggers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")

RUN = "0123456789ab"
CONFIG = {"lr": 0.0078125, "wd": 0.5, "seed": 3, "strategy": "ntk"}


def step_line(step: int, loss: float | None) -> dict[str, Any]:
    return {"step": step, "loss": loss, "grad_norm": 2.0, "lr": 0.5}


def write(names: list[str], results: Path, *lines: dict[str, Any], from_step: int = 0) -> list[str]:
    """Have loggers write lines; return their warnings."""
    messages = list[str]()
    loggers = MetricLoggers(names, results, RUN, CONFIG, from_step, messages.append)
    for line in lines:
        loggers.write(line)
    loggers.close()
    return messages


def events(results: Path) -> Any:
    """Return what TensorBoard shows of the run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(results / "tensorboard" / RUN), size_guidance={"scalars": 0})
    return accumulator.Reload()


def scalars(results: Path) -> dict[str, dict[int, float]]:
    """Return step and value of each scalar."""
    shown = events(results)
    return {tag: {e.step: e.value for e in shown.Scalars(tag)} for tag in shown.Tags()["scalars"]}


def test_tensorboard_has_the_metrics_under_their_names_and_says_which_run_it_is(tmp_path: Path) -> None:
    overflow = {"loss_scale": 1024.0, "overflow": True}
    evaluation = {"step": 2, "val_loss": 2.0, "val_accuracy": 0.25}
    nonfinite = step_line(3, None) | {"nonfinite": True}
    assert not write(["tensorboard"], tmp_path, step_line(1, 2.5), step_line(2, 2.25) | overflow, evaluation, nonfinite)
    shown = scalars(tmp_path)
    assert math.isnan(shown["loss"].pop(3))
    assert shown == {
        "loss": {1: 2.5, 2: 2.25},
        "grad_norm": {1: 2.0, 2: 2.0, 3: 2.0},
        "lr": {1: 0.5, 2: 0.5, 3: 0.5},
        "loss_scale": {2: 1024.0},
        "overflow": {2: 1.0},
        "val_loss": {2: 2.0},
        "val_accuracy": {2: 0.25},
    }
    (event,) = events(tmp_path).Tensors("run/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert all(f"| {name} | {value} |" in text for name, value in CONFIG.items())


def test_steps_that_a_resumed_run_takes_again_replace_the_earlier_ones(tmp_path: Path) -> None:
    write(["tensorboard"], tmp_path, *(step_line(step, 1.0) for step in range(1, 11)))
    write(["tensorboard"], tmp_path, *(step_line(step, 0.5) for step in range(7, 9)), from_step=6)
    assert scalars(tmp_path)["loss"] == dict.fromkeys(range(1, 7), 1.0) | dict.fromkeys(range(7, 9), 0.5)


def test_a_logger_that_fails_is_dropped_with_one_warning_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorboard").write_text("a file")
    (message,) = write(["tensorboard"], tmp_path, step_line(1, 1.0))
    assert message.startswith("tensorboard: stopped writing")
    steps = list[int]()

    def fail(scalars: dict[str, float], step: int) -> None:
        raise OSError("no space left")

    monkeypatch.setitem(METRIC_LOGGERS, "wandb", lambda *_: (fail, lambda: None))
    monkeypatch.setitem(METRIC_LOGGERS, "tensorboard", lambda *_: (lambda _, step: steps.append(step), lambda: None))
    messages = write(["wandb", "tensorboard"], tmp_path, step_line(1, 1.0), step_line(2, 1.0))
    assert messages == ["wandb: stopped writing: no space left"]
    assert steps == [1, 2]


def test_a_missing_package_is_named_with_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ettsweep.extras.is_installed", lambda module: False)
    assert write(["wandb"], tmp_path)[0].endswith("log: [wandb] needs wandb, which is not installed: pip install wandb")


WANDB = """
import json, os, sys
from pathlib import Path
from ettsweep.runs import metric_loggers
config = {"lr": 0.0078125, "wd": 0.5, "seed": 3, "strategy": "ntk"}
metric_loggers.SERVER_TIMEOUT_S = float(sys.argv[3])
loggers = metric_loggers.MetricLoggers(["wandb"], Path(sys.argv[1]), "0123456789ab", config, 0, print)
for line in json.loads(sys.argv[2]):
    loggers.write(line)
loggers.close()
sys.stdout.flush()
os._exit(0)  # a worker that is killed later
"""


def run_wandb(results: Path, *lines: dict[str, Any]) -> str:
    """Write lines in a process of its own, where nobody is logged in; return what was said."""
    without = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", WANDB, str(results), json.dumps(lines), str(PATIENCE_S)],
        env=without | {"HOME": str(results), "NETRC": str(results / "netrc")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=2 * PATIENCE_S,
    )
    assert completed.stderr == ""
    return completed.stdout


@pytest.mark.slow
def test_wandb_writes_offline_where_nobody_is_logged_in(tmp_path: Path) -> None:
    evaluation = {"step": 2, "val_loss": 2.0, "val_accuracy": 0.25}
    wandb = run_wandb(tmp_path, step_line(1, 2.5), step_line(2, None) | {"nonfinite": True}, evaluation)
    assert "not logged in, so it writes offline" in wandb
    assert wandb.count("\n") == 1
    (path,) = tmp_path.glob(f"wandb/offline-run-*-{RUN}/run-{RUN}.wandb")
    content = path.read_bytes()
    for text in ("val_accuracy", "0.25", "NaN", "ettsweep", "strategy ntk lr 0.007812 wd 0.5 seed 3", *CONFIG):
        assert text.encode() in content, text
