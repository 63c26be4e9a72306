"""Batches as large as serving's, which drawing seldom pays for: a long prefill, several, hundreds of decoding requests.
In tiles as serving has them, too: what is beyond a tile, or a step of a search, depends on both.

A kernel that goes wrong from some request or some tile on is found here, and made small like any other.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.engine import HOSTS
from conformance.lanes.base import Lane
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import PRODUCTION_TILE, Settings
from conformance.under_test import Drawn
from reference.case import Case, ContextParallel, Group, Launch, Replay

SHAPES = ((1, 131_072), (3, 5_000), (512, 1))
"""Requests, and the tokens of each. Kernels stage or sample 256 offsets, 1024 tokens and 4096 cells at once."""
SEARCHED = ((100, 50), (300, 7), (800, 3), (1100, 1))
"""The same of batches whose tiles hold parts of many requests, for kernels that search for the one of each token: among
more than a few they sample offsets first, all of them or, of more than 256, every second, fourth and fifth."""
TILES = {"tiled": 256, "tiled-host": 256}
"""Tokens of a tile as host functions have it, by family, where that is not what most have."""

_SEARCHING = ("tiled", "tiled-host")

_BLOCK_SIZES = (128, 64)
_PADDING = 100
_CONTEXT = 8192
_WORLD_SIZE = 2


def shapes(family: str, lane: Lane) -> tuple[tuple[int, int], ...]:
    """Those that entry points of ``family`` are given. Where programs take long, host functions are given none, as
    their kernels are, and no longer prefill than needs as many programs as one in tiles of the usual size.
    """
    if lane.programs_take_long and family in HOSTS:
        return ()
    (requests, tokens), *others = SHAPES
    if lane.programs_take_long:
        tokens = tokens * _tile(family) // PRODUCTION_TILE
    return (requests, tokens), *others, *(SEARCHED if family in _SEARCHING else ())


def large_batches(entry: EntryPoint, lane: Lane, *, shared: bool) -> Iterator[Drawn]:
    """One of each shape in production's settings; ``shared``: for the last rank of two."""
    features = entry.declaration.features
    cp = ContextParallel(_WORLD_SIZE, _WORLD_SIZE - 1, 1) if shared else ContextParallel()
    for num_reqs, length in shapes(entry.family, lane):
        starts = [0 if length > 1 else request * 37 % _CONTEXT for request in range(num_reqs)]
        furthest = max(starts) + length
        groups = tuple(
            _group(size, num_reqs, furthest, cp.size) for size in _BLOCK_SIZES[: 2 if "groups" in features else 1]
        )
        num_tokens = num_reqs * length
        # Whoever takes slots back looks for positions in a window, wherever they stand: in some, they fall.
        step = -1 if "replay" in features and num_reqs > 1 else 1
        case = Case(
            query_start_loc=tuple(range(0, num_tokens + 1, length)),
            positions=tuple(start + i for start in starts for i in range(length)[::step]),
            num_tokens=num_tokens,
            max_num_tokens=num_tokens + _PADDING,
            groups=groups,
            idx_mapping=tuple(reversed(range(num_reqs))) if "idx_mapping" in features else None,
            cp=cp,
            replay=Replay((1,) * num_reqs, length // 2 + 1, (0,)) if "replay" in features else None,
        )
        yield case, Launch("int64" if entry.subject == "vllm" else "int32"), Settings(_tile(entry.family))


def _tile(family: str) -> int:
    return TILES.get(family, PRODUCTION_TILE)


def _group(block_size: int, rows: int, furthest: int, size: int) -> Group:
    """Rows with room for positions below ``furthest`` and no block number twice, the largest first."""
    width = -(-furthest // (block_size * size))
    last = rows * width - 1
    table = tuple(tuple(last - row * width - column for column in range(width)) for row in range(rows))
    return Group(table, block_size, block_size)
