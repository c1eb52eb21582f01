"""Code snapshots: copies of the code at submission, which keep edits out of queued runs.

    code/<digest>/
      ettsweep/           the package, with the grids that ship with it in _data/
      provenance.json     its repository, commit and edits
    code/.<digest>.<owner>.json           a process that may be about to submit from the snapshot
    code/.<digest>.<owner>.<token>.tmp    a snapshot being written

The digest covers relative paths and contents, so equal code is copied once. `<digest>/` comes first on PYTHONPATH.
Launch profiles are not copied: a worker needs only its submission's, and they may hold secrets.
"""

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ettsweep.errors import CorruptError, LaunchError
from ettsweep.files import Json, dumps, read_json, storage_errors, sync, write_atomic
from ettsweep.ownership import check_folder
from ettsweep.processes import Process, process_identity
from ettsweep.provenance import PROVENANCE_FILE, code_digest, code_files, package_dir, provenance
from ettsweep.runs.folder import code_dir
from ettsweep.shipped_files import shipped


def take_snapshot(results: Path) -> Path:
    """Copy the imported package into the results folder, unless an equal copy is there; return its path.

    `clean` keeps it while this process lives and has not released it, and while a live submission uses it.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: the code cannot be read.
    """
    files = snapshot_files(package_dir())
    folder, temporary = reserve_snapshot(results, code_digest(files))
    if folder.is_dir():
        _repair(folder, files)
    else:
        _write_snapshot(temporary, folder, files, provenance() | {"snapshot": folder.name})
    return folder


def reserve_snapshot(results: Path, digest: str) -> tuple[Path, Path]:
    """Return the folder of a snapshot, which may exist, and a temporary folder to make it in.

    From here on `clean` leaves the snapshot alone, see `take_snapshot`.

    Raises:
        StorageError: the results folder cannot be written.
        InputError: others may change the snapshot.
    """
    code, owner_id = code_dir(results.resolve()), _owner_id()
    with storage_errors(code):
        code.mkdir(parents=True, exist_ok=True)
    write_atomic(code / f".{digest}.{owner_id}.json", dumps({"process": process_identity().to_json()}))
    check_folder(code / digest, whole=True)
    return code / digest, code / f".{digest}.{owner_id}.{uuid.uuid4().hex}.tmp"


def release_snapshots(results: Path) -> None:
    """Remove the notes of this process: its submissions name the snapshots that they use.

    A note left behind, as after a reboot, would keep its snapshot while its process may live elsewhere.
    """
    for note in code_dir(results.resolve()).glob(f".*.{_owner_id()}.json"):
        note.unlink(missing_ok=True)


def _owner_id() -> str:
    return hashlib.sha256(dumps(process_identity().to_json()).encode()).hexdigest()[:16]


def snapshots(results: Path) -> list[Path]:
    """Return the paths of all snapshots."""
    return sorted(path for path in code_dir(results).glob("*") if path.is_dir() and not path.name.startswith("."))


def snapshot_files(package: Path) -> dict[str, bytes]:
    """Return the contents of a snapshot by path relative to the package.

    Raises:
        LaunchError: a file cannot be read.
    """
    try:
        files = code_files(package)
        for path in sorted(shipped("grids").glob("*.yaml")):
            files[f"_data/grids/{path.name}"] = path.read_bytes()
    except OSError as error:
        raise LaunchError(f"cannot copy {error.filename} into a snapshot: {error.strerror}") from error
    return files


def _write_snapshot(temporary: Path, folder: Path, files: Mapping[str, bytes], origin: Json) -> None:
    """Write a snapshot and move it into place."""
    with moving_into_place(temporary, folder):
        for name, content in files.items():
            path = temporary / "ettsweep" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            # Synced before the rename: after a crash, a snapshot is complete or absent.
            sync(path)
        (temporary / PROVENANCE_FILE).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
        sync(temporary / PROVENANCE_FILE)


@contextlib.contextmanager
def moving_into_place(temporary: Path, folder: Path) -> Iterator[None]:
    """Context that makes a snapshot in a temporary folder, and then renames it.

    If another process was faster, its equal copy is kept.
    """
    with storage_errors(folder):
        try:
            temporary.mkdir()
            yield
            temporary.rename(folder)  # fails on a folder that is not empty
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            if not folder.is_dir():
                raise


def _repair(folder: Path, files: Mapping[str, bytes]) -> None:
    """Rewrite edited or purged files of a snapshot: some sites delete files that nobody reads for weeks."""
    for name, content in files.items():
        path = folder / "ettsweep" / name
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Untouched files keep their times: running workers may be importing them.
            if path.is_file() and path.read_bytes() == content:
                continue
        write_atomic(path, content)
    if not (folder / PROVENANCE_FILE).is_file():
        write_atomic(folder / PROVENANCE_FILE, json.dumps(provenance() | {"snapshot": folder.name}, indent=1) + "\n")


# --- what nobody needs any more ---------------------------------------------------------------------------------------


def find_unused(results: Path, submitted: Collection[str]) -> dict[Path, str]:
    """Return the files and folders that can be removed, with the reason for each.

    Args:
        results: the results folder.
        submitted: names of the snapshots from which live submissions train.
    """
    owner_notes = sorted(code_dir(results).glob(".*.json"))
    live = [path.name for path in owner_notes if _may_be_alive(path)]
    paths = {}
    for snapshot in snapshots(results):
        if snapshot.name not in submitted and not any(name.startswith(f".{snapshot.name}.") for name in live):
            paths[snapshot] = "snapshot that no live submission uses"
    paths |= {path: "note of a submission that has ended" for path in owner_notes if path.name not in live}
    for temporary in sorted(code_dir(results).glob(".[!.]*.tmp")):
        if not any(temporary.name.startswith(name.removesuffix("json")) for name in live):
            paths[temporary] = "left by a kill"
    return paths


def _may_be_alive(note: Path) -> bool:
    """`True` if the process of a note is alive, or may be on a host that cannot be seen from here."""
    try:
        owner = Process.from_json(read_json(note).get("process"))
    except FileNotFoundError:
        return False
    except CorruptError:
        return True
    return owner is not None and owner.liveness() != "dead"
