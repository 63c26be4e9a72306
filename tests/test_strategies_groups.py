"""Cases of several KV-cache groups in one launch: legal, small, of every shape that serving knows, and shrinking."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from reference.case import Case, ContextParallel, Group, Launch, Replay
from reference.contract import ANSWER_CLAUSES, violations
from reference.fields import INT32_MAX, INT32_MIN
from reference.oracle import slot_mapping
from strategies.batches import SMALLEST_TILE, Batch, Positions, from_below, menu_for, menu_of_groups
from strategies.cases import Declaration, cases_of, free_specializations
from strategies.geometry import Geometry
from strategies.groups import (
    MOST_CELLS_OF_ALL,
    MOST_GROUPS,
    MOST_WIDE_CELLS_OF_ALL,
    GroupSpec,
    affordable_rows,
    draw_order,
    in_order,
    rules_for,
)
from strategies.picking import Picker
from strategies.replays import draw_replay, reordered
from strategies.rows import draw_idx_mapping
from strategies.specializations import (
    FUSED_AXES,
    TILED_AXES,
    V2_AXES,
    Axes,
    Specialization,
    pool,
    production_window,
)

V2 = Declaration(
    features=frozenset(
        {"cp", "hybrid", "groups", "sharded", "enabled", "idx_mapping", "int64", "pad_id", "tail", "row_stride"}
    )
)
FUSED = Declaration(features=frozenset({"circular", "groups", "pad_id", "tail", "row_stride"}))
PUBLISHED_V2 = Declaration(frozenset({"pos-nonneg"}), frozenset({"cp", "groups", "idx_mapping", "tail"}))
REPLAY = Declaration(frozenset(), frozenset({"circular", "cp", "groups", "replay"}))
EVERYTHING = Declaration(features=V2.features | FUSED.features | REPLAY.features)
NEEDY = Declaration(frozenset({"window", "pos-nonneg", "pos-f32"}), EVERYTHING.features)

DECLARATIONS: dict[str, tuple[Declaration, Axes]] = {
    "v2": (V2, V2_AXES),
    "fused": (FUSED, FUSED_AXES),
    "windowed-fused": (Declaration(frozenset({"window"}), FUSED.features), FUSED_AXES),
    "published-v2": (PUBLISHED_V2, V2_AXES),
    "replay": (REPLAY, TILED_AXES),
    "everything": (EVERYTHING, V2_AXES),
    "everything-needed": (NEEDY, V2_AXES),
}

FEW = Axes((2,), (1, 2), world_sizes=(1, 2), ranks=("first",), interleaves=("one",))

Drawn = tuple[Specialization, Case, Launch]


def pooled(name: str) -> st.SearchStrategy[Drawn]:
    declaration, axes = DECLARATIONS[name]
    return cases_of(declaration, st.sampled_from(pool(declaration, axes, 64).specializations))


def drawn_from(strategy: st.SearchStrategy[Drawn], examples: int) -> list[Drawn]:
    """The cases of one search, always the same ones."""
    drawn = []

    @settings(max_examples=examples, database=None, deadline=None, derandomize=True)
    @given(strategy)
    def collect(one: Drawn) -> None:
        drawn.append(one)

    collect()
    return drawn


def bound(s: Specialization, launch: Launch) -> Launch:
    """The launch with the constants that the clause ``window`` asks for; a host of several groups chooses the tile."""
    tile = s.tile or SMALLEST_TILE
    window = s.window or production_window(tile, s.block_size)
    return replace(launch, constants={"TILE_BLOCK_SIZE": tile, "BLOCK_TABLE_WINDOW_SIZE": window})


def requests(case: Case) -> Iterator[tuple[int, ...]]:
    """The positions of each request."""
    bounds = case.query_start_loc
    return (case.positions[bounds[r] : bounds[r + 1]] for r in range(case.num_reqs))


def lengths(case: Case) -> list[int]:
    return [len(positions) for positions in requests(case)]


def tokens(case: Case) -> list[int]:
    """The positions of all tokens, without what stands behind the last one."""
    return list(case.positions[: case.num_tokens])


def rings(case: Case) -> list[Group]:
    return [group for group in case.groups if group.kind == "circular"]


def growing(case: Case) -> list[Group]:
    return [group for group in case.groups if group.kind == "paged" and group.enabled]


def replicated(case: Case) -> list[Group]:
    return [group for group in growing(case) if not group.sharded and case.cp.size > 1]


# Legality


@pytest.mark.parametrize("output_dtype", ["int32", "int64"])
@pytest.mark.parametrize("block_size", [1, 7, 1056, 2**20, 2**27])
@pytest.mark.parametrize("further", [0, 5])
def test_every_row_has_room_for_tokens(block_size: int, further: int, output_dtype: str) -> None:
    for k, size in ((1, 1), (16, 1), (16, 8)):
        group = GroupSpec(Geometry(block_size, k, ContextParallel(size, 0, 1)))
        groups = [group, *[replace(group, enabled=False)] * further]
        rows = affordable_rows(groups, output_dtype)
        _, limit = rules_for(groups, rows, 2**31, output_dtype)
        assert rows >= 1
        assert limit >= 1


@pytest.mark.parametrize("name", DECLARATIONS)
def test_cases_keep_the_contract(name: str) -> None:
    declaration, _ = DECLARATIONS[name]

    @settings(max_examples=200, database=None, deadline=None)
    @given(st.one_of(pooled(name), pooled(name), cases_of(declaration, free_specializations(declaration))))
    def check(drawn: Drawn) -> None:
        specialization, case, launch = drawn
        assert not violations(case, ANSWER_CLAUSES | declaration.clauses, bound(specialization, launch))
        assert [len(row) for row in slot_mapping(case)] == [case.max_num_tokens] * len(case.groups)
        assert Case.from_json(case.to_json()) == case
        rows = len(case.groups[0].block_table)
        most = max(MOST_CELLS_OF_ALL, min(rows, 2) * MOST_WIDE_CELLS_OF_ALL)
        assert rows * sum(group.row_width for group in case.groups) <= most

    check()


@settings(max_examples=200, database=None, deadline=None)
@given(pooled("everything"))
def test_groups_beside_that_of_the_specialization(drawn: Drawn) -> None:
    s, case, _ = drawn
    # A ring has one kernel block, however many an allocated block of the others has.
    sizes = {"paged": (s.block_size, s.kv_cache_block_size), "circular": (s.block_size, s.block_size)}
    of_s = [g for g in case.groups if (g.block_size, g.kv_cache_block_size) == sizes[g.kind]]
    assert any(group.kind == "circular" or not s.circular for group in of_s)
    assert (case.cp, case.pad_id) == (s.cp, s.pad_id)
    assert len(case.groups) <= MOST_GROUPS
    assert all(group.block_size >= s.block_size for group in case.groups)
    assert len({len(group.block_table) for group in case.groups}) == 1
    disabled = [group for group in case.groups if len(case.groups) > 1 and not group.enabled]
    assert all(group.row_width <= 2 * group.blocks_per_kv_block for group in disabled)


def test_rings_under_context_parallelism_are_disabled() -> None:
    specializations = st.sampled_from([Specialization(2), Specialization(2, 1, ContextParallel(2, 0, 1))])
    enabled_by_size: dict[int, set[bool]] = {1: set(), 2: set()}
    for _, case, _ in drawn_from(cases_of(EVERYTHING, specializations), 150):
        for ring in rings(case):
            assert (ring.row_width, ring.blocks_per_kv_block) == (1, 1)
            enabled_by_size[case.cp.size].add(ring.enabled)
    assert enabled_by_size == {1: {True, False}, 2: {False}}


@pytest.mark.parametrize(
    ("feature", "used"),
    [
        ("groups", lambda case: len(case.groups) > 1),
        ("circular", lambda case: rings(case)),
        ("cp", lambda case: case.cp.size > 1),
        ("hybrid", lambda case: any(group.blocks_per_kv_block > 1 for group in case.groups)),
        ("sharded", lambda case: not all(group.sharded for group in case.groups)),
        ("enabled", lambda case: not all(group.enabled for group in case.groups)),
        ("idx_mapping", lambda case: case.idx_mapping is not None),
        ("replay", lambda case: case.replay is not None),
        ("row_stride", lambda case: any(group.row_stride is not None for group in case.groups)),
    ],
)
def test_features_are_drawn_where_declared_and_only_there(feature: str, used: Callable[[Case], object]) -> None:
    without = Declaration(features=EVERYTHING.features - {feature})
    alone = Declaration(features=frozenset({feature}))
    for declaration, expected in ((EVERYTHING, True), (alone, True), (without, False)):
        specializations = st.sampled_from(pool(declaration, FEW, 8).specializations)
        drawn = drawn_from(cases_of(declaration, specializations), 40)
        assert any(used(case) for _, case, _ in drawn) is expected, declaration


# Order


@pytest.mark.parametrize(
    ("choice", "order"),
    [(0, (0, 1, 2, 3)), (3, (3, 2, 1, 0)), (4, (1, 2, 3, 0)), (5, (1, 0, 2, 3))],
    ids=["as-drawn", "backwards", "first-one-last", "first-one-second"],
)
def test_groups_stand_in_another_order_than_they_are_drawn_in(choice: int, order: tuple[int, ...]) -> None:
    assert draw_order(picker_of([choice]), 4) == order
    assert in_order("abcd", order) == tuple("abcd"[index] for index in order)
    assert draw_order(picker_of([choice]), 1) == (0,)
    assert sorted(draw_order(picker_of([choice]), 2)) == [0, 1]


def test_a_replay_goes_along_with_its_groups() -> None:
    assert reordered(Replay((3,), 2, (0, 2)), (1, 2, 3, 0)) == Replay((3,), 2, (1, 3))
    assert reordered(Replay((3,), 2, ()), (1, 0)) == Replay((3,), 2, ())


# Rows


def picker_of(choices: list[int]) -> Picker:
    """A picker that takes these items of its menus, one after the other."""
    left = iter(choices)
    return Picker(lambda strategy: strategy.elements[next(left)])  # type: ignore[attr-defined]


def mapped(choices: list[int], request_lengths: list[int], rows: int) -> tuple[int, ...]:
    return draw_idx_mapping(picker_of(choices), request_lengths, rows)


def test_rows_in_order_backwards_scattered_shared() -> None:
    assert mapped([0, 0, 0], [1, 1, 1], 4) == (0, 1, 2)
    assert mapped([0, 2, 0], [1, 1, 1], 4) == (2, 3, 0)
    assert mapped([8, 3, 0], [1, 1, 1], 4) == (3, 2, 1)
    assert mapped([11, 0, 0], [1, 1, 1, 1], 7) == (0, 4, 1, 5)
    assert mapped([15, 1, 0], [1, 1, 1], 4) == (1, 1, 2)
    assert mapped([0, 0, 1], [1, 0, 1], 4) == (0, -1, 2)
    assert mapped([0, 0, 0], [], 1) == ()


@settings(max_examples=200, database=None, deadline=None)
@given(st.integers(1, 40), st.integers(0, 14), st.integers(0, 39), st.data())
def test_rows_of_their_own_for_any_number_of_requests(rows: int, style: int, offset: int, data: st.DataObject) -> None:
    request_count = data.draw(st.integers(0, rows))
    mapping = mapped([style, offset % rows, 0], [1] * request_count, rows)
    assert len(set(mapping)) == len(mapping) == request_count
    assert all(0 <= row < rows for row in mapping)


# Replay


def replayed(window: int, who: int, border: int, anchor: int, groups: int, *requests: Positions) -> Replay:
    """The replay of these requests in a paged group, a ring and a paged group; the arguments are places in menus."""
    bounds = list(itertools.accumulate(map(len, requests), initial=0))
    batch = Batch(tuple(bounds), tuple(itertools.chain(*requests)), requests)
    geometry = Geometry(2)
    specs = [GroupSpec(geometry), GroupSpec(geometry, "circular"), GroupSpec(geometry)]
    return draw_replay(picker_of([window, who, 3 * border + anchor, groups]), specs, batch)


def test_simplest_replay_is_none() -> None:
    assert replayed(0, 0, 0, 0, 0, range(4, 9), range(0)) == Replay((0, 0), 1, ())


@pytest.mark.parametrize(
    ("border", "anchor", "start"),
    [(0, 0, 40), (0, 1, 50), (0, 2, 45), (1, 0, 36), (1, 1, 46), (2, 1, 45), (3, 0, 41), (3, 1, 51), (4, 1, 47)],
)
def test_replays_begin_and_end_next_to_a_token(border: int, anchor: int, start: int) -> None:
    assert replayed(3, 2, border, anchor, 0, range(40, 51)) == Replay((start,), 5, ())


def test_replays_of_some_requests_in_some_groups() -> None:
    batch = (range(7, 9), range(0), range(5, 6), range(3, 4))
    assert replayed(0, 2, 0, 0, 1, *batch) == Replay((7, 0, 5, 3), 1, (0,))
    assert replayed(0, 7, 0, 0, 5, *batch) == Replay((7, 0, 5, 0), 1, (2,))
    assert replayed(0, 9, 0, 0, 9, *batch) == Replay((0, 0, 0, 3), 1, (0, 2))


def test_replays_begin_at_an_int32_that_is_not_negative() -> None:
    assert replayed(6, 2, 2, 0, 0, range(9, 10), range(-5, -4)).starts == (0, 0)
    assert replayed(0, 2, 3, 0, 0, [INT32_MAX]).starts == (INT32_MAX,)
    assert replayed(0, 2, 5, 0, 0, range(9, 10)).starts == (9 + (1 << 30),)
    assert replayed(9, 2, 1, 0, 0, range(9, 10)) == Replay((0,), INT32_MAX, ())


# Positions


def test_further_groups_add_their_borders_below_the_top() -> None:
    menu = menu_for(V2, Specialization(2), 1 << 12, growing=True)
    further = Geometry(48, 2, ContextParallel(4, 0, 6))
    starts = menu_of_groups(menu, [Geometry(2)], [further]).starts
    assert starts[: len(menu.starts)] == tuple(menu.starts)
    assert {6, 24, 48, 96, 384, 47, 49, 95, 97, 383, 385, 767} <= set(starts[len(menu.starts) :])
    near_the_top = menu_of_groups(menu, [Geometry(2)], [Geometry(1 << 30)]).starts
    assert set(near_the_top[len(menu.starts) :]) == {1 << 30, (1 << 30) - 1, (1 << 30) + 1, INT32_MAX}


def test_positions_may_be_negative_where_no_table_grows() -> None:
    needy = Declaration(frozenset({"pos-nonneg"}), FUSED.features)
    assert from_below not in menu_for(needy, Specialization(2), 1 << 12, growing=True).styles
    assert from_below in menu_for(needy, Specialization(2), 1 << 12, growing=False).styles


# Shapes: each is (specialization, case) -> whether the case has it.


def replayed_from(case: Case) -> Iterator[tuple[int, int]]:
    """(position, start) of every token whose request replays something."""
    assert case.replay is not None
    for start, positions in zip(case.replay.starts, requests(case), strict=True):
        if start > 0:
            yield from ((position, start) for position in positions)


def takes_slots_back(case: Case) -> bool:
    return case.replay is not None and slot_mapping(case) != slot_mapping(replace(case, replay=None))


def rows_in_use(case: Case) -> list[int]:
    return [case.row_of(r) for r, length in enumerate(lengths(case)) if length]


def columns_of(case: Case, group: Group) -> int:
    """The width that the local tokens of a replicated or unsharded group need."""
    return 1 + max((p // group.block_size for p in tokens(case) if p >= 0), default=-1)


SHAPES: dict[str, dict[str, Callable[[Specialization, Case], bool]]] = {
    "v2": {
        "one group": lambda s, c: len(c.groups) == 1,
        "two groups": lambda s, c: len(c.groups) == 2,
        "five groups": lambda s, c: len(c.groups) == 5,
        "groups of one block size": lambda s, c: len(c.groups) > 1 and len({g.block_size for g in c.groups}) == 1,
        "twice the block size": lambda s, c: any(g.block_size == 2 * s.block_size for g in c.groups),
        "the block size of serving beside a smaller one": lambda s, c: (
            s.block_size < 128 and any(g.block_size == 128 for g in c.groups)
        ),
        "no multiple of the smallest": lambda s, c: any(g.block_size % s.block_size for g in c.groups),
        "hybrid beside not hybrid": lambda s, c: len({g.blocks_per_kv_block > 1 for g in growing(c)}) == 2,
        "different hybrids": lambda s, c: len({g.blocks_per_kv_block for g in growing(c)} - {1}) > 1,
        "interleave over a further group's kernel block": lambda s, c: (
            c.cp.size > 1 and any(g.sharded and g.enabled and g.block_size < c.cp.interleave for g in c.groups[1:])
        ),
        "replicated beside sharded": lambda s, c: bool(replicated(c)) and len(replicated(c)) < len(growing(c)),
        "replicated group with a token of another rank": lambda s, c: (
            bool(replicated(c)) and any(p >= 0 and not s.is_local(p) for p in tokens(c))
        ),
        "replicated first": lambda s, c: c.cp.size > 1 and not c.groups[0].sharded,
        "replicated row no wider than needed": lambda s, c: any(
            columns_of(c, g) == g.row_width > 1 for g in replicated(c)
        ),
        "disabled beside enabled": lambda s, c: len({g.enabled for g in c.groups}) == 2,
        "disabled first": lambda s, c: not c.groups[0].enabled and len(c.groups) > 1,
        "disabled group with rows too narrow": lambda s, c: any(
            c.cp.size == 1 and not g.enabled and g.kind == "paged" and columns_of(c, g) > g.row_width for g in c.groups
        ),
        "rows in another order": lambda s, c: any(
            a > b for a, b in zip(rows_in_use(c), rows_in_use(c)[1:], strict=False)
        ),
        "first row unused": lambda s, c: c.num_tokens > 0 and 0 not in rows_in_use(c),
        "last row used": lambda s, c: len(c.groups[0].block_table) - 1 in rows_in_use(c)[:-1],
        "empty request without a row": lambda s, c: -1 in (c.idx_mapping or ()),
        "every request has its row, an empty one too": lambda s, c: (
            0 in lengths(c) and -1 not in (c.idx_mapping or (-1,))
        ),
        "two requests in one row": lambda s, c: len(set(rows_in_use(c))) < len(rows_in_use(c)),
        "more rows than requests": lambda s, c: 0 < c.num_reqs < len(c.groups[0].block_table),
        "different strides": lambda s, c: len({g.stride - g.row_width for g in c.groups}) > 1,
        "rows of different width": lambda s, c: len({g.row_width for g in growing(c)}) > 2,
        "next to a border of a further group": lambda s, c: any(
            p > 0 and p % g.block_size in (0, g.block_size - 1) and g.block_size > 16 * s.block_size
            for g in c.groups[1:]
            for p in tokens(c)
        ),
        "position above 2^24": lambda s, c: max(tokens(c), default=0) >= 1 << 24,
        "smallest block size in another place than the first": lambda s, c: (
            c.groups[0].block_size > min(g.block_size for g in c.groups)
        ),
        "smallest block size in the last place": lambda s, c: (
            c.groups[-1].block_size < min((g.block_size for g in c.groups[:-1]), default=0)
        ),
    },
    "fused": {
        "ring beside a paged group": lambda s, c: bool(rings(c)) and bool(growing(c)),
        "ring first, then a paged group": lambda s, c: c.groups[0].kind == "circular" and bool(growing(c)),
        "ring first in a setting of paged groups": lambda s, c: c.groups[0].kind == "circular" and not s.circular,
        "paged group first, then a ring": lambda s, c: c.groups[0].kind == "paged" and bool(rings(c)),
        "no ring first in a setting of rings": lambda s, c: s.circular and c.groups[0].kind == "paged",
        "only rings": lambda s, c: len(rings(c)) == len(c.groups) > 1,
        "negative position beside ordinary ones in a mixed launch": lambda s, c: (
            bool(rings(c)) and bool(growing(c)) and any(p and min(p) < 0 <= max(p) for p in requests(c))
        ),
    },
    "replay": {
        "nothing replayed": lambda s, c: not any(c.replay.starts),
        "no cacheable group": lambda s, c: not c.replay.cacheable_groups and any(c.replay.starts),
        "some groups cacheable": lambda s, c: 0 < len(c.replay.cacheable_groups) < len(c.groups),
        "slots taken back": lambda s, c: takes_slots_back(c),
        "slots taken back in the second group only": lambda s, c: (
            takes_slots_back(c) and 0 not in c.replay.cacheable_groups
        ),
        "first replayed token": lambda s, c: any(p == start for p, start in replayed_from(c)),
        "last replayed token": lambda s, c: any(
            p == start + c.replay.window - 1 > start for p, start in replayed_from(c)
        ),
        "first token not replayed": lambda s, c: any(
            p == start + c.replay.window > start for p, start in replayed_from(c)
        ),
        "token before the replay": lambda s, c: any(p == start - 1 for p, start in replayed_from(c)),
        "window of one token": lambda s, c: c.replay.window == 1 and takes_slots_back(c),
        "no window": lambda s, c: c.replay.window == 0 and any(c.replay.starts),
        "window beyond 2^20": lambda s, c: c.replay.window > 1 << 20 and takes_slots_back(c),
        "window that no int32 can be added to": lambda s, c: c.replay.window == INT32_MAX and takes_slots_back(c),
        "replay begins beyond every position": lambda s, c: any(
            start > max(positions) for start, positions in zip(c.replay.starts, requests(c), strict=True) if positions
        ),
        "one request replays, another does not": lambda s, c: len({start > 0 for start in c.replay.starts}) == 2,
    },
}


@cache
def shapes_seen(name: str) -> Counter[str]:
    seen: Counter[str] = Counter()
    for specialization, case, _ in drawn_from(pooled(name), 400):
        seen.update(shape for shape, has in SHAPES[name].items() if has(specialization, case))
    return seen


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes])
def test_shape_appears_within_300_examples(name: str, shape: str) -> None:
    assert shapes_seen(name)[shape] >= 4  # in 400 examples


# Shrinking


class Found(Exception):
    """Stands for a subject that fails."""


Property = Callable[[Case], bool]


def shrunk(name: str, fails: Property, start: int) -> Drawn:
    """The case that Hypothesis reports for a subject that fails where ``fails`` holds."""
    last: list[Drawn] = []

    @seed(start)
    @settings(max_examples=600, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(pooled(name))
    def search(drawn: Drawn) -> None:
        if fails(drawn[1]):
            last.append(drawn)
            raise Found

    with pytest.raises(Found):
        search()
    return last[-1]


def slot_in_the_second_group(case: Case) -> bool:
    return len(case.groups) > 1 and any(slot != case.pad_id for slot in slot_mapping(case)[1])


def negative_in_a_mixed_launch(case: Case) -> bool:
    return bool(rings(case)) and bool(growing(case)) and min(tokens(case), default=0) < 0


def slot_in_a_replicated_group(case: Case) -> bool:
    return bool(replicated(case)) and max(tokens(case), default=-1) >= 0


def another_row(case: Case) -> bool:
    return any(row != request for request, row in enumerate(case.idx_mapping or ()))


@pytest.mark.parametrize(
    ("name", "fails", "groups"),
    [
        pytest.param("v2", slot_in_the_second_group, 2, id="slot-in-the-second-group"),
        pytest.param("fused", negative_in_a_mixed_launch, 2, id="negative-in-a-mixed-launch"),
        pytest.param("v2", slot_in_a_replicated_group, 2, id="slot-in-a-replicated-group"),
        pytest.param("v2", another_row, 1, id="another-row"),
        pytest.param("replay", takes_slots_back, 2, id="replayed"),
    ],
)
def test_shrinks_to_two_tokens_and_as_many_groups_as_it_takes(name: str, fails: Property, groups: int) -> None:
    for start in range(2):
        s, case, launch = shrunk(name, fails, start)
        assert case.num_tokens <= 2, case
        assert len(case.groups) <= groups, case
        assert {(group.block_size, group.blocks_per_kv_block) for group in case.groups} == {(s.block_size, 1)}, case
        assert {group.block_table[0][0] for group in case.groups} == {0}  # the identity
        assert all(group.row_stride is None for group in case.groups)
        assert (launch.output_length, launch.fence) == (case.max_num_tokens, "after")


# Pools


def test_pools_of_a_launch_of_several_groups() -> None:
    v2, tiled, fused = (pool(EVERYTHING, axes, 64) for axes in (V2_AXES, TILED_AXES, FUSED_AXES))
    for made in (v2, tiled, fused):
        assert made.covered == made.total
        assert len(made) <= 64
        assert next(iter(made)).block_size == 2
        assert {s.block_size for s in made} >= {1, 2, 3, 16, 128}
        assert {s.output_dtype for s in made} == {"int32", "int64"}
        assert {s.pad_id for s in made} == {-1, 0, INT32_MIN, INT32_MAX}
    assert {s.kind for s in v2} == {"plain", "cp"}  # v2 takes rings and sequences alike: nothing to compile anew
    assert {s.kind for s in tiled} == {"plain", "circular", "cp"}
    assert {s.kind for s in fused} == {"plain", "circular"}
    assert {s.tile for s in v2} == {16, 64, 256, 1024}
    assert {s.tile for s in tiled} == {64, 256, 1024}
    assert {(s.tile, s.window) for s in fused} == {(None, None)}
    assert {s.window for s in tiled} == {None}
    assert {s.cp for s in fused} == {ContextParallel()}
    assert {s.cp.size for s in v2} == {s.cp.size for s in tiled} == {1, 2, 3, 4, 6, 8}


@pytest.mark.parametrize(
    ("axes", "tile", "window"), [(V2_AXES, 1024, 16), (TILED_AXES, 1024, None), (FUSED_AXES, None, None)]
)
def test_settings_of_serving_are_in_small_pools_too(axes: Axes, tile: int | None, window: int | None) -> None:
    made = list(pool(V2, axes, 12))
    for s in [s for s in made if (s.block_size, s.blocks_per_kv_block, s.output_dtype) == (128, 1, "int32")]:
        if (s.tile, s.window, s.pad_id) == (tile, window, -1):
            return
    raise AssertionError(made)
