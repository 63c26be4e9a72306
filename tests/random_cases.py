"""Small legal cases of one group from a seeded generator, for what the suite itself does not launch."""

from __future__ import annotations

import random

from reference.case import Case, ContextParallel, Group
from reference.steps import placing


def draw(rng: random.Random, *, world_sizes: tuple[int, ...], circular: bool = False) -> Case:
    """Up to four requests; consecutive, sparse and negative positions; rows just wide enough for this rank's tokens.

    The last row of the table belongs to the last request, and the row stride may exceed the width.
    """
    block_size = rng.choice((1, 3, 4, 16))
    blocks_per_kv_block = 1 if circular else rng.choice((1, 1, 2, 3))
    size = block_size * blocks_per_kv_block
    world = rng.choice(world_sizes)
    interleave = rng.choice([n for n in range(1, size + 1) if size % n == 0])
    cp = ContextParallel(world, rng.randrange(world), interleave)
    bounds, positions = [0], []
    for _ in range(rng.randint(0, 4)):
        length = rng.choice((0, 1, 2, rng.randint(3, 30)))
        first = rng.randint(0, 200)
        positions += rng.choice((_consecutive, _sparse, _some_negative))(rng, first, length)
        bounds.append(bounds[-1] + length)
    num_reqs, max_num_tokens = len(bounds) - 1, bounds[-1] + rng.choice((0, 1, 20))

    def case(width: int) -> Case:
        numbers = [[rng.randrange(1 << 26) for _ in range(width)] for _ in range(max(num_reqs, 1))]
        group = Group(
            block_table=tuple(map(tuple, numbers)),
            block_size=block_size,
            kv_cache_block_size=size,
            kind="circular" if circular else "paged",
            row_stride=width + rng.choice((0, 0, 3)),
        )
        return Case(tuple(bounds), tuple(positions), bounds[-1], max_num_tokens, (group,), cp)

    return case(blocks_per_kv_block if circular else _width(case(blocks_per_kv_block)))


def _width(case: Case) -> int:
    """Columns that this rank's tokens need, in whole allocated blocks, at least one."""
    (group,) = case.groups
    places = map(placing(case, group), (p for p in case.positions if p >= 0))
    needed = max((index for _, _, owner, _, index, _ in places if owner == case.cp.rank), default=0) + 1
    k = group.blocks_per_kv_block
    return -(-needed // k) * k


def _consecutive(rng: random.Random, first: int, length: int) -> list[int]:
    return list(range(first, first + length))


def _sparse(rng: random.Random, first: int, length: int) -> list[int]:
    return [rng.randint(0, 10 * first) for _ in range(length)]


def _some_negative(rng: random.Random, first: int, length: int) -> list[int]:
    return [rng.choice((p, p, -1, -(1 << 31))) for p in range(first, first + length)]
