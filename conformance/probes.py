"""Launches like one that failed, made to tell its possible causes apart: the same settings, other tokens and tables.

They compile nothing new. A case that is replayed from a file has no launches before it; these take their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conformance.simpler import columns_needed
from reference.case import Case, Group, Launch
from reference.fields import INT32_MAX

Candidate = tuple[Case, Launch]

_RUN = 24
"""Consecutive tokens of a probe."""
_MOST_CELLS = 1 << 16
"""Of one table: a few rows for long contexts. Above it a batch is left out, and what it tells apart is not."""


def probes(case: Case, launch: Launch) -> Iterator[Candidate]:
    """Neighbours of ``case``; not all of them are legal."""
    for token in range(min(case.num_tokens, 3)):
        for position in _near(case, case.positions[token]):
            positions = (*case.positions[:token], position, *case.positions[token + 1 :])
            yield replace(case, positions=positions), launch
    if not case.num_tokens:
        return
    first = max(case.positions[0], 0)
    group = case.groups[0]
    allocated = group.kv_cache_block_size * case.cp.size
    for start, step in ((0, 1), (max(first - _RUN // 2, 0), 1), (first % allocated, allocated), (1, group.block_size)):
        yield from _runs(case, launch, tuple(start + step * index for index in range(_RUN)))


def _near(case: Case, position: int) -> Iterator[int]:
    """Positions in the same block and in its neighbours, for every group."""
    found = {0, position - 1, position + 1}
    for group in case.groups:
        for size in (group.block_size, group.kv_cache_block_size, group.kv_cache_block_size * case.cp.size):
            start = position // size * size
            found |= {start, start + 1, start + size // 2, start + size - 1, position - size, position + size}
    yield from sorted(each for each in found - {position} if 0 <= each <= INT32_MAX)


def _runs(case: Case, launch: Launch, positions: tuple[int, ...]) -> Iterator[Candidate]:
    """The batch replaced by one whose requests share ``positions``, on tables of which no two cells are alike."""
    if positions[-1] > INT32_MAX:
        return
    count, requests = len(positions), max(case.num_reqs, 1)
    bounds = tuple(count * request // requests for request in range(requests + 1))
    spare = case.max_num_tokens - case.num_tokens
    beyond = 0 if launch.output_length is None else launch.output_length - case.max_num_tokens
    batch = replace(
        case, query_start_loc=bounds, positions=positions, num_tokens=count, max_num_tokens=count + max(spare, 2)
    )
    groups = [_told_apart(batch, group, index) for index, group in enumerate(case.groups)]
    if any(group is None for group in groups):
        return
    batch = replace(batch, groups=tuple(group for group in groups if group is not None))
    length = batch.max_num_tokens + max(beyond, 2)
    for fence in ("after", "before"):
        yield batch, replace(launch, output_length=length, fence=fence)


def _told_apart(case: Case, group: Group, index: int) -> Group | None:
    """``group`` with rows wide enough, and a number of its own in every allocated block of every row."""
    rows, k = len(group.block_table), group.blocks_per_kv_block
    width = 1 if group.kind == "circular" else max(-(-columns_needed(case, group) // k) * k, group.row_width)
    if rows * width > _MOST_CELLS:
        return None
    blocks = rows * width // k
    size = 1 << max(blocks - 1, 0).bit_length()

    def number(row: int, column: int) -> int:
        allocated, kernel = divmod(column, k)
        # A permutation that no arithmetic on rows and columns gives by chance.
        shuffled = (row * (width // k) + allocated) * (size * 5 // 8 | 1) % size
        return (1 + index * size + shuffled) * k + kernel

    table = tuple(tuple(number(row, column) for column in range(width)) for row in range(rows))
    stride = None if group.row_stride is None else width + group.row_stride - group.row_width
    return replace(group, block_table=table, row_stride=stride)
