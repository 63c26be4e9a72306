"""What the differing elements show by themselves, where no single mistake is known that explains all of them."""

from __future__ import annotations

from collections.abc import Iterable

from reference.verdict import UNWRITTEN
from reports.diagnosis.mapping import Mapping, Observation

_LOOKED_AT = 64
"""Differing elements that are looked at: they must all show the same."""


def shown(seen: Observation) -> tuple[str, str] | None:
    """The cause that every differing element shows, with a sentence about the first; None where they disagree."""
    found = [_shown(seen, group, element) for group, element in seen.differing[:_LOOKED_AT]]
    if not found or found[0] is None or any(each is None or each[0] != found[0][0] for each in found):
        return None
    return found[0]


def shown_by_all(cause: str, evidence: Iterable[Observation]) -> bool:
    """Whether the other launches that failed show it, too: where they show something else, nobody knows what is common
    to all. What is not written, or is where nothing may be, is so whatever the others show.
    """
    return cause in _PLAIN or all(
        (found := shown(each)) is not None and found[0] == cause for each in evidence if each.differing
    )


_PLAIN = frozenset({"stale element", "padding end"})


def _shown(seen: Observation, group: int, element: int) -> tuple[str, str] | None:
    case = seen.case
    expected, actual = seen.expected[group][element], seen.actual[group][element]
    where = f"element {element} of group {group}"
    if element >= case.num_tokens:
        return _shown_behind(case.max_num_tokens, case.pad_id, expected, actual, element, where)
    right = Mapping(seen)
    right.at(group, element)
    p = right.position()
    if actual == UNWRITTEN:
        return "stale element", f"{where} is not written, it should hold {expected}"
    if expected == case.pad_id:
        return _shown_of_pad(right, p, where, actual)
    if actual == case.pad_id:
        if right.sharded():
            return None  # taken for another rank's, or not found in the table: both look like this
        return None
    return _shown_of_slot(right, expected, actual, where)


def _shown_behind(last: int, pad: int, expected: int, actual: int, element: int, where: str) -> tuple[str, str] | None:
    if expected == UNWRITTEN and actual == pad:
        return "padding end", f"{where} is padded, nothing may be written there"
    if expected == pad and actual == UNWRITTEN:
        return "stale element", f"{where} is not written, it should hold PAD_ID = {pad}"
    return None


def _shown_of_pad(right: Mapping, p: int, where: str, actual: int) -> tuple[str, str] | None:
    """A slot where none may be: of a block that is in the table, or it may as well be padding of another value."""
    number = actual // right.b
    if not any(number in cells for cells in right.own.block_table):
        return None
    if not right.own.enabled:
        return "disabled group", f"{where} holds {actual}, the group is disabled"
    if p < 0:
        return "sign", f"{where} holds {actual}, its position {p} is negative"
    if right.replayed():
        return "replay window", f"{where} keeps its slot {actual}, its position {p} is replayed"
    if right.sharded() and not right.is_local():
        owner = right.owner(p % right.virtual_size())
        return "ownership", f"{where} holds slot {actual}, position {p} is rank {owner}'s and this is rank {right.R}"
    return None


def _shown_of_slot(right: Mapping, expected: int, actual: int, where: str) -> tuple[str, str] | None:
    """Another slot than the right one."""
    b, table = right.b, right.own.block_table
    number, offset = divmod(actual, b)
    right_number, right_offset = divmod(expected, b)
    if number == right_number:
        return "block offset", f"{where} is in the right block {number}, at offset {offset} and not {right_offset}"
    if offset != right_offset:
        return None
    row, index = right.row(), right.block_index()
    columns = [column for column, each in enumerate(table[row]) if each == number]
    rows = [other for other, cells in enumerate(table) if other != row and number in cells]
    if columns and not rows:
        return (
            "table column",
            f"{where} takes block {number} of column {columns[0]} in row {row}, column {index} is right",
        )
    if rows and not columns:
        column = table[rows[0]].index(number)
        return (
            "table row",
            f"{where} takes block {number}, which is in row {rows[0]}, column {column}; row {row} is right",
        )
    if not rows and not columns:
        groups = [g for g, each in enumerate(right.case.groups) if any(number in cells for cells in each.block_table)]
        if groups:
            return "foreign group", f"{where} takes block {number}, which is in the table of group {groups[0]} only"
    return None
