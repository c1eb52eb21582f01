"""Real JPEG files of ten classes that a small model can tell apart: waves, whose direction and colour the class sets."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from ettsweep.processes import cores

CLASSES = 10


def write_image(root: Path, side: int, name: tuple[str, int, int]) -> None:
    """Write one image of a class: waves, whose direction and colour the class sets, under noise."""
    section, label, number = name
    rng = np.random.default_rng([("train", "val").index(section), label, number])
    y, x = np.mgrid[:side, :side] / side
    angle, phase = np.pi * label / CLASSES, rng.uniform(0, 2 * np.pi)
    wave = np.sin(12 * np.pi * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    colour = np.array([np.cos(label), np.sin(label), np.cos(2 * label)])
    pixels = 128 + 60 * wave[..., None] * colour + rng.normal(0, 30, (side, side, 3))
    path = root / section / f"n{label:02}" / f"{number}.jpg"
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def write_images(root: Path, counts: dict[str, int], side: int) -> None:
    """Write a folder of images per class."""
    names = [
        (section, k, n) for section, count in counts.items() for k in range(CLASSES) for n in range(count // CLASSES)
    ]
    for section, label, _ in names:
        (root / section / f"n{label:02}").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(cores()) as pool:
        list(pool.map(partial(write_image, root, side), names, chunksize=64))
