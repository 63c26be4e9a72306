"""Simpler settings for a failing case than the pool of the run has: smaller blocks, fewer ranks, a smaller tile.

Each is a compilation of its own, so they are few, the boldest first. Every token keeps its part: it stays with this
rank or with another one, in the same block of its row, at the same place in the block as far as that exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reference.case import Case, ContextParallel, Group, Launch
from reference.steps import SHARDED, placing, rule_of

Candidate = tuple[Case, Launch]

_TILES = ("TILE_BLOCK_SIZE", "TRITON_BLOCK_SIZE", "BLOCK_SIZE")
_SMALLEST_TILE = 2
_MOST_CELLS = 4096


def specialization_of(case: Case, launch: Launch) -> object:
    """What a launch is compiled for, as far as anybody outside the kernel can tell."""
    groups = tuple((group.block_size, group.kv_cache_block_size, group.kind) for group in case.groups)
    return groups, case.cp, case.pad_id, launch.output_dtype, tuple(launch.constants.items())


def simpler_settings(case: Case, launch: Launch) -> Iterator[Candidate]:
    """Cases that need another compilation, each simpler than ``case`` in one respect."""
    yield from _smaller_tiles(case, launch)
    for changed in _simpler_geometries(case):
        yield changed, launch
    if case.pad_id != -1:
        yield replace(case, pad_id=-1), launch
    if launch.output_dtype != "int32":
        yield case, replace(launch, output_dtype="int32")


def _smaller_tiles(case: Case, launch: Launch) -> Iterator[Candidate]:
    for name in _TILES:
        tile = launch.constants.get(name, 0)
        smaller = _SMALLEST_TILE
        while smaller < tile:
            if smaller < case.num_tokens:  # else there is one tile, whatever its size
                yield case, replace(launch, constants={**launch.constants, name: smaller})
            smaller *= 4


def _simpler_geometries(case: Case) -> Iterator[Case]:
    cp, none = case.cp, ContextParallel()
    if cp != none:
        yield from _changed(case, none, None)
    if cp.size > 2:
        for rank in dict.fromkeys((min(cp.rank, 1), 1 - min(cp.rank, 1))):
            yield from _changed(case, ContextParallel(2, rank, cp.interleave), None)
    for index, group in enumerate(case.groups):
        b, k = group.block_size, group.blocks_per_kv_block
        sizes = [(s, j) for s in (2, 4) if s <= b for j in (1, 2, k) if j <= k]
        for block_size, factor in dict.fromkeys([*sizes, (b, 1), (b, 2)]):
            if block_size <= b and factor <= k and (block_size, factor) != (b, k):
                yield from _changed(case, cp, (index, block_size, block_size * factor))
    if cp.size > 1 and cp.interleave > 1:
        for interleave in (1, 2):
            if interleave < cp.interleave:
                yield from _changed(case, ContextParallel(cp.size, cp.rank, interleave), None)


def _changed(case: Case, cp: ContextParallel, sizes: tuple[int, int, int] | None) -> Iterator[Case]:
    """``case`` with another ``cp`` or other sizes (group, block_size, kv_cache_block_size), its tokens where they were,
    or else in the same position.
    """
    groups = list(case.groups)
    if sizes is not None:
        index, block_size, kv_cache_block_size = sizes
        groups[index] = replace(groups[index], block_size=block_size, kv_cache_block_size=kv_cache_block_size)
    leading = 0 if sizes is None else sizes[0]
    smallest = min((g.kv_cache_block_size for g in groups if g.enabled and g.sharded), default=cp.interleave)
    if sizes is not None and cp.size > 1 and cp.interleave > 1 and smallest % cp.interleave:
        cp = replace(cp, interleave=smallest if smallest < cp.interleave else 1)
    moved = tuple(_moved(p, case.cp, case.groups[leading], cp, groups[leading]) for p in case.positions)
    for positions in dict.fromkeys((moved, case.positions)):
        changed = replace(case, cp=cp, positions=positions)
        fitting = [_fitting(changed, group) for group in groups]
        if all(group is not None for group in fitting):
            yield replace(changed, groups=tuple(group for group in fitting if group is not None))


def _moved(p: int, cp: ContextParallel, group: Group, new: ContextParallel, changed: Group) -> int:
    """The position that plays the part of ``p`` where blocks and ranks are others."""
    if p < 0:
        return p
    if group.kind == "circular" or cp.size == 1 or not group.sharded:
        index, offset = divmod(p, group.block_size)
        return index * changed.block_size + min(offset, changed.block_size - 1)
    virtual, o = divmod(p, group.kv_cache_block_size * cp.size)
    run, place = divmod(o, cp.interleave)
    turn, owner = divmod(run, cp.size)
    turns = changed.kv_cache_block_size // new.interleave
    owner = new.rank if owner == cp.rank else (new.rank + 1) % new.size
    run = min(turn, turns - 1) * new.size + owner
    return virtual * changed.kv_cache_block_size * new.size + run * new.interleave + min(place, new.interleave - 1)


def _fitting(case: Case, group: Group) -> Group | None:
    """``group`` with rows that have every column that its tokens need: its own, or else the simplest; None where that
    would be too many.
    """
    k = group.blocks_per_kv_block
    if group.kind == "circular" or not group.block_table:
        return group
    width = group.row_width // k * k
    needed = columns_needed(case, group)
    if needed <= width:
        return replace(group, block_table=tuple(row[:width] for row in group.block_table), row_stride=None)
    width, rows = -(-needed // k) * k, len(group.block_table)
    if width * rows > _MOST_CELLS:
        return None
    table = tuple(tuple(range(row * width, (row + 1) * width)) for row in range(rows))
    return replace(group, block_table=table, row_stride=None)


def columns_needed(case: Case, group: Group) -> int:
    """Columns that the local tokens of ``case`` need in a row of ``group``."""
    if not group.enabled:
        return 0
    if rule_of(case, group) == SHARDED and group.kv_cache_block_size % case.cp.interleave:
        return 0  # illegal, as whoever wants to run it will see
    place = placing(case, group)
    places = (place(p) for p in case.positions[: case.num_tokens] if p >= 0)
    return max((index + 1 for _, _, owner, _, index, _ in places if owner == case.cp.rank), default=0)


def most_compilations(compile_seconds: float) -> int:
    """How many compilations a smaller example is worth."""
    return MOST if compile_seconds <= 0 else min(MOST, int(_BUDGET_SECONDS / compile_seconds))


MOST = 12
_BUDGET_SECONDS = 6.0
