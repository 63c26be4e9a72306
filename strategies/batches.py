"""Batches: which request owns which tokens, and where in its sequence each token is.

A batch is drawn request by request: a length, a style, a start. Lengths and starts come from menus made for one
specialization, ordered by the part they play (one token past a block, one under a tile, ...) rather than by value:
shrinking moves toward the front of a menu, and the same place of a menu means the same thing for another
specialization. Everything fits by construction: a start is moved down until its tokens are affordable, a step shortened
until the window reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hypothesis import strategies as st

from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX, INT32_MIN
from strategies.declaration import Declaration
from strategies.specializations import Specialization

LONGEST_ORDINARY = 80
"""Requests longer than this exist for the sake of the tile only: tokens cost time, and few find as much as many."""

LONGEST_LOOSE = 6
"""Tokens of one request whose positions are drawn one by one."""

Positions = Sequence[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """``query_start_loc`` [num_reqs+1], ``positions`` [num_tokens]; ``columns``: the width that local tokens need."""

    query_start_loc: tuple[int, ...]
    positions: tuple[int, ...]
    columns: int


@dataclass(frozen=True, slots=True)
class Menu:
    """What the requests of one specialization are drawn from. ``window`` is None where sparse positions know no limit.

    ``starts`` gives None for "anywhere in the first ``anywhere`` positions"; ``far`` gives (position, count): ``count``
    positions from there on are not local.
    """

    specialization: Specialization
    window: int | None
    top: int
    anywhere: int
    lengths: st.SearchStrategy[int]
    starts: st.SearchStrategy[int | None]
    steps: st.SearchStrategy[int]
    styles: st.SearchStrategy[Style]
    negative: st.SearchStrategy[int]
    far: st.SearchStrategy[tuple[int, int]]
    holes: st.SearchStrategy[int]


Style = Callable[[st.DrawFn, Menu, int, int], Positions]
"""(draw, menu, length, limit): ``length`` positions below ``limit``, or above it where they are not local."""

REQUESTS: st.SearchStrategy[tuple[int, bool]] = st.sampled_from(
    [(n, False) for n in (0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4)] + [(n, True) for n in (2, 4, 7, 12)]
)
"""(number of requests, whether it is a decode batch: the same few tokens for each)."""

_LARGE_STARTS = (FLOAT32_EXACT - 1, FLOAT32_EXACT, FLOAT32_EXACT + 5, FLOAT32_EXACT + 133, INT32_MAX)

_DRAFTS = st.sampled_from((0, 0, 0, 1, 3, 5))


def draw_batch(draw: st.DrawFn, menu: Menu, requests: int, decode: bool, limit: int, max_tokens: int) -> Batch:
    """A batch of ``requests`` requests, at most ``max_tokens`` tokens. Local tokens have positions below ``limit``."""
    bounds = [0]
    positions: list[int] = []
    columns = 0
    for request in range(requests):
        if not decode:
            length = draw(menu.lengths)
        elif request == 0:
            length = 1 + draw(_DRAFTS)
        length = min(length, limit, max_tokens - len(positions))
        if length > 0:
            style = consecutive if decode else draw(menu.styles)
            own = style(draw, menu, length, limit)
            columns = max(columns, _columns(menu.specialization, own))
            positions.extend(own)
        bounds.append(len(positions))
    return Batch(tuple(bounds), tuple(positions), columns)


def consecutive(draw: st.DrawFn, menu: Menu, length: int, limit: int) -> Positions:
    """Prefill, a chunk of a prefill, or decoding: one position after the other."""
    start = _start(draw, menu, limit - length)
    return range(start, start + length)


def stepped(draw: st.DrawFn, menu: Menu, length: int, limit: int) -> Positions:
    """Equally spaced positions, or the same one again and again, as drafts in a tree have it."""
    start = _start(draw, menu, limit - length)
    step = draw(menu.steps)
    if step > 1 and length > 1:
        step = max(1, min(step, (_room(menu, start, limit) - 1) // (length - 1)))
    return [start + i * step for i in range(length)]


def loose(draw: st.DrawFn, menu: Menu, length: int, limit: int) -> Positions:
    """Every position for itself, in any order; longer requests are stepped."""
    if length > LONGEST_LOOSE:
        return stepped(draw, menu, length, limit)
    if menu.window is None:
        return [_start(draw, menu, limit - 1) for _ in range(length)]
    base = _start(draw, menu, limit - 1)
    room = _room(menu, base, limit)
    return [base + _start(draw, menu, room - 1) for _ in range(length)]


def far(draw: st.DrawFn, menu: Menu, length: int, limit: int) -> Positions:
    """Tokens of other ranks, beyond everything that a row of this one holds."""
    start, count = draw(menu.far)
    return range(start, start + length) if length <= count else [start + i % count for i in range(length)]


def broken(draw: st.DrawFn, menu: Menu, length: int, limit: int) -> Positions:
    """Consecutive positions but for one, which is negative or far away."""
    start = _start(draw, menu, limit - length)
    positions = list(range(start, start + length))
    if _room(menu, start, limit) >= length:
        positions[draw(st.integers(0, length - 1))] = draw(menu.holes)
    return positions


def from_below(draw: st.DrawFn, menu: Menu, length: int, limit: int) -> Positions:
    """Consecutive positions that begin below 0."""
    start = draw(menu.negative)
    return range(start, start + length)


def _start(draw: st.DrawFn, menu: Menu, last: int) -> int:
    start = draw(menu.starts)
    if start is None:
        return draw(st.integers(0, min(last, menu.anywhere)))
    return min(start, last)


def _room(menu: Menu, start: int, limit: int) -> int:
    """How many positions from ``start`` on sparse tokens may use."""
    if menu.window is None:
        return limit - start
    return min(limit - start, menu.specialization.reach(start, menu.window))


def _columns(specialization: Specialization, positions: Positions) -> int:
    if specialization.circular:
        return 1
    if isinstance(positions, range):
        last = specialization.last_local(max(positions.start, 0), positions.stop - 1)
        return 0 if last is None or last < 0 else specialization.block_index(last) + 1
    local = (specialization.block_index(p) for p in positions if p >= 0 and specialization.is_local(p))
    return 1 + max(local, default=-1)


@lru_cache(maxsize=4096)
def menu_for(declaration: Declaration, specialization: Specialization) -> Menu:
    """The menu of ``specialization`` for an entry point that needs the clauses of ``declaration``."""
    s = specialization
    needs_window = "window" in declaration.clauses and not s.circular
    top = FLOAT32_EXACT if "pos-f32" in declaration.clauses else INT32_MAX + 1
    below_zero = s.circular or "pos-nonneg" not in declaration.clauses
    negative = (
        -1,
        -2,
        -3,
        -s.block_size,
        -s.block_size - 1,
        -200,
        *((-FLOAT32_EXACT - 1, INT32_MIN) if top > FLOAT32_EXACT else ()),
    )
    far_away = _far(s, top) if s.cp.size > 1 else []
    holes = [n for n in negative if below_zero] + [p for p, _ in far_away if not needs_window]
    styles: list[Style] = [*[consecutive] * 9, stepped, stepped, loose, loose]
    styles += [broken] * 2 if holes else []
    styles += [far] if far_away else []
    styles += [from_below] * 2 if below_zero else []
    return Menu(
        specialization=s,
        window=s.window if needs_window else None,
        top=top,
        anywhere=32 * s.virtual_block_size,
        lengths=st.sampled_from(_lengths(s)),
        starts=st.sampled_from(_starts(s, top)),
        steps=st.sampled_from(
            (2, 0, 3, 5, s.block_size, s.block_size + 1, s.cp.interleave, s.turn, s.virtual_block_size)
        ),
        styles=st.sampled_from(styles),
        negative=st.sampled_from(negative),
        far=st.sampled_from(far_away or [(0, 1)]),
        holes=st.sampled_from(holes or [0]),
    )


def _lengths(s: Specialization) -> list[int]:
    b, interleave = s.block_size, s.cp.interleave
    ordinary = [0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 13]
    by_geometry = (
        b - 1,
        b,
        b + 1,
        interleave + 1,
        s.turn,
        s.turn + 1,
        s.kv_cache_block_size + 1,
        s.virtual_block_size + 1,
    )
    ordinary += [min(length, LONGEST_ORDINARY) for length in by_geometry]
    if s.tile is None:
        return ordinary
    around_tile = [s.tile, s.tile + 1, s.tile - 1]
    if s.tile <= 64:
        return ordinary + around_tile + [2 * s.tile + 1]
    return ordinary * (s.tile // 128) + around_tile


def _starts(s: Specialization, top: int) -> list[int | None]:
    """0 most of all, then next to the borders of the units, then what only wide blocks can afford."""
    starts: list[int | None] = [*[0] * 12, 1, 2, 3, 5]
    for unit in _units(s):
        starts += (unit, unit - 1, unit + 1, 2 * unit, unit // 2, 2 * unit - 1, 3 * unit, 3 * unit + 1)
    starts += [None] * 8
    starts += [p for p in _LARGE_STARTS if p < top]
    return starts


def _units(s: Specialization) -> Iterable[int]:
    units = [s.block_size]
    if s.cp.size > 1:
        units += [s.cp.interleave, s.turn, s.kv_cache_block_size, s.virtual_block_size]
    elif s.blocks_per_kv_block > 1:
        units.append(s.kv_cache_block_size)
    return units


def _far(s: Specialization, top: int) -> list[tuple[int, int]]:
    near = (0, s.virtual_block_size, 5 * s.virtual_block_size, 1000 * s.virtual_block_size)
    positions = (*near, FLOAT32_EXACT - s.turn - 1, FLOAT32_EXACT + s.turn, INT32_MAX - s.turn)
    starts = sorted({s.non_local_from(p) for p in positions if p >= 0})
    return [(p, min((s.cp.size - 1) * s.cp.interleave, top - p)) for p in starts if p < top]
