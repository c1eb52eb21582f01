"""Values and gradients against torch's cross-entropy of whole logits, and what is never held whole."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ettsweep.trainer.models import cross_entropy
from ettsweep.trainer.models.cross_entropy import linear_cross_entropy

N, D, V, IGNORED = 23, 8, 37, 1


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(N, D, dtype=torch.float64, generator=generator)
    weight = torch.randn(V, D, dtype=torch.float64, generator=generator)
    targets = torch.randint(V, (N,), generator=generator)
    targets[3:9:2] = targets[-4:] = IGNORED
    return h.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def expected(h: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(h @ weight.T, targets, ignore_index=IGNORED, reduction="sum")


class Largest(TorchDispatchMode):
    """Notes the numbers in the largest tensor made."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [
            tensor for tensor in (out if isinstance(out, tuple | list) else (out,)) if isinstance(tensor, Tensor)
        ]
        self.numbers = max([self.numbers, *(tensor.numel() for tensor in tensors)])
        return out


@pytest.mark.parametrize(
    ("dtype", "chunk", "multiple"), [(torch.float64, 1, 1), (torch.float64, 5, 64), (torch.float32, None, 64)]
)
def test_value_and_gradients_equal_those_of_whole_logits(
    dtype: torch.dtype, chunk: int | None, multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cross_entropy.COLUMN_MULTIPLE, "cpu", multiple)
    h, weight, targets = data(dtype)
    loss, complete = linear_cross_entropy(h, weight, targets, IGNORED, chunk), expected(h, weight, targets)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, complete)
    gradients = torch.autograd.grad(0.3 * loss, [h, weight])
    torch.testing.assert_close(gradients, torch.autograd.grad(0.3 * complete, [h, weight]))
    assert not gradients[0][targets == IGNORED].any()
    again = linear_cross_entropy(h, weight, targets, IGNORED, chunk)
    assert all(map(torch.equal, torch.autograd.grad(0.3 * again, [h, weight]), gradients)), "bit by bit"


def test_no_token_that_counts_gives_zero() -> None:
    h, weight, targets = data()
    loss = linear_cross_entropy(h, weight, torch.full_like(targets, IGNORED), IGNORED)
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, [h, weight]))


def test_the_logits_of_all_tokens_are_never_held() -> None:
    tokens, width, vocabulary, chunk = 512, 16, 4000, 64
    h, weight = torch.randn(tokens, width, requires_grad=True), torch.randn(vocabulary, width, requires_grad=True)
    targets, kept = torch.randint(vocabulary, (tokens,)), list[Tensor]()
    with Largest() as largest, saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        loss = linear_cross_entropy(h, weight, targets, IGNORED, chunk)
        loss.backward()
    assert largest.numbers == chunk * vocabulary
    assert sum(tensor.numel() for tensor in kept) < 2 * (tokens + vocabulary) * width, "no logits for the backward pass"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_products_in_its_dtype_and_sums_in_fp32(dtype: torch.dtype) -> None:
    h, weight, targets = data(torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        loss = linear_cross_entropy(h, weight, targets, IGNORED, 5)
    assert loss.dtype == torch.float32
    rounding = 2.0 ** {torch.bfloat16: -8, torch.float16: -11}[dtype]
    expected_result = expected(h, weight, targets)
    assert loss.item() != expected_result.item()
    torch.testing.assert_close(loss, expected_result, rtol=rounding, atol=0)
    ours, requested = (torch.autograd.grad(x, [h, weight]) for x in (loss, expected_result))
    for gradient, exact in zip(ours, requested, strict=True):
        assert gradient.dtype == torch.float32
        assert ((gradient - exact).norm() / exact.norm()).item() < 3 * rounding


def test_fp16_gradients_underflow_for_no_loss_scale() -> None:
    h, weight, targets = data(torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = linear_cross_entropy(h, weight, targets, IGNORED)
    grad_result = torch.autograd.grad(expected(h, weight, targets), [h, weight])
    for gradient, exact in zip(torch.autograd.grad(loss * 1e-12, [h, weight]), grad_result, strict=True):
        assert ((gradient * 1e12 - exact).norm() / exact.norm()).item() < 2e-3
