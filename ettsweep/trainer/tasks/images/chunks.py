"""Load chunks of images, in this process or in workers, and move them to the device.

The unit of work is a chunk of some hundred images, not a batch of thousands: workers share a batch, a micro-batch is
ready as soon as its chunks are, and memory holds only a few chunks per worker.
"""

import atexit
import contextlib
import os
import signal
import time
from collections.abc import Generator, Iterable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from ettsweep.errors import UndecodableError
from ettsweep.processes import signals_blocked
from ettsweep.seeding import derive_seed
from ettsweep.trainer.tasks.images.augmentation import (
    Normalisation,
    Sample,
    Transform,
    restored_generators,
    seed_generators,
)
from ettsweep.trainer.tasks.images.sources import Crop, ImageSource, decode, decode_rgb

Item = tuple[int, int]
"""(epoch, index) of a training image; with the seed, they determine its augmentation."""

MAX_REPLACEMENTS = 10
"""Most undecodable images in a row, each replaced by the next: more are no accident."""

RETRY_PAUSES_S = (0.1, 1.0)
"""Pauses before further attempts to read an image, in seconds: file servers restart."""


class Problem(NamedTuple):
    """An image that could not be used, by name; `fatal` if the run must stop."""

    name: str
    reason: str
    fatal: bool = False


class ImageBytes(NamedTuple):
    """A chunk of images as a worker returns it. Workers raise no errors, they return problems.

    Attributes:
        pixels: uint8 [B, H, W, C].
        rectangles: erased rectangles, each as [image, top, left, height, width].
        noise: normalised values of all rectangles, flattened and concatenated.
        labels: [B].
        problems: unusable images.
    """

    pixels: Tensor
    rectangles: list[list[int]]
    noise: Tensor
    labels: Tensor
    problems: list[Problem]


class Chunk(NamedTuple):
    """Normalised images [B, C, H, W] and labels [B] on the device, and unusable images."""

    images: Tensor
    labels: Tensor
    problems: list[Problem]


class TrainingImages:
    """Augmented images; each depends on (seed, epoch, index) alone, not on the process that loads it.

    An image that cannot be decoded is replaced by the next one that can, augmented with the seed of the former.
    """

    def __init__(self, source: ImageSource, transform: Transform, seed: int, crop: Crop = decode_rgb) -> None:
        self._source, self._transform, self._seed, self._crop = source, transform, seed, crop

    def load(self, item: Item, problems: list[Problem]) -> tuple[Sample, int] | None:
        """Return sample and label; None after a fatal problem, which is appended to `problems`."""
        epoch, first = item
        for index in range(first, first + MAX_REPLACEMENTS + 1):
            # After the last image comes the first.
            index %= len(self._source)
            # Seeded again for each replacement: the failed decoding may have drawn numbers.
            seed_generators(derive_seed(self._seed, "augment", epoch, first))
            image = _decode_image(self._source, index, problems, self._crop)
            if image is not None:
                return self._transform(image), int(self._source.labels[index])
            if problems[-1].fatal:
                return None
        reason = f"cannot be decoded, nor can the {MAX_REPLACEMENTS} images before it: the data set is damaged"
        problems.append(Problem(self._source.name(index), reason, fatal=True))
        return None


class ValidationImages:
    """Validation images by index; those that cannot be decoded are left out."""

    def __init__(self, source: ImageSource, transform: Transform) -> None:
        self._source, self._transform = source, transform

    def load(self, index: int, problems: list[Problem]) -> tuple[Sample, int] | None:
        """Return sample and label; None if the image cannot be used, which is appended to `problems`."""
        image = _decode_image(self._source, index, problems)
        return None if image is None else (self._transform(image), int(self._source.labels[index]))


def _decode_image(source: ImageSource, index: int, problems: list[Problem], crop: Crop = decode_rgb) -> Any:
    try:
        return decode(_read_with_retries(source, index), crop)
    except UndecodableError as error:
        problems.append(Problem(source.name(index), f"cannot be decoded ({error})"))
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error}): a fault of the file system, not of the image"
        problems.append(Problem(source.name(index), reason, fatal=True))
    return None


def _read_with_retries(source: ImageSource, index: int) -> Any:
    for pause_s in RETRY_PAUSES_S:
        try:
            return source.read(index)
        except OSError:
            time.sleep(pause_s)
    return source.read(index)


ImageLoader = TrainingImages | ValidationImages


def load_chunks(
    images: ImageLoader, order: Iterable[list[Any]], workers: int, *, pinned: bool
) -> Generator[ImageBytes]:
    """Yield a chunk for each list of items, perhaps endlessly. Closing the generator ends the workers.

    Args:
        images: loads and transforms one image.
        order: the items of each chunk.
        workers: number of loader processes; 0 loads in this process.
        pinned: return page-locked memory, from which a GPU copies asynchronously.
    """
    # A flag in shared memory, since workers ignore signals, without a lock that a killed worker could hold.
    stop = torch.zeros(1, dtype=torch.uint8)
    if workers:
        stop.share_memory_()
    loader: DataLoader[Any] = DataLoader(
        _ChunkDataset(images, stop),
        sampler=order,
        batch_size=None,
        num_workers=workers,
        pin_memory=pinned,
        generator=torch.Generator(),  # else the loader draws from the global one, and changes dropout
        worker_init_fn=partial(_start_worker, stop) if workers else None,
    )
    with signals_blocked(*SIGNALS if workers else ()):  # until `_start_worker` has installed the workers' own handlers
        try:
            running = [iter(loader)]
        except BaseException:
            stop.fill_(1)  # else started workers would ignore SIGTERM
            raise
    end = partial(_stop_workers, running, stop)
    atexit.register(end)  # before multiprocessing waits for its children
    try:
        while (chunk := next(running[0], None)) is not None:
            yield chunk
    finally:
        if running:  # empty if atexit was first: then the interpreter is shutting down
            end()
            atexit.unregister(end)


def _stop_workers(running: list[Any], stop: Tensor) -> None:
    stop.fill_(1)
    running.clear()  # nothing else holds the loader's iterator, which joins its workers when it goes


class _ChunkDataset(Dataset[ImageBytes]):
    """Loads chunks, in a worker or in the training process."""

    def __init__(self, images: ImageLoader, stop: Tensor) -> None:
        self._images, self._stop = images, stop

    def __getitem__(self, items: list[Any]) -> ImageBytes:
        loaded, problems = list[tuple[Sample, int]](), list[Problem]()
        with restored_generators():
            for item in items:
                if self._stop.item() or (problems and problems[-1].fatal):
                    break
                if (sample_and_label := self._images.load(item, problems)) is not None:
                    loaded.append(sample_and_label)
        # In a worker, default_collate stacks directly into memory that is shared with the training process.
        pixels = default_collate([sample.pixels for sample, _ in loaded]) if loaded else EMPTY_BHWC
        erased = [(number, rectangle) for number, (sample, _) in enumerate(loaded) for rectangle in sample.erased]
        rectangles = [
            [number, rectangle.top, rectangle.left, *rectangle.noise.shape[1:]] for number, rectangle in erased
        ]
        # One flat tensor for all rectangles: a single copy to the device.
        noise = torch.cat([rectangle.noise.flatten() for _, rectangle in erased]) if erased else torch.empty(0)
        labels = torch.tensor([label for _, label in loaded], dtype=torch.int64)
        return ImageBytes(pixels, rectangles, noise, labels, problems)


EMPTY_BHWC = torch.empty((0, 1, 1, 3), dtype=torch.uint8)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""Signals of a terminal or SLURM to all processes of a run. Workers ignore them: the training process decides when to
stop, and still needs chunks for its last step."""


def _start_worker(stop: Tensor, worker: int) -> None:
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    # multiprocessing terminates its children with SIGTERM: obeyed once the training process has set the flag.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if stop.item() else None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def move_to_device(chunks: Iterable[ImageBytes], device: torch.device, normalise: Normalisation) -> Generator[Chunk]:
    """Yield normalised chunks on the device; on a GPU, copies overlap with computation."""
    copy_stream = _copy_stream(device) if device.type == "cuda" else None
    for chunk in chunks:
        with contextlib.nullcontext() if copy_stream is None else torch.cuda.stream(copy_stream):
            pixels, noise, labels = (x.to(device, non_blocking=True) for x in (chunk.pixels, chunk.noise, chunk.labels))
            images = normalise(pixels, chunk.rectangles, noise)
        if copy_stream is not None:
            compute_stream = torch.cuda.current_stream(device)
            compute_stream.wait_stream(copy_stream)
            for tensor in (images, labels):
                tensor.record_stream(compute_stream)  # else its memory could be reused while it is computed on
        yield Chunk(images, labels, chunk.problems)


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for copies to a device; one for all tasks, since the allocator caches memory per stream."""
    return torch.cuda.Stream(device)
