"""Cases on which a property can be seen: tables with room for every rank's tokens, no block twice, prefills from 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from reference.case import Case, Group
from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX
from reference.steps import SHARDED, rule_of

_MOST_CELLS = 4096
"""Cells of a table; positions that would need more are moved down to where they do not."""

Table = tuple[tuple[int, ...], ...]


def prefill(case: Case) -> Case:
    """The same requests, each from position 0 on."""
    bounds = case.query_start_loc
    positions = [i for r in range(case.num_reqs) for i in range(bounds[r + 1] - bounds[r])]
    return replace(case, positions=(*positions, *case.positions[case.num_tokens :]))


def roomy(case: Case) -> Case:
    """With tables in which every token has a block on the rank that owns it, whichever that is."""
    growing = [group for group in case.groups if group.enabled and group.kind == "paged"]
    limit = min((_positions(case, group) for group in growing), default=INT32_MAX)
    tokens = tuple(p % limit if p >= limit else p for p in case.positions[: case.num_tokens])
    case = replace(case, positions=(*tokens, *case.positions[case.num_tokens :]))
    furthest = max(tokens, default=0)
    return replace(case, groups=tuple(_widened(case, group, furthest) for group in case.groups))


def apart(case: Case) -> Case:
    """With tables in which no block stands twice and none has a slot that is PAD_ID: -1 where every block is needed."""
    to_spare = all(sum(map(len, g.block_table)) // g.blocks_per_kv_block < most_blocks(g) for g in case.groups)
    pad_id = case.pad_id if to_spare else min(case.pad_id, -1)
    return replace(case, groups=tuple(_apart(group, pad_id) for group in case.groups), pad_id=pad_id)


def most_blocks(group: Group) -> int:
    """How many allocated blocks there can be: their slots fit int32, and float32 holds the kernel blocks' numbers."""
    return min(FLOAT32_EXACT // group.blocks_per_kv_block, (INT32_MAX + 1) // group.kv_cache_block_size)


def _virtual(case: Case, group: Group) -> int:
    """Positions that one allocated block of each rank holds together."""
    return group.kv_cache_block_size * (case.cp.size if rule_of(case, group) == SHARDED else 1)


def _positions(case: Case, group: Group) -> int:
    """How many positions a table of the same rows affords."""
    blocks = min(_MOST_CELLS, (INT32_MAX + 1) // group.block_size - 1)
    columns = max(blocks // max(len(group.block_table), 1), group.row_width) // group.blocks_per_kv_block
    return max(columns, 1) * _virtual(case, group)


def _widened(case: Case, group: Group, furthest: int) -> Group:
    if not group.enabled or group.kind == "circular" or not group.block_table:
        return group
    missing = (furthest // _virtual(case, group) + 1) * group.blocks_per_kv_block - group.row_width
    if missing <= 0:
        return group
    unused = _unused(group.block_table, group.blocks_per_kv_block)
    table = tuple(row + tuple(next(unused) for _ in range(missing)) for row in group.block_table)
    stride = None if group.row_stride is None else group.row_stride + missing
    return replace(group, block_table=table, row_stride=stride)


def _unused(table: Table, k: int) -> Iterator[int]:
    """Kernel blocks of the allocated blocks of which ``table`` has none, the first first."""
    used = {number // k for row in table for number in row}
    return (block * k + part for block in count() if block not in used for part in range(k))


def _apart(group: Group, pad_id: int) -> Group:
    numbers = [number for row in group.block_table for number in row]
    taken = {pad_id // group.block_size} if pad_id >= 0 else set()
    if len(set(numbers)) == len(numbers) and not taken.intersection(numbers):
        return group
    k = group.blocks_per_kv_block
    fresh = _unused((tuple(taken),), k)
    return replace(group, block_table=tuple(tuple(next(fresh) for _ in row) for row in group.block_table))
