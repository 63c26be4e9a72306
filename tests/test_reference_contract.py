"""Every clause of the contract, broken alone: one violation, under its own id, with the values and the limit."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from reference.case import Case, ContextParallel, Group, Launch
from reference.contract import ANSWER_CLAUSES, CLAUSES, ContractError, check, violations

ALL = frozenset(CLAUSES)


def group(table=((0, 1, 2, 3), (4, 5, 6, 7)), b=4, size=4, **other):
    return Group(table, b, size, **other)


def case(
    positions=(0, 1, 2, 9), bounds=(0, 3, 4), groups=None, max_num_tokens=None, world=1, rank=0, interleave=1, **other
):
    tokens = bounds[-1]
    return Case(
        query_start_loc=bounds,
        positions=positions,
        num_tokens=tokens,
        max_num_tokens=tokens + 2 if max_num_tokens is None else max_num_tokens,
        groups=(group(),) if groups is None else groups,
        cp=ContextParallel(world, rank, interleave),
        **other,
    )


RING = group(((3,), (8,)), kind="circular")
WINDOWED = Launch(constants={"TILE_BLOCK_SIZE": 4, "BLOCK_TABLE_WINDOW_SIZE": 2, "IS_CIRCULAR": False})

BROKEN = [
    ("qsl-monotone", case(bounds=(0, 4, 3)), Launch(), "query_start_loc decreases from 4 to 3 at request 1"),
    ("qsl-monotone", case(bounds=(1, 3, 4)), Launch(), "query_start_loc starts at 1, it must start at 0"),
    (
        "qsl-capacity",
        replace(case(), num_tokens=3),
        Launch(),
        "query_start_loc ends at 4, it must end at num_tokens, 3",
    ),
    ("qsl-capacity", case(positions=(0, 1, 2)), Launch(), "3 positions for num_tokens 4: every token needs one"),
    ("qsl-capacity", case(max_num_tokens=3), Launch(), "num_tokens 4 exceeds max_num_tokens 3"),
    ("qsl-capacity", case(), Launch(output_length=5), "max_num_tokens 6 exceeds the output's 5 elements"),
    (
        "pos-int32",
        case((0, 1, 2, -(1 << 31) - 1), groups=(RING,)),
        Launch(),
        "position -2147483649 of token 3 is outside -2147483648..2147483647",
    ),
    (
        "pos-nonneg",
        case((0, 1, -2, 9), groups=(RING, group())),
        Launch(),
        "position -2 of token 2 is below 0 and group 1 is not circular",
    ),
    (
        "pos-f32",
        case((0, 1, 2, 1 << 24), groups=(RING,)),
        Launch(),
        "position 16777216 of token 3 is not below 2^24 = 16777216",
    ),
    (
        "row-width",
        case((0, 1, 2, 16)),
        Launch(),
        "group 0: token 3 (request 1, position 16) needs block index 4, row 1 is 4 blocks wide",
    ),
    ("row-exists", case(idx_mapping=(0, 2)), Launch(), "group 0: request 1 uses row 2, the table has 2 rows"),
    (
        "row-exists",
        case(idx_mapping=(0, -1)),
        Launch(),
        "group 0: request 1 uses row -1, only an empty request may have no row",
    ),
    (
        "row-exists",
        case(idx_mapping=(0, -2), bounds=(0, 4, 4)),
        Launch(),
        "group 0: request 1 uses row -2, the table has 2 rows",
    ),
    ("row-exists", case(bounds=(0, 3, 4, 4)), Launch(), "group 0: request 2 uses row 2, the table has 2 rows"),
    (
        "hybrid-divides",
        case(groups=(group(size=6),)),
        Launch(),
        "group 0: kv_cache_block_size 6 is no multiple of block_size 4",
    ),
    (
        "hybrid-divides",
        case(groups=(group(size=2),)),
        Launch(),
        "group 0: kv_cache_block_size 2 is no multiple of block_size 4",
    ),
    (
        "hybrid-divides",
        case((0, 1, 2, 45), groups=(group(size=6),), world=2, interleave=2),
        Launch(),
        "group 0: kv_cache_block_size 6 is no multiple of block_size 4",
    ),
    (
        "hybrid-width",
        case(groups=(group(size=12),)),
        Launch(),
        "group 0: rows are 4 kernel blocks wide, no multiple of the 3 that an allocated block brings",
    ),
    (
        "interleave-divides",
        case(world=2, interleave=3),
        Launch(),
        "group 0: kv_cache_block_size 4 is no multiple of interleave 3",
    ),
    ("rank-range", case(world=2, rank=2), Launch(), "rank 2 is outside 0..1"),
    ("rank-range", case(rank=-1), Launch(), "rank -1 is outside 0..0"),
    (
        "slot-fits",
        case(groups=(group(((5, 1), (1, 1 << 24)), 8, 8),)),
        Launch(output_dtype="int64"),
        "group 0: token 3 uses block 16777216 (row 1, index 1), block numbers are 0..2^24-1 = 16777215",
    ),
    (
        "slot-fits",
        case(groups=(group(((-1, 1), (1, 1)), 8, 8),)),
        Launch(),
        "group 0: token 0 uses block -1 (row 0, index 0), block numbers are 0..2^24-1 = 16777215",
    ),
    (
        "slot-fits",
        case((0, 1, 2, 0), groups=(group(((5,), (1 << 21,)), 1024, 1024),)),
        Launch(),
        "group 0: token 3 uses block 2097152 (row 1, index 0), slot 2147483648 exceeds int32's 2147483647",
    ),
    (
        "window",
        case((0, 12, 2, 9)),
        WINDOWED,
        "group 0: the tile at token 0 (request 0) reaches 3 blocks past its first, BLOCK_TABLE_WINDOW_SIZE is 2",
    ),
    (
        "circular-no-cp",
        case(groups=(RING,), world=2),
        Launch(),
        "group 0 is circular and enabled, the context-parallel size is 2, it must be 1",
    ),
    (
        "circular-one-block",
        case(groups=(group(kind="circular"),)),
        Launch(),
        "group 0 is circular, its rows are 4 blocks wide, they must be 1 wide",
    ),
]


def broken_id(index):
    """Cases under context parallelism say so, and `-k cp` finds them."""
    clause, broken, *_ = BROKEN[index]
    return f"{index}-{clause}-cp" if broken.cp.size > 1 else f"{index}-{clause}"


@pytest.mark.parametrize(
    ("clause", "broken", "launch", "message"), BROKEN, ids=[broken_id(index) for index in range(len(BROKEN))]
)
def test_one_clause_broken_is_one_violation(clause, broken, launch, message):
    found = violations(broken, ALL, launch)
    assert [(violation.clause, violation.message) for violation in found] == [(clause, message)]
    assert violations(broken, ALL - {clause}, launch) == ()
    assert bool(violations(broken, launch=launch)) == (clause in ANSWER_CLAUSES)


def test_every_clause_is_broken_above():
    assert {entry[0] for entry in BROKEN} == ALL


LEGAL = {
    "nothing to see": case(),
    "empty requests": case(bounds=(0, 0, 4)),
    "an empty request without a row": case(idx_mapping=(1, -1), bounds=(0, 4, 4)),
    "output full": case(max_num_tokens=4),
    "last column": case((0, 1, 2, 15)),
    "largest position below 2^24": case((0, 1, 2, (1 << 24) - 1), groups=(RING,)),
    "negative positions in a ring": case((0, -1, -9, 9), groups=(RING,)),
    "column of a foreign token, under cp": case((0, 2, 4, 33), world=2, rank=0, interleave=1),
    "interleave not used by replicated groups, under cp": case(groups=(group(sharded=False),), world=2, interleave=3),
    "interleave not used without sharing": case(interleave=3),
    "interleave over the kernel block, under cp": case(groups=(group(size=8),), world=2, interleave=8),
    "ring that is disabled, under cp": case(groups=(group(kind="circular", enabled=False),), world=2),
    "group that is disabled": case(groups=(group((), 4, 6, enabled=False),)),
    "last block number": case(groups=(group((((1 << 24) - 1,) * 3,) * 2, 4, 4),)),
    "last slot of int32": case((0, 1, 2, 1023), groups=(group(((5,), ((1 << 21) - 1,)), 1024, 1024),)),
    "blocks that no token uses": case(groups=(group(((0, -1, -1, -1), (-1, -1, 3, -1))),)),
}


@pytest.mark.parametrize("name", LEGAL, ids=lambda name: name.replace(" ", "-"))
def test_legal(name):
    assert violations(LEGAL[name], ALL) == ()


def test_negative_position_needs_no_column():
    assert violations(case((0, 1, 2, -50))) == ()


def test_int64_output_takes_what_int32_does_not():
    wide = case(groups=(group(((5,), (1 << 21,)), 1024, 1024),))
    assert violations(wide, ALL, Launch(output_dtype="int64")) == ()


# The window


def windowed(positions, tile, window, **other):
    row = tuple(range(32))
    sparse = case(positions, (0, len(positions)), (group((row,), 4, 4),), **other)
    return violations(
        sparse, {"window"}, Launch(constants={"TILE_BLOCK_SIZE": tile, "BLOCK_TABLE_WINDOW_SIZE": window})
    )


def test_window_binds_each_tile_alone():
    assert windowed((0, 2, 40, 42), 2, 1) == ()
    assert len(windowed((0, 2, 40, 42), 4, 1)) == 1
    assert windowed((0, 40), 2, 11) == ()
    assert len(windowed((0, 40), 2, 10)) == 1


def test_window_cannot_be_broken_by_consecutive_positions():
    assert windowed(tuple(range(2, 40)), 64, 1) == ()


def test_window_begins_at_the_least_position_that_is_not_negative():
    assert windowed((-9, 40, 41, 43), 4, 1) == ()
    assert len(windowed((-9, 41, 36, 43), 4, 1)) == 1


def test_cp_window_ends_at_local_tokens_but_begins_at_any():
    """W=2, I=4: position 60 is rank 1's and lies in its block 7, position 1 is rank 0's block 0."""
    assert windowed((60, 1), 2, 1, world=2, rank=0, interleave=4) == ()
    assert len(windowed((60, 1), 2, 7, world=2, rank=1, interleave=4)) == 1
    assert windowed((60, 1), 2, 8, world=2, rank=1, interleave=4) == ()


def test_window_needs_both_constants():
    sparse = case((0, 12, 2, 9))
    assert violations(sparse, {"window"}) == ()
    assert violations(sparse, {"window"}, Launch(constants={"TILE_BLOCK_SIZE": 4})) == ()


# Asking


def test_several_clauses_at_once_in_the_order_of_the_contract():
    broken = case((0, 1, 2, 99), rank=3, bounds=(0, 3, 4), max_num_tokens=2)
    # rank 3 of 1 owns no sharded token, but without sharing every token is this rank's
    assert [violation.clause for violation in violations(broken)] == ["qsl-capacity", "row-width", "rank-range"]
    with pytest.raises(ContractError) as caught:
        check(broken)
    message = "qsl-capacity: num_tokens 4 exceeds max_num_tokens 2 (broken too: row-width, rank-range)"
    assert str(caught.value) == message
    assert caught.value.violations == violations(broken)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_check_passes_a_legal_case():
    check(case(), ALL)


def test_unknown_clause():
    with pytest.raises(ValueError, match=r"^unknown clause no-such; known are qsl-monotone, "):
        violations(case(), {"no-such"})


@pytest.mark.parametrize("bounds", [(0, 9, 4), (3, 1, 0, 4), (-9, 0, 4), (0, 100, 4)], ids=str)
def test_bounds_that_make_no_sense_break_their_own_clause_only(bounds):
    broken = case(bounds=bounds, groups=(group(((0, 1, 2, 3),) * 3),))
    assert [violation.clause for violation in violations(broken, ALL)] == ["qsl-monotone"]
