"""One run sharded over several processes: the same run as on one, no process with a whole model, nothing lost to a kill."""

import itertools
import json
import math
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
    numbers,
    result_of,
    trained_through_stops_and_kills,
)

from ettsweep.runs.spec import RunSpec, validated_spec
from ettsweep.trainer.models.build import build_model, initialise
from ettsweep.trainer.models.parameter_scales import parameter_factors
from ettsweep.trainer.models.registry import model_spec, parameter_count
from ettsweep.trainer.tasks.text.text_data import pydoc_digest
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings, resolve_by_size

SHARDED: dict[str, Any] = {"world": 2, "sharded": True}
SAVED_OFTEN = SHARDED | {"every_steps": 4}
DDP: dict[str, Any] = {"world": 2, "sharded": False}

TEXT = validated_spec(
    {
        "model": {
            "kind": "encdec",
            **{"width": 16, "depth": 1, "heads": 2, "vocabulary": 512, "tokens": 64},
            **{"dropout": 0.0, "attention_dropout": 0.0},
        },
        "task": {"kind": "pydoc", "val_blocks": 64, "corpus": pydoc_digest()},
        "batch_size": 9,
        "strategy": {"s": 0.0},
        **{"lr": 0.25, "wd": 2.0**-6, "seed": 0},
        "schedule": {"total_steps": 8, "warmup_steps": 2, "eval_every": 8},
    },
    "text",
)
"""A run that reads and writes text; nothing in it is drawn but its samples, which are the same on all processes."""
DECODER = validated_spec(
    TEXT.model_dump()
    | {
        "model": MODERN.model_dump() | {"vocabulary": 512, "dropout": 0.0, "attention_dropout": 0.0},
        "task": {"kind": "next_token", "text": "pydoc", "val_blocks": 64, "corpus": pydoc_digest()},
    },
    "decoder",
)
"""Three processes have 6, 6 and 4 of the 16 numbers of a gain."""


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
@pytest.mark.parametrize("text", [None, TEXT, DECODER], ids=["a Vision Transformer", "encoder-decoder", "decoder"])
def test_curves_equal_those_of_one_process(
    train: Train, trained: Trained, make_spec: MakeSpec, text: RunSpec | None
) -> None:
    """33 samples are 11 on each of three processes; nine texts are 3 on each, in micro-batches of 2 and 1."""
    changes = {"model": {"depth": 2}, "optimizer": {"kind": "sgd", "momentum": 0.9, "clip_norm": 0.5}}
    spec = text or make_spec(batch_size=ODD, lr=0.1, strategy={"s": None}, **changes)
    three = SHARDED | {"world": 3, "micro_batch": 16 if text is None else 2}
    runs, ends = trained((spec, SHARDED), (spec, SHARDED | {"recompute": True}), (spec, three))
    assert {end for trial in ends for end in trial} == {"ended"}
    one = train(spec)
    for run in runs:
        for key in ("loss", "grad_norm", "val_loss"):
            assert curve(run, key) == pytest.approx(curve(one, key), rel=REL), key
        assert result_of(run)["execution"]["sharded"] is True
    assert curve(runs[0]) != curve(one), "two processes trained it"
    assert numbers(runs[0]) == numbers(runs[1])


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "decoder"), [("fp16", None), ("bf16", DECODER)])
def test_half_precision_is_that_of_a_model_that_is_not_sharded(
    trained: Trained, make_spec: MakeSpec, precision: str, decoder: RunSpec | None
) -> None:
    """Weights, and gains of norms, travel as what autocast makes of them, so that only the order of sums differs."""
    spec = make_spec(precision=precision, lr=0.25, batch_size=ODD)
    if decoder is not None:
        spec = decoder.model_copy(update={"precision": precision, "lr": 1.0})
    (ddp, sharded), ends = trained((spec, DDP), (spec, SHARDED))
    assert {end for trial in ends for end in trial} == {"ended"}
    assert curve(sharded) == pytest.approx(curve(ddp), rel=1e-6)
    if precision == "fp16":
        assert curve(sharded, "loss_scale") == curve(ddp, "loss_scale")


@pytest.mark.slow
def test_an_overflow_on_one_process_is_everyones_and_a_resumed_run_has_its_loss_scale(
    trained: Trained, make_spec: MakeSpec
) -> None:
    """At this rate some gradients leave fp16: the step is skipped by all, and the scale stays the same on all."""
    spec = make_spec(precision="fp16", lr=64.0, wd=0.0, strategy={"s": None}, batch_size=ODD)
    method = SHARDED | {"folder": "same"}
    (calm, run, _), ends = trained((spec, SHARDED), (spec, method | {"after": 11, "how": "stop"}), (spec, method))
    assert {end for trial in ends for end in trial} == {"ended"}
    assert run.attempt(2).resumed_from() == (1, 11)
    assert numbers(run) == numbers(calm)
    scales = curve(run, "loss_scale")
    assert any(later < scale for scale, later in itertools.pairwise(scales)), scales


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
    spec = make_spec(model={"width": 512, "depth": 12, "heads": 8}, batch_size=4)
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


# --- damaged --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_time_but_no_bit(trained: Trained, make_spec: MakeSpec) -> None:
    """All processes go back to the one before."""
    spec, method = make_spec(batch_size=ODD, lr=0.25), SHARDED | {"folder": "same"}
    (calm, run, _), _ = trained(
        (spec, SHARDED), (spec, method | {"after": 6, "how": "stop"}), (spec, method | {"after": 5, "how": "stop"})
    )
    broken = run.attempt(2).state_path(run.attempt(2).saved_steps()[0])
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    (_, _), (refused, end) = trained((spec, method), (spec, method))
    assert "cannot be read as a checkpoint" in refused[0]
    assert set(end) == {"ended"}
    assert run.attempt(4).resumed_from() == (1, 6), "the older one is still good"
    assert run.attempt(4).log_text().count("skipped checkpoint") == 1
    assert numbers(run) == numbers(calm)


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
        *(("bart-large", 2, True, True), ("bart-large", 1, True, False), ("r2c2", 2, False, False)),
    ],
)
def test_large_models_are_sharded_wherever_several_processes_train_them(
    make_spec: MakeSpec, model: str, world: int, requested: bool | None, sharded: bool
) -> None:
    settings = resolve_by_size(model_spec(model), RuntimeSettings(sharded=requested), ProcessGroup(0, world))
    assert settings.sharded is sharded
    assert settings.activation_checkpointing is (model == "r2c2"), "on one device too"
    assert math.isclose(parameter_count(model_spec("r2c2")), 2.7e9, rel_tol=0.01)
