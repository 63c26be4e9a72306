"""Of the slots of one batch: whose they are can be told from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conformance.properties.prepared import apart, prefill, roomy
from conformance.properties.property import Launches, Property, Rows, shown, token_of
from conformance.subjects.entry import EntryPoint
from reference.case import Case, Group
from reference.steps import CIRCULAR, DISABLED, SHARDED, rule_of


def on_every_rank(launch: Launches, case: Case) -> Iterator[tuple[Case, Rows]]:
    """Launch ``case`` on each of its ranks, this one first."""
    for step in range(case.cp.size):
        rank = (case.cp.rank + step) % case.cp.size
        own = replace(case, cp=replace(case.cp, rank=rank))
        yield own, launch(f"rank {rank} of {case.cp.size}" if case.cp.size > 1 else "the batch", own)


def tokens_of(case: Case, request: int) -> Iterator[tuple[int, int]]:
    """(token, position) of those that are in the sequence: positions below 0 have no slot to speak of."""
    for token in range(case.query_start_loc[request], case.query_start_loc[request + 1]):
        if case.positions[token] >= 0:
            yield token, case.positions[token]


def _distinct(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    case = apart(roomy(case))
    for own, rows in on_every_rank(launch, case):
        for index, group in enumerate(own.groups):
            ring = group.block_size if rule_of(own, group) == CIRCULAR else None
            owners: dict[int, tuple[int, int, int]] = {}
            for request in range(own.num_reqs):
                for token, position in tokens_of(own, request):
                    slot = rows[index][token]
                    if slot == own.pad_id:
                        continue
                    place = own.row_of(request), position if ring is None else position % ring
                    row, at, other = owners.setdefault(slot, (*place, token))
                    if (row, at) != place:
                        return (
                            f"{token_of(own, other)} and {token_of(own, token)} both have slot {slot} in group {index}"
                            f" on rank {own.cp.rank}, and no block stands twice in its table"
                        )
    return None


def _from_the_front(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    case = apart(roomy(prefill(case)))
    for own, rows in on_every_rank(launch, case):
        for index, group in enumerate(own.groups):
            if rule_of(own, group) in (DISABLED, CIRCULAR):
                continue
            b = group.block_size
            for request in range(own.num_reqs):
                mine = [token for token, _ in tokens_of(own, request) if rows[index][token] != own.pad_id]
                for place, token in enumerate(mine):
                    block = group.block_table[own.row_of(request)][place // b]
                    if rows[index][token] != block * b + place % b:
                        return (
                            f"{token_of(own, token)} is number {place} of its request on rank {own.cp.rank}, so it"
                            f" comes into block {block} of group {index} at offset {place % b}, slot"
                            f" {block * b + place % b}; it has {shown(rows[index][token])}"
                        )
    return None


def _inverse(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    case = apart(roomy(case))
    for own, rows in on_every_rank(launch, case):
        for index, group in enumerate(own.groups):
            if rule_of(own, group) == DISABLED:
                continue
            cells = {n: (row, i) for row, numbers in enumerate(group.block_table) for i, n in enumerate(numbers)}
            for request in range(own.num_reqs):
                for token, position in tokens_of(own, request):
                    slot = rows[index][token]
                    if slot == own.pad_id:
                        continue
                    said = f"{token_of(own, token)} has slot {shown(slot)} in group {index} on rank {own.cp.rank}"
                    block, offset = divmod(slot, group.block_size)
                    if block not in cells:
                        return f"{said}: block {block} is in no row of the table"
                    row, column = cells[block]
                    if row != own.row_of(request):
                        return f"{said}: block {block} is row {row}'s, the request has row {own.row_of(request)}"
                    led = _position(own, group, column, offset)
                    if led != (position if rule_of(own, group) != CIRCULAR else position % group.block_size):
                        return f"{said}: offset {offset} of column {column} is the place of position {led}"
    return None


def _position(case: Case, group: Group, column: int, offset: int) -> int:
    """The position whose place this is on rank ``case.cp.rank``; in a ring the first of them."""
    rule = rule_of(case, group)
    if rule == CIRCULAR:
        return offset
    b, k = group.block_size, group.blocks_per_kv_block
    if rule != SHARDED:
        return column * b + offset
    world, rank, turn = case.cp.size, case.cp.rank, case.cp.interleave
    rounds, within = divmod(column % k * b + offset, turn)
    return column // k * (k * b * world) + (rounds * world + rank) * turn + within


DISTINCT = Property(
    "distinct slots",
    "no two tokens share a slot of a group when no block stands twice in its table",
    _distinct,
)
FROM_THE_FRONT = Property(
    "filled from the front",
    "in a prefill from position 0, a rank's tokens of a request fill its blocks from the front, without gaps, in order",
    _from_the_front,
)
INVERSE = Property(
    "slots lead back",
    "a slot leads back, through the table, to the request and the position of its token",
    _inverse,
)
