"""A sharded run's tensors on disk: a folder in the format of torch.distributed.checkpoint, a file from each process.

What is read was written by whoever could write there: nothing is unpickled but the names of tensors and where they are.
"""

import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ettsweep.errors import EttsweepError, LostPeerError, StorageError, first_line
from ettsweep.files import sha256_of, storage_errors
from ettsweep.training.distributed import Peers, lost_peer, watching

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

T = TypeVar("T")

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of each tensor."""

Fill = Callable[[Mapping[str, Tensor]], None]
"""Copies what is on disk, or this process's part of it, into tensors of the same layout."""

INDEX = ".metadata"
"""The file of torch.distributed.checkpoint that says which part of which tensor is where."""

PART = "__{}_0.distcp"
"""The file that a process of this rank writes."""

FILES = re.compile(r"\.metadata|__\d+_0\.distcp")
"""What the files of a folder are called."""


# --- writing --------------------------------------------------------------------------------------------------------


def write_parts(state: dict[str, Tensor], folder: Path, group: Peers) -> dict[str, str]:
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
        # torch 2.8 uses it by itself. For good: filters are the process's, and this may be a thread beside training.
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")
        with watching():
            save_together(state, storage_writer=Writer(folder), planner=planner, process_group=group.hosts)
    except CheckpointException as error:  # what any of the processes could not do, on all of them
        problem = _why_not(error, folder, folder / PART.format(group.rank))
    if problem:  # and the error, whose frames may hold a file, is gone
        if not isinstance(problem, LostPeerError):
            group.agree(0)  # all have asked the system while the disk was full
        if group.leads:
            shutil.rmtree(folder, ignore_errors=True)
        group.agree(0)  # whoever says so on a full disk needs the room
        raise problem
    with storage_errors(folder):
        digests = group.gather(bytes.fromhex(sha256_of(folder / PART.format(group.rank))))
        files = {PART.format(rank): digest.hex() for rank, digest in enumerate(digests)}
        return files | {INDEX: sha256_of(folder / INDEX)} if group.leads else files


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
            ask_the_system(mine, first_line(failures[0]))
    except StorageError as problem:
        return problem
    raise AssertionError(failures)


def ask_the_system(path: Path, reason: str) -> None:
    """Raise the OSError of a write that torch reports as failed without its errno, such as on a full disk."""
    with path.open("ab") as file:
        file.write(b"\0" * 65536)
    raise OSError(f"checkpoint was not written: {reason}")


# --- reading --------------------------------------------------------------------------------------------------------


def layout(named: Mapping[str, Tensor]) -> Layout:
    """Return shape and type of tensors, of sharded ones those of the whole."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in named.items()}


def read_parts(folder: Path, files: set[str]) -> tuple[Layout, Fill]:
    """Return which tensors are in a folder that several processes have written, and what reads them."""
    metadata = _read_index(folder / INDEX)
    if strange := {info.relative_path for info in metadata.storage_data.values()} - files:
        raise ValueError(f"{strange.pop()} is not one of its files")

    def fill(targets: Mapping[str, Tensor]) -> None:
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        # What `torch.distributed.checkpoint.load` does, but for its unpickling of anything; no process needs another.
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(targets), metadata, is_coordinator=True)
        reader = FileSystemReader(folder)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()

    told: dict[str, Any] = metadata.state_dict_metadata
    return {name: (tuple(tensor.size), tensor.properties.dtype) for name, tensor in told.items()}, fill


KNOWN = {
    "torch": "Size",
    "torch.serialization": "_get_layout",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo",
    "torch.distributed.checkpoint.metadata": "Metadata MetadataIndex TensorStorageMetadata ChunkStorageMetadata"
    " TensorProperties _MEM_FORMAT_ENCODING",
}
"""What an index of tensors is made of, by module."""


class _Said:
    """What a pickle says of an object: what to make it of, and its state. Nothing is made of it."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _IndexUnpickler(pickle.Unpickler):
    """Reads the index of torch.distributed.checkpoint, which is a pickle, without a class or function that it names.

    A pickle may call what it names, and set attributes of it for the whole process. So it is given words of its own.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a thing that a pickle names, if it may."""
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype  # nothing can be called or set there
        if name not in KNOWN.get(module, "").split():
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
        return type(name, (_Said,), {})


def _read_index(path: Path) -> "Metadata":
    """Return the index of a folder, made of the names, numbers and types that its pickle says.

    Raises:
        Exception: whatever the bytes lead to; they are no index of tensors.
    """
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    with path.open("rb") as file:
        index = _said(_IndexUnpickler(file).load(), "Metadata").state
    tensors: dict[str, Any] = {}
    for name, thing in index["state_dict_metadata"].items():
        tensor = _said(thing, "TensorStorageMetadata").state
        dtype = _of(torch.dtype, _said(tensor["properties"], "TensorProperties").state[0])
        chunks = [_said(chunk, "ChunkStorageMetadata").state for chunk in tensor["chunks"]]
        tensors[_of(str, name)] = TensorStorageMetadata(
            TensorProperties(dtype),
            _size(tensor["size"]),
            [ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks],
        )
    places: dict[MetadataIndex, _StorageInfo] = {}
    for key, thing in index["storage_data"].items():
        part, place = _said(key, "MetadataIndex").state, _said(thing, "_StorageInfo").state
        start, length = _of(int, place["offset"]), _of(int, place["length"])
        where = MetadataIndex(_of(str, part["fqn"]), _size(part["offset"]))
        places[where] = _StorageInfo(_of(str, place["relative_path"]), start, length)
    return Metadata(tensors, storage_data=places)


def _said(thing: object, name: str) -> _Said:
    if not isinstance(thing, _Said) or type(thing).__name__ != name:
        raise pickle.UnpicklingError(f"{name} is expected in it, not {type(thing).__name__}")
    return thing


def _size(thing: object) -> torch.Size:
    return torch.Size(_of(int, number) for number in _said(thing, "Size").arguments[0])


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise pickle.UnpicklingError(f"{kind.__name__} is expected in it, not {type(value).__name__}")
    return value
