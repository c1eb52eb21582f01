"""Measure how many images a core makes ready for training: `make bench-data`. It prints medians, and tests nothing.

The images are made here, of the size, the format and about the length of ImageNet's. What is measured is the training
transform of vit-b16, as a run uses it.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image, features
from timm.data import create_transform

from bench.tables import facts
from ettsweep.seeding import derive_seed
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.images.augmentation import seed_generators, training_crop, training_transform
from ettsweep.trainer.tasks.images.classification import Images
from ettsweep.trainer.tasks.images.image_task import ImageNetTask
from ettsweep.trainer.tasks.images.sources import decode
from ettsweep.trainer.tasks.task import BatchShare, LoaderSettings

WIDTH, HEIGHT, QUALITY = 500, 375, 90
CLASSES = 10


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


PIXELS: Any = ("pillow", "torchvision")
STAGES = ("read", "decode, crop", "crop, flip", "RandAugment", "bytes, erase")


def before(task: ImageNetTask, size: int) -> Sequence[Callable[[Any], Any]]:
    """Return the stages as timm has them, and as they were here: each worker normalises in fp32."""
    timms = create_transform(
        size, is_training=True, separate=True, color_jitter=0.0, auto_augment=task.rand_augment,
        re_prob=task.random_erasing, re_mode="pixel", interpolation="bicubic",
    )  # fmt: skip
    return Path.read_bytes, decode, *timms


def now(task: ImageNetTask, size: int) -> Sequence[Callable[[Any], Any]]:
    """Return the stages of a worker."""
    transform = training_transform(task, size)
    return Path.read_bytes, partial(decode, crop=training_crop(task, size)), *transform.transforms  # type: ignore[attr-defined]


def stages(paths: Sequence[Path], times: int, work: Sequence[Callable[[Any], Any]]) -> "pd.Series[float]":
    """Return milliseconds of CPU time per image for each stage, the medians of some passes over all images."""
    passes = []
    for _ in range(times + 1):
        spent_s = dict.fromkeys(STAGES, 0.0)
        for path in paths:
            seed_generators(derive_seed(0, "bench", path.name))
            image: Any = path
            for name, stage in zip(STAGES, work, strict=True):
                start_s = time.process_time()
                image = stage(image)
                spent_s[name] += time.process_time() - start_s
        passes.append(spent_s)
    return (1e3 / len(paths) * pd.DataFrame(passes[1:])).median()  # the first warms the caches


def loader_rate(root: Path, workers: int, count: int, pixels: Any) -> float:
    """Return images per wall second that a run gets from its loader once it is under way, the best of three times."""
    task = ImageNetTask(train_size=count, val_size=CLASSES, mixup=0.0, cutmix=0.0, pixels=pixels)  # the GPU mixes
    model = model_spec("vit-b16").model_copy(update={"classes": CLASSES})
    size = min(128, count)
    batches = Images(
        task, model, 0, torch.device("cpu"), BatchShare(size), LoaderSettings(workers, data=str(root))
    ).batches(1)
    for _ in range(2 * workers + 1):  # what was loaded ahead
        next(batches)
    rates = []
    for _ in range(3):
        start_s = time.perf_counter()
        for _ in range(4 * max(workers, 1)):
            next(batches)
        rates.append(4 * max(workers, 1) * size / (time.perf_counter() - start_s))
    return max(rates)


def main() -> None:
    """Print the table, and all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    size, result = model_spec("vit-b16").image_size, dict[str, Any]()
    with tempfile.TemporaryDirectory() as name:
        paths = make_images(Path(name), options.images)
        kilobytes = statistics.mean(path.stat().st_size for path in paths) / 1e3
        print(f"{len(paths)} JPEGs of {WIDTH} x {HEIGHT}, {kilobytes:.0f} kB on average; CPU ms an image, one thread:")
        ways = {"before": before(ImageNetTask(), size)}
        ways |= {pixels: now(ImageNetTask(pixels=pixels), size) for pixels in PIXELS}
        spent = pd.DataFrame({way: stages(paths, options.times, work) for way, work in ways.items()})
        rates = 1e3 / spent.sum()
        table = spent.map("{:.2f}".format)
        table.loc["in all"] = spent.sum().map("{:.2f}".format)
        table.loc["images/s and core"] = rates.map("{:.0f}".format)
        print(table.to_string())
        result |= {"ms": spent.to_dict(), "images_per_s": rates.to_dict()}
        for workers in options.workers:
            loaded = {pixels: loader_rate(Path(name), workers, options.images, pixels) for pixels in PIXELS}
            print(f"{workers} loader workers, as a run has them: {loaded} images/s, wall")
            result[f"{workers} workers"] = loaded
    versions = facts("pillow", "torch", "timm") | {"libjpeg_turbo": features.version("libjpeg_turbo")}
    print(json.dumps({"versions": versions, **result}))


if __name__ == "__main__":
    main()
