"""Of a batch with other tables: block numbers are names, and groups have nothing to do with one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from conformance.properties.prepared import apart, most_blocks
from conformance.properties.property import Changed, Launches, Property, contradiction
from conformance.subjects.entry import EntryPoint
from reference.case import Case, Group


def _numbers(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    case = apart(case)
    names = [_names(group, case.pad_id, choice) for group in case.groups]
    groups = tuple(_renamed(group, own) for group, own in zip(case.groups, names, strict=True))

    def slot_here(group: int, slot: int) -> int:
        b, k = case.groups[group].block_size, case.groups[group].blocks_per_kv_block
        block, offset = divmod(slot, b)
        # A slot of no block of the table keeps its number: it is wrong here and there.
        return (names[group].get(block // k, block // k) * k + block % k) * b + offset

    rows = launch("the batch", case)
    what = "the batch with its blocks renumbered"
    changed = Changed(
        what, replace(case, groups=groups), range(case.num_tokens), range(len(case.groups)), renamed=slot_here
    )
    return contradiction(launch, case, rows, changed, entry)


def _names(group: Group, pad_id: int, choice: int) -> Mapping[int, int]:
    """Another number for each allocated block in the table: the same ones backwards, or those from 1 on where there are
    so many.
    """
    k = group.blocks_per_kv_block
    used = sorted({number // k for row in group.block_table for number in row})
    taken = {pad_id // group.block_size // k} if pad_id >= 0 else set()
    if choice % 2 or len(used) + 1 >= most_blocks(group):
        return dict(zip(used, reversed(used), strict=True)) if not taken.intersection(used) else {}
    free = (number for number in range(1, len(used) + 2) if number not in taken)
    return dict(zip(used, free, strict=False))


def _renamed(group: Group, names: Mapping[int, int]) -> Group:
    k = group.blocks_per_kv_block
    table = tuple(tuple(names.get(n // k, n // k) * k + n % k for n in row) for row in group.block_table)
    return replace(group, block_table=table)


def _groups(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    """A group like one of those that are there, its rows upside down, in front of all or behind them."""
    like = case.groups[choice // 2 % len(case.groups)]
    added = replace(like, block_table=like.block_table[::-1])
    in_front = choice % 2 == 0
    groups = (added, *case.groups) if in_front else (*case.groups, added)
    own = list(range(len(case.groups)))
    changed = replace(case, groups=groups)
    if case.replay is not None and in_front:
        moved = tuple(group + 1 for group in case.replay.cacheable_groups)
        changed = replace(changed, replay=replace(case.replay, cacheable_groups=moved))
    rows = launch("the batch", case)
    what = "the batch with one more group"
    origins = [None, *own] if in_front else [*own, None]
    return contradiction(launch, case, rows, Changed(what, changed, range(case.num_tokens), origins), entry)


NUMBERS = Property(
    "block numbers", "renumbering blocks renumbers the blocks of slots and changes nothing else", _numbers
)
GROUPS = Property("groups", "one more group changes no slot of the others", _groups, frozenset({"groups"}))
