"""From LLVM IR to native code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from conformance.lanes.ascend import host, programs

# memrefCopy is the one runtime function that MLIR asks for: (element bytes, source, target), both "unranked"
# descriptors {rank, pointer to {allocated, aligned, offset, sizes[rank], strides[rank]}}. Any rank and any strides.
_COPY = """
define internal void @copy_dimension(i64 %rank, i64 %bytes, ptr %from, ptr %to, ptr %sizes, ptr %s, ptr %t) {
entry:
  %scalar = icmp eq i64 %rank, 0
  br i1 %scalar, label %one, label %some
one:
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  ret void
some:
  %size = load i64, ptr %sizes
  %ss = load i64, ptr %s
  %ts = load i64, ptr %t
  %last = icmp eq i64 %rank, 1
  %s1 = icmp eq i64 %ss, 1
  %t1 = icmp eq i64 %ts, 1
  %both = and i1 %s1, %t1
  %flat = and i1 %last, %both
  br i1 %flat, label %row, label %head
row:
  %length = mul i64 %size, %bytes
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %length, i1 false)
  ret void
head:
  %i = phi i64 [ 0, %some ], [ %next, %body ]
  %more = icmp slt i64 %i, %size
  br i1 %more, label %body, label %done
body:
  %so = mul i64 %i, %ss
  %sb = mul i64 %so, %bytes
  %to1 = mul i64 %i, %ts
  %tb = mul i64 %to1, %bytes
  %sp = getelementptr i8, ptr %from, i64 %sb
  %tp = getelementptr i8, ptr %to, i64 %tb
  %below = sub i64 %rank, 1
  %sizes1 = getelementptr i64, ptr %sizes, i64 1
  %st1 = getelementptr i64, ptr %s, i64 1
  %tt1 = getelementptr i64, ptr %t, i64 1
  call void @copy_dimension(i64 %below, i64 %bytes, ptr %sp, ptr %tp, ptr %sizes1, ptr %st1, ptr %tt1)
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}

define internal void @memrefCopy(i64 %bytes, ptr %source, ptr %target) {
  %rank = load i64, ptr %source
  %sh = getelementptr i64, ptr %source, i64 1
  %th = getelementptr i64, ptr %target, i64 1
  %sd = load ptr, ptr %sh
  %td = load ptr, ptr %th
  %sa = getelementptr i64, ptr %sd, i64 1
  %ta = getelementptr i64, ptr %td, i64 1
  %sbase = load ptr, ptr %sa
  %tbase = load ptr, ptr %ta
  %so = getelementptr i64, ptr %sd, i64 2
  %to = getelementptr i64, ptr %td, i64 2
  %soff = load i64, ptr %so
  %toff = load i64, ptr %to
  %sbytes = mul i64 %soff, %bytes
  %tbytes = mul i64 %toff, %bytes
  %from = getelementptr i8, ptr %sbase, i64 %sbytes
  %into = getelementptr i8, ptr %tbase, i64 %tbytes
  %sizes = getelementptr i64, ptr %sd, i64 3
  %after = add i64 3, %rank
  %ss = getelementptr i64, ptr %sd, i64 %after
  %ts = getelementptr i64, ptr %td, i64 %after
  call void @copy_dimension(i64 %rank, i64 %bytes, ptr %from, ptr %into, ptr %sizes, ptr %ss, ptr %ts)
  ret void
}
"""


def object_code(llvm_ir: str, name: str, kinds: Sequence[str]) -> bytes:
    """Relocatable code with the loop over programs of the kernel ``name``. ``kinds``: "pointer" or an LLVM integer type
    for each run-time argument.
    """
    text = re.sub(r"^declare void @memrefCopy\(.*$", "", llvm_ir, flags=re.MULTILINE)
    if "@llvm.memcpy.p0.p0.i64" not in text:
        text += "\ndeclare void @llvm.memcpy.p0.p0.i64(ptr noalias, ptr noalias, i64, i1)\n"
    grid = "i32 %gx, i32 %gy, i32 %gz, i32 %px, i32 %py, i32 %pz"
    program = f"  call void @{name}({programs.arguments(kinds)}, {grid})"
    return host.object_code(text + _COPY + programs.loop(kinds, program), (programs.ENTRY,))


class Kernel:
    """A compiled kernel in this process."""

    def __init__(self, code: bytes) -> None:
        self._code = host.Code(code)
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int32] * 3, ctypes.c_bool)
        self.run = prototype(self._code.address(programs.ENTRY))
