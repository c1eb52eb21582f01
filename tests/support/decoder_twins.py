"""Decoders of transformers with the weights of ours: GPT-2 for the plain block, Llama and Qwen3 for today's fields."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ettsweep.token_ids import END, PAD, START
from ettsweep.trainer.models.gpt_spec import GptSpec


def gpt2(spec: GptSpec) -> Any:
    """Return GPT-2 of our shape. It has affine LayerNorms and biases, which ours has not."""
    from transformers import GPT2Config, GPT2LMHeadModel  # takes seconds

    config = GPT2Config(
        vocab_size=spec.vocabulary,
        n_embd=spec.width,
        n_layer=spec.depth,
        n_head=spec.heads,
        n_inner=spec.mlp_ratio * spec.width,
        n_positions=spec.tokens,
        layer_norm_epsilon=spec.ln_eps,
        activation_function="gelu",
        embd_pdrop=spec.dropout,
        resid_pdrop=spec.dropout,
        attn_pdrop=spec.attention_dropout,
        tie_word_embeddings=spec.head == "tied",
        **_shared(),
    )
    return GPT2LMHeadModel(config)


def llama(spec: GptSpec) -> Any:
    """Return Llama of our shape, or Qwen3, which is the same with normalised queries and keys."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    fields = {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads or spec.heads,
        "head_dim": spec.width // spec.heads,
        "intermediate_size": spec.mlp_ratio * spec.width,
        "max_position_embeddings": spec.tokens,
        "rms_norm_eps": spec.ln_eps,
        "tie_word_embeddings": spec.head == "tied",
        **_shared(),
    }
    return Qwen3ForCausalLM(Qwen3Config(**fields)) if spec.qk_norm else LlamaForCausalLM(LlamaConfig(**fields))


def _shared() -> dict[str, Any]:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokens = {"bos_token_id": START, "pad_token_id": PAD, "eos_token_id": END}
    return {**tokens, "use_cache": False, "attn_implementation": "sdpa"}


def names(spec: GptSpec) -> dict[str, tuple[str, ...]]:
    """Return the twin's names of each of our parameters: one, or those that ours stacks."""
    if spec.positions == "learned":
        result = {"we": ("transformer.wte.weight",), "pe": ("transformer.wpe.weight",)}
        inside = {"attention.qkv": ("attn.c_attn",), "attention.u": ("attn.c_proj",)}
        inside |= {"mlp.w": ("mlp.c_fc",), "mlp.x": ("mlp.c_proj",)}
        layers = "transformer.h"
    else:
        result = {"we": ("model.embed_tokens.weight",), "gain": ("model.norm.weight",)}
        inside = {"attention_gain": ("input_layernorm",), "mlp_gain": ("post_attention_layernorm",)}
        inside |= {"attention.q": ("self_attn.q_proj",), "attention.kv": ("self_attn.k_proj", "self_attn.v_proj")}
        inside |= {"attention.u": ("self_attn.o_proj",)}
        if spec.qk_norm:
            inside |= {"attention.q_gain": ("self_attn.q_norm",), "attention.k_gain": ("self_attn.k_norm",)}
        inside |= {"mlp.w": ("mlp.gate_proj", "mlp.up_proj"), "mlp.x": ("mlp.down_proj",)}
        layers = "model.layers"
    if spec.head == "untied":
        result["head"] = ("lm_head.weight",)
    for block in range(spec.depth):
        for ours, theirs in inside.items():
            result[f"blocks.{block}.{ours}"] = tuple(f"{layers}.{block}.{name}.weight" for name in theirs)
    return result


@torch.no_grad()
def twin(model: nn.Module, spec: GptSpec) -> Any:
    """Return the twin with our weights, biases zero and affine factors one, in our dtype."""
    theirs = (gpt2 if spec.positions == "learned" else llama)(spec).to(next(model.parameters()).dtype)
    parameters = dict(theirs.named_parameters())
    for name, parameter in parameters.items():
        parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    ours = dict(model.named_parameters())
    assert ours.keys() == names(spec).keys()
    for name, their_names in names(spec).items():
        for section, their_name in zip(ours[name].chunk(len(their_names)), their_names, strict=True):
            # Our gains are added to 1.
            as_ours(their_name, parameters[their_name]).copy_(section + 1 if name.endswith("gain") else section)
    return theirs


def as_ours(their_name: str, tensor: Tensor) -> Tensor:
    """Return a parameter of the twin's, or its gradient, with our shape: GPT-2 has its weights as (in, out)."""
    return tensor.T if ".c_" in their_name else tensor


@contextmanager
def norms_in_double() -> Iterator[None]:
    """Have RMSNorms of the twins computed in double: theirs are in fp32 whatever they get."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    def forward(self: Any, x: Tensor) -> Tensor:
        weight: Tensor = self.weight
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    with pytest.MonkeyPatch.context() as patch:
        for norm in (LlamaRMSNorm, Qwen3RMSNorm):
            patch.setattr(norm, "forward", forward)
        yield
