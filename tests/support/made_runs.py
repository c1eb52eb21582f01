"""Runs made for tests: how they are trained and stopped, and the numbers that must never differ."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.runs.state import StopReason
from ettsweep.strategies.optimizers import AdamWSpec
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.tasks.text.text_data import pydoc_digest
from ettsweep.trainer.tasks.text.text_task import DenoisingTask, NextTokenTask

CPU = torch.device("cpu")

MakeSpec = Callable[..., RunSpec]
Undisturbed = Callable[[RunSpec], tuple[bytes, object]]
Poll = Callable[[Attempt], StopReason | None]
Trained = Callable[..., tuple[list[RunDir], list[list[str]]]]

ODD = 33
"""A batch that neither two nor three processes can share evenly."""

REL = 1e-4
"""Sums of 33 samples in another order differ by some 1e-7, and 24 steps of AdamW carry that some hundred times further."""


def never(attempt: Attempt) -> StopReason | None:
    """Do not stop an attempt."""
    return None


def stop_at(step: int, stop: StopReason = StopReason.TERMINATED) -> Poll:
    """Return a poll that stops an attempt after `step` more steps."""
    calls = iter(range(step + 1))
    return lambda attempt: stop if next(calls) == step else None


TEXT = EncDecSpec(width=16, depth=1, heads=2, vocabulary=300, tokens=24, dropout=0.1, attention_dropout=0.1)
DECODER = GptSpec(width=16, depth=1, heads=2, vocabulary=300, tokens=24, dropout=0.1, attention_dropout=0.1)
MODERN = DECODER.model_copy(
    update={"head": "untied", "norm": "rms", "positions": "rotary", "mlp": "swiglu", "kv_heads": 1, "qk_norm": True}
)


def decoder_run(**changes: Any) -> RunSpec:
    """Return a run of a decoder, of all that today's have, otherwise like `text_run`."""
    task = NextTokenTask(text="pydoc", val_blocks=64, corpus=pydoc_digest())
    return text_run(**{"model": MODERN, "task": task, **changes})


def text_run(**changes: Any) -> RunSpec:
    """Return a run of a second: AdamW clipped as the paper has it, fp32."""
    spec = TransformerRun(
        model=TEXT,
        task=DenoisingTask(kind="pydoc", val_blocks=64, corpus=pydoc_digest()),
        optimizer=AdamWSpec(beta2=0.998, eps=1e-6, clip_norm=0.1),
        schedule=ScheduleSpec(total_steps=24, warmup_steps=4, decay="linear", eval_every=8),
        batch_size=9,
        strategy=StrategySpec(s=0.0),
        lr=1.0,
        wd=1e-4,
        seed=3,
    )
    return spec.model_copy(update=changes)


class Train(Protocol):
    """Claim the next attempt at a run, train it, and return the run folder."""

    def __call__(
        self, spec: RunSpec, every_steps: int | None = None, poll: Poll = never, folder: Path | None = None
    ) -> RunDir: ...


def result_of(run: RunDir) -> dict[str, Any]:
    """Return the result; where there is none, fail with what was logged."""
    result = run.result()
    assert result is not None, [run.attempt(n).log_text() for n in run.attempt_numbers()]
    return result


def numbers(run: RunDir) -> tuple[bytes, object]:
    """Return the metrics, byte for byte, and the hash of the final weights."""
    sha256 = result_of(run)["weights_sha256"]
    run.history()  # raises where the metrics are not those of the result
    return run.metrics_path.read_bytes(), sha256


def curve(run: RunDir, key: str = "loss") -> list[float]:
    """Return a metric of all steps, or evaluations, of a finished run."""
    return [line[key] for line in run.history() if key in line]


def trained_through_stops_and_kills(trained: Trained, spec: RunSpec, method: dict[str, Any]) -> RunDir:
    """Stop and kill the processes of a run, one or another, and see it go on with the numbers of an undisturbed one."""
    world, method = method["world"], method | {"folder": "same"}
    last = world - 1
    (calm, run, *_), ends = trained(
        (spec, method | {"folder": "calm"}),
        (spec, method | {"rank": last, "after": 6, "how": "stop"}),
        (spec, method | {"rank": last, "after": 9, "how": "kill"}),
        (spec, method | {"rank": 0, "after": 7, "how": "kill"}),
        (spec, method | {"rank": 0, "after": 3, "how": "stop"}),
        (spec, method),
    )
    assert ends[1] == ends[4] == ends[5] == ["ended"] * world
    for end, killed in ((ends[2], last), (ends[3], 0)):
        assert end[killed] == "killed"
        assert all("another process of this run is gone" in e for rank, e in enumerate(end) if rank != killed)
    failures = [run.attempt(number).failure() for number in range(1, 6)]
    assert [f and f["kind"] for f in failures] == ["interrupted", "lost", "lost", "interrupted", None]
    assert [run.attempt(number).resumed_from() for number in range(1, 6)] == [(0, 0), (1, 6), (2, 12), (3, 16), (4, 19)]
    assert numbers(run) == numbers(calm)
    return run
