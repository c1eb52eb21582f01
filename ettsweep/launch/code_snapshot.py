"""Snapshots: copies of the code made at submission, so that editing files does not change queued runs.

    code/<digest>/
      ettsweep/           the package, with the grids that ship with it in _data/
      provenance.json     where that code came from
    code/.<digest>.<taker>.json           a process that took the snapshot, and may be about to submit from it
    code/.<digest>.<taker>.<token>.tmp    one in the making

The digest is over relative paths and contents: equal code is copied once. `<digest>/` goes first on PYTHONPATH. Launch
profiles are not copied: a worker needs none but its submission's, and they may hold secrets.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from ettsweep.errors import CorruptError, LaunchError
from ettsweep.files import Json, dumps, read_json, storage_errors, sync, write_atomic
from ettsweep.processes import Process, process
from ettsweep.provenance import PROVENANCE_FILE, code_files, digest, package_dir, provenance
from ettsweep.runs.folder import code_dir
from ettsweep.shipped_files import shipped


def take_snapshot(results: Path) -> Path:
    """Copy the imported package into the results folder, unless equal code is there already; return where it is.

    `clean` leaves it alone as long as this process lives; after that, as long as a live submission names it.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: the code cannot be read.
    """
    files = snapshot_files(package_dir())
    name = digest(files)
    code = code_dir(results.resolve())
    owner_id = hashlib.sha256(dumps(process().to_json()).encode()).hexdigest()[:16]
    with storage_errors(code):
        code.mkdir(parents=True, exist_ok=True)
    write_atomic(code / f".{name}.{owner_id}.json", dumps({"process": process().to_json()}))
    folder = code / name
    if folder.is_dir():
        _mend(folder, files)
    else:
        _write(code / f".{name}.{owner_id}.{uuid.uuid4().hex}.tmp", folder, files, provenance() | {"snapshot": name})
    return folder


def snapshots(results: Path) -> list[Path]:
    """Return all snapshots."""
    return sorted(path for path in code_dir(results).glob("*") if path.is_dir() and not path.name.startswith("."))


def snapshot_files(package: Path) -> dict[str, bytes]:
    """Return the content of each file of a snapshot by its path below the package."""
    try:
        files = code_files(package)
        for path in sorted(shipped("grids").glob("*.yaml")):
            files[f"_data/grids/{path.name}"] = path.read_bytes()
    except OSError as error:
        raise LaunchError(f"{error.filename}: cannot be copied into a snapshot: {error.strerror}") from error
    return files


def _write(temporary: Path, folder: Path, files: Mapping[str, bytes], origin: Json) -> None:
    """Make a snapshot appear in one rename; where another process was faster, its equal one stays."""
    package = temporary / "ettsweep"
    with storage_errors(folder):
        try:
            for name, content in files.items():
                path = package / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                sync(path)
            (temporary / PROVENANCE_FILE).write_text(json.dumps(origin, indent=1) + "\n")
            sync(temporary / PROVENANCE_FILE)
            temporary.rename(folder)  # fails on a folder that is not empty
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            if not folder.is_dir():
                raise


def _mend(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write anew what was edited in a snapshot, or purged: sites delete files that nobody has read for weeks."""
    for name, content in files.items():
        path = folder / "ettsweep" / name
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and path.read_bytes() == content:
                continue
        write_atomic(path, content)
    if not (folder / PROVENANCE_FILE).is_file():
        write_atomic(folder / PROVENANCE_FILE, json.dumps(provenance() | {"snapshot": folder.name}, indent=1) + "\n")


# --- what nobody needs any more ---------------------------------------------------------------------------------------


def unused(results: Path, submitted: Collection[str]) -> dict[Path, str]:
    """Return what can be removed, with the reason; live submissions train from the snapshots called `submitted`."""
    owner_notes = sorted(code_dir(results).glob(".*.json"))
    live = [path.name for path in owner_notes if _may_live(path)]
    paths = {}
    for snapshot in snapshots(results):
        if snapshot.name not in submitted and not any(name.startswith(f".{snapshot.name}.") for name in live):
            paths[snapshot] = "snapshot that no live submission uses"
    paths |= {path: "note of a submission that has ended" for path in owner_notes if path.name not in live}
    for temporary in sorted(code_dir(results).glob(".[!.]*.tmp")):
        if not any(temporary.name.startswith(name.removesuffix("json")) for name in live):
            paths[temporary] = "left by a kill"
    return paths


def _may_live(note: Path) -> bool:
    """Say whether a process that took a snapshot still lives, or may do so where it cannot be seen."""
    try:
        owner = Process.from_json(read_json(note).get("process"))
    except FileNotFoundError:
        return False
    except CorruptError:
        return True
    return owner is not None and owner.liveness() != "dead"
