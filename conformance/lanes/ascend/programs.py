"""The loop over the programs of a grid, in LLVM IR, compiled beside the kernel: a launch is one foreign call."""

from __future__ import annotations

from collections.abc import Sequence

ENTRY = "launch"
"""What the function is called."""

# The two memrefs that the front end puts before a kernel's own arguments (sync-block lock, workspace) are never
# touched by kernels that only the vector cores run.
_EMPTY_MEMREF = ["ptr null", "ptr null", "i64 0", "i64 0", "i64 1"]

_LAUNCH = """
define {returned} @{entry}(ptr %words, i32 %gx, i32 %gy, i32 %gz, i1 %backwards{parameters}) {{
entry:
{before}
  br label %begin
begin:
{loads}
  br label %zhead
zhead:
  %z = phi i32 [ 0, %begin ], [ %znext, %zdone ]
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
{program}
  %xnext = add i32 %x, 1
  br label %xhead
ydone:
  %ynext = add i32 %y, 1
  br label %yhead
zdone:
  %znext = add i32 %z, 1
  br label %zhead
end:
  ret {result}
}}
"""


def arguments(kinds: Sequence[str]) -> str:
    """What a kernel is called with, its own arguments of ``kinds`` ("pointer" or an LLVM integer type) and what the
    front end puts before them.
    """
    passed = [*_EMPTY_MEMREF, *_EMPTY_MEMREF]
    for index, kind in enumerate(kinds):
        if kind == "pointer":
            passed += [f"ptr %p{index}", f"ptr %p{index}", "i64 0", f"i64 %n{index}", "i64 1"]
        else:
            passed.append(f"{kind} %v{index}")
    return ", ".join(passed)


def loop(
    kinds: Sequence[str],
    program: str,
    *,
    parameters: Sequence[str] = (),
    before: str = "",
    returned: str = "void",
    result: str = "void",
) -> str:
    """The function ``ENTRY``: runs ``program`` for each program of a grid, x fastest, backwards where it is told to.

    It takes the address of two 64-bit words an argument (address and element count of a pointer, or the value and 0),
    the programs in each dimension, the direction, and ``parameters``. ``program``, without branches, finds the
    program's indices in %px, %py, %pz, the grid in %gx, %gy, %gz, and what ``arguments`` names. ``before`` is done
    once; ``result`` is returned, of type ``returned``.
    """
    return _LAUNCH.format(
        entry=ENTRY,
        returned=returned,
        parameters="".join(f", {each}" for each in parameters),
        before=before,
        loads="\n".join(_loads(kinds)),
        program=program,
        result=result,
    )


def _loads(kinds: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for index, kind in enumerate(kinds):
        lines.append(f"  %w{index} = getelementptr i64, ptr %words, i64 {2 * index}")
        if kind == "pointer":
            lines.append(f"  %p{index} = load ptr, ptr %w{index}")
            lines.append(f"  %m{index} = getelementptr i64, ptr %words, i64 {2 * index + 1}")
            lines.append(f"  %n{index} = load i64, ptr %m{index}")
        else:
            lines.append(f"  %v{index} = load {kind}, ptr %w{index}")
    return lines
