"""What `ettsweep data text` is asked for, and what came of it."""

import os
from pathlib import Path
from typing import NamedTuple

from ettsweep.errors import InputError, StorageError
from ettsweep.tasks.text.manifest import Documents, Manifest, not_own
from ettsweep.tasks.text.preparation.pieces import DocumentRule
from ettsweep.tasks.text.tokenizer import LEAST_BPE


class CorpusRequest(NamedTuple):
    """What is asked for.

    Attributes:
        tokenizer: folder of its files; None trains one of `bpe_tokens`.
        val_fraction: share of the documents that validate, chosen by a hash of their text.
        shard_mib: text that a process works on at a time.
        workers: processes; all cores by default.
    """

    inputs: tuple[str, ...]
    out: Path
    tokenizer: Path | None = None
    bpe_tokens: int | None = None
    val_fraction: float = 0.005
    text_field: str = "text"
    documents: Documents = "blank-line"
    shard_mib: float = 32.0
    workers: int | None = None

    @property
    def shard_bytes(self) -> int:
        """Return how much text a process works on at a time."""
        return round(self.shard_mib * 2**20)

    @property
    def rule(self) -> DocumentRule:
        """Return what a document is."""
        return DocumentRule(self.text_field, self.documents)


class Outcome(NamedTuple):
    """A corpus, and what it took.

    Attributes:
        made, kept: units that were tokenised, and that were there already.
        tokens: of the former.
        workers: processes.
        wall_s: time of all.
        text_files: whether the input has any, beside tables and JSON lines.
        replaced: digest of another corpus that was there before.
    """

    manifest: Manifest
    made: int
    kept: int
    tokens: int
    workers: int
    wall_s: float
    text_files: bool
    replaced: str | None


def check_request(request: CorpusRequest) -> None:
    """Check what can be checked before any text is read.

    Raises:
        InputError: options do not go together, or the output folder holds something else.
        StorageError: it cannot be written.
    """
    wrong = []
    if (request.tokenizer is None) == (request.bpe_tokens is None):
        wrong.append(
            "say which tokenizer, with one of --tokenizer DIR (GPT-2's files, for GPT-2's vocabulary of 50265) and "
            "--bpe-tokens N (trains one on this text)"
        )
    if request.bpe_tokens is not None and request.bpe_tokens < LEAST_BPE:
        wrong.append(f"--bpe-tokens: {LEAST_BPE} at least are needed, one for each byte, got {request.bpe_tokens}")
    if not 0 < request.val_fraction < 1:
        wrong.append(f"--val-fraction: a number between 0 and 1 is expected, got {request.val_fraction}")
    if not 0 < request.shard_mib <= 1024:
        wrong.append(f"--shard-mib: a number above 0 and up to 1024 is expected, got {request.shard_mib}")
    if not request.inputs:
        wrong.append("say what text, with --input FILES")
    if wrong:
        raise InputError.of(wrong)
    _check_out(request.out)


def _check_out(out: Path) -> None:
    """Check that a folder may become a corpus.

    Raises:
        InputError: something else is there.
        StorageError: it cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file; a folder is expected")
    if out.is_dir() and (others := not_own(out)):
        names = ", ".join(others[:6])
        raise InputError(f"--out {out}: is not empty, and no tokenised text (it holds {names}); name a new folder")
    above = out
    while not above.exists():
        above = above.parent
    if not os.access(above, os.W_OK | os.X_OK):
        raise StorageError(f"--out {out}: {above} cannot be written; choose another folder")
