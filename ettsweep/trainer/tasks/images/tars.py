"""Where images lie in a tar file, which is read as it is.

Understood are tars of class folders, one tar per class, a tar of such tars, and WebDataset shards.
"""

import contextlib
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ettsweep.errors import DataMissingError


class TarMember(NamedTuple):
    """A file in a tar, and its class: first the one that its place says, its folder, else the tar that it lies in."""

    name: str
    offset: int
    size: int
    class_name: str


def images_in(path: str, extensions: set[str]) -> Iterator[TarMember]:
    """Yield the images of a tar, which may be a shard that says their classes.

    Raises:
        DataMissingError: it cannot be read, or a shard does not say the class of an image.
    """
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


def _members(tar: tarfile.TarFile, stem: str, start: int = 0, parent: str = "") -> Iterator[TarMember]:
    """Yield the files of a tar, and of the tars in it; `start` and `above` are place and name of one of these."""
    for entry in tar:
        if not entry.isfile():
            continue
        if entry.name.endswith(".tar"):
            with tarfile.open(fileobj=tar.extractfile(entry), mode="r:") as inner:
                yield from _members(inner, Path(entry.name).stem, start + entry.offset_data, f"{parent}{entry.name}/")
        else:
            folder = Path(entry.name).parent.name
            yield TarMember(parent + entry.name, start + entry.offset_data, entry.size, folder or stem)


def _webdataset_classes(descriptor: int, members: list[TarMember]) -> dict[str, str]:
    """Return the class of each key of a WebDataset shard; nothing for any other tar."""
    classes = dict[str, str]()
    for member in members:
        kind = Path(member.name).suffix.lower()
        if kind not in (".cls", ".json") or (kind == ".json" and _key(member.name) in classes):
            continue
        content = os.pread(descriptor, member.size, member.offset)
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            label = json.loads(content)["label"] if kind == ".json" else content.decode().strip()
            classes[_key(member.name)] = str(label)
    return classes


def _key(name: str) -> str:
    """Return what the files of one WebDataset sample have in common: the name up to its first dot."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"
