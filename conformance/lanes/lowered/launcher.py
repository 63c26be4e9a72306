"""The lowered lane's way from a kernel to native code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.lanes.ascend import frontend, host, programs, upstream
from conformance.lanes.ascend.binding import Bound
from conformance.lanes.ascend.launcher import NativeLauncher
from conformance.lanes.lowered import mlir, native


class Launcher(NativeLauncher):
    """Front end, upstream MLIR, LLVM."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, (frontend, upstream, host, programs, mlir, native), [*mlir.PASSES, host.described()])

    def lower(self, kernel: Any, bound: Bound) -> str:
        return mlir.upstream(frontend.linalg(kernel, bound.types, bound.constants, bound.multiples))

    def compile(self, module: str, kernel: Any, bound: Bound) -> bytes:
        return native.object_code(mlir.llvm_ir(module), kernel.fn.__name__, bound.kinds)

    def load(self, code: bytes) -> native.Kernel:
        return native.Kernel(code)
