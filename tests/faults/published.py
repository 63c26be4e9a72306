"""The fixed parameter sets of published tests, as cases: what people have today. Values alone are taken from them.

Random tables of the originals are drawn from a fixed seed here. Left out is what is no launch of slot mapping (row
bookkeeping, capacities) and what is outside the contract (a row of -1 with tokens).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from reference.case import Case, ContextParallel, Group, Launch, Replay

Table = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Published:
    """The cases of a published test. ``source``: repository, path and commit. ``entries``: what they apply to."""

    source: str
    entries: tuple[str, ...]
    cases: tuple[tuple[Case, Launch], ...]


_ONE_GROUP = ("v1", "v1_host", "block_table", "dcp", "draft")
_GROUPS = ("v2", "v2_host", "tiled", "tiled_host")
_FUSED = ("fused", "parallel", "adaptive")


def _case(
    lengths: Sequence[int],
    positions: Iterable[int],
    groups: Sequence[Group],
    length: int,
    *,
    cp: tuple[int, int, int] = (1, 0, 1),
    rows: tuple[int, ...] | None = None,
    replay: Replay | None = None,
    output: str = "int32",
) -> tuple[Case, Launch]:
    positions = tuple(positions)
    case = Case(
        query_start_loc=tuple(accumulate(lengths, initial=0)),
        positions=positions,
        num_tokens=sum(lengths),
        max_num_tokens=length,
        groups=tuple(groups),
        cp=ContextParallel(*cp),
        idx_mapping=rows,
        replay=replay,
    )
    return case, Launch(output)


def _group(table: Sequence[Sequence[int]], b: int, allocated: int | None = None, **more: object) -> Group:
    return Group(tuple(map(tuple, table)), b, allocated or b, **more)  # type: ignore[arg-type]


# One group: vllm-ascend's own test of v1.

_PRIMES = ((5, 7, 11, 13, 17, 19, 23, 29), (31, 37, 41, 43, 47, 53, 59, 61))
_EVERY_64TH = [64 * turn + offset for turn in range(8) for offset in range(4)]
_LONG = (1024, 2048, 4096, 8192)

V1 = Published(
    "vllm-project/vllm-ascend tests/e2e/nightly/single_node/ops/singlecard_ops/triton/test_compute_slot_mapping_v1.py "
    "at 182b75ea",
    _ONE_GROUP,
    (
        _case(
            (10, 7), (0, 1, 3, 4, 7, 8, 11, 12, 15, 16, 2, 5, 6, 9, 10, 13, 14), [_group(_PRIMES, 4)], 32, cp=(1, 0, 1)
        ),
        _case((12, 10), (*range(20), 22, 23), [_group(_PRIMES, 4, 8)], 32, cp=(2, 1, 2)),
        _case((16, 16), _EVERY_64TH, [_group(_PRIMES, 32, 128)], 32, cp=(2, 0, 2)),
        _case(
            _LONG,
            [position for length in _LONG for position in range(length)],
            [_group([range(request * 64, request * 64 + 64) for request in range(4)], 128)],
            16384,
        ),
    ),
)

# One group: a test of vLLM's block table.


def _rows(blocks: Sequence[Sequence[int]], k: int = 1, width: int = 32) -> Table:
    """Rows of allocated blocks as kernel blocks, filled up with block 0."""
    rows = [[block * k + part for block in row for part in range(k)] for row in blocks]
    return tuple((*row, *[0] * (width * k - len(row))) for row in rows)


def _vllm(
    blocks: Sequence[Sequence[int]],
    positions: Sequence[Sequence[int]],
    k: int = 1,
    cp: tuple[int, int, int] = (1, 0, 1),
    length: int = 2048,
    width: int = 32,
) -> tuple[Case, Launch]:
    group = _group(_rows(blocks, k, width), 16, 16 * k)
    return _case([len(each) for each in positions], sum(map(tuple, positions), ()), [group], length, cp=cp)


_RAGGED = ([1, 2, 3, 4], [10, 11], [20, 21, 22], [30], [40, 41])
_LENGTHS = (60, 20, 33, 1, 17)

VLLM_BLOCK_TABLE = Published(
    "vllm-project/vllm tests/v1/worker/test_block_table_slot_mapping.py at 842652e1",
    _ONE_GROUP,
    (
        _vllm([[5, 6, 7]], [[0, 15, 16, 47]]),
        _vllm([[9, 2], [7, 4]], [[3], [20]]),
        _vllm([[9]], [[0]]),
        _vllm([[8, 2, 5]], [[0, 15, 16, 31, 32]]),
        _vllm([[3, 7, 1, 5]], [range(64)]),
        _vllm([[100, 3, 57, 12, 88, 1]], [range(96)]),
        _vllm(_RAGGED, [range(length) for length in _LENGTHS]),
        _vllm([[5, 6, 7, 8, 9, 10]], [range(70, 90)]),
        _vllm([range(1, 66)], [range(1030)], length=2100, width=65),
        *(
            _vllm([[1, 2, 3]], [range(96)], cp=(size, rank, interleave))
            for size in (2, 4)
            for interleave in (1, 4)
            for rank in range(size)
        ),
        _vllm([[5, 6]], [[0, 1, 2, 3, 4, 5, 32, 33]], cp=(2, 1, 1)),
        _vllm([[5, 9, 2]], [range(96)], k=2),
        _vllm([[5, 9, 2]], [range(192)], k=4),
        _vllm([[5, 9]], [[0, 15, 16, 31, 32, 47, 48]], k=2),
    ),
)

# One group: the torch and draft paths of vllm-ascend.


def _ascend(
    lengths: Sequence[int], positions: Iterable[int], cp: tuple[int, int, int], rows: int = 2
) -> tuple[Case, Launch]:
    table = [(*range(4 * row, 4 * row + 4), *[0] * 124) for row in range(rows)]
    return _case(lengths, positions, [_group(table, 128)], 512, cp=cp)


ASCEND_BLOCK_TABLE = Published(
    "vllm-project/vllm-ascend tests/ut/worker/a2/test_block_table.py at 182b75ea",
    _ONE_GROUP,
    (
        _ascend((2, 2), (0, 1, 0, 1), (1, 0, 1)),
        *(_ascend((16,), range(16), (8, rank, 1), 1) for rank in range(8)),
        *(_ascend((130,), range(130), (8, rank, 128), 1) for rank in range(8)),
        _case(
            (10,) * 11,
            tuple(range(10)) * 11,
            [_group([(request, *[0] * 127) for request in range(11)], 128)],
            128,
            cp=(4, 0, 1),
        ),
    ),
)

# Groups: v2 of vllm-ascend and of vLLM.


def _random_table(rows: int, width: int, seed: int) -> Table:
    generator = random.Random(seed)
    return tuple(tuple(generator.randrange(320) for _ in range(width)) for _ in range(rows))


def _enabled(cp: tuple[int, int, int], *, disabled: bool) -> tuple[Case, Launch]:
    groups = [_group([[10, 11]], 4), _group([[20, 21]], 4, enabled=not disabled)]
    return _case((4,), (0, 3, 4, 7), groups, 8, cp=cp, rows=(0,))


ASCEND_V2 = Published(
    "vllm-project/vllm-ascend tests/e2e/nightly/single_node/ops/singlecard_ops/triton/test_compute_slot_mapping.py at "
    "0243267a and at 182b75ea, test_slot_mapping_enabled_v2.py beside it at 0e14ec6a",
    _GROUPS,
    (
        *(
            _case(
                (5, 5),
                (0, 1, 63, 64, 127, 0, 2, 64, 128, 255),
                [_group(_random_table(3, 320, 1), 64), _group(_random_table(3, 320, 2), 128)],
                8192,
                cp=cp,
                rows=(2, 0),
            )
            for cp in ((1, 0, 1), (2, 1, 2), (4, 2, 1))
        ),
        _case(
            (3, 3),
            (0, 3, 4, 0, 4, 7),
            [_group([[10, 11, 0, 0], [20, 21, 0, 0], [30, 31, 0, 0]], 4)],
            8,
            rows=(2, 0),
        ),
        _case((5,), range(5), [_group(_random_table(64, 320, 42), 128)], 8192, rows=(63,), output="int64"),
        *(_enabled(cp, disabled=disabled) for cp in ((1, 0, 1), (2, 1, 1)) for disabled in (False, True)),
    ),
)

VLLM_V2 = Published(
    "vllm-project/vllm tests/v1/worker/test_gpu_block_table.py at 03705674",
    _GROUPS,
    (
        _case(
            (2,),
            (153797, 165757),
            [_group([[7]], 8, enabled=False), _group([[12]], 262144)],
            2,
            rows=(0,),
            output="int64",
        ),
        *(
            _case(
                (1024,),
                range(1024),
                [_group([[5, 9]], 128), _group([range(10, 18)], 128, sharded=False)],
                1024,
                cp=(4, rank, 128),
                rows=(0,),
                output="int64",
            )
            for rank in range(4)
        ),
        _case((3,), (1, 2, 3), [_group([[7, 8, 0, 0], [0] * 4], 4)], 3, rows=(0,), output="int64"),
    ),
)

# Fused groups of vllm-ascend: three groups, tables of 192 blocks a row.

_SHAPES: tuple[tuple[int, ...], ...] = (
    (4096,),
    (2048,),
    (1536,),
    (128,),
    (16,),
    (2048, 2048),
    (512,) * 8,
    (16,) * 8,
    (1,) * 64,
    (*[1] * 63, 128),
    (1, 2000),
    (300, 1, 1, 77, 1, 512, 1, 3203),
)
_NEGATIVE: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[int, int]], ...] = (
    ((64, 8), (0, 500), {64: -1, 67: -2}),
    ((64, 300), (0, 500), {64: -1, 67: -2, 200: -3}),
    ((512,), (0,), {0: -1, 10: -2}),
    ((64, 8), (0, 500), {64: -200, 65: -1}),
    ((64, 8), (0, 500), {64 + i: -300 + i for i in range(8)}),
    ((600, 600), (0, 0), {600: -200, 601: -2}),
)


def _fused(
    lengths: Sequence[int],
    starts: Sequence[int],
    rings: tuple[bool, bool, bool] = (False, False, False),
    negative: dict[int, int] | None = None,
) -> tuple[Case, Launch]:
    positions = [start + i for start, length in zip(starts, lengths, strict=True) for i in range(length)]
    for token, position in (negative or {}).items():
        positions[token] = position
    groups = []
    for g, (size, ring) in enumerate(zip((128, 64, 32), rings, strict=True)):
        width = 1 if ring else 192
        table = [range(g * 1000 + row * 192, g * 1000 + row * 192 + width) for row in range(len(lengths))]
        stride = {"row_stride": 192} if ring else {}
        groups.append(_group(table, size, kind="circular" if ring else "paged", **stride))
    return _case(lengths, positions, groups, -(-len(positions) // 64) * 64)


FUSED = Published(
    "vllm-project/vllm-ascend tests/e2e/nightly/single_node/ops/singlecard_ops/triton/"
    "test_compute_slot_mapping_fused_groups.py at 7942a7e4, test_compute_slot_mapping_fused_negative_positions.py "
    "beside it at d71f3076",
    _FUSED,
    (
        *(_fused(lengths, [i * 37 % 512 for i in range(len(lengths))]) for lengths in _SHAPES),
        *(_fused(lengths, starts, (True, False, True), negative) for lengths, starts, negative in _NEGATIVE),
        *(_fused(lengths, starts, (True, True, True), negative) for lengths, starts, negative in _NEGATIVE),
        *(_fused(lengths, [0] * len(lengths)) for lengths in ((128,), (*[1] * 63, 128), (512,) * 8, (4096,))),
    ),
)

# Replay: a window of 32 tokens that begins at 64.


def _replay(first: int, start: int, window: int, cacheable: bool = True) -> tuple[Case, Launch]:
    table = [(*range(1, 9), *[0] * 56)]
    replay = Replay((start,), window, (0,) if cacheable else ())
    return _case((4,), range(first, first + 4), [_group(table, 16)], 512, replay=replay)


REPLAY = Published(
    "vllm-project/vllm-ascend, unit tests of bounded replay (tests/ut/worker, September 2026)",
    ("replay",),
    (
        _replay(64, 64, 32),
        _replay(94, 64, 32),
        _replay(94, 64, 0),
        _replay(64, 64, 32, cacheable=False),
        _replay(64, 0, 32),
        _replay(94, 0, 32),
    ),
)

SETS = (V1, VLLM_BLOCK_TABLE, ASCEND_BLOCK_TABLE, ASCEND_V2, VLLM_V2, FUSED, REPLAY)


def published(entry: str) -> list[tuple[Case, Launch]]:
    """Every published case that applies to an entry point of subject ``kernels``."""
    return [each for one in SETS if entry in one.entries for each in one.cases]
