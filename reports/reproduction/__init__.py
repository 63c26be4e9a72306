"""A script that shows a failure without this project: plain torch and Triton, one file, the expected values inside.

It is put together from the pieces in :mod:`reports.reproduction.pieces` and the launch as it was bound. Names and
messages reach it as comments of printable characters or as Python literals, so nothing in them can become code.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from reference import verdict as v
from reference.case import Case, Launch
from reference.fields import printable
from reference.oracle import Trace
from reports.call import KERNEL, METHOD, OBJECTS, Buffer, Call
from reports.diagnosis import Diagnosis
from reports.reproduction import objects, pieces
from reports.reproduction.literals import expression, listed, name_of

MOST_CHARACTERS = 400_000
"""A script that would be longer is not made: nobody pastes that."""

WITHOUT_GATHER = (
    "a Python with triton and not triton-ascend, whose interpreter has no tl.gather (in a checkout of the suite that "
    "is .venv-interpreter/bin/python)"
)
"""What a script of a kernel needs there."""

_OUTPUT = "slot_mapping"
_MARGIN = 64  # cells
_OPEN_MARGIN = 1 << 13
_PUBLISHED = ("vllm_ascend", "vllm")
_TAKE_NUMPY = ("compute_slot_mapping", "compute_slot_mapping_draft")
_ISOLATED = (v.GUARD, v.CRASH, v.HANG)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """``script`` is None where none can be made, and ``note`` then says why; else what it cannot show, if anything."""

    script: str | None = None
    note: str = ""


def reproduction(
    title: str,
    call: Call | None,
    case: Case,
    launch: Launch,
    verdict: v.Verdict,
    expected: Sequence[Sequence[int]],
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
) -> Reproduction:
    """The script for one failure; ``expected`` has one row of elements a group."""
    if call is None or not expected:
        return Reproduction(note="No script: it is not known how the function was called.")
    note = _note(verdict, launch, call)
    published = call.module.partition(".")[0] in _PUBLISHED
    backwards = call.launches and launch.fence == "before"
    parts = [
        _header(title, call, verdict, diagnosis, note),
        pieces.IMPORTS if published else _without(pieces.IMPORTS, pieces.IMPORTS_FOR_PUBLISHED),
        _constants(call, case, verdict, expected, traces),
        pieces.DEVICE,
        pieces.PUBLISHED if published else "",
        pieces.LOAD if published else _without(pieces.LOAD, pieces.LOAD_FOR_PUBLISHED),
        _memory(verdict, launch),
        pieces.BUFFERS,
        pieces.BACKWARDS if backwards else "",
        pieces.METHOD_CALL if call.kind == METHOD else "",
        objects.FILL if call.kind == OBJECTS and objects.fills_rows(call) else "",
        pieces.COMPARE,
        _main(call, backwards),
        pieces.ISOLATED_END if verdict.kind in _ISOLATED else pieces.END,
    ]
    script = "\n\n\n".join(part.strip("\n") for part in parts if part) + "\n"
    if len(script) > MOST_CHARACTERS:
        return Reproduction(note=f"No script: it would have {len(script):,} characters, the case is too large.")
    return Reproduction(script, note)


def _note(verdict: v.Verdict, launch: Launch, call: Call) -> str:
    """What the script cannot show everywhere."""
    if verdict.kind == v.GUARD:
        if launch.fence == "open":
            return "It finds stores outside the buffers; loads outside them do not show in values."
        is_read = call.launches and any(guard.direction != "write" for guard in verdict.guards)
        masked = (
            "That does not happen, and the host says as expected, where a mask forbids the load: Triton's interpreter "
            "obeys it, and triton-ascend drops the mask of a load at computed addresses. "
        )
        return (
            "On the host it puts every buffer beside memory that cannot be touched, so the access ends the process. "
            f"{masked if is_read else ''}"
            "On a device it finds stores outside the buffers; loads outside them it cannot show unless their values "
            "are used."
        )
    if verdict.kind == v.COMPILE_ERROR:
        return "With TRITON_INTERPRET=1 nothing is compiled: this one needs a device."
    return ""


def _without(text: str, lines: Sequence[str]) -> str:
    for line in lines:
        text = text.replace(line, "")
    return text


def _header(title: str, call: Call, verdict: v.Verdict, diagnosis: Diagnosis, note: str) -> str:
    where = (
        "Runs on an NPU (torch_npu), on a GPU, or on the host with TRITON_INTERPRET=1 set; needs torch and triton; on"
        f" the host, {WITHOUT_GATHER}."
        if call.launches
        else "Runs on the host; needs torch."
        if call.kind == METHOD
        else "Runs on an NPU (torch_npu), on a GPU or on the host; needs torch and triton."
        if call.kind == OBJECTS
        else "Runs on an NPU (torch_npu), on a GPU or on the host; needs torch."
    )
    package = call.module.partition(".")[0]
    lines = [
        title,
        diagnosis.summary,
        verdict.summary(),
        "",
        where,
        "    python THIS_SCRIPT [FILE]",
        f"FILE is the {PurePath(call.file).name} that defines {call.function}. Without it: FILE below, else an"
        f" installed {package}.",
        "Exit status: 0 everything is as expected, 1 it is not, 2 it cannot be run here.",
        note,
    ]
    wrapped = [
        piece
        for line in dict.fromkeys(printable(line)[:1000] for line in lines)
        for piece in (textwrap.wrap(line, 110) if not line.startswith(" ") else [line]) or [""]
    ]
    return "\n".join(["#!/usr/bin/env python3", *(f"# {line}".rstrip() for line in wrapped)])


def _constants(
    call: Call, case: Case, verdict: v.Verdict, expected: Sequence[Sequence[int]], traces: Sequence[Trace]
) -> str:
    lines = [
        f"FILE = {call.file!r}",
        f"MODULE = {call.module!r}",
        f"FUNCTION = {call.function!r}",
        f"ON_HOST = {call.kind == METHOD}  # it is given host memory only",
        f"PLAIN_TORCH = {not call.launches}  # it launches no kernel",
        f"POISON = {v.UNWRITTEN}  # what outputs hold before the launch: where it is left, nothing was written",
    ]
    unseen = "loads outside the buffers do not show here" if verdict.kind == v.GUARD else ""
    lines.append(f"UNSEEN_ON_A_DEVICE = {unseen!r}")
    if call.kind == METHOD:
        lines.append(f"TAKES_NUMPY = {call.function.rpartition('.')[2] in _TAKE_NUMPY}")
    if call.module.partition(".")[0] in _PUBLISHED:
        lines.append(f"WORLD_SIZE, RANK = {case.cp.size}, {case.cp.rank}")
    rows = _row_lengths(call, expected)
    padded = [[*row, *[v.UNWRITTEN] * (length - len(row))] for row, length in zip(expected, rows, strict=True)]
    lines += ["# What each group's output must hold, element for element.", "EXPECTED = ["]
    lines += [f"    {listed(row, {v.UNWRITTEN: 'POISON'})}," for row in padded]
    lines += ["]", "WHY = {"]
    for each in traces:
        lines += [f"    ({each.group}, {each.token}): [", *(f"        {step!r}," for step in _why(each)), "    ],"]
    lines.append("}")
    return "\n".join(lines)


def _why(trace: Trace) -> list[str]:
    """How an element should come about, a line a step."""
    who = [] if trace.request is None else [f"request {trace.request}, position {trace.position}"]
    return [printable(step) for step in [*who, *trace.steps, trace.reason]]


def _outputs(call: Call) -> list[Buffer]:
    """Where the slots are: a block table that the call fills is writable too."""
    return [each for each in call.buffers() if each.writable and each.name.partition("[")[0] == _OUTPUT]


def _row_lengths(call: Call, expected: Sequence[Sequence[int]]) -> list[int]:
    """Elements of each group's output as it is bound: a row of a shared output is longer than what is compared."""
    outputs = _outputs(call)
    if len(outputs) == len(expected):
        return [max(each.size, len(row)) for each, row in zip(outputs, expected, strict=True)]
    return [outputs[0].size // len(expected)] * len(expected)


def _memory(verdict: v.Verdict, launch: Launch) -> str:
    """Where accesses outside a buffer are let pass, they find as much around it as the suite puts there."""
    margin = _OPEN_MARGIN if launch.fence == "open" or launch.open_buffers else _MARGIN
    if verdict.kind != v.GUARD or launch.fence == "open":
        return pieces.PLAIN_MEMORY.format(margin=margin)
    furthest = max((abs(guard.distance) for guard in verdict.guards), default=0)
    return pieces.GUARDED_MEMORY.format(
        margin=margin,
        after=launch.fence == "after",
        gap=min(max(1 << 24, 2 * furthest), 1 << 36),
        opened=launch.open_buffers,
    )


def _main(call: Call, backwards: bool) -> str:
    lines = ["def main():", "    module = load(sys.argv[1] if len(sys.argv) > 1 else None)"]
    made = objects.buffers(call) if call.kind == OBJECTS else call.buffers()
    lines += [f"    {name_of(each)} = {_made(each)}" for each in made]
    if call.kind != OBJECTS:
        lines += ["    arguments = {"]
        lines += [f"        {name!r}: {expression(value)}," for name, value in call.arguments.items()]
        lines.append("    }")
    if backwards:
        lines.append("    run_backwards()")
    lines += [
        "    try:",
        *(f"        {line}" for line in _launched(call)),
        "        synchronize()",
        "    except Exception as error:",
        '        print(f"the launch raised {type(error).__name__}: {error}")',
        "        return 1",
    ]
    outputs = _outputs(call)
    if len(outputs[0].shape) == 1:
        lines.append(f"    return compare([{', '.join(map(name_of, outputs))}])")
    else:  # one output of two dimensions, a row a group
        lines.append(f"    return compare(list({name_of(outputs[0])}))")
    return "\n".join(lines)


def _launched(call: Call) -> list[str]:
    if call.kind == OBJECTS:
        return objects.lines(call)
    if call.kind == METHOD:
        return ["call_method(module, arguments)"]
    grid = f"[{call.grid!r}]" if call.kind == KERNEL else ""
    return [f"getattr(module, FUNCTION){grid}(**arguments)"]


def _made(buffer: Buffer) -> str:
    """The expression that makes ``buffer``."""
    if buffer.addresses_of:
        return f"addresses({buffer.name!r}, [{', '.join(map(name_of, buffer.addresses_of))}])"
    values = f"[POISON] * {buffer.size}" if buffer.values is None else listed(buffer.values, {})
    words = [repr(buffer.name), repr(buffer.dtype), values]
    if buffer.strides is not None or len(buffer.shape) != 1:
        words.append(f"shape={buffer.shape!r}")
    if buffer.strides is not None:
        words.append(f"strides={buffer.strides!r}")
    return f"{'output' if buffer.writable else 'tensor'}({', '.join(words)})"
