"""The decoder against GPT-2, Llama and Qwen3 of transformers: logits, gradients, dropout."""

import pytest
import torch
from support import decoder_twins
from torch import Tensor
from torch.nn import functional as F

from ettsweep.runs.spec import StrategySpec
from ettsweep.token_ids import END, PAD
from ettsweep.trainer.models.build import build_model, example_inputs, initialise
from ettsweep.trainer.models.gpt import Gpt
from ettsweep.trainer.models.gpt_spec import GptSpec

CPU = torch.device("cpu")
PLAIN = GptSpec(width=24, depth=2, heads=3, mlp_ratio=3, vocabulary=53, tokens=11)
LLAMA = GptSpec(
    **{"width": 24, "depth": 2, "heads": 6, "mlp_ratio": 3, "vocabulary": 53, "tokens": 11, "kv_heads": 2},
    **{"norm": "rms", "positions": "rotary", "mlp": "swiglu", "head": "untied", "ln_eps": 1e-6},
)
SPECS = {
    "gpt-2": PLAIN,
    "gpt-2, untied": PLAIN.model_copy(update={"head": "untied"}),
    "llama, tied, all heads": LLAMA.model_copy(update={"head": "tied", "kv_heads": None}),
    "qwen3": LLAMA.model_copy(update={"qk_norm": True}),
}
"""One of each field's values, and all that today's models have."""


def built(spec: GptSpec, s: float | None = 0.0, training: bool = False) -> Gpt:
    """Return a model in float64, with weights large enough for all of it to matter, and gains."""
    model = build_model(spec, StrategySpec(s=s)).double()
    assert isinstance(model, Gpt)
    initialise(model, spec, StrategySpec(s=s), seed=0)
    generator = torch.Generator().manual_seed(1)  # one for all, so that no gain has the values of another
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(-0.5, 0.5, generator=generator)
            elif parameter.std() < 0.1:
                parameter *= 10
    return model.train(training)


def padded(spec: GptSpec) -> tuple[Tensor, Tensor]:
    """Return previous and target of three samples, two with [pad]."""
    _, target_BT = example_inputs(spec, 3, CPU)
    for sample, length in enumerate([11, 9, 6]):
        target_BT[sample, length:] = PAD
    previous_BT = torch.cat((torch.full((3, 1), END), target_BT[:, :-1]), 1)
    return previous_BT.masked_fill(target_BT == PAD, PAD), target_BT


@pytest.mark.parametrize("s", [None, 1.0])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_logits_loss_and_gradients_equal_those_of_transformers(spec: GptSpec, s: float | None) -> None:
    pytest.importorskip("transformers")
    model = built(spec, s)
    previous, target = padded(spec)
    with decoder_twins.norms_in_double():
        theirs = decoder_twins.twin(model, spec).eval()
        logits = theirs(previous).logits
    rescale = 1 / 24 if s == 1.0 and spec.head == "tied" else 1.0
    expected = F.cross_entropy(rescale * logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
    is_target = target != PAD
    scale = logits.abs().max().item() * rescale
    torch.testing.assert_close(
        model.logits(previous)[is_target], rescale * logits[is_target], rtol=1e-12, atol=1e-12 * scale
    )
    loss = model(previous, target)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)

    loss.backward()
    expected.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in model.named_parameters():
        right = torch.cat([decoder_twins.as_ours(n, gradients[n]) for n in decoder_twins.names(spec)[name]])
        assert parameter.grad is not None
        largest = right.abs().max().item()
        torch.testing.assert_close(parameter.grad, right, rtol=0, atol=1e-12 * largest, msg=f"gradient of {name}")


def test_dropout_is_where_gpt2s_is() -> None:
    """The same generator draws the same masks, in the same places and order."""
    pytest.importorskip("transformers")
    spec = PLAIN.model_copy(update={"dropout": 0.2, "attention_dropout": 0.3})
    model = built(spec, None, training=True)
    theirs = decoder_twins.twin(model, spec).train()
    previous, _ = padded(spec)
    torch.manual_seed(1)
    expected = theirs(previous).logits
    torch.manual_seed(1)
    torch.testing.assert_close(model.logits(previous), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model.logits(previous), expected)


def test_gains_start_at_one_and_an_untied_head_starts_as_a_head_does() -> None:
    for s, std in ((None, 0.02), (0.0, 24**-0.5), (1.0, 1 / 24)):
        model = build_model(LLAMA, StrategySpec(s=s))
        initialise(model, LLAMA, StrategySpec(s=s), seed=0)
        values = dict(model.named_parameters())
        assert all(not value.any() for name, value in values.items() if name.endswith("gain"))  # added to 1
        assert values["head"].std().item() == pytest.approx(std, rel=0.05)
        assert values["head"][PAD].any()
        assert not values["we"][PAD].any()
