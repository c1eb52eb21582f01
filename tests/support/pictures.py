"""Small sets of images in all the forms that are read, and what is wrong with some of them."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from support.commandline import wait_for

CLASSES = ("n01", "n02", "n10")
COUNTS = {"train": 12, "val": 3}
"""Images of each class."""

Files = Mapping[str, bytes]
"""Content by path, such as train/n01/0.jpg."""


def jpeg(rng: np.random.Generator, width: int = 56, height: int = 40) -> bytes:
    """Return noise as a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file, "jpeg")
    return file.getvalue()


def pictures(classes: Sequence[str] = CLASSES, counts: Mapping[str, int] = COUNTS) -> dict[str, bytes]:
    """Return a data set; the same each time."""
    rng = np.random.default_rng(0)
    names = (f"{part}/{label}/{i:02}.jpg" for part, n in counts.items() for label in classes for i in range(n))
    return {name: jpeg(rng) for name in names}


def write_folders(root: Path, files: Files | None = None) -> Path:
    """Write a folder of images per class."""
    for name, content in (pictures() if files is None else files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def hang(path: Path) -> None:
    """Make of an image one whose reader waits for ever, as for a file server that is gone."""
    path.unlink()
    os.mkfifo(path)


def wait_for_reader(path: Path) -> int:
    """Return a descriptor of such an image once somebody reads it; it says nothing."""

    def opened() -> int | None:
        with contextlib.suppress(OSError):
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        return None

    descriptor = wait_for(opened, f"a reader of {path}")
    assert isinstance(descriptor, int)
    return descriptor


def write_tar(path: Path, files: Files) -> None:
    """Write one tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(files))


def tar_bytes(files: Files) -> bytes:
    """Return one tar."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in files.items():
            tar_info = tarfile.TarInfo(name)
            tar_info.size = len(content)
            tar.addfile(tar_info, io.BytesIO(content))
    return file.getvalue()


def by_class(files: Files | None, section: str) -> dict[str, dict[str, bytes]]:
    """Return the images of a part by class, with names that only say which."""
    collected: dict[str, dict[str, bytes]] = {}
    for path, content in (files or pictures()).items():
        part, label, name = path.split("/")
        if part == section:
            collected.setdefault(label, {})[name] = content
    return collected


def write_class_tars(root: Path, files: Files | None = None) -> Path:
    """Write train/ and val/ with a tar per class."""
    for section in COUNTS:
        for label, images in by_class(files, section).items():
            write_tar(root / section / f"{label}.tar", images)
    return root


def write_split_tars(root: Path, files: Files | None = None) -> Path:
    """Write train.tar and val.tar with class folders inside."""
    for section in COUNTS:
        chosen = {name: content for name, content in (files or pictures()).items() if name.startswith(f"{section}/")}
        write_tar(root / f"{section}.tar", chosen)
    return root


def write_nested_tars(root: Path, files: Files | None = None) -> Path:
    """Write one tar of class tars for training, as ImageNet is distributed, and the like for validation."""
    for section in COUNTS:
        inner = {f"{label}.tar": tar_bytes(images) for label, images in by_class(files, section).items()}
        write_tar(root / f"ILSVRC2012_img_{section}.tar", inner)
    return root


def samples(section: str, files: Files | None) -> list[tuple[int, str, bytes]]:
    """Return the images of a part: number of the class, name, content."""
    classes = enumerate(by_class(files, section).values())
    return [(k, name, content) for k, images in classes for name, content in images.items()]


def write_shards(root: Path, files: Files | None = None, labels: str = "cls") -> Path:
    """Write WebDataset shards, two of each part."""
    for section in COUNTS:
        inside: list[dict[str, bytes]] = [{}, {}]
        for number, (k, name, content) in enumerate(samples(section, files)):
            key = f"{number}_{k}_{name.partition('.')[0]}"
            label = str(k) if labels == "cls" else json.dumps({"label": k})
            inside[number % 2] |= {f"{key}.jpg": content, f"{key}.{labels}": label.encode()}
        for shard in range(2):
            write_tar(root / f"imagenet-{section}-{shard:04}.tar", inside[shard])
    return root


def write_parquet(root: Path, files: Files | None = None, image: str = "image", label: str = "label") -> Path:
    """Write parquet files as the hub has them."""
    (root / "data").mkdir(parents=True)
    for section, name in (("train", "train"), ("val", "validation")):
        numbers, names, contents = zip(*samples(section, files), strict=True)
        images = [{"bytes": content, "path": file} for file, content in zip(names, contents, strict=True)]
        pq.write_table(
            pa.table({image: images, label: list(numbers)}), root / "data" / f"{name}-00000-of-00001.parquet"
        )
    return root


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str = "cifar10", images: int = 20) -> Path:
    """Write small batches in CIFAR's own form; torchvision is told their MD5, and nothing else."""
    import torchvision

    published = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}[kind]
    classes, labels = (10, "labels") if kind == "cifar10" else (100, "fine_labels")
    folder, rng = root / published.base_folder, np.random.default_rng(0)
    folder.mkdir(parents=True)

    def write(name: str, content: object) -> str:
        (folder / name).write_bytes(data := pickle.dumps(content))
        return hashlib.md5(data).hexdigest()

    def batch() -> dict[str, Any]:
        pixels = rng.integers(0, 256, (images, 3072), dtype=np.uint8)
        return {"data": pixels, labels: [i % classes for i in range(images)]}

    for files in ("train_list", "test_list"):
        monkeypatch.setattr(published, files, [[name, write(name, batch())] for name, _ in getattr(published, files)])
    meta = {published.meta["key"]: [f"class{k}" for k in range(classes)]}
    monkeypatch.setattr(published, "meta", published.meta | {"md5": write(published.meta["filename"], meta)})
    return root
