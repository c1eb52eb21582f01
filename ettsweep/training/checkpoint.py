"""What a run needs to go on exactly where it was: weights, optimizer, loss scale and step; draws need nothing.

All tensors have names: model/<parameter>, optimizer/<parameter>/<what the optimizer keeps of it>. One file holds them,
or, of a sharded run, a folder in the format of torch.distributed.checkpoint, where each process has written its part.
Either can be loaded by any number of processes, sharded or not.
"""

import hashlib
import pickle
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from ettsweep.errors import CorruptError, EttsweepError, StorageError
from ettsweep.files import Json, dumps, read_json, storage_errors
from ettsweep.models.initialisation import put
from ettsweep.rundir import Attempt
from ettsweep.training.distributed import ALONE, Group, is_sharded, lost_peer, parameters, watching, whole

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

    from ettsweep.training.loop import Trainer

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of each tensor."""

INDEX = ".metadata"
"""The file of torch.distributed.checkpoint that says which part of which tensor is where."""

PART = "__{}_0.distcp"
"""The file that a process of this rank writes."""


FILES = re.compile(r"\.metadata|__\d+_0\.distcp")
"""What they are called."""


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of a run by name; those of a sharded one are sharded."""
    found = {}
    for name, parameter in parameters(model).items():
        found[f"model/{name}"] = parameter.detach()
        kept = optimizer.state.get(parameter, {})
        found |= {f"optimizer/{name}/{key}": value for key, value in kept.items() if isinstance(value, Tensor)}
    return found


# --- writing --------------------------------------------------------------------------------------------------------


def save(attempt: Attempt, trainer: "Trainer", history: Sequence[Json]) -> None:
    """Replace the checkpoint of an attempt, in one instant; it goes with the metrics up to its step.

    All processes of the run come here; those of a sharded one each write their part.

    Raises:
        StorageError: it cannot be written; the earlier one is untouched.
        LostPeerError: a process is gone.
    """
    state = tensors(trainer.model, trainer.optimizer)
    head = {
        "run": attempt.run.id,
        "step": trainer.step,
        "scaler": trainer.scaler.state_dict(),
        "history_sha256": _history_sha256(history),
    }
    if is_sharded(trainer.model):
        files = _write_parts(state, attempt.parts_folder(trainer.step), trainer.group)
        if trainer.group.leads:
            attempt.save_parts(trainer.step, head | {"files": files})
    elif trainer.group.leads:
        attempt.save_checkpoint(lambda path: _write(head | {"tensors": state}, path))


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
    _ask_the_system(path, reason)


def _ask_the_system(path: Path, reason: str) -> None:
    """Raise the OSError of a write that torch reports as failed without its errno, such as on a full disk."""
    with path.open("ab") as file:
        file.write(b"\0" * 65536)
    raise OSError(f"checkpoint was not written: {reason}")


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0] or type(error).__name__


def _write_parts(state: dict[str, Tensor], folder: Path, group: Group) -> dict[str, str]:
    """Write each process's part of sharded tensors into a new folder; return the SHA-256 of the files."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    class Writer(FileSystemWriter):
        def storage_meta(self) -> None:  # where it lies is nobody's business
            return None

    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    problem: EttsweepError | None = None
    try:
        with warnings.catch_warnings(), watching():
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch 2.8 uses it by itself
            save_together(state, storage_writer=Writer(folder), planner=planner, process_group=group.hosts)
    except CheckpointException as error:  # what any of the processes could not do, on all of them
        problem = _why_not(error, folder, folder / PART.format(group.rank))
    if problem:  # and the error, whose frames may hold a file, is gone
        if group.leads:
            shutil.rmtree(folder, ignore_errors=True)
        group.agree(0)  # whoever says so on a full disk needs the room
        raise problem
    with storage_errors(folder):
        digests = group.gather(_sha256(folder / PART.format(group.rank)))
        files = {PART.format(rank): digest.hex() for rank, digest in enumerate(digests)}
        return files | {INDEX: _sha256(folder / INDEX).hex()} if group.leads else files


def _why_not(error: Any, folder: Path, mine: Path) -> EttsweepError:
    failures = [failure for failure, _ in error.failures.values()]
    for failure in failures:
        if lost := lost_peer(failure):
            return lost
    try:
        with storage_errors(folder):
            for failure in failures:
                if isinstance(failure, OSError):
                    raise failure
            _ask_the_system(mine, _first_line(failures[0]))
    except StorageError as problem:
        return problem
    raise AssertionError(failures)


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


# --- reading --------------------------------------------------------------------------------------------------------


class Source(Protocol):
    """Where the tensors of a checkpoint come from."""

    def layout(self) -> Layout:
        """Return what tensors there are."""
        ...

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy the tensors, or this process's parts, into others of the same layout."""
        ...


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is whole, with its tensors still on disk.

    Attributes:
        path: what to name in a message.
        step: the last one done.
        scaler: state of the loss scaler.
        history_sha256: of the metrics up to the step.
        source: of the tensors.
    """

    path: Path
    step: int
    scaler: Json
    history_sha256: str
    source: Source


def candidates(attempts: Iterable[Attempt], warn: Callable[[str], None]) -> Iterator[tuple[Attempt, Json | None]]:
    """Yield the attempts that may have a checkpoint, with what checkpoint.json says where it is in parts.

    Args:
        attempts: the attempts to look at.
        warn: told of what cannot be read.
    """
    for attempt in attempts:
        try:
            yield attempt, read_json(attempt.parts_path)
        except CorruptError as error:
            warn(str(error))
        except FileNotFoundError:
            if attempt.checkpoint_path.exists():
                yield attempt, None


def load(attempt: Attempt, index: Json | None = None, group: Group = ALONE) -> Saved:
    """Check that the checkpoint of an attempt is whole, and return it.

    Args:
        attempt: which has saved it.
        index: what its checkpoint.json said, if it is in parts.
        group: the processes that load it; each checks some of the files.

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
        raise CorruptError(f"{path}: cannot be read as a checkpoint: {_first_line(error)}") from error
    if isinstance(state, dict) and "model" in state:
        raise CorruptError(f"{path}: was saved by an earlier version, in another form")
    found = state.get("tensors") if isinstance(state, dict) else None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise CorruptError(f"{path}: is not a checkpoint of run {attempt.run.id}")
    return _checked(attempt, path, state, WholeTensors(found))


def _checked(attempt: Attempt, path: Path, head: Json, source: Source) -> Saved:
    """Return the checkpoint, if what it says of itself is that of one."""
    kinds = {"step": int, "scaler": dict, "history_sha256": str}
    sound = all(isinstance(head.get(key), kind) for key, kind in kinds.items())
    if head.get("run") != attempt.run.id or not sound:
        raise CorruptError(f"{path}: is not a checkpoint of run {attempt.run.id}")
    return Saved(path, head["step"], head["scaler"], head["history_sha256"], source)


class WholeTensors:
    """The tensors of one file, mapped into memory."""

    def __init__(self, found: dict[str, Tensor]) -> None:
        self._found = found

    def layout(self) -> Layout:
        """Return what tensors there are."""
        return layout(self._found)

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy the tensors, or this process's parts, into others of the same layout."""
        for name, target in targets.items():
            put(self._found[name], target)


def layout(named: Mapping[str, Tensor]) -> Layout:
    """Return shape and type of tensors, of sharded ones those of the whole."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in named.items()}


def _load_parts(attempt: Attempt, index: Json, group: Group) -> Saved:
    path, files = attempt.parts_path, index.get("files")
    step = index.get("step")
    if not isinstance(files, dict) or not isinstance(step, int) or not all(map(FILES.fullmatch, files)):
        raise CorruptError(f"{path}: is not a checkpoint of run {attempt.run.id}")
    folder = attempt.parts_folder(step)
    for name in {INDEX, *sorted(files)[group.rank :: group.world]}:
        try:
            right = _sha256(folder / name).hex() == files.get(name)
        except OSError as error:
            raise CorruptError(f"{folder / name}: cannot be read as a checkpoint: {error.strerror}") from error
        if not right:
            raise CorruptError(f"{folder / name}: has a wrong checksum")
    try:
        source = PartTensors(folder, set(files))
    except Exception as error:  # a pickle raises whatever the bytes lead it to
        raise CorruptError(f"{folder / INDEX}: cannot be read as a checkpoint: {_first_line(error)}") from error
    return _checked(attempt, path, index, source)


class PartTensors:
    """The tensors of a folder that several processes have written."""

    def __init__(self, folder: Path, files: set[str]) -> None:
        self._folder = folder
        with (folder / INDEX).open("rb") as file:
            self._metadata: Metadata = _MetadataUnpickler(file).load()
        told: dict[str, Any] = self._metadata.state_dict_metadata
        self._layout = {name: (tuple(tensor.size), tensor.properties.dtype) for name, tensor in told.items()}
        if strange := {info.relative_path for info in self._metadata.storage_data.values()} - files:
            raise ValueError(f"{strange.pop()} is not one of its files")

    def layout(self) -> Layout:
        """Return what tensors there are."""
        return self._layout

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy the tensors, or this process's parts, into others of the same layout."""
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        # What `torch.distributed.checkpoint.load` does, but for its unpickling of anything; no process needs another.
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(targets), self._metadata, is_coordinator=True)
        reader = FileSystemReader(self._folder)
        reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


class _MetadataUnpickler(pickle.Unpickler):
    """Reads the index of torch.distributed.checkpoint, which is a pickle, and nothing but what makes up one of tensors.

    What is no tensor, torch would unpickle whatever it is.
    """

    KNOWN = frozenset(
        [
            *(("torch", "Size"), ("torch.serialization", "_get_layout")),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            *(
                ("torch.distributed.checkpoint.metadata", name)
                for name in (
                    *("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata"),
                    *("TensorProperties", "_MEM_FORMAT_ENCODING"),
                )
            ),
        ]
    )

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names, if it may."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
        return super().find_class(module, name)


def restore(saved: Saved, trainer: "Trainer") -> None:
    """Put a checkpoint into the objects of a run; what does not fit is not touched.

    Raises:
        CorruptError: it does not fit them, or cannot be read after all.
    """
    targets = tensors(trainer.model, trainer.optimizer)
    have, want = saved.source.layout(), layout(targets)
    if have != want:
        name = min(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
        raise CorruptError(f"{saved.path}: does not fit the run: {name} is {have.get(name)}, not {want.get(name)}")
    try:
        trainer.scaler.load_state_dict(saved.scaler)
        saved.source.fill(targets)
    except Exception as error:  # torch.load raises whatever the bytes lead it to
        raise CorruptError(f"{saved.path}: cannot be read as a checkpoint: {_first_line(error)}") from error
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
