"""Digests of the text at hand, and checks against the text of a run. Does not import torch."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import DataMissingError
from ettsweep.runs.data_location import data_env
from ettsweep.trainer.specs import ModelSpec, TextModel
from ettsweep.trainer.tasks.data_location import pydoc_file
from ettsweep.trainer.tasks.text.text_task import TextTask, reads_pydoc

if TYPE_CHECKING:
    from ettsweep.trainer.tasks.text.corpus_manifest import Manifest

PYDOC_RULES = 1
"""Version of the tokenisation of Python's documentation. Raise it with each change of `pydoc.py`, or of sentences or
encoding in `tokenizer.py`, that changes tokens: runs on other tokens need other ids."""


def data_kind(task: TextTask) -> str:
    """Return the name of the data to locate; empty for those that come with Python."""
    return "" if reads_pydoc(task) else "text"


def text_digest(task: TextTask, data: str | None) -> str:
    """Return the 12 hex digits that bind runs to the text at hand.

    Raises:
        DataMissingError: this Python has no documentation, no folder was given, or its corpus is not finished.
        CorruptError: the manifest was edited.
    """
    return pydoc_digest() if reads_pydoc(task) else _manifest(text_folder(data)).digest


def describe_text(task: TextTask, data: str | None) -> str:
    """Return one line on the text at hand; call it after `check_text`."""
    found = "comes with Python" if reads_pydoc(task) else f"found: {text_folder(data)}"
    return f"{found}, {text_digest(task, data)}"


def pydoc_digest() -> str:
    """Return the 12 hex digits that bind runs to Python's documentation.

    Raises:
        DataMissingError: this Python has no documentation.
    """
    return hashlib.sha256(f"{PYDOC_RULES} ".encode() + pydoc_file().read_bytes()).hexdigest()[:12]


def text_folder(data: str | None) -> Path:
    """Return the folder of tokenised text.

    Raises:
        DataMissingError: no folder was given.
    """
    if data is None:
        raise DataMissingError(
            f"task text: no text given; pass --data DIR or set {data_env('text')}=DIR, the folder that "
            "`ettsweep data text --input FILES --out DIR` has written"
        )
    return Path(data)


def check_text(task: TextTask, model: ModelSpec | None, data: str | None) -> None:
    """Check that the text at hand is the task's, and its vocabulary the model's.

    Raises:
        DataMissingError: it is missing, it is another text, or the sizes of the vocabularies differ.
        CorruptError: the manifest was edited.
    """
    if reads_pydoc(task):
        _check_digest(task, pydoc_digest(), "the documentation of this Python")
        return
    folder = text_folder(data)
    manifest = _manifest(folder)
    _check_digest(task, manifest.digest, str(folder))
    # Else ids beyond the vocabulary would fail in the embedding.
    if isinstance(model, TextModel) and manifest.n_vocab != model.vocabulary:
        raise DataMissingError(
            f"task {task.kind}: {folder} was tokenised with a vocabulary of {manifest.n_vocab}, the model has "
            f"{model.vocabulary}: --set model.vocabulary={manifest.n_vocab}, or tokenise with another --tokenizer"
        )


def _manifest(folder: Path) -> "Manifest":
    from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest  # its schema is slow to build

    return read_manifest(folder)


def _check_digest(task: TextTask, digest: str, location: str) -> None:
    if task.corpus not in (None, digest):
        raise DataMissingError(
            f"task {task.kind}: the run needs the text {task.corpus}, but {location} is {digest}: "
            "another text, or the same with other tokens"
        )
