"""Steps 3 and 4: whole runs through the command line, on made images and on Python's documentation."""

import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import gpu, gpu_text

Row = dict[str, Any]


def images(folder: str, count: int, small: bool) -> list[Row]:
    """Write images, once for all runs of a step."""
    _need("timm", "torchvision")
    began_s = time.monotonic()
    gpu.made_images(Path(folder, "images"), count, small=small)
    return [{"images": count, "seconds": time.monotonic() - began_s}]


def vit(folder: str, strategy: str, precision: str, size: list[int], small: bool) -> list[Row]:
    """Train vit-b16 with the loader; `size` is steps, batch and images."""
    command = _vit(folder, strategy, precision, size, small)
    return [gpu.told(gpu.train(command, Path(folder, f"{strategy}-{precision}")))]


def vit_resumed(folder: str, precision: str, size: list[int], small: bool) -> list[Row]:
    """Stop and resume a run, and compare it with one that was not, which is trained if it was not yet."""
    command = _vit(folder, "ntk", precision, size, small)
    undisturbed = gpu.train(command, Path(folder, f"ntk-{precision}"))
    result = gpu.train(command, Path(folder, f"resumed-{precision}"), stop_at=size[0] // 2)
    return [gpu.resumed(result, undisturbed)]


def _need(*modules: str) -> None:
    """Import what programs that are started will need, so that what is missing is known by its name."""
    for module in modules:
        import_module(module)


def _vit(folder: str, strategy: str, precision: str, size: list[int], small: bool) -> list[str]:
    _need("timm", "torchvision")
    steps, batch_size, count = size
    return gpu.command(Path(folder, "images"), strategy, precision, steps, batch_size, count, small=small)


def text(folder: str, model: str, strategy: str, steps: int, batch_size: int, small: bool) -> list[Row]:
    """Train an encoder-decoder on Python's documentation, tokenised if it was not yet."""
    _need("tokenizers")
    root = Path(folder)
    if not (root / "text").exists():
        made = Path(tempfile.mkdtemp(dir=root))
        gpu_text.tokenised(made, small=small)
        made.rename(root / "text")
    command = gpu_text.command(root / "text" / "tokens", model, strategy, steps, batch_size, small=small)
    told = gpu.told(gpu.train(command, root / f"{model}-{strategy}"))
    tokens = gpu_text.SMALL["model.tokens"] if small else gpu_text.TOKENS
    return [{**told, "tokens_per_s": tokens * told["samples_per_s"] if told["samples_per_s"] else None}]
