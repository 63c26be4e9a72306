"""Passes of upstream MLIR, run by ``bishengir-opt`` of ascendnpu-ir, down to LLVM IR."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from conformance.lanes.ascend import frontend
from conformance.lanes.errors import CompileError, Unsupported

DESCRIPTOR = "!llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>"
"""What a memref of one dimension is in the LLVM dialect: allocated and aligned pointer, offset, size, stride."""


@cache
def _optimizer() -> Path:
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or spec.origin is None:
        raise Unsupported("the package ascendnpu-ir is not installed")
    path = Path(spec.origin).parent / "bin" / "bishengir-opt"
    if not os.access(path, os.X_OK):  # the wheel does not always mark its programs as executable
        path.chmod(path.stat().st_mode | 0o111)
    return path


def llvm_ir(module: str, passes: Sequence[str]) -> str:
    """LLVM IR text for the text of a ``module`` in upstream dialects. Raises CompileError with the message of the
    first pass that refuses.
    """
    with tempfile.TemporaryDirectory(prefix="upstream-") as folder:
        before, after = Path(folder, "before.mlir"), Path(folder, "after.mlir")
        before.write_text(module)
        done = subprocess.run(
            [_optimizer(), "--mlir-disable-threading", before, *passes, "-o", after], capture_output=True, text=True
        )
        if done.returncode:
            raise CompileError("upstream MLIR: " + done.stderr.strip().replace(folder + os.sep, "")[:2000])
        return frontend.translate(str(after))


def descriptor(result: str, prefix: str, allocated: str, aligned: str, size: str, memref: str) -> str:
    """Operations that make ``result`` a memref of type ``memref`` out of two pointers and an i64, by name; the names of
    what they make on the way begin with ``prefix``. Offset 0, stride 1.
    """
    p, struct = prefix, DESCRIPTOR
    return f"""{p}zero = llvm.mlir.constant(0 : i64) : i64
{p}one = llvm.mlir.constant(1 : i64) : i64
{p}d0 = llvm.mlir.undef : {struct}
{p}d1 = llvm.insertvalue {allocated}, {p}d0[0] : {struct}
{p}d2 = llvm.insertvalue {aligned}, {p}d1[1] : {struct}
{p}d3 = llvm.insertvalue {p}zero, {p}d2[2] : {struct}
{p}d4 = llvm.insertvalue {size}, {p}d3[3, 0] : {struct}
{p}d5 = llvm.insertvalue {p}one, {p}d4[4, 0] : {struct}
{result} = builtin.unrealized_conversion_cast {p}d5 : {struct} to {memref}"""
