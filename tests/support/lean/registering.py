"""Register the fake kind of tests: add it to the table of kinds as soon as something imports that."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TABLE = "ettsweep.runs.spec"


class Finder(MetaPathFinder):
    """Finds the module with the table where it is, and adds a line to the table once the module has been executed."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == TABLE else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                module.KINDS["fake"] = "support.fake:FAKE"

            setattr(spec.loader, "exec_module", execute_and_register)  # noqa: B010  # mypy: methods are not assigned
        return spec


sys.meta_path.insert(0, Finder())
