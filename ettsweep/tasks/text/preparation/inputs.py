"""The files that `--input` names: files, folders, globs, and data sets of `datasets`."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal

from ettsweep.errors import DataMissingError, FailedError, InputError, first_line

FileKind = Literal["text", "JSON lines", "parquet", "arrow"]

SUFFIXES: dict[str, FileKind] = {
    ".txt": "text",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON lines",
    ".parquet": "parquet",
}

KNOWN = ".txt, .jsonl (or .ndjson, .json) and .parquet, the first two also as .gz"

HUB = "hfds/"


@dataclass(frozen=True)
class TextFile:
    """A file; `packed` with gzip."""

    path: str
    kind: FileKind
    packed: bool = False


def find_files(inputs: Iterable[str]) -> list[TextFile]:
    """Return the files that inputs name, each once, in the order of the inputs and of names in folders.

    An input is a file, a folder, a glob, a folder of `datasets.save_to_disk`, or hfds/OWNER/NAME[:split].
    """
    found, wrong = list[TextFile](), list[str]()
    for text in inputs:
        try:
            found += _named(text)
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise InputError.of(wrong)
    return list(dict.fromkeys(found))


def _named(text: str) -> list[TextFile]:
    if text.startswith(HUB):
        return _arrow_files(text, None)
    path = Path(text).expanduser()
    if path.is_dir():
        return _arrow_files(text, path) if _is_saved(path) else _folder(path)
    if path.exists():
        return [_file(path)]
    folder, colon, _ = text.rpartition(":")
    if colon and _is_saved(Path(folder).expanduser()):
        return _arrow_files(text, Path(folder).expanduser())
    if has_magic(text):
        names = sorted(glob(str(path), recursive=True))  # noqa: PTH207 (a pattern may be absolute)
        files = [Path(name) for name in names if not Path(name).is_dir()]
        if not files:
            raise DataMissingError(f"--input {text}: no file fits")
        return [_file(one) for one in files]
    raise DataMissingError(f"--input {text}: does not exist")


def _file(path: Path) -> TextFile:
    name = path.name.lower()
    packed = name.endswith(".gz")
    kind = SUFFIXES.get(Path(name.removesuffix(".gz")).suffix)
    if kind is None or (packed and kind == "parquet"):
        raise InputError(f"--input {path}: its name ends in none of {KNOWN}")
    return TextFile(str(path.resolve()), kind, packed)


def _folder(path: Path) -> list[TextFile]:
    try:
        names = sorted(one.name for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
    except OSError as error:
        raise DataMissingError(f"--input {path}: {error.strerror}") from None
    files = [path / name for name in names if Path(name.lower().removesuffix(".gz")).suffix in SUFFIXES]
    if not files:
        holds = ", ".join(sorted(one.name + "/" * one.is_dir() for one in path.iterdir())[:6]) or "nothing"
        raise DataMissingError(
            f"--input {path}: no text in this folder, which holds {holds}; read are {KNOWN}; "
            f"'{path}/**/*.txt' looks deeper"
        )
    return [_file(one) for one in files]


def _is_saved(path: Path) -> bool:
    """Say whether a folder is what `datasets.save_to_disk` makes."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / name).is_file() for name in ("state.json", "dataset_info.json")
    )


def _arrow_files(text: str, folder: Path | None) -> list[TextFile]:
    """Return the files that `datasets` keeps the rows of a data set in; None is for one of the hub."""
    try:
        import datasets
    except ImportError:
        raise DataMissingError(f"--input {text}: reading it needs datasets: pip install 'ettsweep[text]'") from None
    try:
        if folder is None:
            name, _, split = text.removeprefix(HUB).partition(":")
            table = datasets.load_dataset(name, split=split or "train", keep_in_memory=False)
        else:
            split = "" if Path(text).expanduser().is_dir() else text.rpartition(":")[2]
            table = datasets.load_from_disk(str(folder), keep_in_memory=False)
    except Exception as error:  # of the network, of the hub, of pyarrow: each has its own
        told = f"{type(error).__name__}: {first_line(error)}"
        raise DataMissingError(f"--input {text}: cannot be opened as a data set ({told})") from error
    if isinstance(table, datasets.DatasetDict):
        splits = list(table)
        split = split or ("train" if "train" in splits else splits[0] if len(splits) == 1 else "")
        if split not in splits:
            what = f"no split {split!r}" if split else "several splits"
            raise InputError(f"--input {text}: has {what}; name one: {', '.join(f'{folder}:{s}' for s in splits)}")
        table = table[split]
    elif split and folder is not None:
        raise InputError(f"--input {text}: has no splits; {folder} is all of it")
    files = [TextFile(str(Path(one["filename"]).resolve()), "arrow") for one in table.cache_files]
    if not files or sum(_arrow_rows(one.path) for one in files) != len(table):
        raise DataMissingError(f"--input {text}: its rows are not all in files of its own; save it with save_to_disk")
    return files


def _arrow_rows(path: str) -> int:
    with arrow_reader(path) as reader:
        return sum(batch.num_rows for batch in reader)


@contextmanager
def arrow_reader(path: str) -> Iterator[Any]:
    """Give what reads the batches of an Arrow file."""
    import pyarrow as pa

    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
        yield reader


@contextmanager
def readable(file: TextFile) -> Iterator[None]:
    """Turn what goes wrong in reading into an error that names the file."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FailedError(f"{file.path}: cannot be unpacked ({error}): truncated, or no gzip") from None
    except (OSError, ValueError) as error:  # pyarrow's errors are one or the other
        told = getattr(error, "strerror", None) or first_line(error)
        what = f"as {file.kind} " if file.kind in ("parquet", "arrow") else ""
        raise DataMissingError(f"{file.path}: cannot be read {what}({told})") from None
