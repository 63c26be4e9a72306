"""Mistakes that concern more than one token at a time: padding, tiles, windows, tokens of other requests, widths."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

from reference.verdict import UNWRITTEN
from reports.diagnosis.hypotheses import Hypothesis
from reports.diagnosis.mapping import MOST, Mapping, Observation, wrapped

_LARGEST_TILE = 1024


class _Changed(Mapping):
    """The right output, changed by ``change(m, element, right values)`` element by element."""

    def change(self, element: int, right: tuple[int | None, ...]) -> tuple[int | None, ...]:
        raise NotImplementedError

    def possible(self, group: int, element: int) -> tuple[int | None, ...]:
        return self.change(element, super().possible(group, element))


class _Tail(_Changed):
    """Padding of other elements than [num_tokens, max_num_tokens)."""

    def is_padded(self, element: int) -> bool | None:
        """Whether the element holds the padding; None: nobody knows, or both may be."""
        raise NotImplementedError

    def change(self, element: int, right: tuple[int | None, ...]) -> tuple[int | None, ...]:
        padded = self.is_padded(element)
        if padded is None:
            return (*right, self.pad())
        if padded:
            return (self.pad(),)
        return right if element < self.case.num_tokens else (UNWRITTEN,)

    @property
    def n(self) -> int:
        return self.case.num_tokens

    @property
    def m(self) -> int:
        return self.case.max_num_tokens

    @property
    def step(self) -> int:
        """Elements that are padded at once."""
        return self.seen.tile or _LARGEST_TILE

    def last_token_padded(self) -> bool | None:
        """Whether padding that begins too early comes after the token's own program: not if programs run backwards."""
        return None if self.launch.fence == "before" else True

    @property
    def writes_tail(self) -> bool:
        """Whether [num_tokens, max_num_tokens) is to be written at all."""
        return any(row[self.n : self.m] != [UNWRITTEN] * (self.m - self.n) for row in map(list, self.seen.expected))


def _tail(cause: str, says: str, is_padded: Callable[[_Tail, int], bool | None]) -> Hypothesis:
    return Hypothesis(cause, says, {"is_padded": is_padded}, _Tail)


_PADDING = "elements [num_tokens, max_num_tokens) = [{num_tokens}, {max_num_tokens}) must hold PAD_ID: "

PADDING: tuple[Hypothesis, ...] = (
    _tail("padding missing", _PADDING + "none of them is written", lambda m, e: False),
    _tail("padding start", _PADDING + "the first of them is not written", lambda m, e: m.n < e < m.m),
    _tail(
        "padding start",
        _PADDING + "those before the next multiple of {tile} are not written",
        lambda m, e: -(-m.n // m.step) * m.step <= e < m.m,
    ),
    _tail(
        "padding start",
        _PADDING + "padding begins one element too early, on the last token",
        lambda m, e: m.last_token_padded() if e == m.n - 1 else m.n <= e < m.m,
    ),
    _tail(
        "padding end",
        "this path writes [0, num_tokens) = [0, {num_tokens}) only: what lies behind was overwritten",
        lambda m, e: m.n <= e if not m.writes_tail else False,
    ),
    _tail("padding end", _PADDING + "the last of them is not written", lambda m, e: m.n <= e < m.m - 1),
    _tail(
        "padding end",
        _PADDING + "only the first tile of {tile} of them is written",
        lambda m, e: m.n <= e < min(m.n + m.step, m.m),
    ),
    _tail(
        "padding end",
        _PADDING + "a last tile that is not full is left out",
        lambda m, e: m.n <= e < m.n + (m.m - m.n) // m.step * m.step,
    ),
    _tail("padding end", _PADDING + "the element behind them is written too", lambda m, e: m.n <= e < m.m + 1),
    _tail(
        "padding end",
        _PADDING + "the tile that they end in is written to its end",
        lambda m, e: m.n <= e < max(m.m, m.n + -(-(m.m - m.n) // m.step) * m.step),
    ),
    _tail("padding end", _PADDING + "padding goes on to the end of the buffer", lambda m, e: e >= m.n),
)


class _PadValue(_Changed):
    """PAD_ID is ``value``, in the elements that the padding or the tokens have, or in both."""

    value_of_pad = -1
    tokens = tail = True

    def change(self, element: int, right: tuple[int | None, ...]) -> tuple[int | None, ...]:
        concerned = self.tokens if element < self.case.num_tokens else self.tail
        if concerned and self.seen.expected[self.g][element] == self.case.pad_id:
            return (self.value_of_pad,)
        return right


PAD_VALUES: tuple[Hypothesis, ...] = tuple(
    Hypothesis(
        "padding value",
        f"{what} PAD_ID = {{pad}}, and hold {value}",
        {"value_of_pad": value, "tokens": tokens, "tail": tail},  # type: ignore[dict-item]
        _PadValue,
    )
    for value in (-1, 0)
    for what, tokens, tail in (
        ("elements without a slot must hold", True, True),
        ("tokens without a slot must hold", True, False),
        ("elements behind the tokens must hold", False, True),
    )
)


class _LeftOut(_Changed):
    """Some tokens are not written. ``is_left_out(index, length)``: the token's place in its request."""

    def is_left_out(self, index: int, length: int) -> bool:
        raise NotImplementedError

    def change(self, element: int, right: tuple[int | None, ...]) -> tuple[int | None, ...]:
        if element >= self.case.num_tokens:
            return right
        request, bounds = self.request(), self.case.query_start_loc
        start, end = bounds[request], bounds[request + 1]
        return (UNWRITTEN,) if self.is_left_out(element - start, end - start) else right


class _SomeLeftOut(_Changed):
    """Tiles behind the first one of a request may be left out: how many programs share them is not known."""

    def change(self, element: int, right: tuple[int | None, ...]) -> tuple[int | None, ...]:
        if element >= self.case.num_tokens or not self.seen.tile:
            return right
        first = element - self.case.query_start_loc[self.request()] < self.seen.tile
        return right if first else (*right, UNWRITTEN)


def _left_out(cause: str, says: str, is_left_out: Callable[[_LeftOut, int, int], bool]) -> Hypothesis:
    return Hypothesis(cause, says, {"is_left_out": is_left_out}, _LeftOut)


def _tiles_of(programs: int) -> Callable[[_LeftOut, int, int], bool]:
    return lambda m, index, length: index // (m.seen.tile or _LARGEST_TILE) >= programs


def _shared_tiles(programs: int) -> Callable[[_LeftOut, int, int], bool]:
    return lambda m, index, length: bool(index // (m.seen.tile or _LARGEST_TILE) % programs)


def _behind(count: int) -> Callable[[_LeftOut, int, int], bool]:
    return lambda m, index, length: index >= count


TILES: tuple[Hypothesis, ...] = (
    _left_out(
        "tile",
        "tokens behind the first tile ({tile} tokens) of a request are not written: the loop over its tiles ends early",
        _tiles_of(1),
    ),
    _left_out(
        "tile",
        "tokens behind the second tile ({tile} tokens each) of a request are not written: later tiles are left",
        _tiles_of(2),
    ),
    *(
        _left_out(
            "tile",
            f"tokens behind the first {tile} of a request are not written: the loop over its tiles ends early",
            _behind(tile),
        )
        for tile in (16, 32, 64, 128, 256, 512, 1024)
    ),
    *(
        _left_out(
            "tile",
            f"of the {programs} programs that share a request only one works: the tiles of the others are left out",
            _shared_tiles(programs),
        )
        for programs in (2, 3, 4)
    ),
    Hypothesis(
        "tile",
        "tokens behind the first tile ({tile} tokens) of a request are left out, in some requests or by some programs",
        {},
        _SomeLeftOut,
    ),
    _left_out(
        "tile",
        "a last tile that is not full, of {tile} tokens, is not written",
        lambda m, index, length: index >= length // (m.seen.tile or _LARGEST_TILE) * (m.seen.tile or _LARGEST_TILE),
    ),
    _left_out("stale element", "the last token of a request is not written", lambda m, i, length: i == length - 1),
    _left_out("stale element", "the first token of a request is not written", lambda m, i, length: i == 0),
    _left_out(
        "stale element",
        "the tokens of the last request are not written",
        lambda m, i, length: m.request() == m.case.num_reqs - 1,
    ),
    _left_out("stale element", "no token is written", lambda m, i, length: True),
)


class _Windowed(Mapping):
    """Cells of a row that are looked up are those of one window a tile: outside it a token gets PAD, or block 0."""

    def base(self, indices: list[tuple[int, bool, int]]) -> int:
        """The first cell of the window, from the (block index, is local, position) of the tile's tokens."""
        raise NotImplementedError

    def tile_size(self) -> int:
        return self.seen.tile or _LARGEST_TILE

    def window_size(self) -> int:
        if self.seen.window:
            return self.seen.window
        smallest = min(group.block_size for group in self.case.groups)
        return 1 << (-(-self.tile_size() // smallest)).bit_length()

    @property
    def bases(self) -> Callable[[int, int, int], int]:
        cached = self.__dict__.get("_bases")
        if cached is None:
            cached = self.__dict__["_bases"] = lru_cache(maxsize=None)(self._base_of)
        return cached

    def _base_of(self, group: int, first: int, last: int) -> int:
        plain = Mapping(self.seen)
        tokens = []
        for token in range(first, last):
            plain.at(group, token)
            index = plain.block_index()
            if index is None:  # a negative position
                tokens.append((plain.position() // plain.b, False, plain.position()))
            else:
                tokens.append((index, plain.is_local(), plain.position()))
        return self.base(tokens)

    def tells_apart(self) -> bool:
        """Whether tokens of the launch lie in the window and others do not: few tokens far from it can be wrong for any
        other reason.
        """
        places = [
            self._is_inside(group, element)
            for group in range(len(self.case.groups))
            for element in range(min(self.case.num_tokens, MOST))
        ]
        return True in places and False in places

    def possible(self, group: int, element: int) -> tuple[int | None, ...]:
        right = super().possible(group, element)
        if self._is_inside(group, element) is not False:
            return right
        offset = right[0] % self.b if right[0] is not None else 0
        return self.pad(), self.stored(offset)

    def _is_inside(self, group: int, element: int) -> bool | None:
        """Whether the cell that the element needs is in the window; None: it needs none."""
        right = super().possible(group, element)
        if element >= self.case.num_tokens or self.own.kind == "circular" or not self.own.enabled:
            return None
        if right == (self.pad(),):
            return None
        index = self.block_index()
        if index is None:
            return None
        bounds, request = self.case.query_start_loc, self.request()
        first = bounds[request] + (element - bounds[request]) // self.tile_size() * self.tile_size()
        base = self.bases(group, first, min(first + self.tile_size(), bounds[request + 1]))
        return base <= index < base + self.window_size()


class _Unchecked(_Windowed):
    """The same where nobody asks whether a cell is in the window: what is taken for another one depends on what lies
    behind those that were staged.
    """

    tells_where = True

    def possible(self, group: int, element: int) -> tuple[int | None, ...]:
        if not self.seen.window:
            raise LookupError("no window is staged")
        right = Mapping.possible(self, group, element)
        return (None,) if self._is_inside(group, element) is False else right

    def explains(self) -> bool:
        """Whether every element that differs needs a cell outside the window."""
        return all(None in self.possible(*place) for place in self.seen.differing) and self.consistent()


def _windowed(says: str, base: Callable[[_Windowed, list[tuple[int, bool, int]]], int]) -> Hypothesis:
    return Hypothesis("window", says, {"base": base}, _Windowed)


def _least(indices: list[int]) -> int:
    return min(indices, default=0)


_STAGED = (
    "only one window of {window} cells of the row is looked up, and tokens whose block lies outside it get no slot: "
)

WINDOWS: tuple[Hypothesis, ...] = (
    _windowed(
        _STAGED + "what is left over after it needs another window",
        lambda m, indices: _least([index for index, local, _ in indices if local]),
    ),
    _windowed(
        _STAGED + "it begins at the smallest block of all tokens, other ranks' too; only local tokens may count",
        lambda m, indices: _least([index for index, _, p in indices if p >= 0]),
    ),
    _windowed(
        _STAGED + "a negative position moves its beginning; only local tokens may count",
        lambda m, indices: _least([index for index, _, _ in indices]),
    ),
    _windowed(_STAGED + "it begins at the first token's block", lambda m, indices: indices[0][0] if indices else 0),
    _windowed(_STAGED + "it begins at the beginning of the row", lambda m, indices: 0),
    _windowed(
        _STAGED + "it begins at the smallest block of all tokens but those at the beginning of the row",
        lambda m, indices: _least([index for index, local, p in indices if local or p > 0]),
    ),
    Hypothesis(
        "window",
        "only one window of {window} cells of the row is staged, and the block of a token outside it is anything: it "
        "begins at the smallest block of all tokens, other ranks' too; only local tokens may count",
        {"base": lambda m, indices: _least([index for index, _, p in indices if p >= 0])},
        _Unchecked,
    ),
)


_MOST_STRANGERS = 64
"""Requests that are thought to write an element as well: the nearest of the hundreds that a large batch has."""


class _Strays(_Changed):
    """Programs of other requests write the element as well: it holds what the last of them stored, any of them."""

    def strangers(self, element: int) -> list[int]:
        raise NotImplementedError

    def change(self, element: int, right: tuple[int | None, ...]) -> tuple[int | None, ...]:
        found = list(right)
        for request in self.strangers(element)[-_MOST_STRANGERS:]:
            if element >= len(self.case.positions):  # what is read there is no position, or anything
                found += [self.pad(), None]
                continue
            found += self._from(request, element)
        return tuple(found)

    def holds(self, group: int, element: int, value: int) -> bool | None:
        # Without asking all strangers: the nearest first.
        found = Mapping(self.seen).holds(group, element, value)
        if found:
            return True
        self.at(group, element)
        anything = found is None
        for request in reversed(self.strangers(element)[-_MOST_STRANGERS:]):
            values = (self.pad(), None) if element >= len(self.case.positions) else self._from(request, element)
            if value in values:
                return True
            anything = anything or None in values
        return None if anything else False

    def _from(self, request: int, element: int) -> tuple[int | None, ...]:
        guest = _Guest(self.seen)
        guest.guest = request
        guest.at(self.g, element)
        return guest.values()

    def contested(self) -> tuple[set[int], set[int]]:
        """The requests with an element that a stranger would make wrong: those where it is wrong, where it is not."""
        wrong: set[int] = set()
        right: set[int] = set()
        if self.case.replay is not None:  # whoever takes slots back has not stored them
            return wrong, right
        for group, row in enumerate(self.seen.actual):
            for element, value in enumerate(row[: self.case.num_tokens]):
                self.at(group, element)
                wanted = self.seen.expected[group][element]
                if any(wanted not in self._from(request, element) for request in self.strangers(element)):
                    (right if value == wanted else wrong).add(self.request())
        return wrong, right

    @cached_property
    def busy(self) -> list[tuple[int, int, int]]:
        """(request, start, end) of all requests that have tokens."""
        bounds = self.case.query_start_loc
        return [(r, bounds[r], bounds[r + 1]) for r in range(self.case.num_reqs) if bounds[r] < bounds[r + 1]]


class _Guest(Mapping):
    guest = 0

    def request(self) -> int:
        return self.guest


def _strays(says: str, strangers: Callable[[_Strays, int], list[int]]) -> Hypothesis:
    return Hypothesis("foreign request", says, {"strangers": strangers}, _Strays)


def _owner_by(rule: Callable[[Mapping, int], int]) -> dict[str, Callable[..., object]]:
    return {"request": lambda m: min(max(rule(m, m.t), 0), m.case.num_reqs - 1)}


def _first_that_ends_late(m: Mapping, token: int) -> int:
    """The request before those that start at the token: what `<` for `<=` in a search for the owner gives."""
    return max((r for r in range(m.case.num_reqs) if m.case.query_start_loc[r] < token), default=0)


def _first_that_starts(m: Mapping, token: int) -> int:
    """The first of the requests that start where the owner starts: an empty one, perhaps."""
    start = m.case.query_start_loc[Mapping.request(m)]
    return next(r for r in range(m.case.num_reqs) if m.case.query_start_loc[r] == start)


REQUESTS: tuple[Hypothesis, ...] = (
    _strays(
        "a request also writes the token behind its last: its end is taken to belong to it (`<=` for `<`)",
        lambda m, e: [r for r, _, end in m.busy if end == e],
    ),
    _strays(
        "a request also writes the tokens of the requests behind it: its end is not tested",
        lambda m, e: [r for r, _, end in m.busy if end <= e < m.case.num_tokens],
    ),
    _strays(
        "a request, even an empty one, also writes the tokens of the requests behind it: its end is not its own",
        lambda m, e: [r for r, end in enumerate(m.case.query_start_loc[1:]) if end <= e < m.case.num_tokens],
    ),
    _strays(
        "a request also writes what is behind its last token, up to the end of its tile",
        lambda m, e: [
            r
            for r, start, end in m.busy
            if end <= e < start + -(-(end - start) // (m.seen.tile or 1024)) * (m.seen.tile or 1024)
        ],
    ),
    _strays(
        "a request also writes the token before its first",
        lambda m, e: [r for r, start, _ in m.busy if start - 1 == e],
    ),
    Hypothesis(
        "foreign request",
        "a request's first token is given to the request before it: the search for the owner must take starts <= token",
        _owner_by(_first_that_ends_late),
    ),
    Hypothesis(
        "foreign request",
        "a token is given to the first request that starts where its own does, an empty one: the last of them owns it",
        _owner_by(_first_that_starts),
    ),
    Hypothesis(
        "foreign request",
        "tokens are handled as those of the request behind their own",
        _owner_by(lambda m, token: Mapping.request(m) + 1),
    ),
    Hypothesis(
        "foreign request",
        "tokens are handled as those of the request before their own",
        _owner_by(lambda m, token: Mapping.request(m) - 1),
    ),
    Hypothesis("foreign request", "all tokens are handled as those of request 0", _owner_by(lambda m, token: 0)),
    Hypothesis(
        "foreign request",
        "all tokens are handled as those of the last request",
        _owner_by(lambda m, token: m.case.num_reqs - 1),
    ),
)


class _Shared(Mapping):
    """All groups are written into the output of group 0: it holds what the last of them stored."""

    def possible(self, group: int, element: int) -> tuple[int | None, ...]:
        if group:
            return (UNWRITTEN,)
        found: list[int | None] = []
        for each in range(len(self.case.groups)):
            found += super().possible(each, element)
        self.at(group, element)
        return tuple(found)


class _Late(Mapping):
    """What stands behind the last position is mapped like a token, of ``guest``."""

    def guest(self) -> int:
        raise NotImplementedError

    def request(self) -> int:
        return self.guest() if self.t >= self.case.num_tokens else super().request()

    def possible(self, group: int, element: int) -> tuple[int | None, ...]:
        if not self.case.num_tokens <= element < min(self.case.max_num_tokens, len(self.case.positions)):
            return super().possible(group, element)
        self.at(group, element)
        return self.values()


def _late(which: str, guest: Callable[[Mapping], int]) -> Hypothesis:
    says = (
        f"what stands behind the last token in positions is mapped like a token of the {which} request: it is padding"
    )
    return Hypothesis("foreign request", says, {"guest": guest}, _Late)


GROUPS: tuple[Hypothesis, ...] = (
    Hypothesis("foreign group", "every group is written into the output of group 0", {}, _Shared),
    _late("first", lambda m: 0),
    _late("last", lambda m: max(m.case.num_reqs - 1, 0)),
)


class _Narrow(Mapping):
    """An int64 output written as int32: two elements share one."""

    def possible(self, group: int, element: int) -> tuple[int | None, ...]:
        halves = []
        for half in (2 * element, 2 * element + 1):
            if half >= len(self.seen.expected[group]):
                value: int | None = UNWRITTEN
            else:
                (value, *_) = super().possible(group, half)
            halves.append(value)
        self.at(group, element)
        low, high = halves
        if low is None or high is None:
            return (None,)
        if low == high == UNWRITTEN:
            return (UNWRITTEN,)
        poison = UNWRITTEN & 0xFFFFFFFFFFFFFFFF
        low = poison & 0xFFFFFFFF if low == UNWRITTEN else low & 0xFFFFFFFF
        high = poison >> 32 if high == UNWRITTEN else high & 0xFFFFFFFF
        return (wrapped(high << 32 | low, "int64"),)


WIDTHS: tuple[Hypothesis, ...] = (
    Hypothesis("output width", "the int64 output is written as int32: two slots share one element", {}, _Narrow),
)


def concerned(seen: Observation) -> tuple[Hypothesis, ...]:
    """The hypotheses of this module that can be about ``seen``."""
    widths = WIDTHS if seen.launch.output_dtype == "int64" else ()
    return (*PADDING, *PAD_VALUES, *TILES, *REQUESTS, *GROUPS, *WINDOWS, *widths)
