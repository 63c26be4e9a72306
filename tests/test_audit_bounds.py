"""Up to where float32 divides and gathers integers exactly, swept."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.audit.bounds import (
    Divide,
    Place,
    Vector,
    bounds,
    by_own_position,
    by_turns,
    exact,
    first_wrong,
    largest_block,
    largest_dividend,
    largest_position,
    largest_position_by_distance,
    largest_position_by_virtual_block,
    quotient,
)
from reference.case import Case, ContextParallel, Group
from reference.contract import FLOAT32_EXACT, violations
from reference.steps import placing
from strategies.geometry import Geometry

TWO_31 = 2**31


@pytest.mark.parametrize("divisor", [1, 3, 48, 127, 128, 8191, 1 << 20])
def test_no_quotient_below_the_bound_is_wrong(divisor: int) -> None:
    """Every dividend: what the proof says, looked at."""
    for low in range(0, FLOAT32_EXACT + 1, 1 << 22):
        numbers = np.arange(low, min(low + (1 << 22), FLOAT32_EXACT + 1), dtype=np.int64)
        assert np.array_equal(quotient(numbers, divisor), exact(numbers, divisor))


@pytest.mark.parametrize(
    ("divisor", "wrong"), [(1, 16777217), (3, 16777221), (48, 16777247), (128, 16777343), (1 << 20, 17825791)]
)
def test_the_first_wrong_quotient(divisor: int, wrong: int) -> None:
    assert largest_dividend(divisor) == wrong - 1
    assert quotient(np.array([wrong]), divisor) != wrong // divisor
    # The sweep begins where the proof ends; one from further below ends at the same place.
    assert largest_dividend(divisor, start=FLOAT32_EXACT - 5000) == wrong - 1


def test_a_sweep_looks_at_every_number() -> None:
    assert first_wrong(lambda n: n < 5_000_003, 0) == 5_000_003
    assert first_wrong(lambda n: n != 4096, 0) == 4096
    assert first_wrong(lambda n: n < TWO_31, TWO_31 - 10) is None


GEOMETRIES = [
    Geometry(128),
    Geometry(3, 2, ContextParallel(3, 1, 2)),
    Geometry(16, 3, ContextParallel(4, 2, 24)),
    Geometry(1, 1, ContextParallel(8, 0, 1)),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: f"b{g.block_size}-W{g.cp.size}")
@pytest.mark.parametrize("place", [by_turns, by_own_position])
def test_the_steps_swept_are_those_of_the_contract(geometry: Geometry, place) -> None:  # type: ignore[no-untyped-def]
    positions = np.arange(0, 3000, dtype=np.int64)
    owner, cell, offset = place(positions, geometry, exact)
    group = Group(((0,),), geometry.block_size, geometry.kv_cache_block_size)
    steps = placing(Case((0,), (), 0, 1, (group,), cp=geometry.cp), group)
    for p in positions.tolist():
        _, _, true_owner, _, true_cell, true_offset = steps(p)
        assert (int(owner[p]), int(cell[p]), int(offset[p])) == (true_owner, true_cell, true_offset), p


@pytest.mark.parametrize(
    ("geometry", "largest"),
    [
        (Geometry(1), 16777216),
        (Geometry(16), 16777230),
        (Geometry(128), 16777342),
        # The first division is by all ranks' share, 256.
        (Geometry(128, 1, ContextParallel(2, 0, 1)), 16777470),
        # Within a virtual block of 2**27 tokens the first division gives 0; that by the interleave is the first to err.
        (Geometry(1 << 20, 16, ContextParallel(8, 0, 1 << 10)), 16778238),
    ],
)
def test_the_largest_position_of_a_kernel(geometry: Geometry, largest: int) -> None:
    for place in (by_turns, by_own_position):
        assert largest_position(geometry, place) == largest


@pytest.mark.parametrize("family", ["v1", "v2", "fused", "parallel", "tiled"])
@pytest.mark.parametrize("block_size", [1, 2, 3, 7, 16, 48, 128, 1 << 20])
def test_distances_are_small_whatever_the_positions(block_size: int, family: str) -> None:
    for geometry in (Geometry(block_size), Geometry(block_size, 2, ContextParallel(3, 1, 1))):
        assert bounds(geometry, family, frozenset({"division"}), own=True, wide=False).position == TWO_31 - 1


def test_distances_in_a_virtual_block_that_is_larger_than_float32_is_exact() -> None:
    """Of 2**27 tokens: the last of them gets the next block where it is divided, and its own where it is shifted."""
    geometry = Geometry(1 << 20, 16, ContextParallel(8, 0, 1 << 10))
    divided, shifted, offsets = (
        bounds(geometry, each, frozenset({"division"}), own=True, wide=False) for each in ("v2", "v1", "tiled")
    )
    assert divided.position == (1 << 27) - 5
    assert shifted.position == TWO_31 - 1
    assert offsets.position == 16778238
    assert largest_position_by_virtual_block(Geometry(1 << 21, 8, ContextParallel(1, 0, 1))) == TWO_31 - 1
    # Without shifts the first to err is the division by the interleave, as in kernels that divide positions.
    assert largest_position_by_distance(geometry) == largest_position(geometry, by_own_position)
    # Blocks of more than 2**24 tokens: some distance within one is rounded up to its size.
    assert largest_position_by_distance(Geometry((1 << 25) + 1)) == (1 << 25) - 2


def test_a_wrong_step_would_be_seen() -> None:
    def wrong(positions: Vector, geometry: Geometry, divide: Divide) -> Place:
        owner, cell, offset = by_turns(positions, geometry, divide)
        return owner, cell, offset + (divide is quotient) * (positions == FLOAT32_EXACT + 5)

    assert largest_position(Geometry(128), wrong) == FLOAT32_EXACT + 4


@pytest.mark.parametrize(
    ("block_size", "gathered", "multiplied", "wide", "largest"),
    [
        # Bits gathered: only the output limits it. Block 16777215 ends at slot 2**31 - 1.
        (128, False, False, False, 16777215),
        (1, False, False, False, TWO_31 - 1),
        (3, False, False, False, 715827881),
        (128, False, False, True, TWO_31 - 1),
        # 2**24 + 1 is no float32.
        (16, True, False, False, 16777216),
        (128, True, False, True, 16777216),
        # The slot itself in float32: block 131072, offset 1 is slot 2**24 + 1.
        (128, True, True, False, 131071),
        (1, True, True, False, 16777216),
    ],
)
def test_the_largest_block_number(block_size: int, gathered: bool, multiplied: bool, wide: bool, largest: int) -> None:
    assert largest_block(block_size, gathered=gathered, multiplied=multiplied, wide=wide) == largest


def test_bounds_follow_from_what_the_program_does() -> None:
    g = Geometry(128)
    assert bounds(g, "v2", frozenset(), own=True, wide=False).position == TWO_31 - 1
    assert bounds(g, "v2", frozenset({"division"}), own=False, wide=False).position == 16777342
    assert bounds(g, "v2", frozenset({"comparison"}), own=True, wide=False).block == 16777215
    assert bounds(g, "v2", frozenset({"gather", "arithmetic"}), own=False, wide=False).block == 131071


def test_the_clause_holds_for_every_block_size() -> None:
    """pos-f32 forbids what a kernel could get wrong, and no position that every kernel gets right."""
    smallest = min(largest_position(Geometry(b)) for b in (1, 2, 3, 7, 16, 48, 128))
    assert smallest == FLOAT32_EXACT
    group = Group(((0,),), 1 << 25, 1 << 25)
    for position, broken in ((FLOAT32_EXACT - 1, []), (FLOAT32_EXACT, ["pos-f32"])):
        case = Case((0, 1), (position,), 1, 1, (group,))
        assert [each.clause for each in violations(case, {"pos-f32"})] == broken
