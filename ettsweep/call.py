"""Train runs by a function: `python -m ettsweep.call package.module:name`, which a worker starts.

The function is called with the `Run`, and the arguments that its grid file states. Its module is imported anew for each
run, with all that lies beside it: an earlier run may have changed them.
"""

import importlib
import importlib.metadata
import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ettsweep.run import Run
from ettsweep.warm import Ended, serve

ARGUMENTS, FOLDERS, MODULE = "ETTSWEEP_ARGUMENTS", "ETTSWEEP_FOLDERS", "ETTSWEEP_MODULE"
"""Variables: further arguments of the function, in JSON; folders that it is imported from, before all installed ones;
and the file of its module."""


def call(name: str, run: Run) -> None:
    """Import a function, `module:name`, and call it.

    Raises:
        ImportError: Python has another module of that name.
    """
    folders = [Path(folder) for folder in os.environ[FOLDERS].split(os.pathsep)]
    module, _, attributes = name.partition(":")
    path = Path(os.environ[MODULE])
    for each, imported in list(sys.modules.items()):
        if each in _IMPORTED or _lies_in(imported, folders):
            del sys.modules[each]
    before, search_path = set(sys.modules), list(sys.path)
    sys.path[:0] = map(str, folders)
    importlib.invalidate_caches()
    try:
        target: Any = importlib.import_module(module)
        if not path.is_relative_to(folders[0]):
            print(_installed(module))
        if Path(str(target.__file__)).resolve() != path:
            raise ImportError(f"function: Python has another module {module}, {target.__file__}; rename {path}")
        for part in attributes.split("."):
            target = getattr(target, part)
        arguments = json.loads(os.environ[ARGUMENTS])
        inspect.signature(target).bind(run, **arguments)  # a TypeError that names what is wrong
        target(run, **arguments)
    finally:
        _IMPORTED.update(each for each in set(sys.modules) - before if _lies_in(sys.modules[each], folders))
        sys.path[:] = search_path


_IMPORTED: set[str] = set()
"""Names of modules that runs of this process have imported from the folders of their grid files."""


def _installed(module: str) -> str:
    """Return which installed package a module comes with, and its version."""
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], ())
    return f"{module} is of {', '.join(f'{name} {importlib.metadata.version(name)}' for name in names) or 'no package'}"


def _lies_in(module: object, folders: Sequence[Path]) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and not {*folders}.isdisjoint(Path(str(file)).resolve().parents)


def main(name: str) -> int:
    """Train runs by a function until no more are asked for; return the exit code."""

    def train(runs: Sequence[Run], ended: Ended) -> None:
        call(name, runs[0])

    return serve(train)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
