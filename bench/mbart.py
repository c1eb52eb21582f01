"""Hugging Face's MBart as the twin of our encoder-decoder: the same shape, and weights by their names."""

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ettsweep.token_ids import END, PAD, START
from ettsweep.trainer.models.encdec_spec import EncDecSpec

if TYPE_CHECKING:
    from transformers import MBartForConditionalGeneration


def mbart(spec: EncDecSpec) -> "MBartForConditionalGeneration":
    """Return MBart of our shape on torch's default device. It has affine LayerNorms and biases, which ours has not."""
    from transformers import MBartConfig, MBartForConditionalGeneration  # takes seconds

    logging.getLogger("transformers").setLevel(logging.ERROR)
    assert spec.ln_eps == 1e-5, "what MBart has in its code"
    config = MBartConfig(
        vocab_size=spec.vocabulary,
        d_model=spec.width,
        encoder_layers=spec.depth,
        decoder_layers=spec.depth,
        encoder_attention_heads=spec.heads,
        decoder_attention_heads=spec.heads,
        encoder_ffn_dim=spec.mlp_ratio * spec.width,
        decoder_ffn_dim=spec.mlp_ratio * spec.width,
        max_position_embeddings=spec.tokens,
        dropout=spec.dropout,
        attention_dropout=spec.attention_dropout,
        activation_dropout=0.0,
        activation_function="gelu",
        scale_embedding=False,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=START,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=END,
        forced_eos_token_id=None,
        attn_implementation="sdpa",
    )
    return MBartForConditionalGeneration(config)


def names(spec: EncDecSpec) -> dict[str, tuple[str, ...]]:
    """Return MBart's names of each of our parameters: one, or those that ours stacks."""
    result: dict[str, tuple[str, ...]] = {
        "we": ("model.shared.weight",),
        "encoder_pe": ("model.encoder.embed_positions.weight",),
        "decoder_pe": ("model.decoder.embed_positions.weight",),
    }
    for side in ("encoder", "decoder"):
        for i in range(spec.depth):
            ours, theirs = f"{side}.{i}", f"model.{side}.layers.{i}"
            result[f"{ours}.attention.qkv"] = tuple(f"{theirs}.self_attn.{p}_proj.weight" for p in "qkv")
            result[f"{ours}.attention.u"] = (f"{theirs}.self_attn.out_proj.weight",)
            if side == "decoder":
                result[f"{ours}.cross.q"] = (f"{theirs}.encoder_attn.q_proj.weight",)
                result[f"{ours}.cross.kv"] = tuple(f"{theirs}.encoder_attn.{p}_proj.weight" for p in "kv")
                result[f"{ours}.cross.u"] = (f"{theirs}.encoder_attn.out_proj.weight",)
            result[f"{ours}.mlp.w"] = (f"{theirs}.fc1.weight",)
            result[f"{ours}.mlp.x"] = (f"{theirs}.fc2.weight",)
    return result


@torch.no_grad()
def twin(model: nn.Module, spec: EncDecSpec) -> "MBartForConditionalGeneration":
    """Return MBart with our weights, biases zero and affine factors one, in our dtype."""
    theirs = mbart(spec).to(next(model.parameters()).dtype)
    parameters = dict(theirs.named_parameters())
    for name, parameter in parameters.items():
        parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    ours = dict(model.named_parameters())
    assert ours.keys() == names(spec).keys()
    for name, their_names in names(spec).items():
        for section, their_name in zip(ours[name].chunk(len(their_names)), their_names, strict=True):
            as_ours(their_name, parameters[their_name]).copy_(section)
    return theirs


def as_ours(their_name: str, tensor: Tensor) -> Tensor:
    """Return the part of a parameter of MBart's, or of its gradient, that ours has: its positions start at 2."""
    return tensor[2:] if "embed_positions" in their_name else tensor
