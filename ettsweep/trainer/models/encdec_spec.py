"""What the planner must know of an encoder-decoder, without torch.

T tokens of a source and of a target, D width, L depth of each stack, V vocabulary, H heads.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ettsweep.runs.spec import ModelSpec, indivisible
from ettsweep.schema import Fraction, PositiveFloat
from ettsweep.strategies.factors import Dims, Group
from ettsweep.trainer.models.transformer import (
    ATTENTION_VECTORS,
    Parameter,
    attention_flops,
    block_parameters,
    mlp_flops,
    mlp_vectors,
)


class EncDecSpec(ModelSpec):
    """Pre-norm encoder-decoder Transformer for text: no biases, one word embedding, tied to the head.

    Attributes:
        depth: blocks of the encoder, and as many of the decoder.
        vocabulary: n_vocab, all tokens of the model, special ones included.
        tokens: T, the length of source and target, padding included.
        dropout: after each embedding and on each residual branch.
        attention_dropout: of attention weights.
    """

    kind: Literal["encdec"] = "encdec"
    vocabulary: Annotated[int, Field(ge=9)]
    tokens: Annotated[int, Field(ge=4)]
    ln_eps: PositiveFloat = 1e-5
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.1

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if problems := list(indivisible("width", self.width, "heads", self.heads)):
            raise ValueError("; ".join(problems))
        return self


def dims(model: EncDecSpec) -> Dims:
    """Return what the scaling strategies depend on."""
    return Dims("language", model.width, n_patch=None, n_out=model.vocabulary, mlp_ratio=model.mlp_ratio)


def parameters(model: EncDecSpec) -> tuple[Parameter, ...]:
    """Return all parameters in the torch model's order."""
    n = model.width
    return (
        Parameter("we", (Group.WE,), (model.vocabulary, n)),
        Parameter("encoder_pe", (Group.PE,), (model.tokens, n)),
        Parameter("decoder_pe", (Group.PE,), (model.tokens, n)),
        *(p for i in range(model.depth) for p in block_parameters(f"encoder.{i}", model)),
        *(p for i in range(model.depth) for p in block_parameters(f"decoder.{i}", model, cross=True)),
    )


def forward_flops(model: EncDecSpec) -> int:
    """Return those of L blocks of the encoder, L of the decoder with one more attention, and 2 T D V of the head.

    All of it also where it is masked or [pad]. Looking words up is no product.
    """
    attention, mlp = attention_flops(model, model.tokens), mlp_flops(model, model.tokens)
    return model.depth * (3 * attention + 2 * mlp) + 2 * model.tokens * model.width * model.vocabulary


def activation_bytes(model: EncDecSpec, recompute: bool) -> int:
    """Return what blocks, both embeddings, the outer normalisations and the head keep of one sample.

    With dropout, a mask for each residual branch; with dropout of attention, three times the weights of each head.
    """
    vector, mlp = 4 * model.width * model.tokens, mlp_vectors(model)
    mask = 1 if model.dropout else 0
    weights = 3 * 4 * model.heads * model.tokens**2 if model.attention_dropout else 0
    attention = vector * (ATTENTION_VECTORS + mask) + weights
    encoder, decoder = attention + vector * (mlp + mask), 2 * attention + vector * (mlp + mask)
    outside = vector * (6 + 2 * mask)
    return outside + (decoder + model.depth * 2 * vector if recompute else model.depth * (encoder + decoder))


def draws(model: EncDecSpec) -> bool:
    """Say whether a training step draws at random."""
    return model.dropout > 0 or model.attention_dropout > 0
