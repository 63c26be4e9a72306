"""Whole cases for a declared contract, legal by construction: nothing is drawn and thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from reference.case import Case, Group, Launch
from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX, INT32_MIN
from strategies.batches import (
    REQUESTS,
    Batch,
    Menu,
    columns_needed,
    draw_batch,
    menu_around_column,
    menu_for,
    menu_in_order,
    menu_of_groups,
)
from strategies.declaration import Declaration as Declaration
from strategies.geometry import divides_distances
from strategies.groups import (
    GroupSpec,
    affordable_rows,
    draw_groups,
    draw_order,
    in_order,
    positions_in_a_row,
    rules_for,
)
from strategies.picking import Picker
from strategies.replays import draw_replay, reordered
from strategies.rows import draw_idx_mapping
from strategies.specializations import Specialization
from strategies.specializations import free_specializations as free_specializations
from strategies.tables import STAGED_COLUMNS, TableRules, draw_row_stride, draw_rows, draw_table

MAX_TOKENS = 4096
"""Tokens of a case at most, unless the caller says otherwise: three requests a token over the production tile."""

_EXTRA_OUTPUT = (0, 0, 0, 0, 1, 3, 17)
_FENCES = ("after", "before")
_STALE = (0, 0, 0, 1, 5)
_LEFT = (0, 1000, -1, INT32_MAX, FLOAT32_EXACT, INT32_MIN, 1 << 40, -(1 << 62))
"""The first of the positions that an earlier batch left behind the last token, or the memory before it; 0 is what would
drag a window's base down."""

_WIDE = (*[False] * 5, True)
_MOST_WIDE_ROWS = 2
_IN_ORDER = (False, True)
"""Whether all requests are of consecutive positions, where those are held to less."""


def cases(
    declaration: Declaration, specialization: Specialization, *, max_tokens: int = MAX_TOKENS
) -> st.SearchStrategy[tuple[Case, Launch]]:
    """Cases of one group for an entry point with this declaration, and how each is to be launched.

    The geometry, PAD_ID, the kind of the group and the output's type are those of ``specialization``. The launch's
    constants are left empty: whoever binds arguments knows their names. Raises ValueError for a circular group under
    context parallelism.
    """
    if specialization.circular and specialization.cp.size > 1:
        raise ValueError(f"circular-no-cp: a circular group with context-parallel size {specialization.cp.size}")
    return _cases(declaration, specialization, max_tokens)


def cases_of(
    declaration: Declaration,
    specializations: st.SearchStrategy[Specialization],
    *,
    max_tokens: int = MAX_TOKENS,
) -> st.SearchStrategy[tuple[Specialization, Case, Launch]]:
    """Cases together with the specialization drawn for each."""
    return _cases_of(declaration, specializations, max_tokens)


@st.composite
def _cases(
    draw: st.DrawFn, declaration: Declaration, specialization: Specialization, max_tokens: int
) -> tuple[Case, Launch]:
    return _draw_case(Picker(draw), declaration, specialization, max_tokens)


@st.composite
def _cases_of(
    draw: st.DrawFn, declaration: Declaration, specializations: st.SearchStrategy[Specialization], max_tokens: int
) -> tuple[Specialization, Case, Launch]:
    specialization = draw(specializations)
    return specialization, *_draw_case(Picker(draw), declaration, specialization, max_tokens)


def _draw_case(picker: Picker, declaration: Declaration, s: Specialization, max_tokens: int) -> tuple[Case, Launch]:
    features = declaration.features
    requests, decode = picker.pick(REQUESTS)
    rows = draw_rows(picker, requests)
    specs = draw_groups(picker, declaration, s)
    rows = min(rows, affordable_rows(specs, s.output_dtype))
    requests = min(requests, rows)
    wide = picker.pick(_WIDE) and rows <= _MOST_WIDE_ROWS and specs[0].grows
    consecutive = _reach_further_in_order(declaration, s, specs, max_tokens) and picker.pick(_IN_ORDER)
    menu = menu_in_order(_menu(declaration.of_consecutive, s, specs)) if consecutive else _menu(declaration, s, specs)
    rules, limit = rules_for(specs, rows, menu.top, s.output_dtype, wide=wide)
    if wide:
        menu = menu_around_column(menu, specs[0].geometry, STAGED_COLUMNS, limit)
    batch = draw_batch(picker, menu, requests, decode, limit, max_tokens)
    groups = [_draw_group(picker, declaration, specs[0], rules[0], rows, batch)]
    num_tokens = len(batch.positions)
    max_num_tokens = max(num_tokens + picker.pick(_padding(s.tile)), 1)
    stale, left = picker.pick(_STALE), picker.pick(_LEFT)
    positions = batch.positions + tuple(range(left, left + stale))
    launch = Launch(s.output_dtype, max_num_tokens + picker.pick(_EXTRA_OUTPUT), picker.pick(_FENCES))
    lengths = [len(own) for own in batch.requests]
    idx_mapping = draw_idx_mapping(picker, lengths, rows) if "idx_mapping" in features else None
    replay = draw_replay(picker, specs, batch) if "replay" in features else None
    order = draw_order(picker, len(specs)) if "groups" in features else (0,)
    # Last, so that everything else stays what it is when a group goes.
    for spec, own in zip(specs[1:], rules[1:], strict=True):
        groups.append(_draw_group(picker, declaration, spec, own, rows, batch))
    case = Case(
        query_start_loc=batch.query_start_loc,
        positions=positions,
        num_tokens=num_tokens,
        max_num_tokens=max_num_tokens,
        groups=in_order(groups, order),
        cp=s.cp,
        pad_id=s.pad_id,
        idx_mapping=idx_mapping,
        replay=None if replay is None else reordered(replay, order),
    )
    return case, launch


def _reach_further_in_order(
    declaration: Declaration, s: Specialization, specs: Sequence[GroupSpec], max_tokens: int
) -> bool:
    """Whether requests of consecutive positions may have some that others may not."""
    sizes = (spec.geometry.kv_cache_block_size for spec in specs)
    return bool(declaration.sparse) and all(divides_distances(each, s.cp.size, max_tokens) for each in sizes)


def _menu(declaration: Declaration, s: Specialization, specs: Sequence[GroupSpec]) -> Menu:
    growing = [spec.geometry for spec in specs if spec.grows]
    replicated = s.cp.size > 1 and any(spec.is_replicated for spec in specs)
    affordable = positions_in_a_row(s, s.output_dtype)
    menu = menu_for(declaration, s, affordable, growing=bool(growing), replicated=replicated)
    if len(specs) == 1 and not replicated:
        return menu
    return menu_of_groups(menu, growing, [spec.geometry for spec in specs[1:] if spec.enabled])


def _draw_group(
    picker: Picker, declaration: Declaration, spec: GroupSpec, rules: TableRules, rows: int, batch: Batch
) -> Group:
    columns = columns_needed(spec.geometry, batch) if spec.grows else 1
    # Of a rank's own tokens alone there may be none, and then no column for them.
    empty = "total" in declaration.features and "tail" not in declaration.features
    table = draw_table(picker, rules, rows, columns, empty=empty)
    return Group(
        table,
        spec.geometry.block_size,
        spec.geometry.kv_cache_block_size,
        kind=spec.kind,
        sharded=spec.sharded,
        enabled=spec.enabled,
        row_stride=draw_row_stride(picker, len(table[0])) if "row_stride" in declaration.features else None,
    )


def _padding(tile: int | None) -> tuple[int, ...]:
    """Elements between num_tokens and max_num_tokens: none, a few, around a tile, many."""
    tile = tile or 64
    return (0, 0, 0, 0, 1, 1, 2, 3, 8, tile, tile + 1, tile - 1, 300, 2 * tile + 3, 8192)
