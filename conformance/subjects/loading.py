"""Importing one file of a large package without the rest: inert stand-ins for what is not installed.

A stand-in module has every attribute. While the file is imported, stand-ins accept whatever is done with them and do
nothing: a logger is made, a decorator hands its function back, a base class is derived from. Once it is imported,
calling one raises and says what is missing. A subject gives the parts that matter real values (``known``).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class StandInUsed(ImportError):
    """A stand-in was called as if its package were installed."""


class _Importing:
    """Whether some file is being imported; stand-ins are inert only then."""

    depth = 0

    @classmethod
    @contextmanager
    def now(cls) -> Iterator[None]:
        cls.depth += 1
        try:
            yield
        finally:
            cls.depth -= 1


class _StandIn(type):
    """A stand-in is a class, so that it also serves as an annotation, as a base and in ``isinstance``."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not _Importing.depth:
            missing = next(base for base in cls.__mro__ if isinstance(base, _StandIn) and base.__bases__ == (object,))
            of = "" if missing is cls else f"{cls.__qualname__}, made of "
            raise StandInUsed(f"{of}{missing.__qualname__} was called, but its package is not installed")
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # used as a decorator
        return stand_in(f"{cls.__qualname__}()")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{cls.__qualname__}.{name}")

    def __getitem__(cls, item: object) -> Any:
        return cls


def stand_in(path: str) -> Any:
    """An inert object for ``path``, a dotted name."""
    return _StandIn(path, (), {"__qualname__": path})


class StandInModule(ModuleType):
    """A module of a package that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = stand_in(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Loader(Loader):
    """Makes a stand-in of a module, or runs its file and makes a stand-in of what that leaves undefined."""

    def __init__(self, known: Mapping[str, object], file: Path | None = None) -> None:
        self.known, self.file = known, file

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = StandInModule(spec.name)
        for name, value in self.known.items():
            where, _, attribute = name.rpartition(".")
            if where in (spec.name, "*"):
                setattr(module, attribute, value)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self.file is None:
            return
        module.__file__ = str(self.file)
        source = compile(self.file.read_bytes(), str(self.file), "exec")
        with suppress(Exception):  # a neighbour that needs more than is here is a stand-in from that line on
            exec(source, module.__dict__)


class PartialPackage(MetaPathFinder):
    """A package of which single files are imported. Use it in a process of its own: it changes what can be imported.

    Packages ``absent`` here are stand-ins, unless they are installed; ``known`` maps "module.attribute", or
    "*.attribute" for any module, to a real value. The packages above a file are never executed. Other files of the
    package that a file imports are run if ``neighbours`` says so, else they are stand-ins too.
    """

    def __init__(self, folder: Path, absent: Sequence[str], known: Mapping[str, object], *, neighbours: bool) -> None:
        self.folder, self.known, self.neighbours = folder, known, neighbours
        self.absent = frozenset(name for name in absent if name != folder.name and not _importable(name))
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root == self.folder.name:
            file = self.folder.joinpath(*rest.split(".")).with_suffix(".py") if rest else self.folder
            runs = self.neighbours and file.is_file()
            return ModuleSpec(fullname, _Loader(self.known, file if runs else None), is_package=True)
        if root in self.absent:
            return ModuleSpec(fullname, _Loader(self.known), is_package=True)
        return None

    def load(self, file: Path) -> ModuleType:
        """Import ``file``, a path inside the package. Raises what the file raises."""
        name = ".".join(file.relative_to(self.folder.parent).with_suffix("").parts)
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            with _Importing.now():
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def _importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
