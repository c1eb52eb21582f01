"""One run sharded over several processes: the same run as on one, no process with a whole model, nothing lost to a kill."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from support.made_runs import (
    CPU,
    MODERN,
    ODD,
    REL,
    MakeSpec,
    Train,
    Trained,
    curve,
    decoder_run,
    numbers,
    result_of,
    text_run,
    trained_through_stops_and_kills,
)
from support.made_runs import TEXT as ENCDEC

from ettsweep.runs.spec import RunSpec, StrategySpec
from ettsweep.strategies.optimizers import MuonSpec
from ettsweep.trainer.models.build import build_model, initialise
from ettsweep.trainer.models.parameter_scales import parameter_factors
from ettsweep.trainer.models.registry import model_spec, parameter_count
from ettsweep.trainer.specs import ScheduleSpec
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings, resolve_by_size

SHARDED: dict[str, Any] = {"world": 2, "sharded": True}
SAVED_OFTEN = SHARDED | {"every_steps": 4}
DDP: dict[str, Any] = {"world": 2, "sharded": False}

STILL = {"dropout": 0.0, "attention_dropout": 0.0}
SHORT = {"schedule": ScheduleSpec(total_steps=8, warmup_steps=2, eval_every=8), "lr": 0.25}
TEXT = text_run(model=ENCDEC.model_copy(update=STILL), **SHORT)
"""A run that reads and writes text; nothing in it is drawn but its samples, which are the same on all processes."""
DECODER = decoder_run(model=MODERN.model_copy(update=STILL), **SHORT)
"""Three processes have 6, 6 and 4 of the 16 numbers of a gain."""
WITH_MUON = DECODER.model_copy(update={"optimizer": MuonSpec(), "strategy": StrategySpec(s=1.0), "lr": 0.02})
"""Newton and Schulz iterate in bf16, so that other last bits of a gradient are other bits of a step."""
NAMES = ["a Vision Transformer", "encoder-decoder", "decoder", "decoder with Muon"]


def said(ends: list[list[str]]) -> list[list[Any]]:
    """Return what processes answered to a question; a traceback is no answer."""
    assert all(text.startswith("{") for trial in ends for text in trial), ends
    return [[json.loads(text) for text in trial] for trial in ends]


# --- what is optimised ----------------------------------------------------------------------------------------------


def test_each_parameter_keeps_its_rate_and_decay_however_the_model_is_wrapped(
    trained: Trained, make_spec: MakeSpec
) -> None:
    spec = make_spec(optimizer={"decay_pe": False}, model={"depth": 2}, strategy={"s": 0.5, "mlp_factor": "include"})
    by_name = parameter_factors(spec.model, spec.strategy, spec.optimizer)
    expected = {name: [0.25 * lr, spec.wd * wd] for name, (lr, wd) in by_name.items()}
    assert len({tuple(pair) for pair in expected.values()}) > 5, "they are not alike"
    _, ends = trained((spec, DDP | {"ask": "groups"}), (spec, SHARDED | {"ask": "groups"}))
    kinds = (["DistributedDataParallel", "Parameter"], ["DTensor", "FSDPVit"])
    for its, answers in zip(kinds, said(ends), strict=True):
        assert all(answer == {"groups": expected, "kinds": its} for answer in answers)


# --- the same numbers -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("text", "rel"), [(None, REL), (TEXT, REL), (DECODER, REL), (WITH_MUON, 100 * REL)], ids=NAMES)
def test_curves_equal_those_of_one_process(
    train: Train, trained: Trained, make_spec: MakeSpec, text: RunSpec | None, rel: float
) -> None:
    """33 samples are 11 on each of three processes; nine texts are 3 on each, in micro-batches of 2 and 1.

    With recomputation, each block is gathered once more. Of 1,001 images, 501 and 500 are two slices and one.
    """
    changes = {"model": {"depth": 2}, "optimizer": {"kind": "sgd", "momentum": 0.9, "clip_norm": 0.5}}
    spec = text or make_spec(batch_size=ODD, lr=0.1, strategy={"s": None}, task={"train_size": 796}, **changes)
    three = {"world": 3, "micro_batch": 16 if text is None else 2, "recompute": True}
    runs, ends = trained((spec, SHARDED), (spec, SHARDED | three))
    assert {end for trial in ends for end in trial} == {"ended"}
    one = train(spec)
    for run in runs:
        for key in ("loss", "grad_norm", "val_loss"):
            assert curve(run, key) == pytest.approx(curve(one, key), rel=rel), key
        assert result_of(run)["execution"]["sharded"] is True
    assert curve(runs[0]) != curve(one), "two processes trained it"


@pytest.mark.slow
def test_half_precision_is_that_of_a_model_that_is_not_sharded(trained: Trained) -> None:
    """Weights, and gains of norms, travel as what autocast makes of them, so that only the order of sums differs."""
    spec = DECODER.model_copy(update={"precision": "fp16", "lr": 1.0})
    (ddp, sharded), ends = trained((spec, DDP), (spec, SHARDED))
    assert {end for trial in ends for end in trial} == {"ended"}
    assert curve(sharded) == pytest.approx(curve(ddp), rel=1e-6)
    assert curve(sharded, "loss_scale") == curve(ddp, "loss_scale")


# --- no whole copy --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_initial_weights_are_the_same_bits_and_each_process_holds_its_part(
    trained: Trained, make_spec: MakeSpec
) -> None:
    """Three processes have 4, 4 and 2 of the ten classes."""
    for spec, world in ((make_spec(model={"depth": 2}), 3), (TEXT, 2), (DECODER, 3)):
        model = build_model(spec.model, spec.strategy)
        initialise(model, spec.model, spec.strategy, spec.seed)
        right = checkpoint.weights_sha256(model)
        _, ends = trained((spec, SHARDED | {"world": world, "ask": "weights"}))
        (answers,) = said(ends)
        assert all(answer["whole"] == ["meta"] for answer in answers), "memory that is not written to is not seen"
        assert {answer["sha256"] for answer in answers} == {right}
        assert sum(answer["here"] for answer in answers) == parameter_count(spec.model)
        assert max(answer["here"] for answer in answers) < 1.2 * parameter_count(spec.model) / len(answers)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the peak of memory")
def test_no_process_ever_holds_more_than_its_part(trained: Trained, make_spec: MakeSpec) -> None:
    """Weights and two moments while it is built, gradients too until the end, and on the way a parameter or some blocks."""
    spec = make_spec(model={"width": 512, "depth": 8, "heads": 8}, batch_size=4)
    complete = 4 * parameter_count(spec.model)
    trial = {"ask": "memory", "micro_batch": 2}
    (_, _), ends = trained((spec, SHARDED | trial), (spec, DDP | {"world": 1} | trial))
    for answers, sections in zip(said(ends), (2, 1), strict=True):
        for answer in answers:
            assert 1 / sections < answer["weights"] / complete < 1 / sections + 0.1
            assert 3 / sections < answer["built"] / complete < 3 / sections + 0.1
            assert 4 / sections < answer["most"] / complete < 4 / sections + 0.7, (
                "whole weights or gradients: half more"
            )
        leader, *followers = answers
        assert all(answer["saved"] / complete < 4 / sections + 0.7 for answer in followers)
        assert leader["saved"] / complete < 4 / sections + 0.7 + 3, "it gathers weights and moments"


# --- stopped and killed ---------------------------------------------------------------------------------------------


def long_spec(make_spec: MakeSpec) -> RunSpec:
    return make_spec(batch_size=ODD, lr=0.25, schedule={"total_steps": 26, "eval_every": 7})


@pytest.mark.slow
def test_a_sharded_run_stopped_and_killed_goes_on_bit_for_bit(trained: Trained, make_spec: MakeSpec) -> None:
    method = SAVED_OFTEN | {"micro_batch": 5, "beside": True}
    run = trained_through_stops_and_kills(trained, long_spec(make_spec), method)
    for number in run.attempt_numbers():
        assert len(run.attempt(number).saved_steps()) == 1


@pytest.mark.slow
def test_a_process_killed_while_it_saves_costs_no_bit(trained: Trained, make_spec: MakeSpec) -> None:
    spec = long_spec(make_spec)
    (calm,), _ = trained((spec, SAVED_OFTEN | {"folder": "calm"}))
    for how, rank, beside in (("while it is gathered", 1, False), ("in the file", 0, True)):
        method = SAVED_OFTEN | {"folder": how, "beside": beside}
        (run, _), ends = trained((spec, method | {"rank": rank, "after": 3, "how": how}), (spec, method))
        assert ends[0][rank] == "killed"
        assert "another process of this run is gone" in ends[0][1 - rank]
        assert run.attempt(2).resumed_from() == (1, 8)
        assert numbers(run) == numbers(calm)


@pytest.mark.slow
def test_any_number_of_processes_takes_a_run_on_sharded_or_not(
    train: Train, trained: Trained, make_spec: MakeSpec
) -> None:
    spec = make_spec(batch_size=ODD, lr=0.25)
    kill = {"rank": 1, "after": 13, "how": "kill", "every_steps": 5, "folder": "same"}
    (run, _), ends = trained((spec, DDP | kill), (spec, SHARDED | {"world": 3, "folder": "same"}))
    assert "killed" in ends[0]
    assert set(ends[1]) == {"ended"}
    assert run.attempt(2).resumed_from() == (1, 10)
    one = train(spec)
    for key in ("loss", "grad_norm", "val_loss"):
        assert curve(run, key) == pytest.approx(curve(one, key), rel=REL), key
    log = run.attempt(2).log_text()
    assert "warning: sharded was False, is True" in log
    assert "warning: processes was 2, is 3" in log


def test_what_is_saved_of_a_sharded_run_is_whole_and_any_number_of_processes_takes_it_on_bit_for_bit(
    trained: Trained, make_spec: MakeSpec
) -> None:
    """Three processes have 4, 4 and 2 of the ten classes."""
    spec = make_spec(batch_size=ODD, lr=0.25)
    same, others = {"folder": "same"}, [{"world": 1}, SHARDED | {"world": 3}]
    (run, *_), ends = trained(
        (spec, SHARDED | same | {"after": 6, "how": "stop"}),
        *((spec, other | same | {"ask": "restored"}) for other in others),
    )
    saved = torch.load(run.attempt(1).state_path(6), weights_only=True)
    trainer = prepare(spec, CPU)
    mine = checkpoint.named_tensors(trainer.model, trainer.optimizer)
    assert checkpoint.layout(saved["tensors"]) == checkpoint.layout(mine)
    expected = {name: sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in saved["tensors"].items()}
    assert all(answer == {"step": 6} | expected for answers in said(ends[1:]) for answer in answers)
    assert len(set(expected.values())) > len(expected) / 2, "they are not alike"


# --- when -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "world", "requested", "sharded"),
    [
        *(("r2c2", 2, None, True), ("r2c2", 1, None, False), ("bart-large", 2, None, False)),
        *(("bart-large", 2, True, True), ("r2c2", 2, False, False)),
    ],
)
def test_large_models_are_sharded_wherever_several_processes_train_them(
    model: str, world: int, requested: bool | None, sharded: bool
) -> None:
    settings = resolve_by_size(model_spec(model), RuntimeSettings(sharded=requested), ProcessGroup(0, world))
    assert settings.sharded is sharded
    assert settings.activation_checkpointing is (model == "r2c2"), "on one device too"
