"""What a run needs to go on exactly where it was: weights, optimizer, loss scale and step; draws need nothing."""

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ettsweep.errors import CorruptError
from ettsweep.files import Json, dumps
from ettsweep.rundir import Attempt, RunDir


def save(
    attempt: Attempt,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    history: Sequence[Json],
) -> None:
    """Replace the checkpoint of an attempt atomically; it goes with the metrics up to its step.

    Raises:
        StorageError: it cannot be written; the earlier one is untouched.
    """
    state = {
        "run": attempt.run.id,
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "history_sha256": _history_sha256(history),
    }
    attempt.save_checkpoint(lambda path: _write(state, path))


def _history_sha256(history: Iterable[Json]) -> str:
    digest = hashlib.sha256()
    for line in history:
        digest.update(dumps(line).encode())
    return digest.hexdigest()


def _write(state: dict[str, Any], path: Path) -> None:
    try:
        torch.save(state, path)
        return
    except RuntimeError as error:
        reason = _first_line(error)
    # Here the error is gone: its frames held the file open, and so the space on a full disk even once unlinked.
    # torch's zip writer reports a failed write (disk full) without its errno: ask the system again.
    with path.open("ab") as file:
        file.write(b"\0" * 65536)
    raise OSError(f"checkpoint was not written: {reason}")


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0] or type(error).__name__


def load(attempt: Attempt, device: torch.device) -> dict[str, Any]:
    """Read the checkpoint of an attempt, tensors only.

    Raises:
        FileNotFoundError: there is none.
        CorruptError: it is truncated, was edited, or belongs to another run.
    """
    path = attempt.checkpoint_path
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if broken := archive.testzip():  # torch.load does not look at the checksums
                raise ValueError(f"{broken} has a wrong checksum")
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch.load raises whatever the bytes lead it to
        raise CorruptError(f"{path}: cannot be read as a checkpoint: {_first_line(error)}") from error
    if not isinstance(state, dict) or state.get("run") != attempt.run.id or not isinstance(state.get("step"), int):
        raise CorruptError(f"{path}: is not a checkpoint of run {attempt.run.id}")
    return state


def restore(
    state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    """Put a loaded checkpoint into the objects of a run.

    Raises:
        CorruptError: it does not fit them.
    """
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        raise CorruptError(f"checkpoint does not fit the run: {_first_line(error)}") from error


def usable(
    run: RunDir, before: int, device: torch.device, warn: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any], list[Json]]]:
    """Yield (attempt, checkpoint, metrics) of what can be read and fits together, newest first.

    Args:
        run: the run.
        before: number of the attempt that wants to go on.
        device: where the tensors are loaded.
        warn: told of each checkpoint that cannot be used.
    """
    for number in reversed([n for n in run.numbers() if n < before]):
        try:
            state = load(run.attempt(number), device)
            history = run.attempt(number).history(until=state["step"])
            if _history_sha256(history) != state.get("history_sha256"):
                raise CorruptError(f"{run.attempt(number).metrics_path}: changed since the checkpoint was saved")
        except FileNotFoundError:
            continue
        except CorruptError as error:
            warn(str(error))
            continue
        yield number, state, history


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters, by name: equal for equal weights, bit for bit."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
