"""From linalg on tensors to LLVM IR: a few text changes for what only Ascend's compiler knows, then passes of
upstream MLIR.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from conformance.lanes.errors import CompileError, Unsupported
from conformance.lanes.lowered import frontend

# Elementwise operations are fused before they become loops: it halves the temporaries a tile needs.
PASSES = (
    "--linalg-fuse-elementwise-ops",
    "--canonicalize",
    "--cse",
    "--eliminate-empty-tensors",
    "--empty-tensor-to-alloc-tensor",
    "--one-shot-bufferize=bufferize-function-boundaries=true allow-return-allocs-from-loops=true"
    " function-boundary-type-conversion=identity-layout-map",
    "--buffer-deallocation-pipeline",
    "--convert-linalg-to-loops",
    "--convert-bufferization-to-memref",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-scf-to-cf",
    "--convert-arith-to-llvm",
    "--convert-math-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-cf-to-llvm",
    "--convert-arith-to-llvm",
    "--reconcile-unrealized-casts",
)

_GATHER = re.compile(
    r"  func\.func private @(triton_gather\w*)\((tensor<[^>]*>), (tensor<[^>]*>), i32\) -> (tensor<[^>]*>)"
)
_POINTER_CAST = re.compile(r"(%\w+) = hivm\.hir\.pointer_cast\((%\w+)\) \[(%\w+)\] : memref<\?x(\w+)>")
_MEMREF = "!llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>"


@cache
def _optimizer() -> Path:
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or spec.origin is None:
        raise Unsupported("the package ascendnpu-ir is not installed")
    path = Path(spec.origin).parent / "bin" / "bishengir-opt"
    if not os.access(path, os.X_OK):  # the wheel does not always mark its programs as executable
        path.chmod(path.stat().st_mode | 0o111)
    return path


def _gather_body(match: re.Match[str]) -> str:
    name, source, index, result = match.groups()
    if not re.fullmatch(r"tensor<\d+x\w+>", source):
        raise Unsupported(f"tl.gather on {source}: the lane gathers from one dimension only")
    element = source[:-1].rsplit("x", 1)[1]
    return f"""  func.func private @{name}(%source: {source}, %index: {index}, %axis: i32) -> {result} {{
    %empty = tensor.empty() : {result}
    %gathered = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
        iterator_types = ["parallel"]}} ins(%index : {index}) outs(%empty : {result}) {{
    ^bb0(%i: i32, %unused: {element}):
      %at = arith.index_cast %i : i32 to index
      %value = tensor.extract %source[%at] : {source}
      linalg.yield %value : {element}
    }} -> {result}
    return %gathered : {result}
  }}"""


class _PointerCasts:
    """Turns an address taken from a table of addresses into a memref descriptor."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, match: re.Match[str]) -> str:
        out, address, size, element = match.groups()
        self.count += 1
        p = f"%address{self.count}"
        return f"""{p}p = llvm.inttoptr {address} : i64 to !llvm.ptr
    {p}n = arith.index_cast {size} : index to i64
    {p}zero = llvm.mlir.constant(0 : i64) : i64
    {p}one = llvm.mlir.constant(1 : i64) : i64
    {p}d0 = llvm.mlir.undef : {_MEMREF}
    {p}d1 = llvm.insertvalue {p}p, {p}d0[0] : {_MEMREF}
    {p}d2 = llvm.insertvalue {p}p, {p}d1[1] : {_MEMREF}
    {p}d3 = llvm.insertvalue {p}zero, {p}d2[2] : {_MEMREF}
    {p}d4 = llvm.insertvalue {p}n, {p}d3[3, 0] : {_MEMREF}
    {p}d5 = llvm.insertvalue {p}one, {p}d4[4, 0] : {_MEMREF}
    {out} = builtin.unrealized_conversion_cast {p}d5 : {_MEMREF} to memref<?x{element}>"""


def upstream(linalg: str) -> str:
    """The same module in upstream dialects only, without the hints that upstream passes do not read."""
    text = re.sub(r" \{hivm\.unlikely_condition\}", "", linalg)
    text = text.replace(" {tt.divisibility = 16 : i32}", "")
    text = re.sub(r"^\s*annotation\.mark .*\n", "", text, flags=re.MULTILINE)
    text = _GATHER.sub(_gather_body, text)
    return _POINTER_CAST.sub(_PointerCasts(), text)


def llvm_ir(module: str) -> str:
    """LLVM IR text for the text of an ``upstream`` module. Raises CompileError with the message of the first pass
    that refuses.
    """
    with tempfile.TemporaryDirectory(prefix="lowered-") as folder:
        before, after = Path(folder, "before.mlir"), Path(folder, "after.mlir")
        before.write_text(module)
        done = subprocess.run(
            [_optimizer(), "--mlir-disable-threading", before, *PASSES, "-o", after], capture_output=True, text=True
        )
        if done.returncode:
            raise CompileError("upstream MLIR: " + done.stderr.strip().replace(folder + os.sep, "")[:2000])
        return frontend.translate(str(after))
