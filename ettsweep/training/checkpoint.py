"""What a run needs to go on exactly where it was: weights, optimizer, loss scale and step; draws need nothing.

All tensors have names: model/<parameter>, optimizer/<parameter>/<what the optimizer keeps of it>. One file holds them,
or, of a sharded run, a folder in the format of torch.distributed.checkpoint, where each process has written its part.
Either can be loaded by any number of processes, sharded or not.
"""

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ettsweep.errors import CorruptError, first_line
from ettsweep.files import Json, dumps, read_json, sha256_of
from ettsweep.models.build import put
from ettsweep.runs.attempt import Attempt
from ettsweep.training.distributed import ALONE, Peers, is_sharded, parameters, whole
from ettsweep.training.parts import FILES, INDEX, Fill, Layout, ask_the_system, layout, read_parts, write_parts
from ettsweep.training.trainer import Trainer


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of a run by name; those of a sharded one are sharded."""
    found = {}
    for name, parameter in parameters(model).items():
        found[f"model/{name}"] = parameter.detach()
        kept = optimizer.state.get(parameter, {})
        found |= {f"optimizer/{name}/{key}": value for key, value in kept.items() if isinstance(value, Tensor)}
    return found


# --- writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after a step.

    Attributes:
        state: its tensors; empty where this process writes none.
        head: what is said beside them.
        group: that writes it together.
        sharded: whether each process writes its part.
    """

    attempt: Attempt
    step: int
    state: dict[str, Tensor]
    head: Json
    group: Peers
    sharded: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the whole state, on all processes together."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state.values())

    def write(self) -> None:
        """Replace the checkpoint of the attempt, in one instant; it goes with the metrics up to its step.

        All processes of the run come here; those of a sharded one each write their part.

        Raises:
            StorageError: it cannot be written; the earlier one is untouched.
            LostPeerError: a process is gone.
        """
        if self.sharded:
            files = write_parts(self.state, self.attempt.parts_folder(self.step), self.group)
            if self.group.leads:
                self.attempt.save_parts(self.step, self.head | {"files": files})
        elif self.group.leads:
            own = {name: _alone(tensor) for name, tensor in self.state.items()}
            self.attempt.save_checkpoint(lambda path: _write(self.head | {"tensors": own}, path))


def snapshot(attempt: Attempt, trainer: Trainer, history: Sequence[Json]) -> Snapshot:
    """Return the state of a run as it is now; its tensors are those that are trained."""
    head = {
        "run": attempt.run.name,
        "step": trainer.step,
        "scaler": trainer.scaler.state_dict(),
        "history_sha256": _history_sha256(history),
    }
    sharded = is_sharded(trainer.model)
    state = tensors(trainer.model, trainer.optimizer) if sharded or trainer.group.leads else {}
    return Snapshot(attempt, trainer.step, state, head, trainer.group, sharded)


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
    # Here the error is gone: its frames held the file open, and so the space on a full disk even once unlinked.
    ask_the_system(path, reason)


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is whole, with its tensors still on disk.

    Attributes:
        path: what to name in a message.
        step: the last one done.
        scaler: state of the loss scaler.
        history_sha256: of the metrics up to the step.
        layout: what tensors there are.
        fill: copies them, or this process's parts, into others of the same layout.
    """

    path: Path
    step: int
    scaler: Json
    history_sha256: str
    layout: Layout
    fill: Fill


def candidates(attempts: Iterable[Attempt], warn: Callable[[str], None]) -> Iterator[Json]:
    """Yield which attempts may have a checkpoint: the number of each, and what its checkpoint.json says, if in parts.

    What cannot be read is warned of.
    """
    for attempt in attempts:
        try:
            yield {"attempt": attempt.number, "index": read_json(attempt.parts_path)}
        except CorruptError as error:
            warn(str(error))
        except FileNotFoundError:
            if attempt.checkpoint_path.exists():
                yield {"attempt": attempt.number, "index": None}


def load(attempt: Attempt, index: Json | None = None, group: Peers = ALONE) -> Saved:
    """Check that the checkpoint of an attempt is whole, and return it; of one in parts, each process checks some.

    Raises:
        FileNotFoundError: there is none.
        CorruptError: it is truncated, was edited, or belongs to another run.
    """
    if index is not None:
        return _load_parts(attempt, index, group)
    path = attempt.checkpoint_path
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if broken := archive.testzip():  # torch.load does not look at the checksums
                raise ValueError(f"{broken} has a wrong checksum")
        # Mapped, not read: a process copies what it needs.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch.load raises whatever the bytes lead it to
        raise CorruptError(f"{path}: cannot be read as a checkpoint: {first_line(error)}") from error
    if isinstance(state, dict) and "model" in state:
        raise CorruptError(f"{path}: was saved by an earlier version, in another form")
    found = state.get("tensors") if isinstance(state, dict) else None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise CorruptError(f"{path}: is not a checkpoint of run {attempt.run.name}")

    def fill(targets: Mapping[str, Tensor]) -> None:
        for name, target in targets.items():
            put(found[name], target)

    return _checked(attempt, path, state, layout(found), fill)


def _checked(attempt: Attempt, path: Path, head: Json, there: Layout, fill: Fill) -> Saved:
    """Return the checkpoint, if what it says of itself is that of one."""
    kinds = {"step": int, "scaler": dict, "history_sha256": str}
    sound = all(isinstance(head.get(key), kind) for key, kind in kinds.items())
    if head.get("run") != attempt.run.name or not sound:
        raise CorruptError(f"{path}: is not a checkpoint of run {attempt.run.name}")
    return Saved(path, head["step"], head["scaler"], head["history_sha256"], there, fill)


def _load_parts(attempt: Attempt, index: Json, group: Peers) -> Saved:
    path, files = attempt.parts_path, index.get("files")
    step = index.get("step")
    if not isinstance(files, dict) or not isinstance(step, int) or not all(map(FILES.fullmatch, files)):
        raise CorruptError(f"{path}: is not a checkpoint of run {attempt.run.name}")
    folder = attempt.parts_folder(step)
    for name in {INDEX, *sorted(files)[group.rank :: group.world]}:
        try:
            right = sha256_of(folder / name) == files.get(name)
        except OSError as error:
            raise CorruptError(f"{folder / name}: cannot be read as a checkpoint: {error.strerror}") from error
        if not right:
            raise CorruptError(f"{folder / name}: has a wrong checksum")
    try:
        there, fill = read_parts(folder, set(files))
    except Exception as error:  # a pickle raises whatever the bytes lead it to
        raise CorruptError(f"{folder / INDEX}: cannot be read as a checkpoint: {first_line(error)}") from error
    return _checked(attempt, path, index, there, fill)


def restore(saved: Saved, trainer: Trainer) -> None:
    """Put a checkpoint into the objects of a run; what does not fit is not touched.

    Raises:
        CorruptError: it does not fit them, or cannot be read after all.
    """
    targets = tensors(trainer.model, trainer.optimizer)
    have, want = saved.layout, layout(targets)
    if have != want:
        name = min(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
        raise CorruptError(f"{saved.path}: does not fit the run: {name} is {have.get(name)}, not {want.get(name)}")
    try:
        trainer.scaler.load_state_dict(saved.scaler)
        saved.fill(targets)
    except Exception as error:  # torch.load raises whatever the bytes lead it to
        raise CorruptError(f"{saved.path}: cannot be read as a checkpoint: {first_line(error)}") from error
    trainer.step = saved.step


def history(saved: Saved, attempt: Attempt) -> list[Json]:
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
        digest.update(whole(parameter.detach()).cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
