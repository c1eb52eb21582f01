"""Runs on text: what dropout draws, exact resume, and what micro-batches do not change."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.here import train_once
from support.made_runs import (
    CPU,
    REL,
    MakeSpec,
    Train,
    Undisturbed,
    curve,
    decoder_run,
    numbers,
    result_of,
    stop_at,
    text_run,
)

from ettsweep.runs.folder import RunDir
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings

STILL_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
TEXT_RUNS = pytest.mark.parametrize("make", [text_run, decoder_run], ids=["encoder-decoder", "decoder"])


@TEXT_RUNS
def test_training_lowers_the_loss_in_nats_and_bits(train: Train, make: MakeSpec) -> None:
    run = train(make(model=make().model.model_copy(update=STILL_DROPOUT)))
    losses, bits = curve(run, "val_loss"), curve(run, "val_bits")
    assert losses[0] > losses[-1]
    assert [b / n for b, n in zip(bits, losses, strict=True)] == pytest.approx([1 / 0.6931471805599453] * 3)
    per_byte = curve(run, "val_bits_per_byte")
    bytes_per_token = [b / p for b, p in zip(bits, per_byte, strict=True)]
    assert bytes_per_token == pytest.approx([bytes_per_token[0]] * 3)
    assert 1 < bytes_per_token[0] < 3
    result = result_of(run)
    assert (result["best_bits"], result["best_accuracy"]) == (min(bits), None)
    assert (result["best_bits_per_byte"], result["final_bits_per_byte"]) == (min(per_byte), per_byte[-1])
    assert result["score"] == result["best_loss"] == min(losses)


@pytest.mark.slow
def test_run_with_dropout_that_is_stopped_equals_an_undisturbed_one(train: Train, undisturbed: Undisturbed) -> None:
    spec = decoder_run(precision="fp16")
    for extra in (1, 9):
        run = train(spec, poll=stop_at(extra))
    train(spec)
    assert result_of(run)["attempts"] == 3
    assert numbers(run) == undisturbed(spec)


def test_dropout_draws_from_seed_step_and_process_alone() -> None:
    trainer = prepare(text_run(), CPU)
    trainer.network.train()
    batch = next(trainer.task.batches(1))

    def loss(step: int, rank: int = 0, before: int = 0) -> float:
        torch.rand(before)
        trainer.share = replace(trainer.share, rank=rank, world=2)
        trainer.step = step - 1
        trainer.seed_dropout()
        return trainer.network(*batch.inputs).item()

    assert loss(1) == loss(1, before=5)
    assert len({loss(1), loss(2), loss(1, rank=1)}) == 3
    trainer.network.eval()
    assert loss(1) == loss(2)


@pytest.mark.slow
@TEXT_RUNS
def test_micro_batches_change_rounding_alone(train: Train, tmp_path: Path, make: MakeSpec) -> None:
    """Texts differ in length: a mean of means would not be the mean over all target tokens."""
    spec = make(model=make().model.model_copy(update=STILL_DROPOUT))
    whole, cut = train(spec), RunDir.create(tmp_path / "cut", spec)
    train_once(cut, RuntimeSettings(micro_batch=4))
    assert curve(cut) == pytest.approx(curve(whole), rel=REL)
    assert curve(cut, "grad_norm") == pytest.approx(curve(whole, "grad_norm"), rel=10 * REL)
