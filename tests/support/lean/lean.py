"""Import torch without its compiler: it takes as long as the rest, and tests start hundreds of processes.

An optimizer imports all of it for two functions that do nothing where nothing is compiled. Whoever asks for more than
these gets the real one. The demo and the chaos test start their processes as users do, without this.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class Idle(ModuleType):
    """What stands for `torch._dynamo` until more of it is asked for."""

    @staticmethod
    def disable(function: Callable[..., Any], recursive: bool = True, wrapping: bool = True) -> Callable[..., Any]:
        return function

    @staticmethod
    def graph_break() -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # whoever looks through all modules wants nothing of this one
            raise AttributeError(name)
        if sys.modules.get("torch._dynamo") is self:
            del sys.modules["torch._dynamo"]
        return getattr(importlib.import_module("torch._dynamo"), name)


sys.modules.setdefault("torch._dynamo", Idle("torch._dynamo"))
