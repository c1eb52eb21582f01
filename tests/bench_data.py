"""Measure how many images a core makes ready for training: `make bench-data`. It prints medians, and tests nothing.

The images are made here, of the size, the format and about the length of ImageNet's. What is measured is the training
transform of vit-b16, as a run uses it.
"""

import argparse
import io
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import PIL
import timm
import torch
from PIL import Image, features

from ettsweep.models.registry import MODELS
from ettsweep.seeding import derive_seed
from ettsweep.spec import ImageNetTask
from ettsweep.tasks.augmentation import seed_generators, training_transform
from ettsweep.tasks.base import Loading, Share
from ettsweep.tasks.images import Images
from ettsweep.tasks.location import data_env
from ettsweep.tasks.sources import decode

WIDTH, HEIGHT, QUALITY = 500, 375, 90
CLASSES = 10
GPU_RATES = (500, 1000, 2500, 5000)
"""Images that a GPU may train on per second."""


def picture(rng: np.random.Generator) -> bytes:
    """Return a JPEG with large and small shapes and some grain: like a photograph, it has most at low frequencies."""
    layers = np.zeros((HEIGHT, WIDTH, 3))
    for size, weight in ((6, 90), (24, 40), (96, 22), (375, 9)):
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


def rate(work: Callable[[Path], object], paths: Sequence[Path], times: int) -> float:
    """Return images per second, the median of some passes after one that warms the caches."""
    rates = []
    for _ in range(times + 1):
        start_s = time.perf_counter()
        for path in paths:
            work(path)
        rates.append(len(paths) / (time.perf_counter() - start_s))
    return statistics.median(rates[1:])


def parts(paths: Sequence[Path], times: int) -> dict[str, float]:
    """Return milliseconds of one core for each part of an image's way; each is the difference to the way without it."""
    task, size = ImageNetTask(), MODELS["vit-b16"].image_size
    plain = task.model_copy(update={"rand_augment": "", "random_erasing": 0.0})

    def ready(spec: ImageNetTask) -> Callable[[Path], object]:
        transform = training_transform(spec, size)

        def work(path: Path) -> object:
            seed_generators(derive_seed(0, "bench", path.name))
            return transform(decode(path.read_bytes()))

        return work

    ms = {
        "read": 1e3 / rate(lambda path: path.read_bytes(), paths, times),
        "decode": 1e3 / rate(lambda path: decode(path.read_bytes()), paths, times),
        "crop, flip, normalise": 1e3 / rate(ready(plain), paths, times),
        "RandAugment": 1e3 / rate(ready(task.model_copy(update={"random_erasing": 0.0})), paths, times),
        "erasing": 1e3 / rate(ready(task), paths, times),
    }
    before = 0.0
    shares = {}
    for name, spent in ms.items():
        shares[name] = spent - before
        before = spent
    return {**shares, "in all": ms["erasing"]}


def loader_rate(root: Path, workers: int, count: int) -> float:
    """Return images per second that a run gets from its loader, after the workers have started."""
    os.environ[data_env("imagenet")] = str(root)
    task = ImageNetTask(train_size=count, val_size=CLASSES)
    model = MODELS["vit-b16"].model_copy(update={"classes": CLASSES})
    batches = Images(task, model, 0, torch.device("cpu"), Share(128), Loading(workers)).batches(1)
    for _ in range(2 * workers + 1):  # what was loaded ahead
        next(batches)
    chunks = 4 * max(workers, 1)
    start_s = time.perf_counter()
    for _ in range(chunks):
        next(batches)
    return 128 * chunks / (time.perf_counter() - start_s)


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
        print(f"{len(paths)} JPEGs of {WIDTH} x {HEIGHT}, {kilobytes:.0f} kB on average; one core, one process:")
        spent = parts(paths, options.times)
        for part, ms in spent.items():
            print(f"  {part:24} {ms:7.2f} ms an image")
        core = 1e3 / spent["in all"]
        print(f"  {core:.0f} images/s per core")
        loaders = {workers: loader_rate(Path(name), workers, options.images) for workers in options.workers}
    for workers, found in loaders.items():
        print(f"{workers} loader workers, as a run has them: {found:.0f} images/s")
    print(
        f"a GPU that trains on so many images/s needs so many cores, and starves with fewer ({core:.0f} images/s each):"
    )
    cores = {gpu: -(-gpu // int(core)) for gpu in GPU_RATES}
    for gpu, needed in cores.items():
        print(f"  {gpu:5}  {needed:4} cores")
    versions = {
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "libjpeg_turbo": features.version("libjpeg_turbo"),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps({"versions": versions, "ms": spent, "images_per_s": {"core": core, "workers": loaders}}))


if __name__ == "__main__":
    main()
