"""The task of classifying images on disk, such as ImageNet and CIFAR, with timm's augmentation."""

import hashlib
import itertools
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ettsweep.errors import DataMissingError
from ettsweep.extras import check_installed
from ettsweep.seeding import derive_seed
from ettsweep.trainer.specs import ImageModel
from ettsweep.trainer.tasks.images.augmentation import (
    Normalisation,
    evaluation_transform,
    restored_generators,
    seed_generators,
    training_crop,
    training_transform,
)
from ettsweep.trainer.tasks.images.chunks import (
    Chunk,
    ImageLoader,
    Item,
    Problem,
    TrainingImages,
    ValidationImages,
    load_chunks,
    move_to_device,
)
from ettsweep.trainer.tasks.images.image_task import ImageTask
from ettsweep.trainer.tasks.images.sources import ImageSource, open_sources
from ettsweep.trainer.tasks.task import (
    Batch,
    BatchShare,
    Classification,
    LoaderSettings,
    global_batches,
    select_training_samples,
)

VALIDATION_SLICE = 128
"""Images of one validation batch, and of one chunk for the loader."""

MIN_TOLERATED = 10
"""This many images of a data set may be corrupt, or one in a hundred if that is more."""

FINGERPRINT_NAMES = 1000
"""About this many image names of each side go into the fingerprint."""

LIST_HINT = "`ettsweep doctor --data PATH` lists all of them"


class ChunkShare(NamedTuple):
    """A chunk of a global batch, and the part of it that this process trains on.

    Attributes:
        number: index of the chunk in its batch.
        loaded_positions: positions in the batch that this process loads: with Mixup all of the chunk, since its images
            are mixed with each other.
        used_positions: positions in the batch that this process trains on.
    """

    number: int
    loaded_positions: range
    used_positions: range


MixedImages = tuple[Tensor, Tensor]
"""Images and targets of a chunk that this process trains on, augmented and mixed."""


def chunk_shares(share: BatchShare, chunk_size: int, *, load_whole: bool) -> list[ChunkShare]:
    """Return the chunks of a global batch that a share overlaps; `load_whole` loads more of them than the overlap."""
    shares = []
    for number, start in enumerate(range(0, share.batch_size, chunk_size)):
        chunk = range(start, min(start + chunk_size, share.batch_size))
        used = range(max(chunk.start, share.span.start), min(chunk.stop, share.span.stop))
        if used:
            shares.append(ChunkShare(number, chunk if load_whole else used, used))
    return shares


def fingerprint(*sources: ImageSource) -> str:
    """Return 12 hex digits that identify images and their order: a hash of all labels and of some names."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(repr(source.classes).encode() + source.labels.tobytes())
        for index in range(0, len(source), max(1, len(source) // FINGERPRINT_NAMES)):
            digest.update(Path(source.name(index)).stem.encode())  # without folders: a data set may move
    return digest.hexdigest()[:12]


class Images(Classification):
    """The task of a run on images.

    Augmentation depends on (seed, epoch, image), Mixup on (seed, step, chunk of the global batch), not on the number of
    processes, the micro-batch or the workers.

    Raises:
        PackageMissingError: timm is not installed.
        DataMissingError: the images are missing or differ from the task.
    """

    def __init__(
        self,
        spec: ImageTask,
        model: ImageModel,
        seed: int,
        device: torch.device,
        share: BatchShare,
        loading: LoaderSettings,
    ) -> None:
        check_installed(f"task {spec.kind}", "timm")
        from timm.data.mixup import Mixup

        train, validation = open_sources(spec, model.classes, loading.data)
        crop, transform = training_crop(spec, model.image_size), training_transform(spec, model.image_size)
        self._train = TrainingImages(train, transform, seed, crop)
        self._validation = ValidationImages(validation, evaluation_transform(spec, model.image_size))
        self._normalise = Normalisation(spec, device)
        self._sizes = len(train), len(validation)
        self._mixup = None
        if spec.mixup > 0 or spec.cutmix > 0:
            self._mixup = Mixup(
                spec.mixup,
                spec.cutmix,
                switch_prob=spec.mixup_switch,
                label_smoothing=spec.label_smoothing,
                num_classes=model.classes,
            )
        super().__init__(0.0 if self._mixup else spec.label_smoothing)  # Mixup's targets are smoothed already
        self._seed, self._device, self._share, self._loading = seed, device, share, loading
        self._chunk_shares = chunk_shares(share, spec.mixup_chunk, load_whole=self._mixup is not None)
        self._training_samples = select_training_samples(len(train), spec.samples)
        self.steps_per_epoch = len(self._training_samples) // share.batch_size
        self._max_corrupt = max(MIN_TOLERATED, sum(self._sizes) // 100)
        self._corrupt: set[str] = set()
        self.fingerprint = fingerprint(train, validation)

    def batches(self, first_step: int) -> Iterator[Batch]:
        """Yield the micro-batches of this process's share of each step, augmented and mixed."""
        # Closed at once with this generator, else workers live until it is garbage collected.
        with closing(self._load_chunks(self._train, self.order(first_step))) as chunks:
            for step in itertools.count(first_step):
                yield from self._cut_micro_batches(self._mix_chunks(chunks, step))

    def order(self, first_step: int) -> Iterator[list[Item]]:
        """Yield the (epoch, index) of the images of each chunk, step after step."""
        for epoch, batch in global_batches(self._training_samples, self._share.batch_size, self._seed, first_step):
            indices = batch.tolist()
            for chunk_share in self._chunk_shares:
                # One chunk for the loader: a worker loads it alone.
                yield [(epoch, indices[position]) for position in chunk_share.loaded_positions]

    def _mix_chunks(self, chunks: Iterator[Chunk], step: int) -> Iterator[MixedImages]:
        """Yield the images of each chunk of a step that this process trains on."""
        for chunk_share in self._chunk_shares:
            images_BCHW, targets, _ = next(chunks)
            if self._mixup is not None:
                # Seeded by the chunk: all processes that share it mix it the same way.
                with self._loading.compute_context(), restored_generators():
                    seed_generators(derive_seed(self._seed, "mixup", step, chunk_share.number))
                    images_BCHW, targets = self._mixup(images_BCHW, targets)
            used_slice = slice(
                chunk_share.used_positions.start - chunk_share.loaded_positions.start,
                chunk_share.used_positions.stop - chunk_share.loaded_positions.start,
            )
            yield images_BCHW[used_slice], targets[used_slice]

    def _cut_micro_batches(self, pieces: Iterator[MixedImages]) -> Iterator[Batch]:
        """Regroup the pieces of a step into micro-batches."""
        pending = list[MixedImages]()
        for micro_batch in self._share.slices:
            size = len(micro_batch)
            while sum(len(targets) for _, targets in pending) < size:
                pending.append(next(pieces))
            images_BCHW, targets = pending[0] if len(pending) == 1 else map(torch.cat, zip(*pending, strict=True))
            yield Batch((images_BCHW[:size],), targets[:size], size / self._share.batch_size)
            pending = [(images_BCHW[size:], targets[size:])] if len(targets) > size else []

    def validation(self) -> Iterator[Batch]:
        """Yield this process's validation images: short side resized, centre cropped."""
        order = [list(positions) for positions in self._share.validation(self._sizes[1], VALIDATION_SLICE)]
        with closing(self._load_chunks(self._validation, order)) as chunks:
            for images_BCHW, labels, _ in chunks:
                if len(labels):  # all images of a chunk may be corrupt
                    yield Batch((images_BCHW,), labels)

    def _load_chunks(self, images: ImageLoader, order: Iterable[list[Any]]) -> Generator[Chunk]:
        """Yield chunks on the device; closing the generator ends the workers.

        Raises:
            DataMissingError: an unusable image must not be skipped.
        """
        with closing(load_chunks(images, order, self._loading.workers, pinned=self._device.type == "cuda")) as chunks:
            for chunk in move_to_device(chunks, self._device, self._normalise):
                for problem in chunk.problems:
                    self._handle_problem(problem)
                yield chunk

    def _handle_problem(self, problem: Problem) -> None:
        """Warn once about an image that is skipped.

        Raises:
            DataMissingError: the image must not be skipped, or too many were.
        """
        text = f"{problem.name}: {problem.reason}"
        if problem.fatal:
            raise DataMissingError(f"{text}; {LIST_HINT}")
        if self._loading.corrupt == "fail":
            hint = "to skip such images: `ettsweep retry RUN --launch-set trainer.corrupt_images=skip`"
            raise DataMissingError(f"{text}; {hint}; {LIST_HINT}")
        if problem.name not in self._corrupt:
            self._corrupt.add(problem.name)
            self._loading.warn(text)
        if len(self._corrupt) > self._max_corrupt:
            raise DataMissingError(
                f"{text}; with {len(self._corrupt) - 1} others, these are too many to skip; {LIST_HINT}"
            )
