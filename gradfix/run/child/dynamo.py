"""A stand-in for torch._dynamo, whose import takes as long as torch's own and which training hardly needs.

The first optimizer imports torch._dynamo (1.3 s, 70 MB) for ``disable``, which marks functions that
torch.compile must not trace, and ``graph_break``, which does nothing outside of a trace. The stand-in has
these two; whatever else is asked of it, or of a submodule, loads the real package in its place and undoes the
marks, so that torch.compile works.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

NAME = "torch._dynamo"


def stand_in() -> None:
    """Put the stand-in in place, unless torch has imported the real package already. No op is run."""
    import torch

    if NAME in sys.modules:
        return
    spec = importlib.util.find_spec(NAME)
    if spec is None:  # before torch 2.0
        return
    module = _StandIn(spec)
    sys.modules[NAME] = module
    torch._dynamo = module
    sys.meta_path.insert(0, module.finder)


def is_loaded() -> bool:
    """Whether the real package has been imported."""
    return not isinstance(sys.modules.get(NAME), (_StandIn, type(None)))


def load() -> None:
    """Import the real package now, so that runs which need it find it."""
    importlib.import_module(NAME + ".utils")


class _StandIn(types.ModuleType):
    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(NAME)
        self.__spec__ = spec
        self.__file__ = spec.origin
        self.__loader__ = spec.loader
        self.__package__ = NAME
        self.__path__ = list(spec.submodule_search_locations or ())
        self.finder = _SubmoduleFinder(self)
        self.marked: list[Any] = []

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """For torch's own functions, which ask for it when they are first called."""
        if fn is None or not getattr(fn, "__module__", "").startswith("torch."):
            return self.load().disable(fn, recursive, **options)
        self.marked.append(fn)
        return fn

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Nothing is being traced: whoever traces has loaded the real package."""

    def is_compiling(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self) -> Any:
        """The real package, from here on in everybody's eyes."""
        if sys.modules.get(NAME) is self:
            sys.meta_path.remove(self.finder)
            for fn in self.marked:
                vars(fn).pop("__dynamo_disable", None)
            del sys.modules[NAME]
            vars(sys.modules["torch"]).pop("_dynamo", None)
        return importlib.import_module(NAME)


class _SubmoduleFinder(importlib.abc.MetaPathFinder):
    """``import torch._dynamo.config`` with the stand-in in place: the real package first."""

    def __init__(self, module: _StandIn) -> None:
        self.module = module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(NAME + "."):
            return None
        self.module.load()
        if name in sys.modules:  # the package has imported it on its way
            return importlib.util.spec_from_loader(name, _Loaded(sys.modules[name]))
        return importlib.util.find_spec(name)


class _Loaded(importlib.abc.Loader):
    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.true: dict[str, Any] = {
            key: vars(module)[key] for key in ("__spec__", "__loader__") if key in vars(module)
        }

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(self.true)
