"""A decoder written out in numpy, token by token and head by head, with nothing of the package's modules.

Shapes: T tokens, D width, C channels per head, V vocabulary.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ettsweep.trainer.models.gpt_spec import GptSpec

Array = NDArray[Any]


def plain_logits(spec: GptSpec, values: Mapping[str, Array], tokens_T: Array) -> Array:
    """Return the logits of one text, (T, V), without output rescale; `values` are the parameters by name."""
    T, C, heads = len(tokens_T), spec.width // spec.heads, spec.heads
    shared = heads // (spec.kv_heads or heads)
    x_TD = values["we"][tokens_T]
    if spec.positions == "learned":
        x_TD = x_TD + values["pe"][:T]

    def norm(x: Array, gain: str) -> Array:
        if gain not in values:
            x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.ln_eps) * (1 + values.get(gain, 0.0))

    def head(weights: Array, number: int) -> Array:
        return weights[number * C : (number + 1) * C]

    for block in range(spec.depth):
        own = {name: f"blocks.{block}.{name}" for name in ("attention", "mlp", "attention_gain", "mlp_gain")}
        h_TD = norm(x_TD, own["attention_gain"])
        if (fused := f"{own['attention']}.qkv") in values:
            q, k, v = np.split(values[fused], 3)
        else:
            q, (k, v) = values[f"{own['attention']}.q"], np.split(values[f"{own['attention']}.kv"], 2)
        outputs = np.zeros((T, spec.width))
        for number in range(heads):
            q_TC, k_TC, v_TC = (
                h_TD @ head(weights, at).T
                for weights, at in ((q, number), (k, number // shared), (v, number // shared))
            )
            if spec.qk_norm:
                q_TC, k_TC = norm(q_TC, f"{own['attention']}.q_gain"), norm(k_TC, f"{own['attention']}.k_gain")
            if spec.positions == "rotary":
                q_TC, k_TC = rotated(q_TC), rotated(k_TC)
            for t in range(T):
                weights_T = np.exp(k_TC[: t + 1] @ q_TC[t] / math.sqrt(C))
                outputs[t, number * C : (number + 1) * C] = weights_T / weights_T.sum() @ v_TC[: t + 1]
        x_TD = x_TD + outputs @ values[f"{own['attention']}.u"].T
        hidden = norm(x_TD, own["mlp_gain"]) @ values[f"{own['mlp']}.w"].T
        if spec.mlp == "swiglu":
            gate, hidden = np.split(hidden, 2, axis=1)
            hidden = gate / (1 + np.exp(-gate)) * hidden
        else:
            hidden = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
        x_TD = x_TD + hidden @ values[f"{own['mlp']}.x"].T
    return norm(x_TD, "gain") @ values["we" if spec.head == "tied" else "head"].T


def rotated(x_TC: Array) -> Array:
    """Rotate channels c and c + C/2 of token t, a complex number, by the angle t / 10000^(2c/C)."""
    first, second = np.split(x_TC, 2, axis=1)
    angles = np.outer(np.arange(len(x_TC)), 10_000.0 ** (-np.arange(first.shape[1]) / first.shape[1]))
    turned = (first + 1j * second) * np.exp(1j * angles)
    return np.concatenate((turned.real, turned.imag), 1)
