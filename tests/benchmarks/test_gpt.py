"""The benchmark compares decoders of one shape on one loss, and steps that do the same."""

from importlib.util import find_spec

import pytest
import torch
from support.decoder_twins import twin

from bench import turns
from bench.gpt import (
    PlainGpt,
    PlainLoop,
    TransformersGpt2,
    measure,
    our_trainer,
    run_spec,
    summed_loss,
    transformers_trainer,
)
from ettsweep.token_ids import PAD
from ettsweep.trainer.models.registry import model_spec, parameter_count

pytestmark = pytest.mark.skipif(not find_spec("transformers"), reason="needs transformers")

CPU = torch.device("cpu")


def copy_weights(plain: PlainGpt, ours: torch.nn.Module) -> None:
    """Give the plain model our weights."""
    weights = dict(ours.named_parameters())
    names = {"words.weight": "we", "positions.weight": "pe"}
    for block in range(len(plain.blocks)):
        inside = {"qkv": "attention.qkv", "out": "attention.u", "mlp.0": "mlp.w", "mlp.2": "mlp.x"}
        names |= {f"blocks.{block}.{theirs}.weight": f"blocks.{block}.{name}" for theirs, name in inside.items()}
    parameters = dict(plain.named_parameters())
    assert parameters.keys() == names.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[names[name]])


def test_the_plain_model_has_our_parameters_and_gpt2_those_of_norms_and_biases_too() -> None:
    model = model_spec("gpt2")
    with torch.device("meta"):
        plain, theirs = (sum(p.numel() for p in build(model).parameters()) for build in (PlainGpt, TransformersGpt2))
    assert plain == parameter_count(model)
    assert theirs == plain + 768 * (2 * 25 + 12 * (3 + 1 + 4 + 1))


def test_all_have_the_same_loss_of_the_same_weights_and_batch() -> None:
    spec = run_spec(model_spec("gpt-tiny"), "fp32", 3)
    ours, theirs, loop = (build(spec, CPU, False) for build in (our_trainer, transformers_trainer, PlainLoop))
    theirs.model.gpt2 = twin(ours.model, spec.model)
    copy_weights(loop.model, ours.model)
    batch = next(ours.task.batches(1))
    previous, target = batch.inputs
    assert not (target == PAD).any()
    assert torch.equal(previous[:, 1:], target[:, :-1])
    losses = [t.task.loss(t.network(*batch.inputs), batch).item() for t in (ours, theirs)]
    losses.append(summed_loss(loop.model(previous), target).item() / target.numel())
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_steps_of_the_plain_loop_are_ours() -> None:
    spec = run_spec(model_spec("gpt-tiny"), "fp32", 3)
    ours, loop = our_trainer(spec, CPU, False), PlainLoop(spec, CPU, False)
    copy_weights(loop.model, ours.model)
    for _ in range(3):
        for trainer in (ours, loop):
            trainer.train_step(1e-3, trainer.task.batches(1))
    reference = PlainGpt(spec.model)
    copy_weights(reference, ours.model)
    for name, parameter in loop.model.named_parameters():
        torch.testing.assert_close(parameter, dict(reference.named_parameters())[name], rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.slow
def test_a_row_has_the_memory_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 1e-6)
    row = measure("plain loop", 1, model_spec("gpt-tiny"), CPU, "fp32", False, 2)
    assert (row["beside"], row["tokens"], row["batch_size"]) == ("plain loop", 64, 2)
    assert min(row["memory_gib"], row["other_memory_gib"], row["ratio"]) > 0
