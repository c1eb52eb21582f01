"""Which kernels attention takes: with a mask none that may return NaN gradients, the fastest of the others, on record."""

import json
from typing import Any

import pytest
import torch
from support.made_runs import CPU, STILL, Train, result_of, stop_at, text_run
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from ettsweep.models.blocks import AttentionBase
from ettsweep.models.build import build_model
from ettsweep.spec import RunSpec
from ettsweep.training import attention
from ettsweep.training.attention import (
    Call,
    attention_calls,
    fastest_kernel,
    had_kernel,
    kernel_s,
    settle_attention,
    take,
    take_fastest,
)
from ettsweep.training.distributed import ALONE
from ettsweep.training.execution import Execution
from ettsweep.training.run import assembled
from ettsweep.training.trainer import Trainer

MATH, EFFICIENT = SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION


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


def allowed_on_a_gpu(kernels: tuple[SDPBackend, ...] | None = None) -> set[tuple[bool, frozenset[str]]]:
    """Return what an encoder-decoder allows torch on a GPU that only says what comes out."""
    spec = text_run().model
    with FakeTensorMode(), Allowed() as allowed:
        with torch.device("cuda"):
            model = build_model(spec, text_run().strategy)
        for module in model.modules():
            if isinstance(module, AttentionBase):
                module.masked_kernels = kernels
        words_BT = torch.ones((2, spec.tokens), dtype=torch.long, device="cuda")
        model.hidden(words_BT, words_BT)  # type: ignore[operator]
    assert len(allowed.found) == 3 * spec.depth
    return set(allowed.found)


@pytest.mark.skipif(
    torch.__version__.startswith("2.8."), reason="tensors that only say where they are need a GPU there"
)
def test_with_a_mask_no_kernel_of_a_gpu_is_allowed_whose_gradients_may_be_nan() -> None:
    all_of_them = frozenset({"cudnn", "flash", "efficient", "math"})
    assert allowed_on_a_gpu() == {(False, all_of_them), (True, frozenset({"efficient", "math"}))}
    assert allowed_on_a_gpu((MATH,)) == {(False, all_of_them), (True, frozenset({"math"}))}


def trainer_of(spec: RunSpec) -> Trainer:
    torch.manual_seed(0)
    return assembled(spec, CPU, Execution(micro_batch=4), ALONE)


def calls_of(trainer: Trainer) -> list[Call]:
    return attention_calls(trainer.model, trainer.spec, CPU)


def test_a_models_kinds_of_attention_are_those_of_its_shapes() -> None:
    spec = text_run(model=STILL)
    H, T, C = spec.model.heads, spec.model.tokens, spec.model.width // spec.model.heads
    encoder = Call((H, T, C), (H, T, C), torch.float32, masked=True, dropout=0.0, causal=False)
    decoder = Call((H, T, C), (H, T, C), torch.float32, masked=False, dropout=0.0, causal=True)
    assert calls_of(trainer_of(spec)) == [encoder, decoder], "what reads across is as what reads itself"


def test_a_models_kinds_of_attention_are_in_the_precision_and_with_the_dropout_of_its_run() -> None:
    calls = calls_of(trainer_of(text_run(precision="bf16")))
    assert {call.dtype for call in calls} == {torch.bfloat16}
    assert {call.dropout for call in calls} == {text_run().model.attention_dropout} != {0.0}


def test_the_kernels_are_recorded(train: Train, spec: RunSpec) -> None:
    assert result_of(train(spec))["execution"]["attention"] == "flash"
    assert result_of(train(text_run(model=STILL)))["execution"]["attention"] == "flash, masked flash"
    # torch's kernel for CPUs drops nothing out
    assert result_of(train(text_run()))["execution"]["attention"] == "masked math, math"


def test_a_kernel_that_there_is_not_is_not_taken() -> None:
    trainer = trainer_of(text_run())
    calls = [call for call in calls_of(trainer) if call.masked]
    assert kernel_s(EFFICIENT, calls[0], 4, CPU) == float("inf"), "a CPU has none"
    assert 0 < kernel_s(MATH, calls[0], 4, CPU) < 60
    assert fastest_kernel(tuple(calls), 4, CPU) is MATH


def test_a_kernel_whose_gradients_are_no_numbers_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call((2, 8, 4), (2, 8, 4), torch.float32, masked=True, dropout=0.0, causal=False)
    plain = F.scaled_dot_product_attention

    def forward_alone_is_right(q: torch.Tensor, *rest: Any) -> torch.Tensor:
        return plain(q, *rest) + (q - q.detach()).abs().sqrt()  # 0, with a gradient of 0 times infinity

    monkeypatch.setattr(F, "scaled_dot_product_attention", forward_alone_is_right)
    assert kernel_s(MATH, call, 3, CPU) == float("inf")


@pytest.mark.parametrize(("efficient_s", "chosen"), [(1.0, EFFICIENT), (3.0, MATH), (float("inf"), MATH)])
def test_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch, efficient_s: float, chosen: SDPBackend) -> None:
    call = Call((2, 8, 4), (2, 8, 4), torch.float32, masked=True, dropout=0.0, causal=False)
    fastest_kernel.cache_clear()
    monkeypatch.setattr(attention, "kernel_s", lambda kernel, *_: efficient_s if kernel is EFFICIENT else 2.0)
    assert fastest_kernel((call,), 4, CPU) is chosen
    fastest_kernel.cache_clear()


def test_a_model_takes_the_kernel_that_it_had_or_the_fastest() -> None:
    trainer = trainer_of(text_run())

    def taken() -> set[Any]:
        return {module.masked_kernels for module in trainer.model.modules() if isinstance(module, AttentionBase)}

    assert taken() == {None}, "on a CPU it is left to torch"
    take_fastest(trainer.model, trainer.spec, CPU)
    assert taken() == {(MATH,)}
    assert had_kernel({}) is None
    assert had_kernel({"attention": "masked cudnn"}) is None
    assert had_kernel({"attention": "cudnn, masked efficient"}) is EFFICIENT
    assert take(trainer.model, EFFICIENT) is EFFICIENT
    assert taken() == {(EFFICIENT,)}


def test_a_resume_says_that_attention_is_computed_otherwise(train: Train) -> None:
    spec = text_run(model=STILL)
    run = train(spec, poll=stop_at(3))
    path = run.attempt(1).path / "execution.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attention": "cudnn, masked efficient"}))
    train(spec)
    log = run.attempt(2).log_path.read_text()
    assert "attention was cudnn, masked efficient, is flash, masked flash: metrics can differ" in log


def test_a_model_without_attention_has_nothing_to_record() -> None:
    trainer = trainer_of(text_run())
    trainer.model.forward = lambda *inputs: inputs[0].sum()  # type: ignore[method-assign]
    assert settle_attention(trainer, {}, pytest.fail) == {}
