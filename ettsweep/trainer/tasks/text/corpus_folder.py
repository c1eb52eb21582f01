"""The output folder of `ettsweep data text`: checked for foreign files, locked, and finished by one atomic rename."""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ettsweep.errors import EttsweepError, InputError, StorageError
from ettsweep.files import storage_errors, write_atomic
from ettsweep.trainer.tasks.text.corpus import mark_verified, verification_stamp
from ettsweep.trainer.tasks.text.corpus_manifest import MANIFEST, SHARDS, TOKENIZER, Manifest, read_manifest

TOKENIZER_PREFIX = "tokenizer-"
"""Prefix of the file in `shards/` from which the processes that tokenise read the tokenizer."""

_CORPUS_FILE_NAME = re.compile(rf"[0-9a-f]{{24}}(-\d+\.bin|\.json)|{TOKENIZER_PREFIX}[0-9a-f]{{24}}\.json")
_TEMPORARY_NAME = re.compile(r"\A\.(.+)\.[0-9a-f]{32}\.tmp\Z")


def check_folder(out: Path) -> None:
    """Check that a corpus can be written into a folder.

    Raises:
        InputError: it is a file, or a folder with other content than a corpus.
        StorageError: it cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: expected a folder, got a file")
    existing_parent = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(existing_parent, os.W_OK | os.X_OK):
        raise StorageError(f"--out {out}: {existing_parent} is not writable; choose another folder")
    if out.is_dir() and (foreign_names := foreign_files(out)):
        names = ", ".join(foreign_names[:6])
        raise InputError(f"--out {out}: is not empty and not tokenised text (it holds {names}); choose a new folder")


def foreign_files(folder: Path) -> list[str]:
    """Return the names of entries in a folder that do not belong to tokenised text, finished or not."""
    shards = folder / SHARDS
    shard_entries = sorted(shards.iterdir()) if shards.is_dir() else []
    expected = {SHARDS} if shards.is_dir() else set[str]()
    if any(map(_is_corpus_file, shard_entries)) or existing_manifest(
        folder
    ):  # other folders may have files of these names, too
        expected |= {MANIFEST, TOKENIZER}
    names = [path.name for path in sorted(folder.iterdir()) if _final_name(path) not in expected]
    names += [f"{SHARDS}/{path.name}" for path in shard_entries if not _is_corpus_file(path)]
    return [
        name for name in names if not Path(name).name.startswith(".nfs")
    ]  # deleted shards that a run still reads, on NFS


def _final_name(path: Path) -> str:
    """Return the name of a file; of a temporary file that a kill has left, the name it was written for."""
    return _TEMPORARY_NAME.sub(r"\1", path.name)


def _is_corpus_file(path: Path) -> bool:
    """Return `True` if an entry of `shards/` has a name that `ettsweep data text` gives."""
    return _CORPUS_FILE_NAME.fullmatch(_final_name(path)) is not None


def existing_manifest(out: Path) -> Manifest | None:
    """Return the manifest of the finished corpus in a folder; None if there is none, or it is unreadable."""
    try:
        return read_manifest(out)
    except EttsweepError:
        return None


@contextmanager
def lock_corpus_folder(out: Path) -> Iterator[Path]:
    """Create and lock the output folder, and yield its folder for shards.

    At exit, temporary files are removed; if no shard was finished, so are the folders that this call has created.

    Raises:
        StorageError: the folder cannot be created, or another command is writing there.
    """
    shards = out / SHARDS
    with storage_errors(out):
        # Inner folders first, in the order in which they can be removed.
        new_folders = [shards, *(folder for folder in (out, *out.parents) if not folder.exists())]
        shards.mkdir(parents=True, exist_ok=True)
        lock = os.open(out, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks on folders: there, two commands are not noticed
            try:
                # The lock ends with the process, even if it is killed.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"{out}: another `ettsweep data text` is writing there") from None
        try:
            yield shards
        finally:
            for path in [*out.glob(".*.tmp"), *shards.glob(".*.tmp")]:
                if _final_name(path) in (MANIFEST, TOKENIZER) or _is_corpus_file(path):
                    path.unlink(missing_ok=True)
            _remove_unused(shards, new_folders)
    finally:
        os.close(lock)


def _remove_unused(shards: Path, folders: Iterable[Path]) -> None:
    """Remove the folders of a command that has finished no shard."""
    if any(not (path.name.startswith(TOKENIZER_PREFIX) and _is_corpus_file(path)) for path in shards.iterdir()):
        return
    for path in shards.iterdir():
        path.unlink()
    with suppress(OSError):  # something else was put into them meanwhile
        for folder in folders:
            folder.rmdir()


def finish_corpus(out: Path, manifest: Manifest, tokenizer: Path) -> None:
    """Turn finished shards into a corpus by writing its manifest, and remove shards that it does not use."""
    tokenizer_path, text = out / TOKENIZER, tokenizer.read_bytes()
    if not tokenizer_path.is_file() or tokenizer_path.read_bytes() != text:
        (out / MANIFEST).unlink(missing_ok=True)  # so that a manifest is never beside a tokenizer of another corpus
        write_atomic(tokenizer_path, text)
    write_atomic(out / MANIFEST, manifest.model_dump_json(indent=1))
    current_names = {tokenizer.name, *(shard.name for shard in manifest.shards)}
    current_names |= {f"{shard.name.partition('-')[0]}.json" for shard in manifest.shards}
    # After the manifest: until then, an earlier corpus needs its shards.
    for path in (out / SHARDS).iterdir():
        if path.name not in current_names and _is_corpus_file(path):
            path.unlink()
    mark_verified(verification_stamp(out, manifest))  # each shard was written or compared just now
