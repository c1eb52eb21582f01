"""Measure how many images a core makes ready for training: `make bench-data`. It prints medians, and tests nothing.

The images are made here, of the size, the format and about the length of ImageNet's. What is measured is the training
transform of vit-b16, as a run uses it; how quickly `ettsweep data images` makes smaller copies of them; and by how much
copies of scikit-learn's two photographs differ from these.
"""

import argparse
import io
import itertools
import json
import math
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import sklearn.datasets
import timm
import torch
from PIL import Image, features
from tabulate import tabulate
from timm.data import create_transform
from timm.data.transforms import RandomResizedCropAndInterpolation

from ettsweep.models.architectures import model_spec
from ettsweep.seeding import derive_seed
from ettsweep.tasks.base import Loading, Share
from ettsweep.tasks.images.augmentation import seed_generators, training_crop, training_transform
from ettsweep.tasks.images.classification import Images
from ettsweep.tasks.images.preparation.copying import copy_images
from ettsweep.tasks.images.preparation.request import CopyRequest
from ettsweep.tasks.images.preparation.shrink import scaled
from ettsweep.tasks.images.sources import decode
from ettsweep.tasks.images.spec import ImageNetTask

WIDTH, HEIGHT, QUALITY = 500, 375, 90
CLASSES = 10
SHORT = 256


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


def stages(paths: Sequence[Path], times: int, work: Sequence[Callable[[Any], Any]]) -> dict[str, float]:
    """Return milliseconds of CPU time per image for each stage, the medians of some passes over all images."""
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


def shorter(root: Path, out: Path, times: int) -> tuple[dict[str, Path], float]:
    """Make copies as the command does; return them by their names, and images a second of one core, a median."""
    rates = []
    for _ in range(times):
        shutil.rmtree(out, ignore_errors=True)
        done = copy_images(CopyRequest(str(root), out, SHORT, workers=1))
        rates.append(done.made / done.wall_s)
    return {path.name: path for path in (out / "train").glob("*/*.jpg")}, statistics.median(rates)


QUALITIES = (80, 85, 90, 95, 98)


def fidelity() -> list[dict[str, Any]]:
    """Return by how much copies of photographs differ from these, in levels, once they are cropped to 224 pixels."""
    folder, found = Path(sklearn.datasets.__file__).parent / "images", list[dict[str, Any]]()
    photographs = [Image.open(path).convert("RGB") for path in sorted(folder.glob("*.jpg"))]
    forms: list[dict[str, Any]] = [{"format": "png"}]  # what scaling twice makes alone
    forms += [{"format": "jpeg", "quality": q, "subsampling": h} for q, h in itertools.product(QUALITIES, (0, 2))]
    for form in forms:
        rows = [_differences(photograph, form) for photograph in photographs]
        means = {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
        found.append({"quality": form.get("quality", "png"), "subsampling": form.get("subsampling"), **means})
    return found


def _differences(photograph: Image.Image, form: dict[str, Any]) -> dict[str, float]:
    direct = photograph.resize(scaled(photograph.size, SHORT), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    direct.save(file, **form)
    start_s = time.process_time()
    for _ in range(20):
        copy = decode(file.getvalue())
    decode_ms = 1e3 / 20 * (time.process_time() - start_s)
    error = _levels(copy) - _levels(direct)
    left, top = (side // 2 - 112 for side in direct.size)
    centre = np.s_[top : top + 224, left : left + 224]
    random.seed(0)
    boxes = [RandomResizedCropAndInterpolation.get_params(photograph, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(50)]
    crops = [[_cropped(image, box, photograph) for image in (copy, photograph)] for box in boxes]
    return {
        "kB": len(file.getvalue()) / 1e3,
        "decode_ms": decode_ms,
        "psnr_dB": 10 * math.log10(255**2 / float((error**2).mean())) if error.any() else math.inf,
        "evaluation": float(abs(error[centre]).mean()),
        "training": statistics.mean(float(abs(ours - theirs).mean()) for ours, theirs in crops),
    }


def _levels(image: Image.Image) -> Any:
    return np.asarray(image, dtype=float)


def _cropped(image: Image.Image, box: tuple[int, int, int, int], photograph: Image.Image) -> Any:
    """Return the part of an image that a crop of the photograph shows, scaled to 224 pixels."""
    top, left, height, width = box
    x, y = image.width / photograph.width, image.height / photograph.height
    place = (left * x, top * y, (left + width) * x, (top + height) * y)
    return _levels(image.resize((224, 224), Image.Resampling.BICUBIC, box=place))


def loader_rate(root: Path, workers: int, count: int, pixels: Any) -> float:
    """Return images per wall second that a run gets from its loader once it is under way, the best of three times."""
    task = ImageNetTask(train_size=count, val_size=CLASSES, mixup=0.0, cutmix=0.0, pixels=pixels)  # the GPU mixes
    model = model_spec("vit-b16").model_copy(update={"classes": CLASSES})
    size = min(128, count)
    batches = Images(task, model, 0, torch.device("cpu"), Share(size), Loading(workers, data=str(root))).batches(1)
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
    size, found = model_spec("vit-b16").image_size, dict[str, Any]()
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as small:
        paths = make_images(Path(name), options.images)
        made, rate = shorter(Path(name), Path(small) / "copies", options.times)
        print(f"copies of {SHORT} pixels at the short side: {rate:.0f} images/s and core, to files")
        found["copies_per_s"] = rate
        copies = {"": paths, f", copies of {SHORT} pixels": [made[path.name] for path in paths]}
        for kind, files in copies.items():
            kilobytes = statistics.mean(path.stat().st_size for path in files) / 1e3
            print(
                f"{len(files)} JPEGs of {WIDTH} x {HEIGHT}{kind}, {kilobytes:.0f} kB on average; CPU ms an image, one thread:"
            )
            ways = {"before": before(ImageNetTask(), size)}
            ways |= {pixels: now(ImageNetTask(pixels=pixels), size) for pixels in ("pillow", "torchvision")}  # type: ignore[arg-type]
            spent = {way: stages(files, options.times, work) for way, work in ways.items()}
            print(" " * 24 + "".join(f"{way:>14}" for way in ways))
            for stage in STAGES:
                print(f"  {stage:22}" + "".join(f"{spent[way][stage]:14.2f}" for way in ways))
            print(f"  {'in all':22}" + "".join(f"{sum(spent[way].values()):14.2f}" for way in ways))
            rates = {way: 1e3 / sum(spent[way].values()) for way in ways}
            print(f"  {'images/s and core':22}" + "".join(f"{rates[way]:14.0f}" for way in ways))
            found[kind] = {"ms": spent, "images_per_s": rates}
        for workers in options.workers:
            loaded = {
                pixels: loader_rate(Path(name), workers, options.images, pixels) for pixels in ("pillow", "torchvision")
            }
            print(f"{workers} loader workers, as a run has them: {loaded} images/s, wall")
            found[f"{workers} workers"] = loaded
    found["fidelity"] = fidelity()
    print(f"copies of two photographs; levels by which crops of {size} pixels differ from those of the photographs:")
    print(tabulate(found["fidelity"], headers="keys", floatfmt=".2f"))
    versions = {
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "libjpeg_turbo": features.version("libjpeg_turbo"),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    print(json.dumps({"versions": versions, **found}))


if __name__ == "__main__":
    main()
