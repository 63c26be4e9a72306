"""``kernel[grid](...)`` on a lane that makes native code: bind, find or compile the specialization, call its code."""

from __future__ import annotations

import ctypes
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from triton.runtime.jit import JITFunction

from conformance.lanes.ascend.binding import Bound, bind
from conformance.lanes.ascend.cache import CodeCache

_PACKAGES = ("triton-ascend", "ascendnpu-ir", "llvmlite")


class Loaded(Protocol):
    """A compiled kernel in this process."""

    def run(self, words: int, x: int, y: int, z: int, backwards: bool) -> None:
        """Run a whole grid. ``words`` is the address of two 64-bit words an argument: address and element count of a
        pointer, or the value and 0.
        """


class NativeLauncher(ABC):
    """Replaces Triton's launch in this process. Code comes from memory, else from the cache on disk, else from the
    compiler.

    ``settings`` and the text of ``own`` modules are part of every key: while one works on a lane, code compiled a
    minute ago must not answer for it.
    """

    def __init__(self, folder: Path, own: Iterable[ModuleType], settings: Iterable[str]) -> None:
        versions = [f"{package} {importlib.metadata.version(package)}" for package in _PACKAGES]
        texts = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in own]
        self._cache = CodeCache(folder, "\n".join([*versions, *texts, *settings]))
        self._loaded: dict[tuple[Any, ...], Loaded] = {}
        self.announce: Callable[[str], None] = lambda event: None
        self.backwards = False

    @abstractmethod
    def lower(self, kernel: Any, bound: Bound) -> str:
        """The front end's part: a module that says all that ``compile`` depends on, the argument kinds excepted."""

    @abstractmethod
    def compile(self, module: str, kernel: Any, bound: Bound) -> bytes:
        """What the cache keeps. Raises CompileError, Unsupported."""

    @abstractmethod
    def load(self, code: bytes) -> Loaded:
        """What ``compile`` returned, in this process."""

    def install(self) -> None:
        """Make every ``kernel[grid](...)`` of this process come here."""

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            arguments = dict(zip(kernel.arg_names, args, strict=False), **kwargs)
            if warmup:
                self.precompile(kernel, arguments)
            else:
                self.launch(kernel, grid(arguments) if callable(grid) else grid, arguments)

        JITFunction.run = run

    def launch(self, kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
        """Run ``kernel`` over ``grid``, one program after the other."""
        bound = bind(kernel, arguments)
        kinds = tuple(map(type, bound.constants.values()))  # 1 == True == 1.0, and three different programs
        key = (kernel, tuple(bound.types.values()), tuple(bound.constants.items()), kinds, bound.multiples)
        loaded = self._loaded.get(key)
        if loaded is None:
            loaded = self._loaded[key] = self.load(self._code(kernel, bound)[0])
        words = (ctypes.c_int64 * (2 * len(bound.values)))()
        for index, value in enumerate(bound.values):
            if isinstance(value, int):
                words[2 * index] = value if value < 2**63 else value - 2**64
            else:
                words[2 * index] = value.data_ptr()
                words[2 * index + 1] = value.numel()
        if not 1 <= len(grid) <= 3:
            raise TypeError(f"{kernel.fn.__name__}[{grid}]: a grid has one to three dimensions")
        x, y, z = (*grid, 1, 1)[:3]
        loaded.run(ctypes.addressof(words), x, y, z, self.backwards)

    @property
    def specializations(self) -> int:
        """How many this process has launched."""
        return len(self._loaded)

    def precompile(self, kernel: Any, arguments: Mapping[str, Any]) -> bool:
        """Put the code for these arguments into the cache on disk; False when it was there."""
        return self._code(kernel, bind(kernel, arguments))[1]

    def _code(self, kernel: Any, bound: Bound) -> tuple[bytes, bool]:
        """What was compiled, and whether it had to be. Specializations that lower to the same module share it."""
        constants = [
            (name, _text_of(value) if isinstance(value, JITFunction) else value)
            for name, value in bound.constants.items()
        ]
        key = self._cache.key(_text_of(kernel), list(bound.types.items()), constants, bound.multiples)
        code = self._cache.load(key)
        if code is not None:
            return code, False
        self.announce("compiling")
        with self._cache.alone(key):
            code, fresh = self._cache.load(key), False  # another process may have been quicker
            if code is None:
                code, fresh = self._compiled(kernel, bound)
                self._cache.store(key, code)
        self.announce("launching")
        return code, fresh

    def _compiled(self, kernel: Any, bound: Bound) -> tuple[bytes, bool]:
        """The same from the module on, whatever the arguments are that lower to it."""
        module = self.lower(kernel, bound)
        shared = self._cache.key("module", module, bound.kinds)
        with self._cache.alone(shared):
            code = self._cache.load(shared)
            if code is not None:
                return code, False
            code = self.compile(module, kernel, bound)
            self._cache.store(shared, code)
            return code, True


def _text_of(kernel: Any) -> tuple[object, ...]:
    """Everything in the source that code depends on: the kernel, its helpers, and the global constants of both, which
    Triton's own ``cache_key`` leaves out.
    """
    text = kernel.cache_key  # finds the globals on the way
    return text, sorted((name, repr(value)) for (name, _), (value, _) in kernel.used_global_vals.items())
