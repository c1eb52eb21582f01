"""Import torch without its compiler: it takes as long as the rest, and tests start hundreds of processes.

An optimizer imports all of it for two functions that do nothing where nothing is compiled. Whoever asks for more than
these gets the real one. test_local_workers.py has workers that start as a user's do.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


class Idle(ModuleType):
    """What stands for the compiler until more of it is asked for."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *how: object, **more: object) -> Callable[..., Any]:
        return function or (lambda decorated: decorated)

    @staticmethod
    def graph_break() -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # whoever looks through all modules wants nothing of this one
            raise AttributeError(name)
        if sys.modules.get(COMPILER) is self:
            sys.meta_path.remove(FINDER)
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)


class Finder(MetaPathFinder, Loader):
    """Finds it in place of the real one."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == COMPILER else None

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = Idle


FINDER = Finder()
sys.meta_path.insert(0, FINDER)
