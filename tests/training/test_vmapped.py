"""Ways to attend where vmap has no rule for torch's own."""

import pytest
import torch
from torch.nn import functional as F

from ettsweep.training.vmapped import FEW_TOKENS, plain_attention


@pytest.mark.parametrize("tokens", [FEW_TOKENS, FEW_TOKENS + 1])
def test_plain_attention_is_that_of_torch(tokens: int) -> None:
    """Both of its ways, and their gradients."""
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 3, tokens, 8, dtype=torch.float64, generator=generator) for _ in "qkvz"]
    values = []
    for attend in (plain_attention, F.scaled_dot_product_attention):
        qkv = [x.clone().requires_grad_() for x in given[:3]]
        z = attend(*qkv, None, 0.0, False)
        values.append((z, *torch.autograd.grad(z, qkv, given[3])))
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)
