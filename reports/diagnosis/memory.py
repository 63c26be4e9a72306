"""Launches that left no output to compare: what was touched, by how much, and which token's look-up that may be."""

from __future__ import annotations

import re

from reference.case import Case
from reference.verdict import ON_CHIP, Guard
from reports.diagnosis.mapping import Mapping, Observation

_NUMBERS = re.compile(r"0x[0-9a-f]+|-?[0-9]+")
_CELL_BYTES = 4
_MOST_NAMED = 120
_MASK_DROPPED = (
    ". If a mask forbids this read, give it a good address too, as tl.where(mask, index, 0) is: triton-ascend drops"
    " the mask of a load at computed addresses"
)
_MOST_TOKENS = 1024


def cause_of(guard: Guard) -> str:
    """The cause that a guard violation is by itself."""
    if guard.buffer == ON_CHIP and guard.distance == 0:
        return "read before it is written"
    if guard.distance == 0 and guard.direction == "write":
        return "input written"
    direction = guard.direction if guard.direction in ("read", "write") else "access"
    return f"out of bounds {direction} {'before' if guard.distance < 0 else 'past'}"


def buffer_of(guard: Guard) -> str:
    """The memory that is concerned, whichever group it belongs to."""
    return guard.buffer.partition("[")[0]


def sentence_of(guard: Guard, case: Case, seen: Observation) -> str:
    """What was touched and by how much, and what that looks like."""
    hint = _hint(guard, seen) if guard.buffer.startswith("block_table") and case.groups else ""
    dropped = guard.direction == "read" and guard.buffer != ON_CHIP
    return f"{guard.message}{hint}{_MASK_DROPPED if dropped else ''}"


def without_numbers(message: str) -> str:
    """What two messages of one cause have in common."""
    return " ".join(_NUMBERS.sub("N", message).split())[:_MOST_NAMED]


def _hint(guard: Guard, seen: Observation) -> str:
    """Which cell of the table the address would be, and whose look-up that is."""
    inside = re.search(r"\[([0-9]+)\]", guard.buffer)
    index = int(inside.group(1)) if inside else 0
    if index >= len(seen.case.groups):
        return ""
    group = seen.case.groups[index]
    if not group.stride or not group.block_table:
        return ""
    cells = (len(group.block_table) - 1) * group.stride + group.row_width
    if guard.distance < 0:
        row, column = divmod(guard.distance // _CELL_BYTES, group.stride)
    else:
        row, column = divmod(cells - 1 + guard.distance // _CELL_BYTES, group.stride)
    place = f"; that is where row {row}, column {column} would be: the table has {len(group.block_table)} rows"
    place += f" of {group.row_width} columns"
    return place + _whose(seen, index, row, column)


def _whose(seen: Observation, group: int, row: int, column: int) -> str:
    """The first token whose block index leads there."""
    right = Mapping(seen)
    stride = seen.case.groups[group].stride
    for token in range(min(seen.case.num_tokens, _MOST_TOKENS)):
        right.at(group, token)
        needed = right.block_index()
        if needed is None or right.row() * stride + needed != row * stride + column:
            continue
        if not right.is_local():
            return (
                f". Token {token} (position {right.position()}), another rank's, would have its block there: only local"
                " tokens may be looked up"
            )
    used = {seen.case.row_of(r) for r in range(seen.case.num_reqs)}
    if row not in used and row - 1 in used and row >= len(seen.case.groups[group].block_table):
        return (
            ". No token needs it: either the row behind the right one is read, or a stretch of cells without a mask on"
            " the width of the row"
        )
    return ". No token needs it: mask what is read by the width of the row"


def look_up_without_slot(seen: Observation) -> tuple[str, str] | None:
    """Cause and sentence about the first token that gets no slot and whose block index lies outside its row, if there
    is one. It is told where a library refused an index.
    """
    right = Mapping(seen)
    for index, group in enumerate(seen.case.groups):
        for token in range(min(seen.case.num_tokens, _MOST_TOKENS)):
            right.at(index, token)
            needed, p = right.block_index(), right.position()
            if p < 0 and right.enabled():
                what = f"the cell of a token without a slot is looked up: position {p} of token {token} is negative"
                return "out of bounds read before", f"{what}. Replace the index where there is no slot"
            if needed is not None and needed >= group.row_width and not right.is_local():
                what = f"the cell of another rank's token is looked up: token {token} (position {p}) would have column"
                what += f" {needed} and its row is {group.row_width} wide"
                return "out of bounds read past", f"{what}. Replace the index where the token is not local"
    return None
