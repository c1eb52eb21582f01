"""Checkpoints: weights, optimizer state, loss scale and step, enough to resume bit for bit.

No state of random generators is needed, since they are seeded by step. Tensors are named model/<parameter> and
optimizer/<parameter>/<state>. One file holds full tensors: the leader gathers sharded ones when it saves and
distributes them when it resumes, to any number of processes, sharded or not.
"""

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ettsweep.errors import CorruptError, short_message
from ettsweep.files import Json, open_regular
from ettsweep.run import Run
from ettsweep.trainer.training.distributed import full_tensor, parameters
from ettsweep.trainer.training.trainer import Trainer

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Full shape and dtype of each tensor, by name."""


Save = Callable[[Callable[[Path], object]], None]
"""Saves a state, given a function that writes it to a path."""


def named_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of model and optimizer by name; they are sharded if the model is."""
    state = {}
    for name, parameter in parameters(model).items():
        state[f"model/{name}"] = parameter.detach()
        parameter_state = optimizer.state.get(parameter, {})
        state |= {
            f"optimizer/{name}/{key}": value for key, value in parameter_state.items() if isinstance(value, Tensor)
        }
    return state


def layout(state: Mapping[str, Tensor]) -> Layout:
    """Return the full shape and dtype of tensors by name."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}


# --- writing --------------------------------------------------------------------------------------------------------


def build_header(run: Run, trainer: Trainer) -> Json:
    """Return the entries of a checkpoint beside its tensors."""
    skips = run.divergence.skips
    return {"run": run.id, "step": trainer.step, "scaler": trainer.scaler.state_dict(), "skips": skips}


def write(save: Save, header: Json, state: Mapping[str, Tensor]) -> None:
    """Save a checkpoint, see `Run.saving`.

    Raises:
        OSError: it cannot be written; the earlier checkpoint is untouched.
    """
    compacted = {name: _compact(tensor) for name, tensor in state.items()}
    save(lambda path: _write(header | {"tensors": compacted}, path))


def _compact(tensor: Tensor) -> Tensor:
    """Copy a tensor that is a view, such as one of a stack: torch.save would write the whole storage."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _write(state: dict[str, Any], path: Path) -> None:
    try:
        torch.save(state, path)
        return
    except RuntimeError as error:
        reason = short_message(error)
    # After the except block, whose error keeps frames alive that hold the file open, and with it the space on a full
    # disk. torch reports a failed write without errno; writing again raises an OSError with the cause, if it persists.
    with path.open("ab") as file:
        file.write(b"\0" * 65536)
    raise OSError(f"checkpoint was not written: {reason}")


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointState:
    """A checkpoint that has been read and verified.

    Attributes:
        path: file, for messages.
        step: the last step done.
        scaler: state of the loss scaler.
        skips: its last skipped steps in a row.
        tensors: full tensors by name, memory-mapped from disk.
    """

    path: Path
    step: int
    scaler: Json
    skips: int
    tensors: dict[str, Tensor]


def load_checkpoint(path: Path, run_id: str) -> CheckpointState:
    """Read and verify a checkpoint of a run.

    Raises:
        CorruptError: it is truncated, was edited, or belongs to another run.
    """
    try:
        os.close(open_regular(path))  # a FIFO would block for ever
        with zipfile.ZipFile(path) as archive:
            if broken := archive.testzip():  # torch.load does not verify checksums
                raise ValueError(f"{broken} has a wrong checksum")
        # weights_only: a checkpoint must not run code. mmap: it may be larger than the host's free memory.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # on corrupt bytes torch.load may raise any type
        raise CorruptError(f"{path}: cannot be read as a checkpoint: {_refusal(error)}") from error
    types = {"step": int, "scaler": dict, "skips": int, "tensors": dict}
    is_valid = isinstance(state, dict) and all(isinstance(state.get(key), kind) for key, kind in types.items())
    is_valid = is_valid and all(isinstance(tensor, Tensor) for tensor in state["tensors"].values())
    if not is_valid or state.get("run") != run_id:
        raise CorruptError(f"{path}: is not a checkpoint of run {run_id}")
    return CheckpointState(path, *(state[key] for key in types))


def _refusal(error: Exception) -> str:
    """Return why a checkpoint is refused, without torch's advice to set weights_only=False, which runs its code."""
    if "weights_only" not in str(error):
        return short_message(error)
    foreign = re.search(r"GLOBAL (\S+)", str(error))
    return f"it holds {foreign[1] if foreign else 'something'} beside tensors and numbers, which could run code"


def check_fits(saved: CheckpointState, trainer: Trainer) -> None:
    """Check that a checkpoint has the tensors and loss-scaler state of a run.

    Raises:
        CorruptError: a name, shape or dtype differs, or the scaler's state is malformed.
    """
    actual, expected = layout(saved.tensors), layout(named_tensors(trainer.model, trainer.optimizer))
    if actual != expected:
        name = min(name for name in actual.keys() | expected.keys() if actual.get(name) != expected.get(name))
        raise CorruptError(
            f"{saved.path}: does not fit the run: {name} is {actual.get(name)}, not {expected.get(name)}"
        )
    scaler, all_numbers = saved.scaler, all(isinstance(value, int | float) for value in saved.scaler.values())
    if scaler.keys() != trainer.scaler.state_dict().keys() or not all_numbers:
        raise CorruptError(f"{saved.path}: does not fit the run: {scaler} is not a state of its loss scaler")


def restore(saved: CheckpointState | None, trainer: Trainer, run: Run) -> None:
    """Load the leader's checkpoint into the trainer; all processes of the run must call this.

    Args:
        saved: in the leader a checkpoint that `check_fits` has passed; None in the other processes.
        trainer: filled in place.
        run: the run.
    """
    group = trainer.group
    header = group.broadcast({"step": saved.step, "scaler": saved.scaler, "skips": saved.skips} if saved else None)
    assert header is not None
    for name, tensor in named_tensors(trainer.model, trainer.optimizer).items():
        group.distribute(saved.tensors[name] if saved else None, tensor)
    trainer.scaler.load_state_dict(header["scaler"])
    trainer.step = header["step"]
    run.divergence.skips = header["skips"]


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters and their names, which does not depend on sharding.

    All processes of a sharded run must call this.
    """
    digest = hashlib.sha256()
    for name, parameter in parameters(model).items():
        digest.update(name.encode())
        digest.update(full_tensor(parameter.detach()).cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
