"""What every compiled kernel calls beside the library: checks of UB, the log of what was stored, the launch itself.

LLVM IR by hand, because it ends launches (``longjmp``) and looks at descriptors, which no MLIR operation does.

A launch runs twice, on UB filled with different bytes, which are also those of what library functions leave undefined.
In the first run whatever is about to be stored over is logged; ``undo`` swaps log and memory, so that the log holds
what was stored and memory is as before; the second run logs what it has stored. Both logs are equal unless the program
makes something of UB that it has not written, or of what is undefined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from conformance.lanes.ascend import programs
from conformance.lanes.hivm import ub
from conformance.lanes.hivm.program import BITS, Function, Rewritten

KEEP_OLD, KEEP_NEW = 1, 2
"""Modes of the log."""

BEYOND, READ_BEYOND, WRITTEN_BEYOND, STRAY, LAYOUT = range(1, 6)
"""Kinds of violation: an argument reaches out of its buffer; a function would read or write past the end of an
argument, gather by an index that is not in it, or meet a layout that is not known.
"""

_LLVM = {"i8": "i8", "i16": "i16", "f16": "half", "bf16": "bfloat", "i32": "i32", "f32": "float", "i64": "i64"}


def _word(number: int) -> str:
    return f"ptr inttoptr (i64 {ub.ACCOUNT + 8 * number} to ptr)"


_DECLARED = """
declare void @hivm_violation(i64, i64, i64, i64)
declare void @hivm_keep(i64, ptr, i64, i64, i64)
"""

_DEFINED = f"""
declare void @longjmp(ptr, i32) noreturn
declare ptr @realloc(ptr, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @hivm_violation(i64 %kind, i64 %word, i64 %first, i64 %last) noinline {{
  store i64 %kind, {_word(ub.KIND)}
  store i64 %word, {_word(ub.WORD)}
  store i64 %first, {_word(ub.FIRST)}
  store i64 %last, {_word(ub.LAST)}
  call void @longjmp({_word(ub.JUMP)}, i32 1)
  unreachable
}}

define void @hivm_keep(i64 %mode, ptr %at, i64 %count, i64 %stride, i64 %bytes) {{
  %now = load i64, {_word(ub.MODE)}
  %on = icmp eq i64 %now, %mode
  %some = icmp sgt i64 %count, 0
  %any = and i1 %on, %some
  br i1 %any, label %shape, label %done
shape:
  %dense = icmp eq i64 %stride, %bytes
  br i1 %dense, label %whole, label %each
whole:
  %all = mul i64 %count, %bytes
  call void @append(ptr %at, i64 %all)
  ret void
each:
  %i = phi i64 [ 0, %shape ], [ %next, %each ]
  %offset = mul i64 %i, %stride
  %element = getelementptr i8, ptr %at, i64 %offset
  call void @append(ptr %element, i64 %bytes)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %each, label %done
done:
  ret void
}}

; An entry: address, bytes, the bytes themselves up to a multiple of 8, length of the entry.
define internal void @append(ptr %at, i64 %bytes) {{
  %up = add i64 %bytes, 7
  %padded = and i64 %up, -8
  %length = add i64 %padded, 24
  %used = load i64, {_word(ub.USED)}
  %after = add i64 %used, %length
  %capacity = load i64, {_word(ub.CAPACITY)}
  %begin = load ptr, {_word(ub.LOG)}
  %fits = icmp ule i64 %after, %capacity
  br i1 %fits, label %fitting, label %grow
grow:
  %twice = mul i64 %after, 2
  %larger = add i64 %twice, 65536
  %moved = call ptr @realloc(ptr %begin, i64 %larger)
  %lost = icmp eq ptr %moved, null
  br i1 %lost, label %full, label %grown
full:
  store i64 1, {_word(ub.FULL)}
  ret void
grown:
  store ptr %moved, {_word(ub.LOG)}
  store i64 %larger, {_word(ub.CAPACITY)}
  br label %fitting
fitting:
  %log = phi ptr [ %begin, %0 ], [ %moved, %grown ]
  %entry = getelementptr i8, ptr %log, i64 %used
  %place = ptrtoint ptr %at to i64
  %end = add i64 %place, %bytes
  br label %touch
touch: ; what is to be stored over must be writable, or the fault would be that of a read
  %p = phi i64 [ %place, %fitting ], [ %next, %touch ]
  %q = inttoptr i64 %p to ptr
  %old = cmpxchg ptr %q, i8 0, i8 0 monotonic monotonic
  %page = and i64 %p, -4096
  %next = add i64 %page, 4096
  %again = icmp ult i64 %next, %end
  br i1 %again, label %touch, label %copy
copy:
  store i64 %place, ptr %entry
  %e1 = getelementptr i8, ptr %entry, i64 8
  store i64 %bytes, ptr %e1
  %last = getelementptr i8, ptr %entry, i64 %padded
  %lastword = getelementptr i8, ptr %last, i64 8
  store i64 0, ptr %lastword
  %data = getelementptr i8, ptr %entry, i64 16
  call void @llvm.memcpy.p0.p0.i64(ptr %data, ptr %at, i64 %bytes, i1 false)
  %trailer = getelementptr i8, ptr %data, i64 %padded
  store i64 %length, ptr %trailer
  store i64 %after, {_word(ub.USED)}
  ret void
}}

define void @hivm_undo() {{
  %log = load ptr, {_word(ub.LOG)}
  %used = load i64, {_word(ub.USED)}
  br label %head
head:
  %at = phi i64 [ %used, %0 ], [ %start, %swapped ]
  %more = icmp sgt i64 %at, 0
  br i1 %more, label %entry, label %done
entry:
  %end = getelementptr i8, ptr %log, i64 %at
  %trailer = getelementptr i8, ptr %end, i64 -8
  %length = load i64, ptr %trailer
  %start = sub i64 %at, %length
  %here = getelementptr i8, ptr %log, i64 %start
  %target = load ptr, ptr %here
  %e1 = getelementptr i8, ptr %here, i64 8
  %bytes = load i64, ptr %e1
  %data = getelementptr i8, ptr %here, i64 16
  br label %swap
swap:
  %i = phi i64 [ 0, %entry ], [ %next, %byte ]
  %left = icmp ult i64 %i, %bytes
  br i1 %left, label %byte, label %swapped
byte:
  %a = getelementptr i8, ptr %data, i64 %i
  %b = getelementptr i8, ptr %target, i64 %i
  %x = load i8, ptr %a
  %y = load i8, ptr %b
  store i8 %y, ptr %a
  store i8 %x, ptr %b
  %next = add i64 %i, 1
  br label %swap
swapped:
  br label %head
done:
  ret void
}}
"""

# The planned bytes of a buffer are in its first pointer; all in bits, because a mask's parts begin at bits.
_CHECK = f"""
define internal void @hivm_check(ptr %planned, ptr %aligned, i64 %offset, i64 %size, i64 %stride, i64 %bits)
    alwaysinline {{
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %look, label %good
look:
  %word = ptrtoint ptr %planned to i64
  %address = ptrtoint ptr %aligned to i64
  %base = sub i64 %address, {ub.BASE}
  %basebits = shl i64 %base, 3
  %offsetbits = mul i64 %offset, %bits
  %one = add i64 %basebits, %offsetbits
  %steps = sub i64 %size, 1
  %reach = mul i64 %steps, %stride
  %reachbits = mul i64 %reach, %bits
  %other = add i64 %one, %reachbits
  %first = call i64 @llvm.smin.i64(i64 %one, i64 %other)
  %lastone = call i64 @llvm.smax.i64(i64 %one, i64 %other)
  %last = add i64 %lastone, %bits
  %begin = and i64 %word, 16777215
  %beginbits = shl i64 %begin, 3
  %ends = lshr i64 %word, 24
  %end = and i64 %ends, 16777215
  %endbits = shl i64 %end, 3
  %before = icmp slt i64 %first, %beginbits
  %past = icmp sgt i64 %last, %endbits
  %limit = load i64, {_word(ub.LIMIT)}
  %off = icmp sgt i64 %endbits, %limit
  %o1 = or i1 %before, %past
  %o2 = or i1 %o1, %off
  br i1 %o2, label %bad, label %good
bad:
  call void @hivm_violation(i64 {BEYOND}, i64 %word, i64 %first, i64 %last)
  br label %good
good:
  ret void
}}
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
"""

# Asked once a call, so that it is one value in all of its results.
_UNDEFINED = f"""
define internal i64 @hivm_undefined() alwaysinline {{
  %site = load i64, {_word(ub.SITE)}
  %odd = load i64, {_word(ub.ODD_SITE)}
  %here = icmp eq i64 %site, %odd
  %usual = load i64, {_word(ub.UNDEFINED)}
  %other = load i64, {_word(ub.ODD_UNDEFINED)}
  %word = select i1 %here, i64 %other, i64 %usual
  ret i64 %word
}}
"""

_OUTSIDE = f"""
define internal void @hivm_outside(i64 %address, i64 %size, i64 %index, i64 %kind) {{
  %own = add i64 %kind, {READ_BEYOND}
  call void @hivm_violation(i64 %own, i64 %address, i64 %size, i64 %index)
  ret void
}}
"""

_DECLARED_FOR_LAUNCH = """
declare i32 @_setjmp(ptr) returns_twice
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

# A violation comes back here.
_BEFORE = f"""\
  %jumped = call i32 @_setjmp({_word(ub.JUMP)}) returns_twice
  %back = icmp ne i32 %jumped, 0
  br i1 %back, label %violated, label %calm
violated:
  ret i32 1
calm:
  %part = getelementptr i8, ptr inttoptr (i64 {ub.BASE} to ptr), i64 %from"""

_PARAMETERS = ("i8 %poison", "i64 %from", "i64 %bytes", "i8 %other")

# Block indices count z fastest. What stands before what the front end puts before a kernel's own arguments is the
# address of a table for synchronization.
_PROGRAM = """\
  %x64 = sext i32 %px to i64
  %y64 = sext i32 %py to i64
  %z64 = sext i32 %pz to i64
  %columns = sext i32 %gy to i64
  %layers = sext i32 %gz to i64
  %rows = mul i64 %x64, %columns
  %row = add i64 %rows, %y64
  %before = mul i64 %row, %layers
  %block = add i64 %before, %z64
  call void @llvm.memset.p0.i64(ptr inttoptr (i64 {base} to ptr), i8 %poison, i64 {used}, i1 false)
  call void @llvm.memset.p0.i64(ptr %part, i8 %other, i64 %bytes, i1 false)
  call void @{name}(i64 %block, i64 0, {arguments}, i32 %gx, i32 %gy, i32 %gz)"""


def runtime() -> str:
    """The functions that are in a process once."""
    return _DEFINED


RUNTIME_FUNCTIONS = ("hivm_violation", "hivm_keep", "hivm_undo")


def kernel(llvm_ir: str, name: str, kinds: Sequence[str], rewritten: Rewritten, symbols: Mapping[str, str]) -> str:
    """The LLVM IR of a ``rewritten`` kernel with its single accesses and the loop over its programs.

    ``symbols``: what library functions are called by; ``kinds``: "pointer" or an LLVM integer type for each run-time
    argument.
    """
    used = -(-rewritten.ub_bytes // 32) * 32
    program = _PROGRAM.format(base=ub.BASE, used=used, name=name, arguments=programs.arguments(kinds))
    loop = programs.loop(kinds, program, parameters=_PARAMETERS, before=_BEFORE, returned="i32", result="i32 0")
    llvm_ir = re.sub(r"@(\w+)\(", lambda found: f"@{symbols.get(found[1], found[1])}(", llvm_ir)
    text, accesses = _with_accesses(llvm_ir)
    return "\n".join([text, _DECLARED, _DECLARED_FOR_LAUNCH, _CHECK, *accesses, loop])


def function(llvm_ir: str, declared: Function, symbol: str) -> str:
    """The LLVM IR of a library function as ``symbol``, which takes the number of the site in front: checks every
    buffer that it is given, and logs what it stores to global memory.
    """
    types, arguments, checks, before, after = ["i64 %site"], [], [], [], []
    given = 0
    for number, kind in enumerate(declared.types):
        if not kind.startswith("memref"):
            scalar = "i64" if kind == "index" else _LLVM.get(kind, kind)
            types.append(f"{scalar} %a{number}")
            arguments.append(f"{scalar} %a{number}")
            continue
        element = kind.removeprefix("memref<?x").partition(",")[0]
        parts = [f"ptr %a{number}p", f"ptr %a{number}", *(f"i64 %a{number}{part}" for part in ("o", "n", "s"))]
        types += parts
        arguments += parts
        if "<ub>" in kind:
            if given < ub.MOST_GIVEN:
                checks.append(f"  store ptr %a{number}p, {_word(ub.GIVEN + given)}")
            given += 1
            checks.append(f"  call void @hivm_check({', '.join([*parts, f'i64 {BITS[element]}'])})")
        elif declared.name.startswith("store_ubuf_to_gm_"):
            size = BITS[element] // 8
            before += [
                f"  %bytes{number} = mul i64 %a{number}o, {size}",
                f"  %at{number} = getelementptr i8, ptr %a{number}, i64 %bytes{number}",
                f"  %step{number} = mul i64 %a{number}s, {size}",
            ]
            keep = f"ptr %at{number}, i64 %a{number}n, i64 %step{number}, i64 {size}"
            before.append(f"  call void @hivm_keep(i64 {KEEP_OLD}, {keep})")
            after.append(f"  call void @hivm_keep(i64 {KEEP_NEW}, {keep})")
    body = "\n".join(
        [
            f"  store i64 %site, {_word(ub.SITE)}",
            *checks,
            *(f"  store i64 0, {_word(ub.GIVEN + each)}" for each in range(given, ub.MOST_GIVEN)),
            *before,
            f"  call void @{declared.name}({', '.join(arguments)})",
            *after,
        ]
    )
    text = re.sub(r"(?m)^declare \w+ @hivm_(?:outside|undefined)\(.*$", "", llvm_ir)
    checked = f"define void @{symbol}({', '.join(types)}) {{\n{body}\n  ret void\n}}\n"
    return f"{text}\n{_DECLARED}{_CHECK}{_OUTSIDE}{_UNDEFINED}\n{checked}"


def _with_accesses(llvm_ir: str) -> tuple[str, list[str]]:
    """The module without declarations of single accesses, and their definitions."""
    kept, made = [], []
    for line in llvm_ir.splitlines():
        head, _, rest = line.partition("@")
        name = rest.partition("(")[0]
        space, _, access = name.partition("_")
        if head.startswith("declare ") and space in ("ub", "gm") and access.startswith(("load_", "store_")):
            made.append(_access(space, *access.split("_")))
        else:
            kept.append(line)
    return "\n".join(kept), made


def _access(space: str, what: str, element: str) -> str:
    kind, size = _LLVM[element], BITS[element] // 8
    buffer = "ptr %planned, ptr %aligned, i64 %offset, i64 %size, i64 %stride"
    lines = [
        f"  store i64 %site, {_word(ub.SITE)}",
        "  %step = mul i64 %index, %stride",
        "  %element = add i64 %offset, %step",
        f"  %at = getelementptr {kind}, ptr %aligned, i64 %element",
    ]
    if space == "ub":
        lines.append(
            f"  call void @hivm_check(ptr %planned, ptr %aligned, i64 %element, i64 1, i64 1, i64 {BITS[element]})"
        )
    if what == "load":
        lines += [f"  %value = load {kind}, ptr %at", f"  ret {kind} %value"]
        returned, value = kind, ""
    else:
        keep = f"ptr %at, i64 1, i64 {size}, i64 {size}"
        stored = f"  store {kind} %value, ptr %at"
        if space == "gm":
            lines += [
                f"  call void @hivm_keep(i64 {KEEP_OLD}, {keep})",
                stored,
                f"  call void @hivm_keep(i64 {KEEP_NEW}, {keep})",
            ]
        else:
            lines.append(stored)
        lines.append("  ret void")
        returned, value = "void", f", {kind} %value"
    body = "\n".join(lines)
    return (
        f"define internal {returned} @{space}_{what}_{element}(i64 %site, {buffer}, i64 %index{value})"
        f" alwaysinline {{\n{body}\n}}\n"
    )
