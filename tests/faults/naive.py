"""Random cases as one writes them without much thought: likely sizes, consecutive positions, room for everything."""

from __future__ import annotations

import random
from itertools import accumulate

from reference.case import Case, ContextParallel, Group, Launch, Replay
from strategies.declaration import Declaration

CASES = 100
_LAYOUTS = 6
"""Block sizes and ranks of one run, because each is a compilation."""


def naive(declaration: Declaration, seed: int) -> list[tuple[Case, Launch]]:
    """``CASES`` legal cases for an entry point with this declaration."""
    generator = random.Random(seed)
    layouts = [_layout(declaration, generator) for _ in range(_LAYOUTS)]
    return [_case(declaration, generator, *generator.choice(layouts)) for _ in range(CASES)]


def _layout(declaration: Declaration, generator: random.Random) -> tuple[int, int, ContextParallel]:
    """Block size, kernel blocks in an allocated one, ranks."""
    features = declaration.features
    b = generator.choice((16, 32, 64, 128))
    k = generator.choice((1, 1, 2)) if "hybrid" in features else 1
    if "cp" not in features or generator.random() < 0.5:
        return b, k, ContextParallel()
    size = generator.choice((2, 4, 8))
    return b, k, ContextParallel(size, generator.randrange(size), generator.choice((1, b)))


def _case(
    declaration: Declaration, generator: random.Random, b: int, k: int, cp: ContextParallel
) -> tuple[Case, Launch]:
    features = declaration.features
    num_reqs = generator.randint(1, 8)
    lengths = [generator.randint(1, 64) for _ in range(num_reqs)]
    starts = [generator.choice((0, generator.randrange(512))) for _ in range(num_reqs)]
    num_tokens = sum(lengths)
    furthest = max(start + length for start, length in zip(starts, lengths, strict=True))
    sizes = [b] if "groups" not in features else [b, 2 * b][: generator.randint(1, 2)]
    replay = None
    if "replay" in features:
        replay = Replay(tuple(generator.choice((0, start)) for start in starts), generator.randint(1, 64), (0,))
    rows = list(range(num_reqs))
    generator.shuffle(rows)
    case = Case(
        query_start_loc=tuple(accumulate(lengths, initial=0)),
        positions=tuple(start + i for start, length in zip(starts, lengths, strict=True) for i in range(length)),
        num_tokens=num_tokens,
        max_num_tokens=num_tokens + generator.randint(0, 64),
        groups=tuple(_group(generator, size, k, num_reqs, furthest, cp.size) for size in sizes),
        cp=cp,
        idx_mapping=tuple(rows) if "idx_mapping" in features else None,
        replay=replay,
    )
    return case, Launch()


def _group(generator: random.Random, b: int, k: int, rows: int, furthest: int, ranks: int) -> Group:
    blocks = -(-furthest // (b * k * ranks))
    numbers = generator.sample(range(4 * rows * blocks), rows * blocks)
    table = [
        [number * k + part for number in numbers[row * blocks : row * blocks + blocks] for part in range(k)]
        for row in range(rows)
    ]
    return Group(tuple(map(tuple, table)), b, b * k)
