"""One model call for all members of a stack, by `torch.func.vmap`.

vmap dispatches each operation through several layers of Python, which takes longer than small models compute. So the
call is traced once for each shape, and then runs as a graph of the same operations.

Shapes: K members, B samples, H heads, T tokens, C channels per head.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.build import build_model
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import Precision
from ettsweep.trainer.tasks.task import Batch, Task
from ettsweep.trainer.training.precision import autocast

Parameters = dict[str, Tensor]
"""Stacked tensors of all members, (K, ...), by parameter name."""

MAX_GRAPHS = 64
"""Traced graphs that a process keeps, one for each shape and number of members; the oldest is dropped first."""


class VmappedModel:
    """A model on the meta device that is called with the parameters of many members.

    Args:
        spec: of any member: all share its model, task and precision.
        device: where the members' parameters lie.
    """

    def __init__(self, spec: TransformerRun, device: torch.device) -> None:
        self._spec = spec
        self._device = device
        with torch.device("meta"):  # no memory: the values come with each call
            self._network = build_model(spec.model, spec.strategy)

    def gradients(
        self, task: Task, parameters: Parameters, weights_K: Tensor, batch: Batch
    ) -> tuple[Tensor, Parameters]:
        """Return each member's loss on a micro-batch, (K,), and the gradients of loss times weight."""
        key = self._key, self._spec.task, loss_identity(task)
        function = partial(gradients, self._network, task, self._spec.precision, self._device)
        result: tuple[Tensor, Parameters]
        result = call_traced(key, function, parameters, weights_K, batch.inputs, batch.targets)
        return result

    def outputs(self, parameters: Parameters, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return each member's outputs on its own inputs, (K, B, ...)."""
        function = partial(outputs, self._network, self._spec.precision, self._device)
        result: Tensor = call_traced(self._key, function, parameters, inputs)
        return result

    @property
    def _key(self) -> Hashable:
        return self._spec.model, self._spec.precision, self._device


def loss_identity(task: Task) -> Hashable:
    """Return a cache key for the loss of a task: its unbound function, so tasks share a graph."""
    return getattr(task.loss, "__func__", task.loss)


def gradients(
    network: Network,
    task: Task,
    precision: Precision,
    device: torch.device,
    parameters: Parameters,
    weights_K: Tensor,
    inputs: tuple[Tensor, ...],
    targets: Tensor,
) -> tuple[Tensor, Parameters]:
    """Return each member's loss on a micro-batch, (K,), and the gradients of loss times weight."""

    def weighted_loss(
        member_parameters: Parameters, weight: Tensor, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        with autocast(precision, device), _ReplaceAttention(device):
            outputs: Tensor = functional_call(network, member_parameters, inputs)
            loss = task.loss(outputs, Batch(inputs, targets))
        return loss * weight, loss

    # vmap over grad, not the gradient of the summed loss: only this uses the kernels of a member's own backward pass.
    per_member = vmap(grad_and_value(weighted_loss, has_aux=True))
    gradients_K, (_, losses_K) = per_member(parameters, weights_K, inputs, targets)
    return losses_K, gradients_K


def outputs(
    network: Network,
    precision: Precision,
    device: torch.device,
    parameters: Parameters,
    inputs: tuple[Tensor, ...],
) -> Tensor:
    """Return each member's outputs on its own inputs, (K, B, ...)."""

    def member_outputs(member_parameters: Parameters, inputs: tuple[Tensor, ...]) -> Tensor:
        with autocast(precision, device), _ReplaceAttention(device):
            result: Tensor = functional_call(network, member_parameters, inputs)
        return result

    outputs_K: Tensor = vmap(member_outputs)(parameters, inputs)
    return outputs_K


def call_traced(key: Hashable, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of tensors through a graph, traced at the first call with this key and these shapes.

    The key must have everything that the function depends on, besides the tensors. It cannot branch on tensor values:
    vmap raises then. The first call takes more memory than later ones.
    """
    leaves = pytree.tree_leaves(arguments)
    key = key, *((leaf.shape, leaf.dtype) for leaf in leaves)
    if key not in _GRAPHS:
        graph = make_fx(function)(*arguments)
        graph.graph.eliminate_dead_code()  # tracing records operations whose results nothing uses
        graph.recompile()
        for node in graph.graph.nodes:
            node.meta.clear()  # fake tensors and stack traces: unused megabytes
        while len(_GRAPHS) >= MAX_GRAPHS:
            del _GRAPHS[next(iter(_GRAPHS))]  # dicts keep insertion order
        _GRAPHS[key] = graph
    return _GRAPHS[key](*arguments)


_GRAPHS: dict[Hashable, Callable[..., Any]] = {}


# --- attention --------------------------------------------------------------------------------------------------------


class _ReplaceAttention(TorchFunctionMode):
    """Replaces torch's attention, whose kernels lack batching rules for vmap: on a GPU that of the backward pass."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._replacements: dict[Any, Callable[..., Any]]
        folds = device.type in ("cpu", "cuda")
        self._replacements = {F.scaled_dot_product_attention: folded_attention} if folds else {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._replacements.get(func, func)(*args, **(kwargs or {}))


def folded_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool) -> Tensor:
    """Attend by one kernel, with the samples of all members as one batch.

    It is the kernel that torch selects for one member on a CPU, and in fp32 on a GPU. q, k and v are (B, H, T, C)
    inside vmap. Only unmasked or causal attention without dropout is supported.
    """
    assert mask is None
    assert not dropout
    result: Tensor
    if q.device.type == "cuda" and q.shape[-1] % 8:  # the kernel reads channels 16 bytes at a time
        result = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return result
    result, _ = _Attention.apply(q, k, v, causal)
    return result


def _fold_members(
    function: Callable[..., tuple[Tensor, ...]], members: int, in_dims: Sequence[int | None], arguments: Any
) -> Any:
    """Call a function on (K, B, ...) arguments as (K * B, ...); return unfolded results and their vmap dimensions."""
    assert all(dim is not None or not isinstance(x, Tensor) for x, dim in zip(arguments, in_dims, strict=True))
    folded = [x if dim is None else x.movedim(dim, 0).flatten(0, 1) for x, dim in zip(arguments, in_dims, strict=True)]
    results = tuple(x.view(members, -1, *x.shape[1:]) for x in function(*folded))
    return results, (0,) * len(results)


class _Attention(torch.autograd.Function):
    """Attention by torch's flash kernel for CPUs, or its memory-efficient one for GPUs.

    It also returns the log-sum-exp that the backward pass needs.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Any:
        if q.device.type == "cuda":
            return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[:2]
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:3], *output)
        ctx.causal = inputs[3]
        ctx.mark_non_differentiable(output[1])  # the log-sum-exp: only the backward pass uses it

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        return *_AttentionBackward.apply(grad, *ctx.saved_tensors, ctx.causal), None

    @staticmethod
    def vmap(vmap_info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        return _fold_members(_Attention.apply, vmap_info.batch_size, in_dims, arguments)


class _AttentionBackward(torch.autograd.Function):
    """Backward pass of `_Attention`, a function of its own so that it gets a vmap rule too."""

    @staticmethod
    def forward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, z: Tensor, logsumexp: Tensor, causal: bool) -> Any:
        if q.device.type == "cuda":
            unused = torch.zeros((), dtype=torch.int64, device=q.device)  # state of dropout's random numbers
            of_qkv = [True, True, True, False]
            return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
                grad, q, k, v, None, z, logsumexp, unused, unused, 0.0, of_qkv, causal
            )[:3]
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, z, logsumexp, 0.0, causal
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep nothing: there are no second derivatives."""

    @staticmethod
    def vmap(vmap_info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        return _fold_members(_AttentionBackward.apply, vmap_info.batch_size, in_dims, arguments)
