"""Batches: which request owns which tokens, and where in its sequence each token is.

A batch is drawn request by request: a length, a style, a start. Lengths and starts come from menus made for one
specialization, ordered by the part they play (one token past a block, one under a tile, ...) rather than by value:
shrinking moves toward the front of a menu, and the same place of a menu means the same thing for another
specialization. Everything fits by construction: a start is moved down to the last position that a table can afford, a
request cut where positions end, a step shortened until the window reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX, INT32_MIN
from strategies.declaration import Declaration
from strategies.geometry import Geometry
from strategies.picking import Picker
from strategies.specializations import Specialization, production_window

LONGEST_LOOSE = 6
"""Tokens of one request whose positions are drawn one by one."""

SMALLEST_TILE = 16
"""Tokens of the smallest tile among which the hosts of several groups choose, by the longest request."""

Positions = Sequence[int]
"""A range where positions are consecutive: what is asked about them then costs no look at each."""


@dataclass(frozen=True, slots=True)
class Batch:
    """``query_start_loc`` [num_reqs+1], ``positions`` [num_tokens]; ``requests``: the positions of each request."""

    query_start_loc: tuple[int, ...]
    positions: tuple[int, ...]
    requests: tuple[Positions, ...]


@dataclass(frozen=True, slots=True)
class Menu:
    """What the requests of one specialization are drawn from.

    Sparse positions stay within ``window`` columns of each geometry in ``windowed``, which is empty where they know no
    limit. ``top`` is the first position that no token may have. A start of None means anywhere in the first
    ``anywhere`` positions. ``far`` holds (position, count): so many positions from there on are not local. ``holes``
    holds (where, position): where in a request, from 0 to 1, the position does not fit the others.
    """

    window: int
    windowed: Sequence[Geometry]
    top: int
    anywhere: int
    lengths: Sequence[int]
    starts: Sequence[int | None]
    steps: Sequence[int]
    styles: Sequence[Style]
    negative: Sequence[int]
    far: Sequence[tuple[int, int]]
    holes: Sequence[tuple[float, int]]


Style = Callable[[Picker, Menu, int, int, int], Positions]
"""(picker, menu, start, length, limit): ``length`` positions below ``limit``, or above it where they are not local."""

REQUESTS = (
    *((n, False) for n in (*[1] * 8, 0, 0, *[2] * 8, *[3] * 4, 4, 4)),
    *((n, True) for n in (*range(1, 10), 18, 66)),
)
"""(number of requests, whether it is a decode batch: the same few tokens for each)."""

PRODUCTION_TILE = 1024

_LENGTHS = (*[0] * 12, *[1] * 32, *[n for n in range(2, 9) for _ in range(8 - n // 2)], *range(9, 65))
_LARGE_STARTS = (FLOAT32_EXACT - 1, FLOAT32_EXACT, FLOAT32_EXACT + 5, FLOAT32_EXACT + 133, INT32_MAX - 70)

_DRAFTS = (0, 0, 0, 0, 1, 2, 3, 5)
_KEPT = (1, 2, 3, *[None] * 21)


def draw_batch(picker: Picker, menu: Menu, requests: int, decode: bool, limit: int, max_tokens: int) -> Batch:
    """A batch of ``requests`` requests, at most ``max_tokens`` tokens. Local tokens have positions below ``limit``."""
    bounds = [0]
    positions: list[int] = []
    of_each: list[Positions] = []
    longest = 1 + picker.pick(_DRAFTS) if decode else 0
    for _ in range(requests):
        room = max_tokens - len(positions)
        if decode:
            start = _start(picker, menu, limit)
            own: Positions = range(start, start + min(longest, room, limit - start))
        else:
            own = _request(picker, menu, room, limit)
        of_each.append(own)
        positions.extend(own)
        bounds.append(len(positions))
    return Batch(tuple(bounds), tuple(positions), tuple(of_each))


def columns_needed(geometry: Geometry, batch: Batch) -> int:
    """The width of a row of a growing table that holds every local token of ``batch``."""
    return max((_columns(geometry, positions) for positions in batch.requests), default=0)


def _request(picker: Picker, menu: Menu, room: int, limit: int) -> Positions:
    """The positions of one request of at most ``room`` tokens.

    Length, style and start are drawn whether they matter or not, so that nothing shifts when one of them shrinks. Of
    some requests only the last few tokens are kept: that lets a long one whose last token tells shrink to this token.
    """
    length = picker.pick(menu.lengths)
    kept = picker.pick(_KEPT)
    style = picker.pick(menu.styles)
    start = _start(picker, menu, limit)
    length = min(length, room, limit - start)
    if length == 0:
        return range(0)
    positions = style(picker, menu, start, length, limit)
    return positions if kept is None else positions[-kept:]


def consecutive(picker: Picker, menu: Menu, start: int, length: int, limit: int) -> Positions:
    """Prefill, a chunk of a prefill, or decoding: one position after the other."""
    return range(start, start + length)


def stepped(picker: Picker, menu: Menu, start: int, length: int, limit: int) -> Positions:
    """Equally spaced positions, round and round; with step 0 the same one, as drafts in a tree have it."""
    step, room = picker.pick(menu.steps), _room(menu, start, limit)
    return [start + i * step % room for i in range(length)]


def backwards(picker: Picker, menu: Menu, start: int, length: int, limit: int) -> Positions:
    """Positions that fall: the least of them comes last, in another tile than most."""
    room = _room(menu, start, limit)
    return [start + (length - 1 - i) % room for i in range(length)]


def loose(picker: Picker, menu: Menu, start: int, length: int, limit: int) -> Positions:
    """Every position for itself, in any order; longer requests are stepped."""
    if length > LONGEST_LOOSE:
        return stepped(picker, menu, start, length, limit)
    if not menu.windowed:
        return [start, *(_start(picker, menu, limit) for _ in range(length - 1))]
    room = _room(menu, start, limit)
    return [start, *(start + _start(picker, menu, room) for _ in range(length - 1))]


def far(picker: Picker, menu: Menu, start: int, length: int, limit: int) -> Positions:
    """Tokens of other ranks, beyond everything that a row of this one holds."""
    first, count = picker.pick(menu.far)
    return range(first, first + length) if length <= count else [first + i % count for i in range(length)]


def broken(picker: Picker, menu: Menu, start: int, length: int, limit: int) -> Positions:
    """Consecutive positions but for one, which is negative or far away."""
    positions = list(range(start, start + length))
    where, position = picker.pick(menu.holes)
    if _room(menu, start, limit) >= length:
        positions[int(where * (length - 1))] = position
    return positions


def from_below(picker: Picker, menu: Menu, start: int, length: int, limit: int) -> Positions:
    """Consecutive positions that begin below 0."""
    first = picker.pick(menu.negative)
    return range(first, first + length)


def far_in_order(picker: Picker, menu: Menu, start: int, length: int, limit: int) -> Positions:
    """As ``far``, one position after the other: no more of them than are another rank's."""
    first, count = picker.pick(menu.far)
    return range(first, first + min(length, count))


_OFTEN = 3
_IN_ORDER: Mapping[Style, Style] = {consecutive: consecutive, from_below: from_below, far: far_in_order}


def menu_in_order(menu: Menu) -> Menu:
    """``menu`` without requests whose positions are not consecutive, and with more beyond what others are held to."""
    styles = [_IN_ORDER[style] for style in menu.styles if style in _IN_ORDER]
    starts = [start for start in menu.starts if start is not None and start >= FLOAT32_EXACT]
    further = [style for style in styles if style is far_in_order]
    return replace(menu, styles=[*styles, *_OFTEN * further], starts=[*menu.starts, *_OFTEN * starts])


def _start(picker: Picker, menu: Menu, limit: int) -> int:
    start = picker.pick(menu.starts)
    if start is None:
        return picker.below(min(limit, menu.anywhere))
    return min(start, limit - 1)


def _room(menu: Menu, start: int, limit: int) -> int:
    """How many positions from ``start`` on sparse tokens may use."""
    room = limit - start
    for geometry in menu.windowed:
        room = min(room, geometry.reach(start, menu.window))
    return room


def _columns(geometry: Geometry, positions: Positions) -> int:
    if isinstance(positions, range):
        last = geometry.last_local(max(positions.start, 0), positions.stop - 1)
        return 0 if last is None or last < 0 else geometry.block_index(last) + 1
    local = (geometry.block_index(p) for p in positions if p >= 0 and geometry.is_local(p))
    return 1 + max(local, default=-1)


def menu_of_groups(menu: Menu, growing: Sequence[Geometry], further: Iterable[Geometry]) -> Menu:
    """``menu`` for the groups of a launch: positions also at the borders of the ``further`` ones, and, where they know
    a limit, within the window of all that are ``growing``.
    """
    borders = [p for each in further for unit in _units(each) for p in (unit, unit - 1, unit + 1, 2 * unit - 1)]
    starts = (*menu.starts, *(p for p in borders if p < menu.top))
    return replace(menu, starts=starts, windowed=growing if menu.windowed else ())


def menu_around_column(menu: Menu, geometry: Geometry, column: int, limit: int) -> Menu:
    """``menu`` where requests begin around the first local position of ``column``, or at the end of the row."""
    first = column // geometry.blocks_per_kv_block * geometry.virtual_block_size
    local = first + geometry.cp.rank * geometry.cp.interleave if geometry.cp.size > 1 else first
    return replace(menu, starts=(local, local - 1, local + 1, local + geometry.block_size, limit - 17, limit - 1, 0))


@lru_cache(maxsize=4096)
def menu_for(
    declaration: Declaration, s: Specialization, affordable: int, *, growing: bool, replicated: bool = False
) -> Menu:
    """The menu of a specialization for an entry point that needs the clauses of ``declaration``.

    ``affordable`` is the first position that no table has a column for, rings aside. ``growing``: whether any group has
    a table that grows with its sequences; ``replicated``: whether one has every token on every rank.
    """
    needs_window = growing and "window" in declaration.clauses
    window = _window(declaration, s) if needs_window else None
    top = FLOAT32_EXACT if "pos-f32" in declaration.clauses else INT32_MAX + 1
    below_zero = not growing or "pos-nonneg" not in declaration.clauses
    negative = (
        -1,
        -2,
        -3,
        -s.block_size,
        -s.block_size - 1,
        -200,
        *((-FLOAT32_EXACT - 1, INT32_MIN) if top > FLOAT32_EXACT else ()),
    )
    far_away = _far(s, top) if s.cp.size > 1 and not replicated else []
    holes = [n for n in negative if below_zero] + [p for p, _ in far_away if not needs_window]
    styles: list[Style] = [*[consecutive] * 9, stepped, stepped, loose, loose, backwards, backwards]
    styles += [broken] * 2 if holes else []
    styles += [far] if far_away else []
    styles += [from_below] * 2 if below_zero else []
    return Menu(
        window=window or 0,
        windowed=() if window is None else (s,),
        top=top,
        anywhere=32 * s.virtual_block_size,
        lengths=_lengths(s.tile),
        starts=_starts(s, min(top, affordable) if growing else top),
        steps=(2, 0, 3, 5, s.block_size, s.block_size + 1, s.cp.interleave, s.turn, s.virtual_block_size),
        styles=styles,
        negative=negative,
        far=far_away or [(0, 1)],
        holes=[(where, hole) for where in (0, 0.5, 1) for hole in holes],
    )


def _window(declaration: Declaration, s: Specialization) -> int | None:
    """The window that sparse positions stay within: a host that chooses among tiles may choose the smallest."""
    if s.window is None and "groups" in declaration.features:
        return production_window(SMALLEST_TILE, s.block_size)
    return s.window


def _lengths(tile: int | None) -> Sequence[int]:
    """Few tokens mostly, sometimes any number up to 64, and the neighbours of a tile, the rarer the larger it is.

    Where the host picks the tile, it is production's for the longest.
    """
    tile = tile or PRODUCTION_TILE
    around_tile = (tile, tile + 1, tile - 1)
    if tile <= 64:
        return (*_LENGTHS, *around_tile * 6, *(2 * tile + 1,) * 4)
    return (*_LENGTHS, *around_tile * max(512 // tile, 1), 2 * tile + 1)


def _starts(s: Specialization, limit: int) -> list[int | None]:
    """0 most of all, then next to the borders of the units, then large ones, last the end of the row."""
    starts: list[int | None] = [*[0] * 12, 1, 2, 3, 5]
    for unit in _units(s):
        starts += (unit, unit - 1, unit + 1, 2 * unit, unit // 2, 2 * unit - 1, 3 * unit, 3 * unit + 1)
    starts += [None] * 8
    starts += [p for p in _LARGE_STARTS if p < limit]
    return [*starts, limit - 17, limit - 1]


def _units(s: Geometry) -> Iterable[int]:
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
