"""Spec, parameters and cost of a decoder-only Transformer, without importing torch.

Symbols: T tokens, D width, L depth, V vocabulary, H heads, C channels per head.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ettsweep.schema import Fraction, Positive, PositiveFloat
from ettsweep.strategies.factors import Dims, Group
from ettsweep.trainer.models.transformer import (
    ATTENTION_VECTORS,
    Parameter,
    attention_flops,
    attention_parameters,
    mlp_flops,
    mlp_parameters,
    mlp_vectors,
)
from ettsweep.trainer.specs import ModelSpec, indivisible_problems


class GptSpec(ModelSpec):
    """Pre-norm decoder-only Transformer for text, without biases; by default the plain one that the theory covers.

    Attributes:
        vocabulary: n_vocab, including special tokens.
        tokens: T, the longest text.
        ln_eps: eps of norms.
        dropout: dropout after the embedding and on each residual branch.
        attention_dropout: dropout of attention weights.
        head: `tied`: the word embedding is the head; `untied`: the head has a weight of its own, and scales as a head.
        norm: `layer`: LayerNorm without parameters; `rms`: RMSNorm with a gain.
        positions: `learned`: an embedding that is added to the words'; `rotary`: queries and keys are rotated.
        mlp: `gelu`, or `swiglu`: gated, with hidden size `mlp_ratio * width`.
        kv_heads: heads of keys and values, each for a group of query heads; None for as many as `heads`.
        qk_norm: whether queries and keys of each head go through an RMSNorm with a gain.
    """

    reads_source: ClassVar[bool] = False

    kind: Literal["gpt"] = "gpt"
    vocabulary: Annotated[int, Field(ge=9)]  # the smallest `vocabulary_size`: that of a single byte-pair token
    tokens: Positive
    ln_eps: PositiveFloat = 1e-5
    dropout: Fraction = 0.0
    attention_dropout: Fraction = 0.0
    head: Literal["tied", "untied"] = "tied"
    norm: Literal["layer", "rms"] = "layer"
    positions: Literal["learned", "rotary"] = "learned"
    mlp: Literal["gelu", "swiglu"] = "gelu"
    kv_heads: Positive | None = None
    qk_norm: bool = False

    @model_validator(mode="before")
    @classmethod
    def _of_one_form(cls, data: object) -> object:
        """Leave out `kv_heads` if it equals heads: equal runs must have one id."""
        if isinstance(data, dict) and data.get("kv_heads") == data.get("heads"):
            return {key: value for key, value in data.items() if key != "kv_heads"}
        return data

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        problems = list(indivisible_problems("width", self.width, "heads", self.heads))
        if self.kv_heads and self.heads % self.kv_heads:
            divisors = [count for count in range(1, self.heads + 1) if self.heads % count == 0]
            problems.append(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}; these do: "
                f"{', '.join(map(str, divisors))}"
            )
        if not problems and self.positions == "rotary" and channels(self) % 2:
            problems.append(
                f"positions rotary needs an even number of channels a head, and width {self.width} has "
                f"{channels(self)} in each of {self.heads} heads; nearest width: "
                f"{', '.join(str(self.heads * c) for c in (channels(self) - 1, channels(self) + 1) if c)}"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self


def channels(model: GptSpec) -> int:
    """Return C, the channels of a head."""
    return model.width // model.heads


def kv_width(model: GptSpec) -> int:
    """Return the size of all heads' keys, which is that of their values."""
    return (model.kv_heads or model.heads) * channels(model)


def has_plain_attention(model: GptSpec) -> bool:
    """Return True if queries, keys and values are of one size and not changed before they meet."""
    return model.positions == "learned" and kv_width(model) == model.width and not model.qk_norm


def dims(model: GptSpec) -> Dims:
    """Return the dimensions that scaling strategies depend on."""
    return Dims(
        "language",
        model.width,
        n_patch=None,
        n_out=model.vocabulary,
        mlp_ratio=model.mlp_ratio,
        tied_head=model.head == "tied",
        kv_share=kv_width(model) / model.width,
    )


def beyond_theory(model: GptSpec) -> tuple[str, ...]:
    """Return in words the parts of the model beyond the theory, and how they are scaled."""
    return tuple(
        text
        for applies, text in (
            (model.norm == "rms", "RMSNorm (its gain has the factor of an embedding, by analogy)"),
            (model.positions == "rotary", "rotary positions"),
            (model.mlp == "swiglu", "SwiGLU (its gate has std and factor of w, by analogy)"),
            (kv_width(model) != model.width, "grouped keys and values (for AdamW and SGD as if each head had its own)"),
            (model.qk_norm, "normalised queries and keys (their gains have the factor of an embedding, by analogy)"),
        )
        if applies
    )


def parameters(model: GptSpec) -> tuple[Parameter, ...]:
    """Return all parameters in the order of the torch module's `named_parameters()`."""
    n, v = model.width, model.vocabulary
    return (
        Parameter("we", (Group.WE,), (v, n)),
        *((Parameter("pe", (Group.PE,), (model.tokens, n)),) if model.positions == "learned" else ()),
        *((Parameter("head", (Group.HEAD,), (v, n)),) if model.head == "untied" else ()),
        *((Parameter("gain", (Group.GAIN,), (n,)),) if model.norm == "rms" else ()),
        *(p for i in range(model.depth) for p in _block_parameters(f"blocks.{i}", model)),
    )


def _block_parameters(prefix: str, model: GptSpec) -> tuple[Parameter, ...]:
    gains = ("attention_gain", "mlp_gain") if model.norm == "rms" else ()
    plain = has_plain_attention(model)
    return (
        *(Parameter(f"{prefix}.{name}", (Group.GAIN,), (model.width,)) for name in gains),
        *(attention_parameters if plain else _grouped_attention_parameters)(f"{prefix}.attention", model),
        *mlp_parameters(f"{prefix}.mlp", model, gated=model.mlp == "swiglu"),
    )


def _grouped_attention_parameters(prefix: str, model: GptSpec) -> tuple[Parameter, ...]:
    n, gains = model.width, ("q_gain", "k_gain") if model.qk_norm else ()
    return (
        Parameter(f"{prefix}.q", (Group.Q,), (n, n)),
        Parameter(f"{prefix}.kv", (Group.K, Group.V), (2 * kv_width(model), n)),
        Parameter(f"{prefix}.u", (Group.U,), (n, n)),
        *(Parameter(f"{prefix}.{name}", (Group.GAIN,), (channels(model),)) for name in gains),
    )


def forward_flops(model: GptSpec) -> int:
    """Return the FLOPs of L blocks and the head (2 T D V).

    Masked positions count as well. The embedding lookup is not a matrix product and does not.
    """
    spared = 4 * model.tokens * model.width * (model.width - kv_width(model))  # grouped keys and values
    gate = mlp_flops(model, model.tokens) // 2 if model.mlp == "swiglu" else 0
    block = attention_flops(model, model.tokens) - spared + mlp_flops(model, model.tokens) + gate
    return model.depth * block + 2 * model.tokens * model.width * model.vocabulary


def activation_bytes(model: GptSpec, recompute: bool) -> int:
    """Return the bytes that one sample's activations take: blocks, embedding, last norm and head.

    Dropout adds a mask for each residual branch; attention dropout adds three times the attention weights.
    """
    vector = 4 * model.width * model.tokens
    mask = 1 if model.dropout else 0
    weights = 3 * 4 * model.heads * model.tokens**2 if model.attention_dropout else 0
    norm = 1 if model.norm == "rms" else 0  # which LayerNorm does not keep
    block = vector * (_attention_vectors(model) + _mlp_vectors(model) + 2 * (mask + norm)) + weights
    # Input and output of the last norm.
    outside = vector * (2 + mask + norm)
    return round(outside + (block + model.depth * vector if recompute else model.depth * block))


def _attention_vectors(model: GptSpec) -> float:
    share = kv_width(model) / model.width  # of keys, and of values
    normalised = 2.5 * (1 + share) if model.qk_norm else 0
    return ATTENTION_VECTORS - 2 * (1 - share) + normalised + (1 if model.positions == "rotary" else 0)


def _mlp_vectors(model: GptSpec) -> int:
    # SwiGLU keeps gate, its activation, the other factor and the product.
    return mlp_vectors(model) + (2 * model.mlp_ratio if model.mlp == "swiglu" else 0)


def draws_randomly(model: GptSpec) -> bool:
    """Return True if a training step draws random numbers."""
    return model.dropout > 0 or model.attention_dropout > 0
