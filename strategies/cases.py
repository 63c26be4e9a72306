"""Whole cases for a declared contract, legal by construction: nothing is drawn and thrown away."""

from __future__ import annotations

from hypothesis import strategies as st

from reference.case import Case, Group, Launch
from strategies.batches import REQUESTS, draw_batch, menu_for
from strategies.declaration import Declaration as Declaration
from strategies.picking import Picker
from strategies.specializations import Specialization
from strategies.specializations import free_specializations as free_specializations
from strategies.tables import TableRules, blocks_that_fit, draw_row_stride, draw_rows, draw_table

MAX_TOKENS = 4096
"""Tokens of a case at most, unless the caller says otherwise: three requests a token over the production tile."""

_EXTRA_OUTPUT = (0, 0, 0, 0, 1, 3, 17)
_FENCES = ("after", "before")
_STALE = (0, 0, 0, 1, 5)


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
    rules = TableRules(s.blocks_per_kv_block, blocks_that_fit(s.block_size, s.output_dtype), growing=not s.circular)
    menu = menu_for(declaration, s, _affordable(s, rules, rows=1))
    requests, decode = picker.pick(REQUESTS)
    rows = draw_rows(picker, requests)
    limit = menu.top if s.circular else min(menu.top, _affordable(s, rules, rows))
    batch = draw_batch(picker, menu, requests, decode, limit, max_tokens)
    table = draw_table(picker, rules, rows, batch.columns)
    stride = draw_row_stride(picker, len(table[0])) if "row_stride" in declaration.features else None
    num_tokens = len(batch.positions)
    max_num_tokens = max(num_tokens + picker.pick(_padding(s.tile)), 1)
    case = Case(
        query_start_loc=batch.query_start_loc,
        # What stands behind the last token is left from an earlier batch; 0 is what would drag a window's base down.
        positions=batch.positions + (0,) * picker.pick(_STALE),
        num_tokens=num_tokens,
        max_num_tokens=max_num_tokens,
        groups=(
            Group(
                table,
                s.block_size,
                s.kv_cache_block_size,
                kind="circular" if s.circular else "paged",
                row_stride=stride,
            ),
        ),
        cp=s.cp,
        pad_id=s.pad_id,
    )
    launch = Launch(s.output_dtype, max_num_tokens + picker.pick(_EXTRA_OUTPUT), picker.pick(_FENCES))
    return case, launch


def _affordable(s: Specialization, rules: TableRules, rows: int) -> int:
    """The positions below which every local token has its column in a table that is not too large."""
    return rules.most_columns(rows) // s.blocks_per_kv_block * s.virtual_block_size


def _padding(tile: int | None) -> tuple[int, ...]:
    """Elements between num_tokens and max_num_tokens: none, a few, around a tile, many."""
    tile = tile or 64
    return (0, 0, 0, 0, 1, 1, 2, 3, 8, tile, tile + 1, tile - 1, 300, 2 * tile + 3)
