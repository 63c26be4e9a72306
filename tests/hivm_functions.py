"""The library functions of lane ``hivm`` compiled for this machine, and memory to call them on."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from conformance.lanes.ascend import host, upstream
from conformance.lanes.hivm.functions import DECLARED, OUTSIDE, UNDEFINED, Rounding, body
from conformance.lanes.hivm.functions.call import ELEMENTS
from conformance.lanes.hivm.functions.table import TABLE
from conformance.lanes.hivm.functions.writer import memref
from conformance.lanes.hivm.program import PASSES

DTYPES = {"half": "float16", "float": "float32", "i32": "int32"}
_SCALARS = {
    "i1": ctypes.c_bool,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "index": ctypes.c_int64,
    "f16": ctypes.c_int16,
    "f32": ctypes.c_float,
}
_MEMREF = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
UNTOUCHED = 0xA7
POISON = 0x5A
"""What functions leave undefined, unless told otherwise."""


def dtype(name: str) -> Any:
    """NumPy's type for a type in the name of a function."""
    return np.dtype(DTYPES.get(name, name.removesuffix("_t")))


def arguments(name: str) -> list[str]:
    """How a function is declared in the table, with its types in place: ``int32_t[]``, ``~int32_t[]``, ``i1[]``, ..."""
    for function in TABLE:
        if match := function.pattern.fullmatch(name):
            text = function.arguments.replace("?", "")
            for part in ("T", "U"):
                text = re.sub(rf"\b{part}\b", match.groupdict().get(part) or part, text)
            return text.split()
    raise KeyError(name)


def types(name: str) -> list[str]:
    found = []
    for each in arguments(name):
        element, brackets, _ = each.strip("~").partition("[]")
        element = ELEMENTS.get(element, element)
        found.append(memref("i8" if element == "i1" else element) if brackets else element)
    return found


@dataclass(eq=False)
class Vector:
    """A buffer of ``size`` elements, ``stride`` apart, from element ``offset`` of memory that begins at a block."""

    kind: str
    size: int
    offset: int = 0
    stride: int = 1
    memory: npt.NDArray[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.type = dtype(self.kind)
        needed = self.offset + max(self.size, 1) * self.stride + 2 * 32
        room = np.full(needed * self.type.itemsize + 64, UNTOUCHED, dtype=np.uint8)
        start = -room.ctypes.data % 32
        self._room, end = room, start + needed * self.type.itemsize
        self.memory = room[start:end].view(self.type)
        self.before = self.memory.copy()

    @property
    def values(self) -> npt.NDArray[Any]:
        return self.memory[self.offset :: self.stride][: self.size]

    def set(self, values: npt.NDArray[Any]) -> Vector:
        self.values[:] = values.astype(self.type)
        self.before = self.memory.copy()
        return self

    def words(self) -> tuple[int, ...]:
        address = self.memory.ctypes.data
        return address, address, self.offset, self.size, self.stride

    def rest(self, used: int | None = None) -> npt.NDArray[np.bool_]:
        """Whether each byte outside the first ``used`` elements (all) is as it was."""
        same = self.memory.view(np.uint8) == self.before.view(np.uint8)
        spans = same.reshape(-1, self.type.itemsize)
        spans[self.offset :: self.stride][: self.size if used is None else used] = True
        return spans


@dataclass(eq=False)
class Packed:
    """A packed mask of ``size`` bits, from bit ``offset`` of memory."""

    size: int
    offset: int = 0
    stride: int = 1

    def __post_init__(self) -> None:
        bits = self.offset + max(self.size, 1) * self.stride + 64
        self.memory = np.full(-(-bits // 8), UNTOUCHED, dtype=np.uint8)
        self.before = self.memory.copy()

    def _all(self, memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        return np.unpackbits(memory, bitorder="little").astype(bool)

    @property
    def values(self) -> npt.NDArray[np.bool_]:
        return self._all(self.memory)[self.offset :: self.stride][: self.size]

    def set(self, values: npt.NDArray[np.bool_]) -> Packed:
        bits = self._all(self.memory)
        bits[self.offset :: self.stride][: self.size] = values
        self.memory[:] = np.packbits(bits, bitorder="little")
        self.before = self.memory.copy()
        return self

    def words(self) -> tuple[int, ...]:
        address = self.memory.ctypes.data
        return address, address, self.offset, self.size, self.stride

    def rest(self) -> npt.NDArray[np.bool_]:
        same = self._all(self.memory) == self._all(self.before)
        same[self.offset :: self.stride][: self.size] = True
        return same


class Compiled:
    """``names`` in one module, each with ``rounding``. What is told of accesses outside is in ``told``; what is
    undefined has every byte ``undefined``.
    """

    def __init__(self, names: Iterable[str], rounding: Rounding = Rounding.EXACT) -> None:
        self.told: list[tuple[int, int, int, int]] = []
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
        self._tell = prototype(lambda *words: self.told.append(words))
        llvm.add_symbol(OUTSIDE, ctypes.cast(self._tell, ctypes.c_void_p).value)
        self.undefined = POISON
        self._ask = ctypes.CFUNCTYPE(ctypes.c_uint64)(lambda: int.from_bytes([self.undefined] * 8, "little"))
        llvm.add_symbol(UNDEFINED, ctypes.cast(self._ask, ctypes.c_void_p).value)
        self._types = {name: types(name) for name in names}
        bodies = [body(name, each, rounding) for name, each in self._types.items()]
        callers = [_caller(name, each) for name, each in self._types.items()]
        module = "module {\n" + DECLARED + "".join([*bodies, *callers]) + "}\n"
        code = host.object_code(upstream.llvm_ir(module, PASSES), [f"call_{name}" for name in self._types], speed=0)
        self._code = host.Code(code)
        self._functions: dict[str, Any] = {}

    def __call__(self, name: str, *values: Any) -> list[tuple[int, int, int, int]]:
        """Call it; returns what was told."""
        function = self._functions.get(name)
        if function is None:
            kinds: list[Any] = []
            for each in self._types[name]:
                kinds += _MEMREF if each.startswith("memref") else [_SCALARS[each]]
            function = ctypes.CFUNCTYPE(None, *kinds)(self._code.address(f"call_{name}"))
            self._functions[name] = function
        words: list[Any] = []
        for value, kind in zip(values, self._types[name], strict=True):
            if isinstance(value, Vector | Packed):
                words += value.words()
            elif kind == "f16":
                words.append(int(np.float16(value).view(np.int16)))
            elif kind == "f32":
                words.append(float(value))
            else:
                words.append(int(value))
        self.told.clear()
        function(*words)
        return list(self.told)


def _caller(name: str, declared: Sequence[str]) -> str:
    """A function that can be called from here: a float16 comes as its bits."""
    taken, passed, lines = [], [], []
    for index, each in enumerate(declared):
        taken.append(f"%b{index}: {'i16' if each == 'f16' else each}")
        passed.append(f"%b{index}")
        if each == "f16":
            lines.append(f"    %h{index} = arith.bitcast %b{index} : i16 to f16\n")
            passed[-1] = f"%h{index}"
    call = f"    func.call @{name}({', '.join(passed)}) : ({', '.join(declared)}) -> ()\n    return\n"
    return f"  func.func @call_{name}({', '.join(taken)}) {{\n{''.join(lines)}{call}  }}\n"
