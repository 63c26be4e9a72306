"""Of outputs that are used again: what an earlier batch left in them plays no part."""

from __future__ import annotations

from conformance.properties.property import Launches, Property, Rows, shown
from conformance.subjects.entry import EntryPoint
from reference.case import Case


def _contents(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    """Taking slots back works on what the output holds, so there the second launch meets the output of the first."""
    rows = launch("the batch", case)
    if "replay" not in entry.declaration.features:
        left = [_other_slots(row, choice) for row in rows]
        said = _difference(case, rows, left, launch("the batch into outputs with other slots", case, left), entry)
        if said is not None:
            return said
    return _difference(case, rows, rows, launch("the batch into its own output", case, rows), entry)


def _other_slots(row: list[int], choice: int) -> list[int]:
    """Slots as a batch could have left them, none that this one gives the same element."""
    wanted = (3 + choice + 7 * element for element in range(len(row)))
    return [other + (other == slot) for other, slot in zip(wanted, row, strict=True)]


def _difference(case: Case, rows: Rows, held: Rows, found: Rows, entry: EntryPoint) -> str | None:
    written = case.max_num_tokens if entry.writes_tail else case.num_tokens
    for group, (first, before, again) in enumerate(zip(rows, held, found, strict=True)):
        for element, value in enumerate(again):
            if value != (first if element < written else before)[element]:
                return (
                    f"element {element} of group {group} has {shown(first[element])} in the first launch, and"
                    f" {shown(value)} in one whose output held {shown(before[element])} there"
                )
    return None


CONTENTS = Property(
    "contents of the output",
    "what the output held changes nothing: into a dirty one, twice, gives the same as once into a clean one",
    _contents,
)
