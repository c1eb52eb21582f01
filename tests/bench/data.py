"""Measure how many images a core makes ready for training: `make bench-data`. It prints medians, and tests nothing.

The images are made here, of the size, the format and about the length of ImageNet's. What is measured is the training
transform of vit-b16, as a run uses it.
"""

import argparse
import io
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import timm
import torch
from PIL import Image, features

from ettsweep.models.architectures import model_spec
from ettsweep.seeding import derive_seed
from ettsweep.tasks.base import Loading, Share
from ettsweep.tasks.images.augmentation import seed_generators, training_transform
from ettsweep.tasks.images.classification import Images
from ettsweep.tasks.images.sources import decode
from ettsweep.tasks.images.spec import ImageNetTask

WIDTH, HEIGHT, QUALITY = 500, 375, 90
CLASSES = 10
GPU_RATES = (500, 1000, 2500, 5000)
"""Images that a GPU may train on per second."""


def picture(rng: np.random.Generator) -> bytes:
    """Return a JPEG with large and small shapes and some grain: like a photograph, it has most at low frequencies."""
    layers = np.zeros((HEIGHT, WIDTH, 3))
    for size, weight in ((6, 90), (24, 40), (96, 22), (375, 14)):
        coarse = rng.normal(0, 1, (size, size * WIDTH // HEIGHT, 3)).clip(-3, 3)
        scaled = Image.fromarray((coarse * 40 + 128).astype(np.uint8)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        layers += (np.asarray(scaled, dtype=float) - 128) / 40 * weight
    file = io.BytesIO()
    Image.fromarray((layers + 128).clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=QUALITY)
    return file.getvalue()


def make_images(root: Path, count: int) -> list[Path]:
    """Write images in class folders, for training and a few for validation."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(count + CLASSES):
        folder = root / ("train" if i < count else "val") / f"class{i % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.jpg").write_bytes(picture(rng))
        paths.append(folder / f"{i}.jpg")
    return paths[:count]


STAGES = ("read", "decode", "crop, flip", "RandAugment", "tensor, normalise, erase")


def stages(paths: Sequence[Path], times: int) -> dict[str, float]:
    """Return milliseconds of CPU time per image for each stage, the medians of some passes over all images."""
    transform = training_transform(ImageNetTask(), model_spec("vit-b16").image_size)
    work: list[Callable[[Any], Any]] = [Path.read_bytes, decode, *transform.transforms]  # type: ignore[attr-defined]
    assert len(work) == len(STAGES)
    passes = []
    for _ in range(times + 1):
        spent_s = [0.0] * len(work)
        for path in paths:
            seed_generators(derive_seed(0, "bench", path.name))
            image: Any = path
            for k, stage in enumerate(work):
                start_s = time.process_time()
                image = stage(image)
                spent_s[k] += time.process_time() - start_s
        passes.append([1e3 * seconds / len(paths) for seconds in spent_s])
    medians = [statistics.median(column) for column in zip(*passes[1:], strict=True)]  # the first warms the caches
    return dict(zip(STAGES, medians, strict=True))


def loader_rate(root: Path, workers: int, count: int) -> float:
    """Return images per wall second that a run gets from its loader once it is under way, the best of three times."""
    task = ImageNetTask(train_size=count, val_size=CLASSES, mixup=0.0, cutmix=0.0)  # the GPU mixes
    model = model_spec("vit-b16").model_copy(update={"classes": CLASSES})
    batches = Images(task, model, 0, torch.device("cpu"), Share(128), Loading(workers, data=str(root))).batches(1)
    for _ in range(2 * workers + 1):  # what was loaded ahead
        next(batches)
    rates = []
    for _ in range(3):
        start_s = time.perf_counter()
        for _ in range(4 * max(workers, 1)):
            next(batches)
        rates.append(4 * max(workers, 1) * 128 / (time.perf_counter() - start_s))
    return max(rates)


def main() -> None:
    """Print the table, and all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        paths = make_images(Path(name), options.images)
        kilobytes = statistics.mean(path.stat().st_size for path in paths) / 1e3
        print(
            f"{len(paths)} JPEGs of {WIDTH} x {HEIGHT}, {kilobytes:.0f} kB on average; CPU time of an image, one thread:"
        )
        spent = stages(paths, options.times)
        for stage, ms in spent.items():
            print(f"  {stage:26} {ms:6.2f} ms")
        core = 1e3 / sum(spent.values())
        print(f"  {'in all':26} {sum(spent.values()):6.2f} ms: {core:.0f} images/s per core")
        loaders = {workers: loader_rate(Path(name), workers, options.images) for workers in options.workers}
    for workers, found in loaders.items():
        print(f"{workers} loader workers, as a run has them: {found:.0f} images/s, wall")
    print("a GPU starves with fewer cores than these:")
    for gpu in GPU_RATES:
        print(f"  {gpu:5} images/s need {math.ceil(gpu / core):4} cores")
    versions = {
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "libjpeg_turbo": features.version("libjpeg_turbo"),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    print(json.dumps({"versions": versions, "ms": spent, "images_per_s": {"core": core, "workers": loaders}}))


if __name__ == "__main__":
    main()
