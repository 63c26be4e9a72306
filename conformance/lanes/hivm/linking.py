"""The library functions in a process: compiled once and kept on disk, each by itself, and known to LLVM by a symbol."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import llvmlite.binding as llvm

from conformance.lanes.ascend import host, upstream
from conformance.lanes.ascend.cache import CodeCache
from conformance.lanes.hivm import library, runtime
from conformance.lanes.hivm.library import Rounding
from conformance.lanes.hivm.program import PASSES, Function

_OUTSIDE = f"func.func private @{library.OUTSIDE}(i64, i64, i64, i64)\n"


def compiled(function: Function, rounding: Rounding) -> bytes:
    """Relocatable code. Raises Unsupported for one that is not known, or is declared otherwise than it is known."""
    body = library.body(function.name, function.plain_types, rounding)
    text = upstream.llvm_ir(f"module {{\n{_OUTSIDE}{body}}}\n", PASSES)
    return host.object_code(runtime.function(text, function), (runtime.symbol(function),))


class Linker:
    """What compiled kernels call, loaded when it is first needed. There is one set of symbols in a process."""

    def __init__(self, cache: CodeCache, rounding: Rounding) -> None:
        self._cache, self._rounding = cache, rounding
        self._loaded: dict[str, host.Code] = {}

    def prepare(self, functions: Iterable[Function]) -> None:
        """Have the code of all of them on disk. Raises Unsupported."""
        for each in functions:
            self._code(each)

    def load(self, functions: Iterable[Function]) -> None:
        """Make symbols of all of them."""
        for each in functions:
            name = runtime.symbol(each)
            if name not in self._loaded:
                self._loaded[name] = code = host.Code(self._code(each))
                llvm.add_symbol(name, code.address(name))

    def runtime(self) -> host.Code:
        """The functions beside the library, with their symbols."""
        loaded = self._loaded.get("runtime")
        if loaded is None:
            key = self._cache.key("runtime")
            code = self._kept(key, lambda: host.object_code(runtime.runtime(), runtime.RUNTIME_FUNCTIONS))
            loaded = self._loaded["runtime"] = host.Code(code)
            for name in runtime.RUNTIME_FUNCTIONS:
                llvm.add_symbol(name, loaded.address(name))
        return loaded

    def _code(self, function: Function) -> bytes:
        key = self._cache.key("library", function, self._rounding)
        return self._kept(key, lambda: compiled(function, self._rounding))

    def _kept(self, key: str, make: Callable[[], bytes]) -> bytes:
        code = self._cache.load(key)
        if code is None:
            code = make()
            self._cache.store(key, code)
        return code
