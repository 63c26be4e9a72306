"""From linalg on tensors to LLVM IR: a few text changes for what only Ascend's compiler knows, then passes of
upstream MLIR.
"""

from __future__ import annotations

import re

from conformance.lanes.ascend import upstream as passes
from conformance.lanes.errors import Unsupported

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


def _gather_body(match: re.Match[str]) -> str:
    name, source, index, result = match.groups()
    if not re.fullmatch(r"tensor<\d+x[a-z]\w*>", source):
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
        made = passes.descriptor(out, p, f"{p}p", f"{p}p", f"{p}n", f"memref<?x{element}>")
        return f"""{p}p = llvm.inttoptr {address} : i64 to !llvm.ptr
{p}n = arith.index_cast {size} : index to i64
{made}"""


def upstream(linalg: str) -> str:
    """The same module in upstream dialects only, without the hints that upstream passes do not read."""
    text = re.sub(r" \{hivm\.unlikely_condition\}", "", linalg)
    text = text.replace(" {tt.divisibility = 16 : i32}", "")
    text = re.sub(r"^\s*annotation\.mark .*\n", "", text, flags=re.MULTILINE)
    text = _GATHER.sub(_gather_body, text)
    return _POINTER_CAST.sub(_PointerCasts(), text)


def llvm_ir(module: str) -> str:
    """LLVM IR text for the text of an ``upstream`` module. Raises CompileError."""
    return passes.llvm_ir(module, PASSES)
