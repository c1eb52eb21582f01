"""Pre-norm decoder-only Transformer for text: causal, no biases, the head tied to the word embedding or not.

Shapes: B batch, T tokens, D width, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import output_rescale
from ettsweep.token_ids import PAD
from ettsweep.trainer.models.blocks import Attention, Block, Mlp, Network, gain_parameter, normalise
from ettsweep.trainer.models.cross_entropy import linear_cross_entropy
from ettsweep.trainer.models.decoder_blocks import GroupedAttention, SwiGlu, rotation
from ettsweep.trainer.models.gpt_spec import GptSpec, channels, draws_randomly, has_plain_attention


class Gpt(Network):
    """Decoder-only Transformer.

    Texts may be shorter than `spec.tokens`. In each of them, [pad] must come after all other tokens.

    Args:
        spec: the model.
        rescale: N, the factor of the logits.
    """

    def __init__(self, spec: GptSpec, rescale: float) -> None:
        super().__init__()
        self.ln_eps, self.dropout = spec.ln_eps, spec.dropout
        self.draws_randomly = draws_randomly(spec)
        self.rescale = rescale
        self.rotated_channels = channels(spec) if spec.positions == "rotary" else None
        gain_width = spec.width if spec.norm == "rms" else None
        self.we = nn.Parameter(torch.empty(spec.vocabulary, spec.width))
        self.pe = None if self.rotated_channels else nn.Parameter(torch.empty(spec.tokens, spec.width))
        self.head = nn.Parameter(torch.empty(spec.vocabulary, spec.width)) if spec.head == "untied" else None
        self.gain = gain_parameter(gain_width)
        self.blocks = nn.ModuleList(
            Block(_attention(spec), _mlp(spec), spec.ln_eps, dropout=spec.dropout, gain_width=gain_width)
            for _ in range(spec.depth)
        )

    def forward(self, previous_BT: Tensor, target_BT: Tensor) -> Tensor:
        """Return the cross-entropy summed over all target tokens but [pad], in nats, a scalar.

        Args:
            previous_BT: token ids that are read.
            target_BT: token ids to predict, each from the tokens up to the same place.
        """
        h_BTD = self.hidden(previous_BT)
        # Rescaling h costs less than rescaling the logits, which are never held in full.
        return linear_cross_entropy(self.rescale * h_BTD.flatten(0, 1), self._head(), target_BT.flatten(), PAD)

    def logits(self, previous_BT: Tensor) -> Tensor:
        """Return the logits of all tokens, (B, T, V)."""
        return F.linear(self.rescale * self.hidden(previous_BT), self._head())

    def hidden(self, previous_BT: Tensor) -> Tensor:
        """Return the normalised outputs of the last block, (B, T, D)."""
        x_BTD = F.embedding(previous_BT, self.we, padding_idx=PAD)
        if self.pe is not None:
            x_BTD = x_BTD + self.pe[: previous_BT.shape[1]]
        x_BTD = F.dropout(x_BTD, self.dropout, self.training)
        context: tuple[Tensor, ...] = ()
        if self.rotated_channels is not None:
            context = (rotation(previous_BT.shape[1], self.rotated_channels, previous_BT.device),)
        for block in self.blocks:
            # No padding mask: [pad] comes last, so causal attention of other tokens never reaches it.
            x_BTD = self.call_block(block, x_BTD, *context)
        return normalise(x_BTD, self.gain, self.ln_eps)

    def residual_blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks, from first to last."""
        yield from self.blocks

    def _head(self) -> Tensor:
        return self.we if self.head is None else self.head


def _attention(spec: GptSpec) -> nn.Module:
    if has_plain_attention(spec):
        return Attention(spec.width, spec.heads, causal=True, dropout=spec.attention_dropout)
    return GroupedAttention(
        spec.width,
        spec.heads,
        spec.kv_heads or spec.heads,
        norm_eps=spec.ln_eps if spec.qk_norm else None,
        dropout=spec.attention_dropout,
    )


def _mlp(spec: GptSpec) -> nn.Module:
    return (SwiGlu if spec.mlp == "swiglu" else Mlp)(spec.width, spec.mlp_ratio)


def build(spec: GptSpec, strategy: StrategySpec) -> Gpt:
    """Return the module; a tied head has the strategy's output rescale."""
    return Gpt(spec, output_rescale(spec.width, strategy.s) if spec.head == "tied" else 1.0)


def example_inputs(spec: GptSpec, batch: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, ...]:
    """Return random previous and target tokens, without [pad]."""
    shape = (batch, spec.tokens)
    return tuple(torch.randint(PAD + 1, spec.vocabulary, shape, generator=generator, device=device) for _ in range(2))
