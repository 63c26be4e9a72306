"""Cases: legal for what is declared, free where nothing is declared, and of every shape that serving knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.case import Case, ContextParallel, Group, Launch
from reference.contract import ANSWER_CLAUSES, violations
from reference.fields import INT32_MAX, INT32_MIN
from reference.oracle import slot_mapping
from strategies.batches import broken, menu_for
from strategies.cases import MAX_TOKENS, Declaration, cases, cases_of, free_specializations
from strategies.picking import MOST_ITEMS, Picker
from strategies.specializations import V1_AXES, Specialization, pool
from strategies.tables import MOST_CELLS, STAGED_COLUMNS, WIDE_COLUMNS, TableRules, blocks_that_fit, draw_table

EVERY_FEATURE = frozenset({"circular", "cp", "hybrid", "pad_id", "int64", "row_stride", "tail"})

DECLARATIONS = {
    "everything": Declaration(features=EVERY_FEATURE),
    "nothing": Declaration(),
    "plain": Declaration(frozenset({"pos-nonneg", "pos-f32"})),
    "ranks": Declaration(frozenset({"pos-nonneg"}), frozenset({"cp"})),
    "hybrid": Declaration(frozenset({"pos-f32"}), frozenset({"cp", "hybrid", "row_stride"})),
    "circular": Declaration(frozenset({"pos-nonneg"}), frozenset({"circular", "int64"})),
    "windowed": Declaration(frozenset({"window"}), EVERY_FEATURE),
    "published": Declaration(frozenset({"window", "pos-nonneg", "pos-f32"}), EVERY_FEATURE),
}

Drawn = tuple[Specialization, Case, Launch]


def pooled(declaration: Declaration) -> st.SearchStrategy[Drawn]:
    return cases_of(declaration, st.sampled_from(pool(declaration, V1_AXES, 64).specializations))


def drawn_from(strategy: st.SearchStrategy[Drawn], examples: int) -> list[Drawn]:
    """The cases of one search, always the same ones."""
    drawn = []

    @settings(max_examples=examples, database=None, deadline=None, derandomize=True)
    @given(strategy)
    def collect(one: Drawn) -> None:
        drawn.append(one)

    collect()
    return drawn


def bound(specialization: Specialization, launch: Launch) -> Launch:
    """The launch with the constants that the clause ``window`` asks for."""
    tile, window = specialization.tile, specialization.window
    if tile is None or window is None:
        return launch
    return replace(launch, constants={"TILE_BLOCK_SIZE": tile, "BLOCK_TABLE_WINDOW_SIZE": window})


def requests(case: Case) -> Iterator[tuple[int, ...]]:
    """The positions of each request."""
    bounds = case.query_start_loc
    return (case.positions[bounds[r] : bounds[r + 1]] for r in range(case.num_reqs))


def is_consecutive(positions: tuple[int, ...]) -> bool:
    return positions == tuple(range(positions[0], positions[0] + len(positions)))


# Legality


@pytest.mark.parametrize("name", DECLARATIONS)
@pytest.mark.parametrize("source", [pooled, lambda d: cases_of(d, free_specializations(d))], ids=["pool", "free"])
def test_cases_keep_the_contract(name: str, source: Callable[[Declaration], st.SearchStrategy[Drawn]]) -> None:
    declaration = DECLARATIONS[name]

    @settings(max_examples=250, database=None, deadline=None)
    @given(source(declaration))
    def check(drawn: Drawn) -> None:
        specialization, case, launch = drawn
        assert not violations(case, ANSWER_CLAUSES | declaration.clauses, bound(specialization, launch))
        assert len(slot_mapping(case)[0]) == case.max_num_tokens

    check()


@pytest.mark.parametrize("clause", ["pos-nonneg", "pos-f32", "window"])
def test_clauses_that_are_not_needed_are_broken_sometimes(clause: str) -> None:
    for specialization, case, launch in drawn_from(pooled(DECLARATIONS["everything"]), 300):
        if violations(case, {clause}, bound(specialization, launch)):
            return
    raise AssertionError(f"no case breaks {clause}")


@settings(max_examples=300, database=None, deadline=None)
@given(pooled(DECLARATIONS["everything"]))
def test_cases_are_those_of_their_specialization(drawn: Drawn) -> None:
    specialization, case, launch = drawn
    (group,) = case.groups
    assert (group.block_size, group.kv_cache_block_size) == (
        specialization.block_size,
        specialization.kv_cache_block_size,
    )
    assert (case.cp, case.pad_id, launch.output_dtype) == (
        specialization.cp,
        specialization.pad_id,
        specialization.output_dtype,
    )
    assert group.kind == ("circular" if specialization.circular else "paged")
    assert launch.constants == {}
    assert launch.output_length is not None
    assert launch.output_length >= case.max_num_tokens >= 1


@settings(max_examples=300, database=None, deadline=None)
@given(pooled(DECLARATIONS["published"]))
def test_cases_stay_small(drawn: Drawn) -> None:
    _, case, _ = drawn
    (group,) = case.groups
    assert case.num_tokens <= MAX_TOKENS
    rows = len(group.block_table)
    assert rows * group.row_width <= max(MOST_CELLS, min(rows, 2) * WIDE_COLUMNS)


@settings(max_examples=100, database=None, deadline=None)
@given(
    cases(Declaration(), Specialization(16, tile=64, window=8), max_tokens=20),
)
def test_fewer_tokens_can_be_asked_for(drawn: tuple[Case, Launch]) -> None:
    assert drawn[0].num_tokens <= 20


def test_undeclared_row_strides_are_left_out() -> None:
    assert all(case.groups[0].row_stride is None for _, case, _ in drawn_from(pooled(DECLARATIONS["ranks"]), 100))


def test_rings_know_no_context_parallelism() -> None:
    specialization = Specialization(4, 1, ContextParallel(2, 0, 1), circular=True)
    with pytest.raises(ValueError, match="circular-no-cp: a circular group with context-parallel size 2"):
        cases(DECLARATIONS["everything"], specialization)


# Tables


def shared_columns(group: Group) -> int:
    """How many leading columns all rows have in common."""
    columns = 0
    for column in zip(*group.block_table, strict=True):
        if len(set(column)) > 1:
            break
        columns += 1
    return columns


@settings(max_examples=400, database=None, deadline=None)
@given(pooled(DECLARATIONS["everything"]))
def test_cells_are_different_blocks_or_shared_by_all_rows(drawn: Drawn) -> None:
    specialization, case, _ = drawn
    table = case.groups[0].block_table
    shared = shared_columns(case.groups[0]) if len(table) > 1 else 0
    cells = [*table[0][:shared], *(block for row in table for block in row[shared:])]
    assert len(set(cells)) == len(cells)
    assert min(cells) >= 0
    assert max(cells) < blocks_that_fit(specialization.block_size, specialization.output_dtype)


def test_blocks_that_fit_are_the_most() -> None:
    assert blocks_that_fit(128, "int32") == 1 << 24
    assert blocks_that_fit(256, "int32") == 1 << 23
    assert blocks_that_fit(1 << 20, "int32") == 2048
    assert blocks_that_fit(1 << 20, "int64") == 1 << 24
    assert blocks_that_fit(1000, "int32") == 1 << 21


def test_tables_beyond_what_is_affordable_are_refused() -> None:
    with pytest.raises(ValueError, match="3000 columns are needed, a table of 2 rows affords 2048"):
        draw_table(first_of_each_menu(), TableRules(1, 1 << 24), rows=2, columns=3000)


def first_of_each_menu() -> Picker:
    return Picker(lambda strategy: strategy.elements[0])  # type: ignore[arg-type, attr-defined]


def test_runs_are_not_broken_where_the_window_would_not_reach() -> None:
    # 16 positions across the end of a turn of 768 tokens need 16 columns; the window has 2.
    specialization = Specialization(48, 16, ContextParallel(2, 0, 768), tile=16, window=2)
    menu = menu_for(DECLARATIONS["windowed"], specialization, 1 << 20, growing=True)
    assert broken(first_of_each_menu(), menu, 760, 16, 1 << 20) == list(range(760, 776))
    assert broken(first_of_each_menu(), menu, 0, 16, 1 << 20) == [-1, *range(1, 16)]


# Shapes: each is (specialization, case, launch) -> whether the case has it.


def paged(specialization: Specialization, case: Case) -> bool:
    return not specialization.circular


def lengths(case: Case) -> list[int]:
    return [len(positions) for positions in requests(case)]


def columns_needed(s: Specialization, case: Case) -> int:
    return max((s.block_index(p) + 1 for p in case.positions[: case.num_tokens] if p >= 0 and s.is_local(p)), default=0)


def left_behind(case: Case) -> tuple[int, ...]:
    return case.positions[case.num_tokens :]


def sits_on_a_border(s: Specialization, case: Case, unit: int) -> bool:
    return any(p >= 0 and len({q // unit for q in range(max(p - 1, 0), p + 2)}) > 1 for p in case.positions)


SHAPES: dict[str, Callable[[Specialization, Case, Launch], bool]] = {
    "empty batch": lambda s, c, _: c.num_reqs == 0,
    "empty request among others": lambda s, c, _: 0 in lengths(c) and c.num_tokens > 0,
    "one token": lambda s, c, _: c.num_tokens == 1,
    "request of a tile": lambda s, c, _: s.tile in lengths(c),
    "request one under a tile": lambda s, c, _: s.tile is not None and s.tile - 1 in lengths(c),
    "request one over a tile": lambda s, c, _: s.tile is not None and s.tile + 1 in lengths(c),
    "request of more than two tiles": lambda s, c, _: s.tile is not None and max(lengths(c), default=0) > 2 * s.tile,
    "prefill": lambda s, c, _: any(len(p) > 1 and p[0] == 0 and is_consecutive(p) for p in requests(c)),
    "chunk in the middle of a block": lambda s, c, _: any(
        len(p) > 1 and p[0] > 0 and p[0] % s.block_size and is_consecutive(p) for p in requests(c)
    ),
    "decode batch": lambda s, c, _: c.num_reqs > 2 and set(lengths(c)) == {1} and any(c.positions),
    "prefill beside decode": lambda s, c, _: (
        any(len(p) > 1 and p[0] == 0 for p in requests(c)) and any(len(p) == 1 and p[0] > 0 for p in requests(c))
    ),
    "draft tokens": lambda s, c, _: c.num_reqs > 1 and len(set(lengths(c))) == 1 and 1 < lengths(c)[0] < 7,
    "sparse": lambda s, c, _: any(p and not is_consecutive(p) for p in requests(c)),
    "same position twice": lambda s, c, _: any(len(set(p)) < len(p) for p in requests(c)),
    "negative position": lambda s, c, _: min(c.positions, default=0) < 0,
    "negative beside ordinary": lambda s, c, _: any(p and min(p) < 0 <= max(p) for p in requests(c)),
    "ring with a negative position": lambda s, c, _: s.circular and min(c.positions, default=0) < 0,
    "next to a block border": lambda s, c, _: paged(s, c) and sits_on_a_border(s, c, s.block_size),
    "next to a virtual border": lambda s, c, _: s.cp.size > 1 and sits_on_a_border(s, c, s.virtual_block_size),
    "next to a turn's border": lambda s, c, _: s.cp.size > 1 and sits_on_a_border(s, c, s.cp.interleave),
    "position next to 2^24": lambda s, c, _: any(abs(p - (1 << 24)) < 200 for p in c.positions),
    "local position above 2^24": lambda s, c, _: any(p >= 1 << 24 and s.is_local(p) for p in c.positions),
    "position next to the largest int32": lambda s, c, _: any((1 << 31) - p < 200 for p in c.positions),
    "row no wider than needed": lambda s, c, _: (
        paged(s, c) and 0 < columns_needed(s, c) == c.groups[0].row_width > s.blocks_per_kv_block
    ),
    "wider row": lambda s, c, _: c.groups[0].row_width >= columns_needed(s, c) + 2 * s.blocks_per_kv_block,
    "row stride above the width": lambda s, c, _: c.groups[0].stride > c.groups[0].row_width,
    "last request in the last row": lambda s, c, _: c.num_reqs == len(c.groups[0].block_table) > 1,
    "more rows than requests": lambda s, c, _: c.num_reqs < len(c.groups[0].block_table),
    "shared blocks": lambda s, c, _: c.num_reqs > 1 and shared_columns(c.groups[0]) > 0,
    "block number next to 2^24": lambda s, c, _: (
        max(map(max, c.groups[0].block_table)) > (1 << 24) - 2000 and c.num_tokens > 0
    ),
    "interleave over the kernel block": lambda s, c, _: s.cp.size > 1 and s.cp.interleave > s.block_size,
    "block size no power of two": lambda s, c, _: bool(s.block_size & (s.block_size - 1)),
    "no padding": lambda s, c, _: c.max_num_tokens == c.num_tokens,
    "much padding": lambda s, c, _: c.max_num_tokens > c.num_tokens + 250,
    "longer output": lambda s, c, launch: (launch.output_length or 0) > c.max_num_tokens,
    "fence in front": lambda s, c, launch: launch.fence == "before",
    "positions behind the last token": lambda s, c, _: len(c.positions) > c.num_tokens,
    "negative positions left behind": lambda s, c, _: min(left_behind(c), default=0) < 0,
    "large positions left behind": lambda s, c, _: max(left_behind(c), default=0) >= 1 << 24,
    "positions left behind that are no int32": lambda s, c, _: any(abs(p) > 1 << 31 for p in left_behind(c)),
    "padding with 0": lambda s, c, _: c.pad_id == 0,
    "padding with the largest int32": lambda s, c, _: c.pad_id == INT32_MAX,
    "padding with the smallest int32": lambda s, c, _: c.pad_id == INT32_MIN,
    "slot beyond what is staged of a row at once": lambda s, c, _: (
        paged(s, c) and columns_needed(s, c) > STAGED_COLUMNS
    ),
}


@pytest.fixture(scope="module")
def shapes_seen() -> Counter[str]:
    seen: Counter[str] = Counter()
    for specialization, case, launch in drawn_from(pooled(DECLARATIONS["everything"]), 600):
        seen.update(name for name, has in SHAPES.items() if has(specialization, case, launch))
    return seen


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_appears_within_300_examples(shape: str, shapes_seen: Counter[str]) -> None:
    assert shapes_seen[shape] >= 6  # in 600 examples


def test_int64_slots_outgrow_int32() -> None:
    specialization = st.just(Specialization(1 << 20, output_dtype="int64"))
    slots = [
        slot_mapping(case)[0] for _, case, _ in drawn_from(cases_of(DECLARATIONS["everything"], specialization), 60)
    ]
    assert sum(max(own) >= 1 << 31 for own in slots) >= 6


def free(features: frozenset[str]) -> list[tuple[Specialization, Case, Launch]]:
    declaration = Declaration(features=features)
    return drawn_from(cases_of(declaration, free_specializations(declaration)), 300)


def test_tables_have_no_column_where_none_is_needed_and_nothing_else_is_written() -> None:
    """A rank that owns none of the tokens: cell 0 of its table cannot be read either."""
    without = [c for _, c, _ in free(frozenset({"cp", "hybrid", "total"})) if not c.groups[0].row_width]
    assert len([c for c in without if c.num_tokens]) >= 3
    assert not [c for _, c, _ in free(frozenset({"cp", "hybrid", "total", "tail"})) if not c.groups[0].row_width]


def test_free_geometries_have_slots_beyond_int32() -> None:
    """A product of two int32 that is not computed in int64."""
    slots = [slot_mapping(c)[0] for _, c, _ in free(frozenset({"cp", "hybrid", "int64"}))]
    assert sum(max(own, default=0) >= 1 << 31 for own in slots) >= 3


# How picks are drawn


def test_no_two_picks_of_a_case_share_a_strategy() -> None:
    used: list[object] = []

    def draw(strategy: st.SearchStrategy[int]) -> int:
        used.append(strategy.label)
        return strategy.elements[0]  # type: ignore[attr-defined]

    picker = Picker(draw)  # type: ignore[arg-type]
    assert [picker.pick("abc"), picker.pick("abc"), picker.pick("xy")] == ["a", "a", "x"]
    assert [picker.below(10), picker.below(10)] == [0, 0]
    assert len(set(used)) == len(used) == 5


def test_menus_are_short_enough_to_be_drawn_uniformly() -> None:
    picker = Picker(lambda strategy: 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="a menu of 257 items: at most 256 are drawn uniformly"):
        picker.pick(range(MOST_ITEMS + 1))


@settings(max_examples=200, database=None, deadline=None)
@given(st.composite(lambda draw: [Picker(draw).below(1 << 30), Picker(draw).below(1), Picker(draw).pick("a")])())
def test_picks_are_in_range(drawn: list[object]) -> None:
    number, only, letter = drawn
    assert isinstance(number, int)
    assert 0 <= number < 1 << 30
    assert (only, letter) == (0, "a")


def test_nothing_is_drawn_and_thrown_away() -> None:
    """Every example that Hypothesis starts becomes a case: it gives up on none."""
    from hypothesis.internal.observability import TestCaseObservation, with_observability_callback

    statuses: Counter[str] = Counter()

    def count(observation: object) -> None:
        if isinstance(observation, TestCaseObservation):
            statuses[observation.status] += 1

    with with_observability_callback(count):
        drawn_from(pooled(DECLARATIONS["published"]), 100)
    assert statuses["passed"] >= 100
    assert statuses["gave_up"] < statuses["passed"] / 20
