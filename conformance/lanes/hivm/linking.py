"""The library functions in a process: compiled once and kept on disk, each by itself, and known to LLVM by a symbol."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import llvmlite.binding as llvm

from conformance.lanes.ascend import host, upstream
from conformance.lanes.ascend.cache import CodeCache
from conformance.lanes.hivm import functions, runtime
from conformance.lanes.hivm.functions import Rounding
from conformance.lanes.hivm.program import PASSES, Function

# By symbol, and never unloaded: LLVM goes on resolving a symbol that it was given once.
_LOADED: dict[str, host.Code] = {}


class Linker:
    """What compiled kernels call, loaded when it is first needed. Linkers of one process share it."""

    def __init__(self, cache: CodeCache, rounding: Rounding) -> None:
        self._cache, self._rounding = cache, rounding

    def symbol(self, function: Function) -> str:
        """What kernels call ``function`` by: functions of one name may be declared in more than one way."""
        digest = hashlib.sha256(repr((function.types, self._rounding)).encode()).hexdigest()[:12]
        return f"hivm_{function.name}_{digest}"

    def symbols(self, functions: Iterable[Function]) -> dict[str, str]:
        """Of all of them, by their names."""
        return {each.name: self.symbol(each) for each in functions}

    def prepare(self, functions: Iterable[Function]) -> None:
        """Have the code of all of them on disk. Raises Unsupported for one that is not known, or is declared otherwise
        than it is known.
        """
        for each in functions:
            self._code(each)

    def load(self, functions: Iterable[Function]) -> None:
        """Make symbols of all of them."""
        for each in functions:
            name = self.symbol(each)
            if name not in _LOADED:
                _add(name, self._code(each), (name,))

    def runtime(self) -> host.Code:
        """The functions beside the library, with their symbols."""
        if "runtime" not in _LOADED:
            code = self._kept("runtime", lambda: host.object_code(runtime.runtime(), runtime.RUNTIME_FUNCTIONS))
            _add("runtime", code, runtime.RUNTIME_FUNCTIONS)
        return _LOADED["runtime"]

    def _code(self, function: Function) -> bytes:
        return self._kept(self.symbol(function), lambda: self._compiled(function))

    def _compiled(self, function: Function) -> bytes:
        body = functions.body(function.name, function.plain_types, self._rounding)
        text = upstream.llvm_ir(f"module {{\n{functions.DECLARED}{body}}}\n", PASSES)
        name = self.symbol(function)
        return host.object_code(runtime.function(text, function, name), (name,))

    def _kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        key = self._cache.key("library", name)
        code = self._cache.load(key)
        if code is not None:
            return code
        with self._cache.alone(key):
            code = self._cache.load(key)  # another process may have been quicker
            if code is None:
                code = make()
                self._cache.store(key, code)
            return code


def _add(name: str, code: bytes, symbols: Iterable[str]) -> None:
    loaded = _LOADED[name] = host.Code(code)
    for symbol in symbols:
        llvm.add_symbol(symbol, loaded.address(symbol))
