"""Which kernels attention may take: with a mask none of a GPU that may return NaN gradients."""

from typing import Any

import torch
from support.made_runs import text_run
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ettsweep.trainer.models.build import build_model


class Allowed(TorchFunctionMode):
    """Notes which kernels torch may take for each call of attention, with a mask or not."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[tuple[bool, frozenset[str]]]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            cuda = torch.backends.cuda
            on = {
                "cudnn": cuda.cudnn_sdp_enabled(),
                "flash": cuda.flash_sdp_enabled(),
                "efficient": cuda.mem_efficient_sdp_enabled(),
                "math": cuda.math_sdp_enabled(),
            }
            self.found.append((args[3] is not None, frozenset(name for name in on if on[name])))
            return args[0]  # of the shape of what comes out; kernels would ask the GPU
        return function(*args, **kwargs or {})


def allowed_on_a_gpu() -> set[tuple[bool, frozenset[str]]]:
    """Return what an encoder-decoder allows torch on a GPU that only says what comes out."""
    spec = text_run().model
    with FakeTensorMode(), Allowed() as allowed:
        with torch.device("cuda"):
            model = build_model(spec, text_run().strategy)
        words_BT = torch.ones((2, spec.tokens), dtype=torch.long, device="cuda")
        model.hidden(words_BT, words_BT)  # type: ignore[operator]
    assert len(allowed.found) == 3 * spec.depth
    return set(allowed.found)


def test_with_a_mask_no_kernel_of_a_gpu_is_allowed_whose_gradients_may_be_nan() -> None:
    all_of_them = frozenset({"cudnn", "flash", "efficient", "math"})
    assert allowed_on_a_gpu() == {(False, all_of_them), (True, frozenset({"efficient", "math"}))}
