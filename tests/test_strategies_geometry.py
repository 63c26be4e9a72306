"""The geometry's shortcuts against the five steps of the contract, position by position."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.case import Case, ContextParallel, Group
from reference.contract import violations
from reference.steps import placing
from strategies.geometry import (
    INTERLEAVES,
    RANKS,
    Geometry,
    divisors,
    geometries,
    interleave_of,
    rank_of,
)

SMALL = [
    Geometry(b, k, ContextParallel(size, rank, interleave))
    for b, k, size in itertools.product((1, 2, 3, 4, 6), (1, 2, 3), (1, 2, 3))
    for rank in range(size)
    for interleave in divisors(b * k)
]


def places(geometry: Geometry, count: int) -> list[tuple[bool, int]]:
    """(local, column) of the first ``count`` positions, by the contract's arithmetic."""
    group = Group(((0,),), geometry.block_size, geometry.kv_cache_block_size)
    case = Case((0,), (), 0, 1, (group,), geometry.cp)
    place = placing(case, group)
    return [(owner == geometry.cp.rank, column) for _, _, owner, _, column, _ in map(place, range(count))]


def test_shortcuts_say_what_the_five_steps_say() -> None:
    for geometry in SMALL:
        count = 2 * geometry.virtual_block_size + 5
        by_steps = places(geometry, count)
        assert [(geometry.is_local(p), geometry.block_index(p)) for p in range(count)] == by_steps, geometry


def test_last_local_position_of_a_run() -> None:
    for geometry in SMALL:
        local = [is_local for is_local, _ in places(geometry, geometry.virtual_block_size + 3)]
        for first, last in itertools.combinations_with_replacement(range(len(local)), 2):
            expected = max((p for p in range(first, last + 1) if local[p]), default=None)
            assert geometry.last_local(first, last) == expected, (geometry, first, last)


def test_nothing_is_local_after_the_own_part_of_a_turn() -> None:
    for geometry in SMALL:
        if geometry.cp.size == 1:
            continue
        local = [is_local for is_local, _ in places(geometry, 4 * geometry.virtual_block_size)]
        others = (geometry.cp.size - 1) * geometry.cp.interleave
        for position in range(geometry.virtual_block_size):
            first = geometry.non_local_from(position)
            assert local[first - 1], (geometry, position)
            assert not any(local[first : first + others]), (geometry, position)
            assert local[first + others], (geometry, position)


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_positions_within_reach_are_within_the_window(window: int) -> None:
    for geometry in SMALL:
        columns = [column for _, column in places(geometry, (window + 2) * geometry.virtual_block_size)]
        for start in range(geometry.virtual_block_size):
            reach = geometry.reach(start, window)
            assert reach >= 1
            within = columns[start : start + reach]
            assert max(within) - min(within) < window, (geometry, start)


def test_reach_of_a_plain_geometry_is_exact() -> None:
    assert Geometry(4).reach(3, 2) == 5
    assert Geometry(4).reach(4, 2) == 8


def test_interleaves_divide_and_differ() -> None:
    for b, k in itertools.product((1, 2, 3, 16, 48, 128, 1 << 20), (1, 2, 3, 16)):
        found = [i for i in (interleave_of(role, b, k) for role in INTERLEAVES) if i is not None]
        assert len(found) == len(set(found)), (b, k, found)
        assert all(b * k % i == 0 for i in found)
        assert found[0] == 1
        assert max(found) == b * k


def test_interleave_over_the_block_may_end_inside_one() -> None:
    assert interleave_of("over", 16, 3) == 24
    assert interleave_of("over", 16, 2) is None
    assert interleave_of("part", 128, 1) == 8


def test_ranks_differ() -> None:
    assert [rank_of(role, 1) for role in RANKS] == [0, None, None]
    assert [rank_of(role, 2) for role in RANKS] == [0, None, 1]
    assert [rank_of(role, 8) for role in RANKS] == [0, 4, 7]


def test_unknown_roles_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown interleave 'half': known are one, part, block, over, whole"):
        interleave_of("half", 4, 1)
    with pytest.raises(ValueError, match=r"unknown rank 'second': known are first, middle, last"):
        rank_of("second", 4)


@settings(max_examples=300, database=None, deadline=None)
@given(st.booleans(), st.data())
def test_free_geometries_are_legal(sharing: bool, data: st.DataObject) -> None:
    hybrid = data.draw(st.booleans())
    geometry = data.draw(geometries(hybrid=hybrid, cp=sharing))
    assert hybrid or geometry.blocks_per_kv_block == 1
    assert sharing or geometry.cp.size == 1
    group = Group(((0,) * geometry.blocks_per_kv_block,), geometry.block_size, geometry.kv_cache_block_size)
    assert violations(Case((0,), (), 0, 1, (group,), geometry.cp)) == ()
