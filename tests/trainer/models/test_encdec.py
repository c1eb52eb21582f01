"""The encoder-decoder against Hugging Face's MBart, and what must not depend on what."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bench import mbart
from ettsweep.runs.spec import StrategySpec
from ettsweep.token_ids import END, PAD
from ettsweep.trainer.models.build import build_model, example_inputs, initialise
from ettsweep.trainer.models.encdec import EncDec
from ettsweep.trainer.models.encdec_spec import EncDecSpec

SPEC = EncDecSpec(width=24, depth=2, heads=3, mlp_ratio=3, vocabulary=53, tokens=11, dropout=0.2, attention_dropout=0.3)
CPU = torch.device("cpu")


def built(spec: EncDecSpec = SPEC, s: float | None = 0.0, training: bool = False) -> EncDec:
    """Return a model in float64, with weights large enough for all of it to matter."""
    model = build_model(spec, StrategySpec(s=s)).double()
    assert isinstance(model, EncDec)
    initialise(model, spec, StrategySpec(s=s), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.std() < 0.1:
                parameter *= 10
    return model.train(training)


def padded(spec: EncDecSpec = SPEC) -> tuple[Tensor, Tensor, Tensor]:
    """Return source, previous and target of three samples, two with [pad]."""
    source_BS, _, target_BT = example_inputs(spec, 3, CPU)
    for sample, (source, target) in enumerate([(11, 11), (7, 9), (4, 6)]):
        source_BS[sample, source:] = PAD
        target_BT[sample, target:] = PAD
    previous_BT = torch.cat((torch.full((3, 1), END), target_BT[:, :-1]), 1)
    return source_BS, previous_BT.masked_fill(target_BT == PAD, PAD), target_BT


@pytest.mark.parametrize("s", [None, 1.0])
def test_hidden_states_logits_loss_and_gradients_equal_mbarts(s: float | None) -> None:
    pytest.importorskip("transformers")
    model = built(s=s)
    theirs = mbart.twin(model, SPEC).eval()
    source, previous, target = padded()  # padding changes nothing, or theirs would differ
    out = theirs(source, source != PAD, previous, previous != PAD, output_hidden_states=True)
    rescale = 1.0 if s is None else 1 / 24
    expected = F.cross_entropy(rescale * out.logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
    encoded, decoded = model.hidden(source, previous)
    is_source, is_target = source != PAD, target != PAD
    exact = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(encoded[is_source], out.encoder_last_hidden_state[is_source], **exact)
    torch.testing.assert_close(decoded[is_target], out.decoder_hidden_states[-1][is_target], **exact)
    torch.testing.assert_close(model.logits(source, previous)[is_target], rescale * out.logits[is_target], **exact)
    loss = model(source, previous, target)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)

    loss.backward()
    expected.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in model.named_parameters():
        cat_result = torch.cat([mbart.as_ours(other, gradients[other]) for other in mbart.names(SPEC)[name]])
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, cat_result, rtol=1e-8, atol=1e-10, msg=f"gradient of {name}")


def test_dropout_is_where_mbarts_is() -> None:
    """The same generator draws the same masks, in the same places and order."""
    pytest.importorskip("transformers")
    model = built(training=True)
    theirs = mbart.twin(model, SPEC).train()
    source, previous, target = padded()
    torch.manual_seed(1)
    logits = 24**-0.5 * theirs(source, source != PAD, previous, previous != PAD).logits
    expected = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
    torch.manual_seed(1)
    torch.testing.assert_close(model(source, previous, target), expected, rtol=1e-12, atol=0)
    assert model(source, previous, target).item() != pytest.approx(expected.item(), rel=1e-6)
