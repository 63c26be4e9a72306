"""The hivm lane's way from a kernel to native code."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from conformance.lanes.ascend import binding, compiler, frontend, host, ir, programs, upstream
from conformance.lanes.ascend.binding import Bound
from conformance.lanes.ascend.launcher import NativeLauncher
from conformance.lanes.errors import CompileError, Unsupported
from conformance.lanes.hivm import functions, program, runtime
from conformance.lanes.hivm.chip import Chip, Facts, Grid
from conformance.lanes.hivm.functions import Rounding
from conformance.lanes.hivm.linking import Linker
from conformance.lanes.hivm.program import Function, Place, Site

TARGET = "Ascend910B3"
KNOWN_VERSIONS = ("1.2.0",)
"""Of the compiler: those whose last program the rewrite knows."""

_TIMEOUT = 110.0  # seconds for the compiler: the suite waits a little longer for a compilation


class Launcher(NativeLauncher):
    """Front end, Ascend's compiler for ``target`` up to its last program, and from there upstream MLIR and LLVM.

    ``rounding`` is where a vector's float32 quotients land.
    """

    def __init__(self, folder: Path, rounding: Rounding = Rounding.EXACT, target: str = TARGET) -> None:
        lane = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))]
        settings = [*lane, *program.PASSES, host.described(), rounding.value, target]
        super().__init__(folder, (frontend, compiler, upstream, host, ir, binding, programs), settings)
        self._target = target
        self._linker = Linker(self._cache, rounding)
        self._chip: Chip | None = None

    def lower(self, kernel: Any, bound: Bound) -> str:
        with _lines():
            return frontend.linalg(kernel, bound.types, bound.constants, bound.multiples, named_ops=True)

    def compile(self, module: str, kernel: Any, bound: Bound) -> bytes:
        return self.native(self.last_program(module), kernel.fn.__name__, bound.kinds)

    def native(self, last_program: str, name: str, kinds: Sequence[str]) -> bytes:
        """What the cache keeps of the kernel ``name`` in the compiler's last program, which takes arguments of
        ``kinds``: what there is to say about it, and its code. Raises Unsupported.
        """
        rewritten = program.rewritten(last_program, name, functions.check_call)
        self._linker.prepare(rewritten.functions)
        symbols = self._linker.symbols(rewritten.functions)
        text = runtime.kernel(upstream.llvm_ir(rewritten.text, program.PASSES), name, kinds, rewritten, symbols)
        facts = Facts(tuple(rewritten.functions), tuple(rewritten.places), tuple(rewritten.sites), rewritten.ub_limit)
        return json.dumps(asdict(facts)).encode() + b"\n" + host.object_code(text, (programs.ENTRY,))

    def load(self, code: bytes) -> Kernel:
        if self._chip is None:
            self._chip = Chip(self._linker)
        return Kernel(code, self._chip)

    @cached_property
    def _compiler(self) -> compiler.Compiler:
        return compiler.find(_TIMEOUT)

    def last_program(self, module: str) -> str:
        """The compiler's, for a module in linalg. Raises CompileError; Unsupported for a compiler that is not known."""
        try:
            found = self._compiler
            version = found.version
            if version not in KNOWN_VERSIONS:
                known = ", ".join(KNOWN_VERSIONS)
                raise Unsupported(f"{found.path.name} {version}: lane hivm knows the programs of {known}")
            done = found.compile(module, self._target)
        except compiler.Unavailable as error:
            raise Unsupported(str(error)) from error
        if done.status == compiler.UNKNOWN_TARGET:
            raise Unsupported(done.message)
        if done.status != compiler.COMPILED:
            where = f" ({done.line})" if done.line else ""
            raise CompileError(f"{found.path.name} for {self._target}: {done.status}: {done.message}{where}")
        if done.program is None:
            raise Unsupported(f"{found.path.name} {version} left no program for {self._target}")
        return done.program


@contextmanager
def _lines() -> Iterator[None]:
    """Have programs name lines of the kernel, as messages shall: triton-ascend asks on each compilation."""
    variable = "TRITON_DISABLE_LINE_INFO"
    before = os.environ.get(variable)
    os.environ[variable] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    *[ctypes.c_int32] * 3,
    ctypes.c_bool,
    ctypes.c_uint8,
    *[ctypes.c_int64] * 2,
    ctypes.c_uint8,
)


class Kernel:
    """A compiled kernel in this process."""

    def __init__(self, data: bytes, chip: Chip) -> None:
        head, _, code = data.partition(b"\n")
        facts = json.loads(head)
        self._facts = Facts(
            tuple(Function(each["name"], tuple(each["types"])) for each in facts["functions"]),
            tuple(Place(**each) for each in facts["places"]),
            tuple(Site(**each) for each in facts["sites"]),
            facts["ub_limit"],
        )
        self._chip = chip
        chip.link(self._facts.functions)
        self._code = host.Code(code)
        self._launch = _PROTOTYPE(self._code.address(programs.ENTRY))

    def run(self, words: int, x: int, y: int, z: int, backwards: bool) -> None:
        grid: Grid = (words, x, y, z, backwards)
        self._chip.run(self._launch, grid, self._facts)
