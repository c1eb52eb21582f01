"""Pre-norm encoder-decoder Transformer for text: no biases, and one word embedding that is tied to the head.

Shapes: B batch, S tokens of the source, T tokens of the target, N = S + T, D width, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.factors import output_rescale
from ettsweep.token_ids import PAD
from ettsweep.trainer.models.blocks import Attention, Block, CrossAttention, Mlp, Network, layer_norm
from ettsweep.trainer.models.cross_entropy import linear_cross_entropy
from ettsweep.trainer.models.encdec_spec import EncDecSpec, draws_randomly


class DecoderBlock(nn.Module):
    """Pre-norm decoder block: causal self-attention, cross-attention on the source, and MLP."""

    def __init__(self, spec: EncDecSpec) -> None:
        super().__init__()
        self.ln_eps, self.dropout = spec.ln_eps, spec.dropout
        self.attention = Attention(spec.width, spec.heads, causal=True, dropout=spec.attention_dropout)
        self.cross = CrossAttention(spec.width, spec.heads, dropout=spec.attention_dropout)
        self.mlp = Mlp(spec.width, spec.mlp_ratio)

    def forward(self, x_BTD: Tensor, source_BSD: Tensor, mask_B11S: Tensor) -> Tensor:
        """Return the residual stream after the block, (B, T, D); `mask_B11S` is true for source tokens to attend to."""
        update_BTD = self.attention(layer_norm(x_BTD, self.ln_eps))
        x_BTD = x_BTD + F.dropout(update_BTD, self.dropout, self.training)
        update_BTD = self.cross(layer_norm(x_BTD, self.ln_eps), source_BSD, mask_B11S)
        x_BTD = x_BTD + F.dropout(update_BTD, self.dropout, self.training)
        update_BTD = self.mlp(layer_norm(x_BTD, self.ln_eps))
        return x_BTD + F.dropout(update_BTD, self.dropout, self.training)


class EncDec(Network):
    """Encoder-decoder Transformer.

    Sequences may be shorter than `spec.tokens`. In each of them, [pad] must come after all other tokens.

    Args:
        spec: the model.
        rescale: N, the factor of the logits.
    """

    def __init__(self, spec: EncDecSpec, rescale: float) -> None:
        super().__init__()
        self.ln_eps, self.dropout = spec.ln_eps, spec.dropout
        self.draws_randomly = draws_randomly(spec)
        self.rescale = rescale
        self.we = nn.Parameter(torch.empty(spec.vocabulary, spec.width))
        self.encoder_pe = nn.Parameter(torch.empty(spec.tokens, spec.width))
        self.decoder_pe = nn.Parameter(torch.empty(spec.tokens, spec.width))
        self.encoder = nn.ModuleList(
            Block(
                Attention(spec.width, spec.heads, dropout=spec.attention_dropout),
                Mlp(spec.width, spec.mlp_ratio),
                spec.ln_eps,
                dropout=spec.dropout,
            )
            for _ in range(spec.depth)
        )
        self.decoder = nn.ModuleList(DecoderBlock(spec) for _ in range(spec.depth))

    def forward(self, source_BS: Tensor, previous_BT: Tensor, target_BT: Tensor) -> Tensor:
        """Return the cross-entropy summed over all target tokens but [pad], in nats, a scalar.

        Args:
            source_BS: token ids that the encoder reads.
            previous_BT: token ids that the decoder reads: the target, shifted right by one.
            target_BT: token ids to predict.
        """
        _, h_BTD = self.hidden(source_BS, previous_BT)
        # Rescaling h costs less than rescaling the logits, which are never held in full.
        return linear_cross_entropy(self.rescale * h_BTD.flatten(0, 1), self.we, target_BT.flatten(), PAD)

    def logits(self, source_BS: Tensor, previous_BT: Tensor) -> Tensor:
        """Return the logits of all tokens, (B, T, V)."""
        _, h_BTD = self.hidden(source_BS, previous_BT)
        return F.linear(self.rescale * h_BTD, self.we)

    def hidden(self, source_BS: Tensor, previous_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised outputs of encoder and decoder, (B, S, D) and (B, T, D)."""
        mask_B11S = (source_BS != PAD)[:, None, None]
        # One lookup for both, since the gradient of each lookup has the size of the whole vocabulary.
        words_BND = F.embedding(torch.cat((source_BS, previous_BT), 1), self.we, padding_idx=PAD)
        S = source_BS.shape[1]
        x_BSD = self._stem(words_BND[:, :S], self.encoder_pe)
        for block in self.encoder:
            x_BSD = self.call_block(block, x_BSD, mask_B11S)
        source_BSD = layer_norm(x_BSD, self.ln_eps)
        x_BTD = self._stem(words_BND[:, S:], self.decoder_pe)
        for block in self.decoder:
            # No padding mask: [pad] comes last, so causal attention of other tokens never reaches it.
            x_BTD = self.call_block(block, x_BTD, source_BSD, mask_B11S)
        return source_BSD, layer_norm(x_BTD, self.ln_eps)

    def residual_blocks(self) -> Iterator[nn.Module]:
        """Yield the encoder's blocks, then the decoder's."""
        yield from self.encoder
        yield from self.decoder

    def _stem(self, words_BTD: Tensor, pe_TD: Tensor) -> Tensor:
        x_BTD = layer_norm(words_BTD + pe_TD[: words_BTD.shape[1]], self.ln_eps)
        return F.dropout(x_BTD, self.dropout, self.training)


def build(spec: EncDecSpec, strategy: StrategySpec) -> EncDec:
    """Return the module, with the strategy's output rescale."""
    return EncDec(spec, output_rescale(spec.width, strategy.s))


def example_inputs(
    spec: EncDecSpec, batch: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """Return random source, previous and target tokens, without [pad]."""
    shape = (batch, spec.tokens)
    return tuple(torch.randint(PAD + 1, spec.vocabulary, shape, generator=generator, device=device) for _ in range(3))
