"""What a run needs to go on exactly where it was: weights, optimizer, loss scale and step; draws need nothing.

All tensors have names: model/<parameter>, optimizer/<parameter>/<what the optimizer keeps of it>. One file holds them
whole. The leading process gathers what is sharded, and hands it out again, to any number of processes, sharded or not.
"""

import hashlib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ettsweep.errors import CorruptError, first_line
from ettsweep.files import Json, dumps
from ettsweep.runs.attempt import Attempt
from ettsweep.trainer.training.distributed import full_tensor, parameters
from ettsweep.trainer.training.trainer import Trainer

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of each tensor, of a sharded one those of the whole."""


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of a run by name; those of a sharded one are sharded."""
    state = {}
    for name, parameter in parameters(model).items():
        state[f"model/{name}"] = parameter.detach()
        parameter_state = optimizer.state.get(parameter, {})
        state |= {
            f"optimizer/{name}/{key}": value for key, value in parameter_state.items() if isinstance(value, Tensor)
        }
    return state


def layout(state: Mapping[str, Tensor]) -> Layout:
    """Return shape and type of tensors."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}


# --- writing --------------------------------------------------------------------------------------------------------


def head(attempt: Attempt, trainer: Trainer, history: Sequence[Json]) -> Json:
    """Return what a checkpoint says beside its tensors."""
    return {
        "run": attempt.run.name,
        "step": trainer.step,
        "scaler": trainer.scaler.state_dict(),
        "history_sha256": _history_sha256(history),
    }


def write(attempt: Attempt, head: Json, state: Mapping[str, Tensor]) -> None:
    """Replace the checkpoint of an attempt, in one instant; it goes with the metrics up to its step.

    Raises:
        StorageError: it cannot be written; the earlier one is untouched.
    """
    compacted = {name: _alone(tensor) for name, tensor in state.items()}
    attempt.save_checkpoint(lambda path: _write(head | {"tensors": compacted}, path))


def _alone(tensor: Tensor) -> Tensor:
    """Return a tensor that shares its storage with no other run: torch saves the whole storage of a view."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


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
        reason = first_line(error)
    # Here the error is gone: its frames held the file open, and so the space on a full disk even once unlinked. torch
    # reports a failed write without its errno, such as that of a full disk: the system is asked for it.
    with path.open("ab") as file:
        file.write(b"\0" * 65536)
    raise OSError(f"checkpoint was not written: {reason}")


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointState:
    """A checkpoint that is whole.

    Attributes:
        path: what to name in a message.
        step: the last one done.
        scaler: state of the loss scaler.
        history_sha256: of the metrics up to the step.
        tensors: by name, mapped from disk.
    """

    path: Path
    step: int
    scaler: Json
    history_sha256: str
    tensors: dict[str, Tensor]


def load(attempt: Attempt) -> CheckpointState:
    """Check that the checkpoint of an attempt is whole, and return it.

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
        # Mapped, not read: the memory of the host need not hold all of it.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch.load raises whatever the bytes lead it to
        raise CorruptError(f"{path}: cannot be read as a checkpoint: {first_line(error)}") from error
    types = {"step": int, "scaler": dict, "history_sha256": str, "tensors": dict}
    is_valid = isinstance(state, dict) and all(isinstance(state.get(key), kind) for key, kind in types.items())
    is_valid = is_valid and all(isinstance(tensor, Tensor) for tensor in state["tensors"].values())
    if not is_valid or state.get("run") != attempt.run.name:
        raise CorruptError(f"{path}: is not a checkpoint of run {attempt.run.name}")
    return CheckpointState(path, *(state[key] for key in types))


def check_fits(saved: CheckpointState, trainer: Trainer) -> None:
    """Check that a checkpoint can be put into the objects of a run.

    Raises:
        CorruptError: it cannot.
    """
    actual, expected = layout(saved.tensors), layout(tensors(trainer.model, trainer.optimizer))
    if actual != expected:
        name = min(name for name in actual.keys() | expected.keys() if actual.get(name) != expected.get(name))
        raise CorruptError(
            f"{saved.path}: does not fit the run: {name} is {actual.get(name)}, not {expected.get(name)}"
        )
    scaler, all_numbers = saved.scaler, all(isinstance(value, int | float) for value in saved.scaler.values())
    if scaler.keys() != trainer.scaler.state_dict().keys() or not all_numbers:
        raise CorruptError(f"{saved.path}: does not fit the run: {scaler} is no state of its loss scaler")


def restore(saved: CheckpointState | None, trainer: Trainer) -> None:
    """Put the leader's checkpoint into the objects of a run; it fits. All processes of the run come here."""
    group = trainer.group
    header = group.from_leader({"step": saved.step, "scaler": saved.scaler} if saved else None)
    assert header is not None
    for name, tensor in tensors(trainer.model, trainer.optimizer).items():
        group.hand_out(saved.tensors[name] if saved else None, tensor)
    trainer.scaler.load_state_dict(header["scaler"])
    trainer.step = header["step"]


def history(saved: CheckpointState, attempt: Attempt) -> list[Json]:
    """Return the metrics of an attempt up to its checkpoint.

    Raises:
        CorruptError: they are not those that it was saved with.
    """
    lines = attempt.history(until=saved.step)
    if _history_sha256(lines) != saved.history_sha256:
        raise CorruptError(f"{attempt.metrics_path}: changed since the checkpoint was saved")
    return lines


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters, by name: equal for equal weights, bit for bit, sharded or not.

    All processes of a sharded run come here.
    """
    digest = hashlib.sha256()
    for name, parameter in parameters(model).items():
        digest.update(name.encode())
        digest.update(full_tensor(parameter.detach()).cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
