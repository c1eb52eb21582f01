"""Spec, parameters and cost of an encoder-decoder, without importing torch.

Symbols: T tokens of a source and of a target, D width, L depth of each stack, V vocabulary, H heads.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

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
from ettsweep.trainer.specs import ModelSpec, indivisible_problems


class EncDecSpec(ModelSpec):
    """Pre-norm encoder-decoder Transformer for text: no biases, and one word embedding that is tied to the head.

    Attributes:
        depth: blocks of the encoder, and of the decoder.
        vocabulary: n_vocab, including special tokens.
        tokens: T, length of source and of target, including padding.
        ln_eps: eps of LayerNorms.
        dropout: dropout after each embedding and on each residual branch.
        attention_dropout: dropout of attention weights.
    """

    reads_source: ClassVar[bool] = True

    kind: Literal["encdec"] = "encdec"
    vocabulary: Annotated[int, Field(ge=9)]  # the smallest `vocabulary_size`: that of a single byte-pair token
    tokens: Annotated[int, Field(ge=4)]
    ln_eps: PositiveFloat = 1e-5
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.1

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if problems := list(indivisible_problems("width", self.width, "heads", self.heads)):
            raise ValueError("; ".join(problems))
        return self


def dims(model: EncDecSpec) -> Dims:
    """Return the dimensions that scaling strategies depend on."""
    return Dims(
        "language", model.width, n_patch=None, n_out=model.vocabulary, mlp_ratio=model.mlp_ratio, tied_head=True
    )


def parameters(model: EncDecSpec) -> tuple[Parameter, ...]:
    """Return all parameters in the order of the torch module's `named_parameters()`."""
    n = model.width
    return (
        Parameter("we", (Group.WE,), (model.vocabulary, n)),
        Parameter("encoder_pe", (Group.PE,), (model.tokens, n)),
        Parameter("decoder_pe", (Group.PE,), (model.tokens, n)),
        *(p for i in range(model.depth) for p in block_parameters(f"encoder.{i}", model)),
        *(p for i in range(model.depth) for p in block_parameters(f"decoder.{i}", model, cross=True)),
    )


def forward_flops(model: EncDecSpec) -> int:
    """Return the FLOPs of L encoder blocks, L decoder blocks with cross-attention, and the head (2 T D V).

    Masked and padded positions count as well. The embedding lookup is not a matrix product and does not.
    """
    attention, mlp = attention_flops(model, model.tokens), mlp_flops(model, model.tokens)
    # 3: self-attention in both stacks, and cross-attention.
    return model.depth * (3 * attention + 2 * mlp) + 2 * model.tokens * model.width * model.vocabulary


def activation_bytes(model: EncDecSpec, recompute: bool) -> int:
    """Return the bytes that one sample's activations take: blocks, embeddings, outer LayerNorms and head.

    Dropout adds a mask for each residual branch; attention dropout adds three times the attention weights.
    """
    vector, mlp = 4 * model.width * model.tokens, mlp_vectors(model)
    mask = 1 if model.dropout else 0
    weights = 3 * 4 * model.heads * model.tokens**2 if model.attention_dropout else 0
    attention = vector * (ATTENTION_VECTORS + mask) + weights
    encoder, decoder = attention + vector * (mlp + mask), 2 * attention + vector * (mlp + mask)
    # Three vectors for stem and last LayerNorm, and the stem's dropout mask; for source and target.
    outside = vector * (6 + 2 * mask)
    # Recomputing, each block keeps its input, and only one block, at worst a decoder's, keeps all at a time.
    return outside + (decoder + model.depth * 2 * vector if recompute else model.depth * (encoder + decoder))


def draws_randomly(model: EncDecSpec) -> bool:
    """Return True if a training step draws random numbers."""
    return model.dropout > 0 or model.attention_dropout > 0
