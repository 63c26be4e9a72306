"""Slot mapping with every step open to replacement: what a launch would write if one step were done in another way.

:class:`Mapping` gives the contract's answer. A hypothesis (``reports.diagnosis.hypotheses``) is a subclass of it that
replaces one step; it explains a failure when it predicts what the launch wrote, element for element.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_right
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from reference.case import Case, Group, Launch
from reference.verdict import UNWRITTEN

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Observation:
    """One launch and what came of it: ``expected`` and ``actual``, a row of elements a group; ``actual`` is empty where
    nothing was compared.
    """

    case: Case
    launch: Launch
    expected: Rows
    actual: Rows

    @cached_property
    def differing(self) -> tuple[tuple[int, int], ...]:
        """(group, element) of everything that differs."""
        rows = zip(self.expected, self.actual, strict=False)
        return tuple(
            (group, index)
            for group, (expected, actual) in enumerate(rows)
            if expected != actual
            for index in range(min(len(expected), len(actual)))
            if expected[index] != actual[index]
        )

    @cached_property
    def request_of(self) -> tuple[int, ...]:
        """The request of every token."""
        bounds = self.case.query_start_loc
        return tuple(bisect_right(bounds, token) - 1 for token in range(self.case.num_tokens))

    @cached_property
    def tile(self) -> int | None:
        """Tokens that a program handles at once, where the kernel is told."""
        constants = self.launch.constants
        return next((int(constants[name]) for name in _TILES if constants.get(name)), None)

    @property
    def window(self) -> int | None:
        """Cells of a row that are staged at once, where the kernel is told."""
        return int(self.launch.constants.get("BLOCK_TABLE_WINDOW_SIZE", 0)) or None


_TILES = ("TILE_BLOCK_SIZE", "TRITON_BLOCK_SIZE", "BLOCK_SIZE")


class Mapping:
    """The five steps for one token at a time, under the contract's letters; ``at`` says which token.

    Every method is one step and may be replaced. ``possible`` gives the values that an element may then hold: more than
    one where programs race or where what is read is not in the case; None stands for any value at all.
    """

    tells_where = False
    """Whether an element that may hold any value is known to be wrong; else nothing is known of it."""

    def __init__(self, seen: Observation) -> None:
        self.seen, self.case, self.launch = seen, seen.case, seen.launch
        self.g = self.t = 0
        self.outside = False  # whether a cell that is no part of the table was read

    def at(self, group: int, token: int) -> None:
        self.g, self.t = group, token

    # What is looked at: the group, the request, the row.

    @property
    def own(self) -> Group:
        """The group that the element belongs to."""
        return self.case.groups[self.g]

    def table_group(self) -> Group:
        """The group whose table is read."""
        return self.own

    def sizes_group(self) -> Group:
        """The group whose block sizes are used."""
        return self.own

    def flags_group(self) -> Group:
        """The group whose kind and flags are used."""
        return self.own

    def request(self) -> int:
        return self.seen.request_of[self.t]

    def row(self) -> int:
        return self.case.row_of(self.request())

    def position(self) -> int:
        return self.case.positions[self.t]

    # Which rule: disabled, ring, paged or sharded.

    def enabled(self) -> bool:
        return self.flags_group().enabled

    def ring(self) -> bool:
        return self.flags_group().kind == "circular"

    def sharded(self) -> bool:
        return self.case.cp.size > 1 and self.flags_group().sharded

    def without_slot(self, p: int) -> bool:
        """Whether the position alone says that there is no slot."""
        return p < 0

    # Sizes: b, B, k, W, R, I.

    @property
    def b(self) -> int:
        return self.sizes_group().block_size

    @property
    def B(self) -> int:  # noqa: N802
        return self.sizes_group().kv_cache_block_size

    @property
    def k(self) -> int:
        return max(self.B // self.b, 1)

    @property
    def W(self) -> int:  # noqa: N802
        return self.case.cp.size

    @property
    def R(self) -> int:  # noqa: N802
        return self.case.cp.rank

    @property
    def I(self) -> int:  # noqa: N802, E743
        return self.case.cp.interleave

    # The steps of a sharded group.

    def virtual_size(self) -> int:
        return self.B * self.W

    def owner(self, o: int) -> int:
        return o // self.I % self.W

    def local(self, o: int) -> bool:
        return self.owner(o) == self.R

    def local_offset(self, o: int) -> int:
        return o // (self.W * self.I) * self.I + o % self.I

    def sharded_place(self, v: int, o: int, local_offset: int) -> tuple[int, int]:
        """(block index, offset in the block)."""
        return v * self.k + local_offset // self.b, local_offset % self.b

    # The steps of the other rules.

    def paged_place(self, p: int) -> tuple[int, int]:
        return p // self.b, p % self.b

    def ring_place(self, p: int) -> tuple[int, int]:
        return 0, p % self.b

    # The last steps, of every rule.

    def column(self, index: int) -> int:
        return index

    def stride(self) -> int:
        return self.table_group().stride

    def cell(self, index: int) -> int:
        """The block number that the kernel finds in column ``index`` of the row. Outside the table that is what the
        suite puts there, or, where it is not in charge, anything.
        """
        group, stride = self.table_group(), self.stride()
        at = self.row() * stride + self.column(index)
        row, column = divmod(at, group.stride) if group.stride else (at, 0)
        if 0 <= row < len(group.block_table) and column < group.row_width:
            return group.block_table[row][column]
        self.outside = True
        return POISON_CELL

    def slot(self, number: int, offset: int) -> int:
        return number * self.b + offset

    def stored(self, slot: int) -> int:
        """``slot`` as the output's type holds it."""
        return wrapped(slot, self.launch.output_dtype)

    def pad(self) -> int:
        return self.case.pad_id

    def replayed(self) -> bool:
        replay = self.case.replay
        if replay is None or self.own.kind == "circular" or self.g not in replay.cacheable_groups:
            return False
        return 0 < (start := replay.starts[self.request()]) <= self.position() < start + replay.window

    # The whole.

    def value(self) -> int:
        """What token ``t`` gets in group ``g``."""
        if self.replayed() or not self.enabled():
            return self.pad()
        p = self.position()
        if self.without_slot(p):
            return self.pad()
        if self.ring():
            index, offset = self.ring_place(p)
        elif self.sharded():
            size = self.virtual_size()
            v, o = p // size, p % size
            if not self.local(o):
                return self.pad()
            index, offset = self.sharded_place(v, o, self.local_offset(o))
        else:
            index, offset = self.paged_place(p)
        return self.stored(self.slot(self.cell(index), offset))

    def block_index(self) -> int | None:
        """The column of the row that token ``t`` needs, whoever owns it; None: it needs none."""
        p = self.position()
        if not self.enabled() or self.without_slot(p):
            return None
        if self.ring():
            return self.ring_place(p)[0]
        if self.sharded():
            o = p % self.virtual_size()
            return self.sharded_place(p // self.virtual_size(), o, self.local_offset(o))[0]
        return self.paged_place(p)[0]

    def is_local(self) -> bool:
        p = self.position()
        return not self.sharded() or self.local(p % self.virtual_size())

    def beyond(self) -> bool:
        """Whether the row has no such column: a kernel may then give PAD, or take block 0 for what it did not read."""
        index = self.block_index()
        return index is not None and not 0 <= self.column(index) < self.stride()

    def possible(self, group: int, element: int) -> tuple[int | None, ...]:
        """The values that the element may hold."""
        self.at(group, element)
        if element >= self.case.num_tokens:
            return (self.seen.expected[group][element],)
        return self.values()

    def values(self) -> tuple[int | None, ...]:
        """The same for the token that it is at."""
        self.outside = False
        value = self.value()
        anything = (None,) if self.outside else ()
        if value != self.pad() and self.beyond():
            return value, self.pad(), *self._block_0(), *anything
        return value, *anything

    def _block_0(self) -> tuple[int, ...]:
        p = self.position()
        return (self.paged_place(p)[1],) if not self.sharded() and not self.ring() else ()

    def right(self, group: int, element: int) -> bool:
        """Whether ``element`` holds what this mapping lets it hold."""
        return self.holds(group, element, self.seen.actual[group][element]) is not False

    def holds(self, group: int, element: int, value: int) -> bool | None:
        """Whether ``value`` is one of those that the element may hold; None: it may hold any."""
        possible = self.possible(group, element)
        return value in possible or (None if None in possible else False)

    def explains(self) -> bool:
        """Whether it predicts what was seen: every element that differs, without resort to the unknown, and every one
        that does not.
        """
        seen = self.seen
        firm = False
        for group, element in seen.differing:
            found = self.holds(group, element, seen.actual[group][element])
            if found is False:
                return False
            firm = firm or found is True
        return firm and self._agrees(set(seen.differing))  # which are not looked at twice

    def contested(self) -> tuple[set[int], set[int]] | None:
        """Of a mistake that shows in some orders of the programs only: the requests where it shows, where it might
        have. None: it always shows.
        """
        return None

    def tells_apart(self) -> bool:
        """Whether this launch could show that it is another mistake, where one launch has to."""
        return True

    def consistent(self) -> bool:
        """Whether nothing that was seen contradicts it."""
        return self._agrees(set())

    def _agrees(self, beside: Set[tuple[int, int]]) -> bool:
        """Whether no element contradicts it but, perhaps, those of ``beside``."""
        places = ((g, t) for g, row in enumerate(self.seen.actual) for t in range(min(len(row), MOST)))
        return all(place in beside or self.right(*place) for place in places)


POISON_CELL = 0x7E7E7E7E
"""What the suite puts around a block table and between its rows: no block number that a case holds."""

MOST = 4096
"""Elements of an output that are looked at: with those behind them a diagnosis would only take longer."""


def wrapped(value: int, dtype: str) -> int:
    """``value`` as an integer of that type holds it."""
    return ctypes.c_int32(value).value if dtype == "int32" else ctypes.c_int64(value).value


def rounded(value: int) -> int:
    """``value`` as a float32 holds it."""
    return int(struct.unpack("f", struct.pack("f", value))[0])


def unwritten(value: int) -> bool:
    return value == UNWRITTEN
