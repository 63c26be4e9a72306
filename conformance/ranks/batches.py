"""Batches for all ranks at once: a few requests whose sequences come in one or more steps, as a scheduler cuts them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conformance.subjects.entry import EntryPoint
from reference.case import Case, ContextParallel, Group, Launch

HEADS, SIZE = 2, 8
"""Attention heads, and elements of a head."""

_MOST_REQUESTS, _MOST_TOKENS, _MOST_STEPS = 5, 70, 3
_SPARE_BLOCKS = 7

# (b, B, I): one kernel block an allocated one, several, and interleaves from one token over more than b to all of B.
GEOMETRIES = ((16, 16, 1), (4, 8, 8), (4, 16, 2), (3, 6, 3), (1, 4, 4), (16, 32, 16))


@dataclass(frozen=True, slots=True)
class Batch:
    """``lengths``: the tokens of each request, all of them from position 0 on. ``steps``: for each launch, how many
    tokens of each request are there when it is done. ``rows``: the block-table row of each request.
    """

    number: int
    group: Group
    world: int
    interleave: int
    lengths: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]

    @property
    def num_blocks(self) -> int:
        """Kernel blocks of each rank's cache."""
        return sum(map(len, self.group.block_table)) + _SPARE_BLOCKS * self.group.blocks_per_kv_block

    def case(self, step: int, rank: int, entry: EntryPoint) -> Case:
        """What ``rank`` launches in ``step``."""
        before = self.steps[step - 1] if step else (0,) * len(self.lengths)
        own = [range(first, last) for first, last in zip(before, self.steps[step], strict=True)]
        bounds = np.cumsum([0, *map(len, own)]).tolist()
        group, mapping = self.group, None
        if "idx_mapping" in entry.declaration.features:
            mapping = self.rows
        else:  # the rows of requests stand in their order
            group = replace(group, block_table=tuple(group.block_table[row] for row in self.rows))
        return Case(
            query_start_loc=tuple(bounds),
            positions=tuple(position for positions in own for position in positions),
            num_tokens=bounds[-1],
            max_num_tokens=bounds[-1] + 3,
            groups=(group,),
            cp=ContextParallel(self.world, rank, self.interleave),
            idx_mapping=mapping,
        )

    def describe(self) -> str:
        group = self.group
        return (
            f"W={self.world} I={self.interleave} b={group.block_size} B={group.kv_cache_block_size},"
            f" {len(self.lengths)} requests of {', '.join(map(str, self.lengths))} tokens in {len(self.steps)} steps"
        )


def draw(seed: int, number: int, world: int, entry: EntryPoint) -> Batch:
    """Batch ``number`` of a seed, the same in every process."""
    rng = np.random.default_rng((seed, number))
    b, size, interleave = GEOMETRIES[number % len(GEOMETRIES)]
    if "hybrid" not in entry.declaration.features and size != b:
        b = size
    lengths = tuple(rng.integers(1, _MOST_TOKENS, rng.integers(1, _MOST_REQUESTS + 1)).tolist())
    count = int(rng.integers(1, _MOST_STEPS + 1))
    cuts = np.sort(rng.integers(0, np.array(lengths) + 1, (count - 1, len(lengths))), axis=0)
    steps = (*(tuple(step) for step in cuts.tolist()), lengths)
    k, columns = size // b, -(-max(lengths) // (size * world))
    allocated = rng.permutation(len(lengths) * columns + _SPARE_BLOCKS)[: len(lengths) * columns]
    table = tuple(
        tuple(int(block) * k + part for block in row for part in range(k))
        for row in allocated.reshape(len(lengths), columns)
    )
    rows = tuple(rng.permutation(len(lengths)).tolist())
    return Batch(number, Group(table, b, size), world, interleave, lengths, steps, rows)


def launch_of(entry: EntryPoint) -> Launch:
    """Memory around the buffers can be read: here slots are judged, and by what they are good for."""
    return Launch("int64" if entry.subject == "vllm" else "int32", fence="open")


def local_tokens(length: int, world: int, rank: int, interleave: int) -> int:
    """How many of the first ``length`` tokens of a sequence are the rank's, as attention backends count them."""
    rounds, rest = divmod(length, world * interleave)
    return rounds * interleave + min(max(rest - rank * interleave, 0), interleave)
