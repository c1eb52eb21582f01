"""Parquet files and data sets of the hub, through timm's reader of Hugging Face's `datasets`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import DataMissingError, first_line
from ettsweep.tasks.images.location import SPLITS, Place
from ettsweep.tasks.images.stored import ImageSource

IMAGE_COLUMNS = ("image", "img", "jpg", "png")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls")


def open_hub(place: Place) -> ImageSource:
    """Return one part of a data set, which `datasets` keeps in its own cache as random access needs it.

    Raises:
        DataMissingError: it cannot be had, or has no images with labels.
    """
    name = place.paths[0]
    try:
        import datasets
        from timm.data.dataset_factory import create_dataset
    except ImportError:
        raise DataMissingError(f"{name}: reading it needs datasets: pip install 'ettsweep[hub]'") from None
    try:
        splits = datasets.get_dataset_split_names(name)
        split = _only(f"{name}: split", SPLITS[place.side], splits)
        columns = datasets.load_dataset(name, split=split).column_names
        image, label = (_only(f"{name}: column", known, columns) for known in (IMAGE_COLUMNS, LABEL_COLUMNS))
        reader = create_dataset(f"hfds/{name}", split=split, input_key=image, target_key=label).reader
    except DataMissingError:
        raise
    except Exception as error:  # of the network, of the hub, of pyarrow: each has its own
        told = f"{type(error).__name__}: {first_line(error)}"
        raise DataMissingError(f"{name}: cannot be opened as a data set ({told})") from error
    classes, labels = _classes(reader.dataset, label)
    if labels.min() < 0:
        raise DataMissingError(f"{name}: split {split} has no labels (they are {labels.min()})")
    return HubSource(reader, classes, labels, f"{name}, {split}")


class HubSource:
    """Rows of a table, as timm's reader gives them; their images need have no name of their own."""

    def __init__(self, reader: Any, classes: list[str], labels: NDArray[np.int64], where: str) -> None:
        self._reader = reader
        self._where = where
        self.classes = classes
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """Return the row, and what the table calls the image."""
        called = self._reader.filename(index)
        return f"{self._where}, row {index}" + (f": {called}" if called else "")

    def read(self, index: int) -> bytes:
        """Return the content of the row, or of the file that it names."""
        file, _ = self._reader[index]
        with file:
            return bytes(file.read())


def _only(what: str, known: tuple[str, ...], there: list[str]) -> str:
    """Return the first known name that is there."""
    found = [name for name in known if name in there]
    if not found:
        raise DataMissingError(f"{what}: one of {', '.join(known)} is expected, it has {', '.join(there)}")
    return found[0]


def _classes(table: Any, label: str) -> tuple[list[str], NDArray[np.int64]]:
    """Return names of classes, and the labels [N] as positions among them."""
    from timm.utils.misc import natural_key

    values = list(table[label])
    names = getattr(table.features[label], "names", None)
    if names is None:
        found = sorted({str(value) for value in values}, key=natural_key)
        position = {name: k for k, name in enumerate(found)}
        return found, np.array([position[str(value)] for value in values], np.int64)
    return list(names), np.array(values, np.int64)
