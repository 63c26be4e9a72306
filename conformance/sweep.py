"""Whole ranges of positions: for one specialization a slot depends on the position alone, so each one can be looked at.

What goes wrong from some position on, or at few positions far out, is found here whatever drawing would have hit, and
is then cut down to a case of few tokens like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest

from conformance.engine import declared, settings_of
from conformance.lanes.base import Lane
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.under_test import Drawn, UnderTest
from conformance.verdicts import Finding
from reference import verdict as v
from reference.case import Case, ContextParallel, Group, Launch, Replay
from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX, INT32_MIN
from strategies.geometry import divides_distances
from strategies.specializations import Specialization

EXTENTS = ((20_000, 1 << 24), (600, 1 << 20), (100, 1 << 16), (0, 1 << 12))
"""(examples of a profile, positions from 0 on that a sweep then covers): deep, gate, quick, less than that."""
MARGIN = 4096
"""Positions on either side of a place where something may overflow or lose precision."""
MOST_COLUMNS = 1 << 17 | 1 << 10
"""Blocks that a row has at most: with smaller blocks a sweep ends earlier."""
_SERVING = 128  # tokens of a block
_UNUSUAL = (880, 3)
_SEED = 7
_LARGE = 1 << 20  # tokens of a block: a row of 2048 reaches the largest int32

# For entry points that compile nothing, which take any geometry.
_FREE = {
    "plain": (Specialization(128), Specialization(880), Specialization(_LARGE)),
    "cp": (
        Specialization(128, 1, ContextParallel(2, 1, 1)),
        Specialization(880, 3, ContextParallel(3, 1, 1320)),
        Specialization(_LARGE, 1, ContextParallel(4, 2, 64)),
    ),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive positions that one specialization goes through."""

    specialization: Specialization
    positions: range


def every_position(target: UnderTest, kind: str, examples: int) -> None:
    """Launch every position of each part of ``kind`` ("plain", "circular", "cp") and compare all slots.

    ``examples`` of the profile say how far. Raises ConformanceFailure for a small case that shows what is wrong; skips
    where the entry point has no such kind.
    """
    for part in parts(target, kind, examples):
        for drawn in launches(target.entry, part, target.engine.lane):
            finding = _look_at(target, drawn)
            if finding.verdict.kind == v.UNSUPPORTED:
                target.agrees_on(drawn)  # which takes note of it
                return
            if not finding.verdict.passed:
                _report(target, drawn, finding)


def parts(target: UnderTest, kind: str, examples: int) -> list[Part]:
    """What is swept, the settings of serving first. At profile deep every specialization of the run is."""
    entry, lane = target.entry, target.engine.lane
    chosen = _of_kind(target, kind)
    everything = next(extent for least, extent in EXTENTS if examples >= least)
    extent = min(everything, lane.swept if any(each.tile for each in chosen) else lane.swept_by_hosts)
    usual = _first(chosen, _SERVING)
    unusual = next((each for each in (_first(chosen, b) for b in _UNUSUAL) if each is not None), None)
    found = [
        Part(each, positions)
        for each in dict.fromkeys((usual or chosen[0], unusual))
        if each is not None
        for positions in _ranges(entry, each, extent)
    ]
    large = _first(chosen, _LARGE)
    if large is not None:
        found += [Part(large, positions) for positions in _far(entry, large)]
    if everything == EXTENTS[0][1]:
        swept = {part.specialization for part in found}
        rest = (each for each in chosen if each not in swept)
        found += [Part(each, positions) for each in rest for positions in _ranges(entry, each, extent >> 4)]
    return found


def _of_kind(target: UnderTest, kind: str) -> list[Specialization]:
    entry, pool = target.entry, target.engine.pool(target.entry)
    features = entry.declaration.features
    if kind in ("circular", "cp") and kind not in features:
        pytest.skip(f"{entry.id} {entry.version} does not have {kind}")
    if pool is None:
        return [each for each in _FREE[kind] if "hybrid" in features or each.blocks_per_kv_block == 1]
    found = [each for each in pool if each.kind == kind]
    if not found:
        pytest.skip(f"{entry.id}: no specialization of kind {kind} within --compile-budget {len(pool)}")
    return found


def _first(specializations: list[Specialization], block_size: int) -> Specialization | None:
    """The first with blocks of that size and, where there are tiles, of serving's: those go through most at once."""
    found = [each for each in specializations if each.block_size == block_size]
    return max(found, key=lambda each: each.tile or 0, default=None)


def _ranges(entry: EntryPoint, s: Specialization, extent: int) -> Iterator[range]:
    """From 0 on, a little past the end, and around 2^24, as far as rows and contract go; with what is below 0."""
    needed = _needed(entry, s)
    most = min(_reach(s), FLOAT32_EXACT if "pos-f32" in needed else INT32_MAX + 1)
    below = 0 if "pos-nonneg" in needed and not s.circular else MARGIN
    yield range(-below, min(extent + MARGIN, most))
    if below:
        yield range(INT32_MIN, INT32_MIN + MARGIN)
    if extent < FLOAT32_EXACT and most > extent + 2 * MARGIN:
        yield range(max(extent + MARGIN, min(FLOAT32_EXACT, most) - MARGIN), min(FLOAT32_EXACT + MARGIN, most))
    if s.circular:
        yield from _far(entry, s)


def _far(entry: EntryPoint, s: Specialization) -> Iterator[range]:
    if "pos-f32" not in _needed(entry, s):
        yield range(INT32_MAX + 1 - MARGIN, INT32_MAX + 1)


def _needed(entry: EntryPoint, s: Specialization) -> frozenset[str]:
    """By the launches of a sweep, whose positions are consecutive."""
    needed = declared(entry, s).clauses
    if divides_distances(s.kv_cache_block_size, s.cp.size, Lane.swept_at_once):
        return needed - frozenset(entry.sparse)
    return needed


def _reach(s: Specialization) -> int:
    """How many positions a row has room for."""
    return INT32_MAX + 1 if s.circular else MOST_COLUMNS // s.blocks_per_kv_block * s.virtual_block_size


def launches(entry: EntryPoint, part: Part, lane: Lane) -> Iterator[Drawn]:
    """The part in launches of one request each. Their starts are not aligned, so that tiles begin anywhere in a block.

    Legal by construction: rows are wide enough, positions consecutive, slots fit the output.
    """
    s, features = part.specialization, entry.declaration.features
    group = Group(
        (_row(s, part.positions.stop),),
        s.block_size,
        s.kv_cache_block_size,
        kind="circular" if s.circular else "paged",
    )
    settings = settings_of(s)
    if s.tile is not None and lane.sweep_tile is not None:
        settings = Settings(lane.sweep_tile)
    for first in part.positions[:: lane.swept_at_once]:
        positions = tuple(range(first, min(first + lane.swept_at_once, part.positions.stop)))
        count = len(positions)
        third = max(count // 3, 1)
        case = Case(
            query_start_loc=(0, count),
            positions=positions,
            num_tokens=count,
            max_num_tokens=count,
            groups=(group,),
            cp=s.cp,
            pad_id=s.pad_id,
            idx_mapping=(0,) if "idx_mapping" in features else None,
            replay=Replay((max(first + third, 1),), third, (0,)) if "replay" in features else None,
        )
        yield case, Launch(s.output_dtype), settings


@lru_cache(maxsize=4)
def _row(s: Specialization, stop: int) -> tuple[int, ...]:
    """Allocated blocks from all over the cache for positions below ``stop``, no two alike as long as there are enough.

    At random, because a rule to them hides faults: with block i in column i, a column too small and an offset too large
    by as much give the right slot.
    """
    k = s.blocks_per_kv_block
    blocks = 1 if s.circular else -(-max(stop, 1) // s.virtual_block_size)
    largest = INT32_MAX + 1 if s.output_dtype == "int32" else 1 << 62
    there = max(min(FLOAT32_EXACT // k, largest // s.kv_cache_block_size), 1)
    numbers = np.random.default_rng(_SEED).choice(there, min(blocks, there), replace=False)
    return tuple((np.resize(numbers, blocks)[:, None] * k + np.arange(k)).ravel().tolist())


def _look_at(target: UnderTest, drawn: Drawn) -> Finding:
    finding = target.engine.run(target.entry, *drawn)
    target.compared += bool(finding.actual)
    return finding


def _report(target: UnderTest, drawn: Drawn, finding: Finding) -> None:
    """Assert the smallest cuts of ``drawn`` that fail as well, one for each of a few wrong tokens; all of it where none
    does.
    """
    reproduced = False
    for token in _wrong(finding):
        for cut in _cuts(drawn, token):
            if not _look_at(target, cut).verdict.passed:
                reproduced = True
                target.agrees_on(cut)
                break
    if not reproduced:
        target.agrees_on(drawn)


def _wrong(finding: Finding) -> list[int]:
    """The first, the middle and the last token whose slot is wrong; the first and the last where nothing is there to
    compare.
    """
    tokens = list(range(finding.case.num_tokens))
    if finding.actual:
        expected, actual = (np.array(rows)[:, : finding.case.num_tokens] for rows in (finding.expected, finding.actual))
        tokens = np.flatnonzero((expected != actual).any(axis=0)).tolist()
    return list(dict.fromkeys((tokens[0], tokens[len(tokens) // 2], tokens[-1]))) if tokens else []


def _cuts(drawn: Drawn, token: int) -> Iterator[Drawn]:
    """The token alone, the tile up to it, and the launch up to it."""
    case, launch, settings = drawn
    for first in dict.fromkeys((token, token // settings.tile * settings.tile, 0)):
        positions = case.positions[first : token + 1]
        count = len(positions)
        small = replace(case, query_start_loc=(0, count), positions=positions, num_tokens=count, max_num_tokens=count)
        yield _narrowed(small), launch, settings


def _narrowed(case: Case) -> Case:
    """Rows no wider than positions need."""
    (group,) = case.groups
    blocks = (
        1 if group.kind == "circular" else max(case.positions[-1], 0) // (group.kv_cache_block_size * case.cp.size) + 1
    )
    row = group.block_table[0][: blocks * group.blocks_per_kv_block]
    return replace(case, groups=(replace(group, block_table=(row,)),))
