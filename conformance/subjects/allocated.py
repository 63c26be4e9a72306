"""Tables as an engine fills them: a row is made of allocated blocks, of which each brings k kernel blocks in order."""

from __future__ import annotations

from dataclasses import replace

from reference.case import Case, Group
from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX


def allocated_rows(group: Group) -> list[list[int]] | None:
    """The allocated blocks of each row, or None where some row is not made of such."""
    k = group.blocks_per_kv_block
    rows = [[number // k for number in row[::k]] for row in group.block_table]
    return rows if _split(rows, k) == group.block_table else None


def with_allocated_rows(case: Case) -> Case:
    """``case`` with tables that are made of allocated blocks: those that its first kernel blocks belong to."""
    return replace(case, groups=tuple(map(_allocated, case.groups)))


def _allocated(group: Group) -> Group:
    k = group.blocks_per_kv_block
    if k == 1:
        return group
    # The last kernel block of an allocated one needs a number and slots as much as its first.
    blocks = min(FLOAT32_EXACT // k, (INT32_MAX + 1) // group.kv_cache_block_size)
    rows = [[min(number // k, blocks - 1) for number in row[::k]] for row in group.block_table]
    return replace(group, block_table=_split(rows, k))


def _split(rows: list[list[int]], k: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(number * k + part for number in row for part in range(k)) for row in rows)
