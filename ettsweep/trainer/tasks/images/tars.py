"""Positions and classes of the images in a tar file, which is never unpacked.

Supported are tars of class folders, one tar per class, a tar of such tars, and WebDataset shards.
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
    """A file in a tar.

    Attributes:
        name: path in the tar; for a tar in a tar, after the path of the inner one.
        offset, size: first byte in the outermost file, and length in bytes.
        class_name: name of the file's folder; without a folder, of its tar.
    """

    name: str
    offset: int
    size: int
    class_name: str


def images_in(path: str, extensions: set[str]) -> Iterator[TarMember]:
    """Yield the images of a tar; in a WebDataset shard, classes come from .cls and .json files.

    Raises:
        DataMissingError: the tar cannot be read, or an image of a shard has no class.
    """
    try:
        # "r:" accepts no compression: images are read at their offsets later.
        with Path(path).open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = list(_iterate_files(tar, Path(path).stem))
            classes = _webdataset_classes(file.fileno(), members)
    except (tarfile.TarError, EOFError) as error:
        raise DataMissingError(f"{path}: cannot be read as an uncompressed tar ({error}); see docs/data.md") from None
    except OSError as error:
        raise DataMissingError(f"{path}: {error.strerror or error}") from None
    for member in members:
        if Path(member.name).suffix.lower() not in extensions:
            continue
        class_name = classes.get(_sample_key(member.name)) if classes else member.class_name
        if class_name is None:
            raise DataMissingError(f"{path}: {member.name} has no label: neither a .cls file nor one in a .json file")
        yield member._replace(class_name=class_name)


def _iterate_files(tar: tarfile.TarFile, stem: str, start: int = 0, parent: str = "") -> Iterator[TarMember]:
    """Yield the files of a tar and of the tars in it; `start` and `parent` are offset and name of an inner tar."""
    for entry in tar:
        if not entry.isfile():
            continue
        if entry.name.endswith(".tar"):
            # An inner tar is stored as it is, so offsets in it only need its start added.
            with tarfile.open(fileobj=tar.extractfile(entry), mode="r:") as inner:
                yield from _iterate_files(
                    inner, Path(entry.name).stem, start + entry.offset_data, f"{parent}{entry.name}/"
                )
        else:
            folder = Path(entry.name).parent.name
            yield TarMember(parent + entry.name, start + entry.offset_data, entry.size, folder or stem)


def _webdataset_classes(descriptor: int, members: list[TarMember]) -> dict[str, str]:
    """Return the class of each sample of a WebDataset shard by its key; empty for any other tar."""
    classes = dict[str, str]()
    for member in members:
        kind = Path(member.name).suffix.lower()
        # A .cls file has precedence over the label in a .json file.
        if kind not in (".cls", ".json") or (kind == ".json" and _sample_key(member.name) in classes):
            continue
        content = os.pread(descriptor, member.size, member.offset)
        # A file without a readable label gives its sample no class.
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            label = json.loads(content)["label"] if kind == ".json" else content.decode().strip()
            classes[_sample_key(member.name)] = str(label)
    return classes


def _sample_key(name: str) -> str:
    """Return the key that the files of one WebDataset sample share: the path up to the first dot of the file name."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"
