"""Launches of kernels that do not exist: what each would write that makes one of the known mistakes."""

from __future__ import annotations

import random

from reference.case import Case, ContextParallel, Group, Launch, Replay
from reference.verdict import expected_output
from reports.diagnosis import Observation
from reports.diagnosis.hypotheses import HYPOTHESES, Hypothesis
from reports.diagnosis.launches import concerned

TILE, WINDOW = 4, 2


def cases(number: int) -> list[tuple[Case, Launch]]:
    """Cases of every kind, ``number`` of each, the same in every run."""
    rng = random.Random(7)
    return [make(rng) for _ in range(number) for make in (_plain, _sharded, _groups, _rings, _replayed, _far)]


def all_hypotheses(case: Case, launch: Launch) -> tuple[Hypothesis, ...]:
    return (*HYPOTHESES, *concerned(right(case, launch)))


def right(case: Case, launch: Launch) -> Observation:
    """What a right kernel writes."""
    expected = expected_output(case, launch.output_length or case.max_num_tokens)
    return Observation(case, launch, expected, expected)


def supposed(hypothesis: Hypothesis, case: Case, launch: Launch) -> Observation | None:
    """What a kernel with this mistake writes; None where it could not be launched on the case."""
    seen = right(case, launch)
    try:
        mapping = hypothesis.of(seen)
        rows = [
            [next(iter(reversed([x for x in mapping.possible(g, e) if x is not None])), 7) for e in range(len(row))]
            for g, row in enumerate(seen.expected)
        ]
    except (ArithmeticError, LookupError, ValueError):
        return None
    return Observation(case, launch, seen.expected, rows)


def _batch(rng: random.Random, last: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    starts, positions = [0], []
    for _ in range(rng.randint(2, 4)):
        length, step = rng.choice((0, 1, 3, 6, 18)), rng.choice((1, 1, 2))
        first = rng.choice((0, 1, rng.randrange(last - length * step)))
        positions += range(first, first + length * step, step)
        starts.append(len(positions))
    return tuple(starts), tuple(positions)


def _case(
    rng: random.Random,
    groups: tuple[tuple[int, int, str, bool, bool], ...],
    cp: ContextParallel,
    *,
    last: int = 40,
    numbers: int = 1000,
    pad_id: int = -1,
    idx_mapping: bool = False,
    replay: Replay | None = None,
    dtype: str = "int32",
) -> tuple[Case, Launch]:
    """Groups are (block size, k, kind, sharded, enabled)."""
    starts, positions = _batch(rng, last)
    requests, tokens = len(starts) - 1, len(positions)
    rows = requests + 2 if idx_mapping else requests
    made = []
    for block_size, k, kind, sharded, enabled in groups:
        width = 1 if kind == "circular" else -(-last // (block_size * k)) * k
        cells = rng.sample(range(1, numbers), rows * width)
        table = tuple(tuple(cells[row * width : (row + 1) * width]) for row in range(rows))
        made.append(Group(table, block_size, block_size * k, kind, sharded, enabled, width + k))
    padded = tokens + rng.choice((1, 3, 9))
    mapping = tuple(rng.sample(range(rows), requests)) if idx_mapping else None
    if replay is not None:
        begins = tuple(positions[starts[r]] if starts[r] < starts[r + 1] else 0 for r in range(requests))
        starting = tuple(begin + rng.randrange(2) if r % 2 else rng.randrange(2) for r, begin in enumerate(begins))
        replay = Replay(starting, 3, replay.cacheable_groups)
    constants = {"TILE_BLOCK_SIZE": TILE, "BLOCK_TABLE_WINDOW_SIZE": WINDOW}
    case = Case(starts, (*positions, 0, 1), tokens, padded, tuple(made), cp, pad_id, mapping, replay)
    return case, Launch(dtype, padded + 5, ("after", "before")[tokens % 2], constants)


def _plain(rng: random.Random) -> tuple[Case, Launch]:
    return _case(rng, ((4, 1, "paged", True, True),), ContextParallel(), pad_id=-3, dtype="int64")


def _sharded(rng: random.Random) -> tuple[Case, Launch]:
    return _case(rng, ((2, 4, "paged", True, True),), ContextParallel(3, 1, 4), last=100)


def _groups(rng: random.Random) -> tuple[Case, Launch]:
    groups = ((4, 2, "paged", True, True), (3, 2, "paged", False, True), (2, 1, "paged", True, False))
    return _case(rng, groups, ContextParallel(2, 1, 2), idx_mapping=True)


def _rings(rng: random.Random) -> tuple[Case, Launch]:
    case, launch = _case(rng, ((5, 1, "circular", True, True), (3, 2, "paged", True, True)), ContextParallel())
    return Case(**{**_fields(case), "positions": tuple(p - 3 for p in case.positions)}), launch


def _replayed(rng: random.Random) -> tuple[Case, Launch]:
    groups = ((4, 1, "paged", True, True), (2, 1, "paged", True, True), (4, 1, "paged", True, True))
    return _case(rng, groups, ContextParallel(), replay=Replay((), 3, (1, 2)))


def _far(rng: random.Random) -> tuple[Case, Launch]:
    group = ((8192, 1, "paged", True, True),)
    return _case(rng, group, ContextParallel(), last=50_000_000, numbers=1 << 26, dtype="int64")


def _fields(case: Case) -> dict[str, object]:
    return {name: getattr(case, name) for name in case.__dataclass_fields__}
