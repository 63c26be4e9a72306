"""From LLVM IR to native code. The loop over programs is compiled beside the kernel: a launch is one foreign call."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from conformance.lanes.ascend import host

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

_LAUNCH = """
define void @launch(ptr %words, i32 %gx, i32 %gy, i32 %gz, i1 %backwards) {{
entry:
{loads}
  br label %zhead
zhead:
  %z = phi i32 [ 0, %entry ], [ %znext, %zdone ]
  %zmore = icmp slt i32 %z, %gz
  br i1 %zmore, label %yhead, label %end
yhead:
  %y = phi i32 [ 0, %zhead ], [ %ynext, %ydone ]
  %ymore = icmp slt i32 %y, %gy
  br i1 %ymore, label %xhead, label %zdone
xhead:
  %x = phi i32 [ 0, %yhead ], [ %xnext, %xbody ]
  %xmore = icmp slt i32 %x, %gx
  br i1 %xmore, label %xbody, label %ydone
xbody:
  %xlast = sub i32 %gx, 1
  %ylast = sub i32 %gy, 1
  %zlast = sub i32 %gz, 1
  %xback = sub i32 %xlast, %x
  %yback = sub i32 %ylast, %y
  %zback = sub i32 %zlast, %z
  %px = select i1 %backwards, i32 %xback, i32 %x
  %py = select i1 %backwards, i32 %yback, i32 %y
  %pz = select i1 %backwards, i32 %zback, i32 %z
  call void @{name}({arguments}, i32 %gx, i32 %gy, i32 %gz, i32 %px, i32 %py, i32 %pz)
  %xnext = add i32 %x, 1
  br label %xhead
ydone:
  %ynext = add i32 %y, 1
  br label %yhead
zdone:
  %znext = add i32 %z, 1
  br label %zhead
end:
  ret void
}}
"""

# The two memrefs that the front end puts before a kernel's own arguments (sync-block lock, workspace) are never
# touched by kernels that only the vector core runs.
_EMPTY_MEMREF = ["ptr null", "ptr null", "i64 0", "i64 0", "i64 1"]


def _wrapper(name: str, kinds: Sequence[str]) -> str:
    """The loop over the grid. Each argument takes two 64-bit words: address and element count of a pointer, or the
    value and 0.
    """
    loads: list[str] = []
    arguments = [*_EMPTY_MEMREF, *_EMPTY_MEMREF]
    for index, kind in enumerate(kinds):
        loads.append(f"  %w{index} = getelementptr i64, ptr %words, i64 {2 * index}")
        if kind == "pointer":
            loads.append(f"  %p{index} = load ptr, ptr %w{index}")
            loads.append(f"  %m{index} = getelementptr i64, ptr %words, i64 {2 * index + 1}")
            loads.append(f"  %n{index} = load i64, ptr %m{index}")
            arguments += [f"ptr %p{index}", f"ptr %p{index}", "i64 0", f"i64 %n{index}", "i64 1"]
        else:
            loads.append(f"  %v{index} = load {kind}, ptr %w{index}")
            arguments.append(f"{kind} %v{index}")
    return _LAUNCH.format(loads="\n".join(loads), name=name, arguments=", ".join(arguments))


def object_code(llvm_ir: str, name: str, kinds: Sequence[str]) -> bytes:
    """Relocatable code with the function ``launch``. ``kinds``: "pointer" or an LLVM integer type for each run-time
    argument.
    """
    text = re.sub(r"^declare void @memrefCopy\(.*$", "", llvm_ir, flags=re.MULTILINE)
    if "@llvm.memcpy.p0.p0.i64" not in text:
        text += "\ndeclare void @llvm.memcpy.p0.p0.i64(ptr noalias, ptr noalias, i64, i1)\n"
    return host.object_code(text + _COPY + _wrapper(name, kinds), ("launch",))


class Kernel:
    """A compiled kernel in this process."""

    def __init__(self, code: bytes) -> None:
        self._code = host.Code(code)
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int32] * 3, ctypes.c_bool)
        self.run = prototype(self._code.address("launch"))
