"""What tests import in place of torch's compiler: it does nothing until more is asked of it, see support/lean."""

import subprocess
import sys

import pytest

STANDS_IN = """
import lean, sys, torch
def f(): return 3
torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
idle = sys.modules["torch._dynamo"]
assert type(idle) is lean.Idle
assert torch.compiler.disable(f) is f is torch.compiler.disable(f, recursive=False, reason="words")
assert torch.compiler.disable(recursive=False)(f) is f
assert sys.modules["torch._dynamo"] is idle
"""

GIVES_WAY = """
import torch
assert torch.compile(lambda x: 2 * x, backend="eager")(torch.ones(1)).item() == 2
import torch._dynamo.config, sys, lean
assert type(sys.modules["torch._dynamo"]) is not lean.Idle
"""


@pytest.mark.parametrize("code", [STANDS_IN, pytest.param(GIVES_WAY, marks=pytest.mark.slow)])
def test_the_compiler_is_stood_in_for_until_it_is_needed(code: str) -> None:
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")
