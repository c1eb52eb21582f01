"""About how much memory the activations of a training step take; without torch.

T tokens, D width, M mlp_ratio, H heads; a vector is D numbers for each of T tokens.
"""

from ettsweep.models.cost import tokens_per_sample
from ettsweep.spec import EncDecSpec, ModelSpec


def activation_bytes(model: ModelSpec, *, recompute: bool) -> int:
    """Return about how many bytes one sample's activations take in fp32 on the CPU until the backward pass.

    A block keeps for its gradient the input and output of each normalisation, q, k, v and what it gives of each
    attention, and the input and output of the GELU; with dropout, a mask for each residual branch; with dropout of
    attention, three times the weights of each head. With recomputation it keeps its input, and one block at a time
    keeps the rest. What does not grow with the samples is left out.
    """
    vector = 4 * model.width * tokens_per_sample(model)
    mlp = 2 + 2 * model.mlp_ratio
    if not isinstance(model, EncDecSpec):
        block = vector * (6 + mlp)
        return block + model.depth * vector if recompute else model.depth * block
    mask = 1 if model.dropout else 0
    weights = 3 * 4 * model.heads * model.tokens**2 if model.attention_dropout else 0
    attention = vector * (6 + mask) + weights
    encoder, decoder = attention + vector * (mlp + mask), 2 * attention + vector * (mlp + mask)
    # Of both embeddings, the outer normalisations, and what the head reads.
    outside = vector * (6 + 2 * mask)
    return outside + (decoder + model.depth * 2 * vector if recompute else model.depth * (encoder + decoder))
