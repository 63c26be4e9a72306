"""Importing one file of a large package without the rest: inert stand-ins for what is not installed.

A stand-in module has any attribute; using one (calling it, subclassing apart) fails with a message that names it. So
an import has no side effects, and a kernel that really needs the missing package says which part. A subject gives
``known`` parts real values.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class StandInUsed(ImportError):
    """A stand-in was used as if the package were installed."""


class _Meta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise StandInUsed(
            f"{cls.__qualname__} was called, but its package is not installed; the suite has a stand-in only"
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{cls.__qualname__}.{name}")


def _stand_in(path: str) -> Any:
    """A class, so that it also serves as an annotation, in ``isinstance`` and in ``|``."""
    return _Meta(path, (), {"__qualname__": path})


class StandInModule(ModuleType):
    """A module of a package that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stand_in(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class StandIns(MetaPathFinder, Loader):
    """Finds every module under ``roots``. ``known`` maps "module.attribute" to a real value."""

    def __init__(self, roots: Sequence[str], known: Mapping[str, object]) -> None:
        self.roots, self.known = frozenset(roots), known

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.roots:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = StandInModule(spec.name)
        for name, value in self.known.items():
            where, _, attribute = name.rpartition(".")
            if where == spec.name:
                setattr(module, attribute, value)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: that is the point."""


def importable(package: str) -> bool:
    """Whether a top-level package is installed."""
    return importlib.util.find_spec(package) is not None


def load_file(file: Path, name: str, *, absent: Sequence[str], known: Mapping[str, object]) -> ModuleType:
    """Import ``file`` as module ``name``, with stand-ins for those of the packages ``absent`` that are not installed.

    The packages above it are not executed: they get an empty module whose path leads to their folder, so that
    relative and absolute imports of siblings still read the real files. Call it in a process of its own, it changes
    what can be imported.
    """
    roots = [package for package in absent if not importable(package)]
    sys.meta_path.append(StandIns(roots, known))
    folder = file.parent
    for parent in _parents(name):
        module = ModuleType(parent)
        module.__path__ = [str(folder)]
        sys.modules[parent] = module
        folder = folder.parent
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _parents(name: str) -> list[str]:
    """The packages above a module, nearest first."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
