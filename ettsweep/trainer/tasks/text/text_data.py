"""Which text a task has at hand, and whether it is the one that a run was made for; without torch."""

import hashlib
from pathlib import Path

from ettsweep.errors import DataMissingError
from ettsweep.runs.spec import ModelSpec, TextModel
from ettsweep.trainer.tasks.data_location import data_env, pydoc_file
from ettsweep.trainer.tasks.text.corpus_manifest import read_manifest
from ettsweep.trainer.tasks.text.text_task import DenoisingTask, PydocTask, TextTask

PYDOC_RULES = 1
"""Version of the rules by which Python's documentation becomes tokens. Raise it with a change of `pydoc.py`, or of the
sentences and the encoding in `tokenizer.py`: runs made for other tokens are other runs."""


def pydoc_digest(task: PydocTask, data: str | None) -> str:
    """Return the 12 hex digits of Python's documentation, as they are in the id of its runs.

    Raises:
        DataMissingError: this Python comes without it.
    """
    return hashlib.sha256(f"{PYDOC_RULES} ".encode() + pydoc_file().read_bytes()).hexdigest()[:12]


def text_digest(task: TextTask, data: str | None) -> str:
    """Return the 12 hex digits of tokenised text.

    Raises:
        DataMissingError: nobody has said where it is, or it is not finished.
        CorruptError: it was edited.
    """
    return read_manifest(text_folder(data)).digest


def text_folder(data: str | None) -> Path:
    """Return the folder of tokenised text, which somebody must have named.

    Raises:
        DataMissingError: nobody has said where it is.
    """
    if data is None:
        raise DataMissingError(
            f"task text: no text given; pass --data DIR or set {data_env('text')}=DIR, the folder that "
            "`ettsweep data text --input FILES --out DIR` has written"
        )
    return Path(data)


def check_pydoc(task: PydocTask, model: ModelSpec | None, data: str | None) -> None:
    """Check that Python's documentation is the one that a run was made for.

    Raises:
        DataMissingError: it is not there, or is another one.
    """
    _check_digest(task, pydoc_digest(task, data), "the documentation of this Python")


def check_text(task: TextTask, model: ModelSpec | None, data: str | None) -> None:
    """Check that tokenised text is the one that a run was made for, and that a model knows its tokens.

    Raises:
        DataMissingError: it is not there, or is another one.
        CorruptError: it was edited.
    """
    folder = text_folder(data)
    manifest = read_manifest(folder)
    _check_digest(task, manifest.digest, str(folder))
    if isinstance(model, TextModel) and manifest.n_vocab != model.vocabulary:
        raise DataMissingError(
            f"task {task.kind}: {folder} was tokenised with a vocabulary of {manifest.n_vocab}, the model has "
            f"{model.vocabulary}: --set model.vocabulary={manifest.n_vocab}, or tokenise with another --tokenizer"
        )


def with_data(task: TextTask, model: ModelSpec, data: str) -> tuple[TextTask, ModelSpec]:
    """Return a task, and a model with as many tokens as its text was tokenised with.

    Raises:
        DataMissingError: it is not there.
        CorruptError: it was edited.
    """
    return task, model.model_copy(update={"vocabulary": read_manifest(text_folder(data)).n_vocab})


def _check_digest(task: DenoisingTask, digest: str, location: str) -> None:
    if task.corpus not in (None, digest):
        raise DataMissingError(
            f"task {task.kind}: the run was made for the text {task.corpus}, and {location} is {digest}: "
            "other text, or tokenised otherwise"
        )
