"""Which files the Python programs of a run import: each tells it at its end, by a hook on `PYTHONPATH`."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ettsweep.errors import CorruptError
from ettsweep.files import read_json, storage_errors, write_atomic
from ettsweep.launch.profile import AnyProfile, SlurmProfile

HOOK = '''"""Tells `ettsweep try` which files a program imports; then Python goes on as without it."""
import atexit, importlib.machinery, importlib.util, json, os, sys

_folder = os.path.dirname(os.path.abspath(__file__))


def _tell():
    try:
        _write()
    except Exception:  # the program's output is its own
        pass


def _write():
    library, packages = os.path.dirname(os.__file__) + os.sep, ("site-packages", "dist-packages")
    found = set()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name in _before or name.partition(".")[0] == "ettsweep" or not str(path).endswith(".py"):
            continue
        path = os.path.abspath(path)
        if not path.startswith((library, _folder)) and not any(each in path.split(os.sep) for each in packages):
            found.add(path)
    name = "%s-%d.part" % (os.uname().nodename, os.getpid())  # nodes of one run may have the same numbers
    with open(os.path.join(_folder, name), "w") as file:
        json.dump({"files": sorted(found)}, file)
    os.rename(file.name, file.name[:-4] + "json")


if "ETTSWEEP_OUT" in os.environ:  # a program of a run, and no worker
    atexit.register(_tell)
_rest = [path for path in sys.path if os.path.abspath(path) != _folder]
_other = importlib.machinery.PathFinder.find_spec("sitecustomize", _rest)
try:
    if _other is not None and _other.loader is not None:
        _other.loader.exec_module(importlib.util.module_from_spec(_other))
finally:  # Python goes on where that raises
    _before = set(sys.modules) - {"__main__"}
'''


def hooked(profile: AnyProfile, folder: Path) -> tuple[AnyProfile, dict[str, str]]:
    """Place the hook in a folder; return the profile and variables of this process by which workers start with it.

    Raises:
        StorageError: the folder cannot be written.
    """
    with storage_errors(folder):
        folder.mkdir()
    write_atomic(folder / "sitecustomize.py", HOOK)
    given = profile.environment.get("PYTHONPATH") if isinstance(profile, SlurmProfile) else None
    path = os.pathsep.join(filter(None, [str(folder.resolve()), str(given or os.environ.get("PYTHONPATH", ""))]))
    if isinstance(profile, SlurmProfile):
        return profile.model_copy(update={"environment": profile.environment | {"PYTHONPATH": path}}), {}
    return profile, {"PYTHONPATH": path}


def told_files(folder: Path) -> list[Path]:
    """Return the files that programs have told of; none of what is installed, or comes with Python."""
    names = set[str]()
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, CorruptError):
            names.update(read_json(path)["files"])
    return [Path(name) for name in sorted(names)]


def elsewhere(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield those files that a person may have written: none of caches and of temporary folders."""
    temporary = Path(os.environ.get("TMPDIR", "/tmp")).resolve()
    for path in paths:
        if not path.resolve().is_relative_to(temporary) and not any(part.startswith(".") for part in path.parts):
            yield path
