"""The benchmark compares models of one shape on one loss."""

from importlib.util import find_spec

import pytest
import torch

from bench.encdec import MBart, mbart_trainer, our_trainer, run_spec
from bench.mbart import twin
from ettsweep.token_ids import END, PAD
from ettsweep.trainer.models.registry import model_spec

pytestmark = pytest.mark.skipif(not find_spec("transformers"), reason="needs transformers")

CPU = torch.device("cpu")


def test_mbart_has_our_parameters_and_those_of_norms_biases_and_two_positions() -> None:
    model = model_spec("bart-large")
    with torch.device("meta"):
        theirs = MBart(model)
    count = sum(p.numel() for p in theirs.parameters())
    norms = (2 * 12 + 3 * 12 + 4) * 2
    biases = 12 * (4 + 4 + 1) + 12 * (8 + 4 + 1)
    assert count == 404_845_568 + (norms + biases + 2 * 2) * 1024


def test_both_have_the_same_loss_of_the_same_weights_and_batch() -> None:
    spec = run_spec(model_spec("encdec-tiny"), "fp32", 3)  # it has no dropout
    ours, theirs = our_trainer(spec, CPU, False), mbart_trainer(spec, CPU, False)
    theirs.model.mbart = twin(ours.model, spec.model)
    losses = []
    for trainer in (ours, theirs):
        batch = next(trainer.task.batches(1))
        losses.append(trainer.task.loss(trainer.network(*batch.inputs), batch).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_blocks_are_padded_and_shifted_as_real_ones_are() -> None:
    spec = run_spec(model_spec("encdec-tiny"), "fp32", 8)
    source, previous, target = next(our_trainer(spec, CPU, False).task.batches(1)).inputs
    lengths = (target != PAD).sum(1)
    assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)
    assert 0.9 * 64 - 1 <= lengths[-1] < lengths[0] < 64
    assert torch.equal((source != PAD).sum(1), (0.8 * lengths).long())
    for row, shifted, length in zip(target, previous, lengths, strict=True):
        assert not (row[:length] == PAD).any()
        assert shifted.tolist() == [END, *row[: length - 1], *[PAD] * (64 - length)]
