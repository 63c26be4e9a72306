"""The vectorized oracle against the per-token one, which was derived in another way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import oracle
from reference.case import Case, ContextParallel, Group, Replay
from reference.contract import ContractError
from reference.fields import INT32_MAX, INT32_MIN
from reference.vectorized import Layout, slot_mapping, slots_of
from strategies.cases import cases, cases_of, free_specializations
from strategies.declaration import Declaration
from strategies.specializations import V2_AXES, Axes, pool

PAGED = Declaration(
    features=frozenset(
        {"cp", "enabled", "groups", "hybrid", "idx_mapping", "int64", "pad_id", "row_stride", "sharded", "tail"}
    )
)
RINGS = Declaration(features=frozenset({"circular", "groups", "hybrid", "pad_id", "replay", "row_stride", "tail"}))
DECLARATIONS = {"paged": PAGED, "rings": RINGS}


def same(case: Case) -> None:
    found = slot_mapping(case)
    assert found.dtype == np.int64
    assert found.shape == (len(case.groups), case.max_num_tokens)
    assert found.tolist() == oracle.slot_mapping(case)


@st.composite
def drawn(draw: st.DrawFn, name: str) -> Case:
    """A case of any kind that there is for the declaration: from its pool, or of any geometry."""
    declaration = DECLARATIONS[name]
    pooled = st.sampled_from(pool(declaration, replace(V2_AXES, rings=True), 64).specializations)
    free = cases_of(declaration, free_specializations(declaration))
    _, case, _ = draw(st.one_of(cases_of(declaration, pooled), free))
    return case


@pytest.mark.parametrize("name", DECLARATIONS)
def test_it_gives_what_the_per_token_oracle_gives(name: str) -> None:
    seen = Counter[str]()

    @settings(max_examples=400, database=None, deadline=None, derandomize=True)
    @given(drawn(name))
    def agrees(case: Case) -> None:
        same(case)
        seen.update(kinds_of(case))

    agrees()
    expected = {
        "paged": {"cp", "disabled", "hybrid", "idx_mapping", "pad_id", "replicated"},
        "rings": {"circular", "hybrid", "pad_id", "replay"},
    }[name] | {"empty", "groups", "negative", "padded", "plain", "stale", "wide"}
    assert seen.keys() >= expected


def kinds_of(case: Case) -> set[str]:
    groups, tokens = case.groups, case.positions[: case.num_tokens]
    found = {
        "cp": case.cp.size > 1,
        "plain": case.cp.size == 1,
        "circular": any(group.kind == "circular" for group in groups),
        "disabled": not all(group.enabled for group in groups),
        "hybrid": any(group.blocks_per_kv_block > 1 for group in groups),
        "groups": len(groups) > 1,
        "replicated": case.cp.size > 1 and not all(group.sharded for group in groups),
        "idx_mapping": case.idx_mapping is not None,
        "pad_id": case.pad_id != -1,
        "replay": case.replay is not None and any(case.replay.starts),
        "negative": any(position < 0 for position in tokens),
        "empty": not tokens,
        "padded": case.max_num_tokens > case.num_tokens,
        "stale": len(case.positions) > case.num_tokens,
        "wide": any(group.stride > group.row_width for group in groups),
    }
    return {name for name, there in found.items() if there}


@settings(max_examples=150, database=None, deadline=None, derandomize=True)
@given(st.data())
def test_it_agrees_at_the_ends_of_int32(data: st.DataObject) -> None:
    """Where positions need not stay below 2^24 and a block holds 2^20 tokens."""
    axes = Axes(block_sizes=(1 << 20,))
    specialization = data.draw(st.sampled_from(pool(PAGED, axes, 32).specializations))
    case, _ = data.draw(cases(PAGED, specialization))
    same(case)


def test_the_largest_and_the_smallest_positions() -> None:
    ring = Group(((7,),), 48, 48, kind="circular")
    paged = Group((tuple(range(2047, -1, -1)),), 1 << 20, 1 << 20)
    positions = (INT32_MIN, -1, 0, (1 << 24) - 1, 1 << 24, INT32_MAX)
    case = Case((0, 6), positions, 6, 8, (paged, ring), pad_id=-5)
    same(case)
    assert slot_mapping(case)[0].tolist()[-3:] == [(1 << 20) - 1, -5, -5]  # block 0 is the last column's


def test_groups_that_are_replayed_lose_their_slots_and_rings_do_not() -> None:
    paged = Group(((0, 1, 2), (3, 4, 5)), 2, 2)
    ring = Group(((6,), (7,)), 2, 2, kind="circular")
    replay = Replay((3, 0), 2, (2, 0, 1))
    case = Case((0, 4, 6), (2, 3, 4, 5, 0, 1), 6, 7, (paged, ring, replace(paged, enabled=False)), replay=replay)
    same(case)
    same(replace(case, replay=Replay((3, 1), 0, (0,))))
    same(replace(case, replay=Replay((0, 0), 9, ())))


def test_no_tokens_no_requests_and_no_rows() -> None:
    same(Case((0,), (), 0, 3, (Group((), 4, 4),)))
    same(Case((0,), (5,), 0, 1, (Group(((),), 4, 4),)))
    same(Case((0, 0, 0), (), 0, 0, (Group((), 4, 4),), idx_mapping=(-1, -1)))


WITHOUT_ANSWER = {
    "row-width": Case((0, 1), (8,), 1, 1, (Group(((0, 1),), 4, 4),)),
    "row-exists": Case((0, 1, 2), (0, 0), 2, 2, (Group(((0,),), 4, 4),)),
    "no row": Case((0, 1), (0,), 1, 1, (Group(((0,),), 4, 4),), idx_mapping=(-1,)),
    "no position": Case((0, 2), (0,), 2, 2, (Group(((0,),), 4, 4),)),
    "ring without a block": Case((0, 1), (0,), 1, 1, (Group(((),), 4, 4, kind="circular"),)),
    "cp-row-width": Case((0, 1), (4,), 1, 1, (Group(((6,),), 1, 1),), cp=ContextParallel(3, 1, 1)),
}


@pytest.mark.parametrize("name", WITHOUT_ANSWER)
def test_a_token_without_a_row_or_a_block_is_refused_alike(name: str) -> None:
    with pytest.raises(ContractError) as expected:
        oracle.slot_mapping(WITHOUT_ANSWER[name])
    with pytest.raises(ContractError) as found:
        slot_mapping(WITHOUT_ANSWER[name])
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    ("cp", "b", "k"),
    [
        pytest.param(ContextParallel(), 3, 1, id="plain"),
        pytest.param(ContextParallel(3, 1, 32), 48, 2, id="cp-interleave-below-the-block"),
        pytest.param(ContextParallel(8, 7, 96), 64, 3, id="cp-interleave-over-the-block"),
    ],
)
def test_every_position_of_a_range(cp: ContextParallel, b: int, k: int) -> None:
    """One request of 2^16 tokens, its blocks in no order."""
    width = -(-(1 << 16) // (b * k * cp.size)) * k
    group = Group((tuple(number * 7919 % 65_537 for number in range(width)),), b, b * k)
    same(Case((0, 1 << 16), tuple(range(1 << 16)), 1 << 16, 1 << 16, (group,), cp=cp))


def test_a_range_of_positions_needs_no_case() -> None:
    """W=2, R=1, I=128, B=128, b=64, row [5, 9]: worked by hand in the contract."""
    table, layout = np.array([[5, 9]], dtype=np.int32), Layout(64, ContextParallel(2, 1, 128))
    assert slots_of(np.array([-1, 127, 128, 200]), table, layout).tolist() == [-1, -1, 320, 584]
    rows = np.array([1, 0])
    both = slots_of(np.array([3, 3]), np.array([[4], [8]]), Layout(4, circular=True), rows=rows, pad_id=-9)
    assert both.tolist() == [35, 19]
    with pytest.raises(IndexError, match="block index 2 of a row of 2 blocks"):
        slots_of(np.array([400]), table, layout)
