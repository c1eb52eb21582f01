"""Made images of ten classes, drawn by a fixed seed: `python -m bench.shapes FOLDER` writes PNGs of 32 x 32 pixels.

A class is an outline and what fills it, a disc, ring, square, triangle or cross, plain or striped, in a colour that is
rather its own: hues of neighbours overlap. Where it is, how large, how it is turned, its hue, the ground, the light and
the noise differ from image to image.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from ettsweep.study.surface import Array

SIDE = 32
COUNTS = {"train": 1000, "val": 500}
NOISE = 16
"""Sd of the noise of each pixel and channel, in levels of 255."""

HUE_SD = 0.09
"""Of an image about that of its class, in turns of the colour wheel, on which the ten classes are 0.1 apart."""


def triangle(x: Array, y: Array) -> Array:
    """Return the distance from the edge of a triangle of inradius 1/2, above 0 inside."""
    return np.min([0.5 - (x * np.cos(a) + y * np.sin(a)) for a in 2 * np.pi * np.arange(3) / 3], axis=0)


def cross(x: Array, y: Array) -> Array:
    """Return the distance from the edge of two crossed bars, above 0 inside."""
    return np.maximum(*(np.minimum(1 - abs(u), 0.35 - abs(v)) for u, v in ((x, y), (y, x))))


OUTLINES: dict[str, Callable[[Array, Array], Array]] = {
    "disc": lambda x, y: 0.9 - np.hypot(x, y),
    "ring": lambda x, y: 0.25 - abs(np.hypot(x, y) - 0.75),
    "square": lambda x, y: 0.8 - np.maximum(abs(x), abs(y)),
    "triangle": triangle,
    "cross": cross,
}
CLASSES = [f"{outline}-{filling}" for outline in OUTLINES for filling in ("plain", "striped")]


def draw(k: int, rng: np.random.Generator) -> Array:
    """Return an image of class number `k`, [SIDE, SIDE, 3] levels of 255."""
    outline, filling = CLASSES[k].split("-")
    radius, angle = rng.uniform(0.3, 0.5) * SIDE, rng.uniform(0, 2 * np.pi)
    centre = rng.uniform(0.8 * radius, SIDE - 0.8 * radius, 2)
    v, u = (np.mgrid[:SIDE, :SIDE] + 0.5 - centre[:, None, None]) / radius
    x, y = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
    inside = np.clip(OUTLINES[outline](x, y) * radius + 0.5, 0, 1)  # edges are a pixel wide
    if filling == "striped":
        inside = inside * (0.6 + 0.4 * np.sin(2 * np.pi * (2.5 * x + rng.uniform())))
    hue = 3 * k / len(CLASSES) + rng.normal(0, HUE_SD)  # plain and striped are far from each other
    ink = 128 + 90 * np.cos(2 * np.pi * (hue + np.arange(3) / 3))
    ground = rng.uniform(60, 200) + rng.uniform(-25, 25, 3)
    slope = rng.uniform(-30, 30, (2, 3))  # light that falls off across the image
    light = sum(np.multiply.outer(t, s) for t, s in zip((u, v), slope, strict=True)) * radius / SIDE
    pixels = ground + inside[..., None] * (ink - ground) + light
    return np.asarray(pixels + rng.normal(0, NOISE, pixels.shape))


def main() -> None:
    """Write train/CLASS/NUMBER.png and val/CLASS/NUMBER.png, the same bytes each time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    root = parser.parse_args().folder
    for section, count in COUNTS.items():
        for k, label in enumerate(CLASSES):
            folder = root / section / label
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count // len(CLASSES)):
                rng = np.random.default_rng([list(COUNTS).index(section), k, number])
                pixels = draw(k, rng).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:03}.png")


if __name__ == "__main__":
    main()
