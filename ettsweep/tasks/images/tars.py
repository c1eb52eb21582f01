"""Where images lie in tar files, which are read as they are: an index of offsets is made once and kept.

Understood are tars of class folders, one tar per class, a tar of such tars, and WebDataset shards.
"""

import contextlib
import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import DataMissingError
from ettsweep.tasks.images.index import Columns, kept, packed, unpacked

VERSION = 1
"""Of the index on disk."""


class Member(NamedTuple):
    """A file in a tar, and its class: first the one that its place says, its folder, else the tar that it lies in."""

    name: str
    offset: int
    size: int
    class_name: str


class Index(NamedTuple):
    """Names of images and classes; of each image [N] its label, and where it lies: tar, first byte and length."""

    names: list[str]
    classes: list[str]
    label: NDArray[np.int64]
    tar: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]


def _build(paths: Sequence[str]) -> Index:
    from timm.data.readers.img_extensions import get_img_extensions

    extensions = get_img_extensions(as_set=True)
    images = [(tar, image) for tar, path in enumerate(paths) for image in _labelled(path, extensions)]
    if not images:
        raise DataMissingError(f"{paths[0]}: no images in it, nor in the {len(paths) - 1} tar files beside it")
    classes, labels = numbered([image.class_name for _, image in images])
    places = np.array([(tar, image.offset, image.size) for tar, image in images], np.int64)
    return Index([image.name for _, image in images], classes, labels, *places.T)


def numbered(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return classes in timm's order, and as labels [N] the positions of names among them."""
    from timm.utils.misc import natural_key

    classes = sorted(set(names), key=natural_key)
    position = {name: k for k, name in enumerate(classes)}
    return classes, np.array([position[name] for name in names], np.int64)


def _labelled(path: str, extensions: set[str]) -> Iterator[Member]:
    """Yield the images of a tar, which may be a shard that says their classes."""
    try:
        with Path(path).open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = list(_members(tar, Path(path).stem))
            classes = _webdataset_classes(file.fileno(), members)
    except (tarfile.TarError, EOFError) as error:
        raise DataMissingError(f"{path}: cannot be read as an uncompressed tar ({error}); see docs/data.md") from None
    except OSError as error:
        raise DataMissingError(f"{path}: {error.strerror or error}") from None
    for member in members:
        if Path(member.name).suffix.lower() not in extensions:
            continue
        class_name = classes.get(_key(member.name)) if classes else member.class_name
        if class_name is None:
            raise DataMissingError(f"{path}: {member.name} has no label: neither a .cls file nor one in a .json file")
        yield member._replace(class_name=class_name)


def _members(tar: tarfile.TarFile, stem: str, start: int = 0, above: str = "") -> Iterator[Member]:
    """Yield the files of a tar, and of the tars in it; `start` and `above` are place and name of one of these."""
    for info in tar:
        if not info.isfile():
            continue
        if info.name.endswith(".tar"):
            with tarfile.open(fileobj=tar.extractfile(info), mode="r:") as inner:
                yield from _members(inner, Path(info.name).stem, start + info.offset_data, f"{above}{info.name}/")
        else:
            folder = Path(info.name).parent.name
            yield Member(above + info.name, start + info.offset_data, info.size, folder or stem)


def _webdataset_classes(descriptor: int, members: list[Member]) -> dict[str, str]:
    """Return the class of each key of a WebDataset shard; nothing for any other tar."""
    found = dict[str, str]()
    for member in members:
        kind = Path(member.name).suffix.lower()
        if kind not in (".cls", ".json") or (kind == ".json" and _key(member.name) in found):
            continue
        content = os.pread(descriptor, member.size, member.offset)
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            label = json.loads(content)["label"] if kind == ".json" else content.decode().strip()
            found[_key(member.name)] = str(label)
    return found


def _key(name: str) -> str:
    """Return what the files of one WebDataset sample have in common: the name up to its first dot."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


# --- the index on disk ------------------------------------------------------------------------------------------------


def tar_index(paths: Sequence[str]) -> Index:
    """Return the index of these files as they are now, from the cache where it has it."""
    columns = kept(f"tars-{_fingerprint(paths)}", lambda: _columns(_build(paths)), _fit)
    names, classes = (unpacked(columns[key]) for key in ("names", "classes"))
    return Index(names, classes, *(columns[key].astype(np.int64) for key in NUMBERS))


NUMBERS = ("label", "tar", "offset", "size")


def _fingerprint(paths: Sequence[str]) -> str:
    stats = [(path, stat.st_size, stat.st_mtime_ns) for path in paths for stat in (Path(path).stat(),)]
    return hashlib.sha256(repr((VERSION, stats)).encode()).hexdigest()[:24]


def _columns(index: Index) -> Columns:
    return {**index._asdict(), "names": packed(index.names), "classes": packed(index.classes)}


def _fit(columns: Columns) -> bool:
    """Say whether columns are those of one index."""
    lengths = {len(columns[key]) for key in NUMBERS} | {len(unpacked(columns["names"]))}
    return len(lengths) == 1 and int(columns["label"].astype(np.int64).max()) < len(unpacked(columns["classes"]))
