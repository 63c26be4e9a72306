"""The mistakes that are looked for: each a cause, a sentence, and the step of the mapping that it replaces.

A sentence may use the contract's letters (p, b, B, k, W, R, I) and what stands in ``Hypothesis.says_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reports.diagnosis.mapping import Mapping, Observation, rounded, wrapped

Step = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """``steps`` replace methods of :class:`Mapping`, or, where ``base`` is given, of that."""

    cause: str
    says: str
    steps: dict[str, Step]
    base: type[Mapping] = Mapping

    @cached_property
    def _made(self) -> type[Mapping]:
        properties = {"b", "B", "k", "W", "R", "I"}
        steps = {name: property(step) if name in properties else step for name, step in self.steps.items()}
        return type("Supposed", (self.base,), steps)

    def of(self, seen: Observation) -> Mapping:
        """What this hypothesis says of a launch."""
        return self._made(seen)

    def sentence(self, seen: Observation) -> str:
        """What is wrong, in the numbers of the first element that differs."""
        group, element = seen.differing[0]
        right = Mapping(seen)
        right.at(group, min(element, max(seen.case.num_tokens - 1, 0)))
        own, cp = right.own, seen.case.cp
        numbers: dict[str, object] = {
            "b": own.block_size,
            "B": own.kv_cache_block_size,
            "k": own.blocks_per_kv_block,
            "W": cp.size,
            "R": cp.rank,
            "I": cp.interleave,
            "V": own.kv_cache_block_size * cp.size,
            "bW": own.block_size * cp.size,
            "pad": seen.case.pad_id,
            "group": group,
            "element": element,
            "expected": seen.expected[group][element],
            "actual": seen.actual[group][element],
            "num_tokens": seen.case.num_tokens,
            "max_num_tokens": seen.case.max_num_tokens,
            "tile": seen.tile,
            "window": seen.window,
            "stride": own.stride,
            "b0": seen.case.groups[0].block_size,
            "stride0": seen.case.groups[0].stride,
            "sharding": "shared by the ranks" if own.sharded else "whole on every rank",
            "width": own.row_width,
            "staged": seen.launch.constants.get("TOTAL_BLOCK_SIZE", "some"),
        }
        if element < seen.case.num_tokens:
            request = right.request()
            numbers |= {"p": right.position(), "r": request, "row": seen.case.row_of(request)}
            numbers["column"] = right.block_index()
        return self.says.format_map(_Numbers(numbers))


class _Flagged(Mapping):
    """Flags are misread. Where every group has the default a launch may have none, and is then as it should be."""

    def flags_are_default(self) -> bool:
        raise NotImplementedError

    def consistent(self) -> bool:
        return super().consistent() or (self.flags_are_default() and not self.seen.differing)


class _Numbers(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return key


def _h(cause: str, says: str, base: type[Mapping] = Mapping, **steps: Step) -> Hypothesis:
    return Hypothesis(cause, says, steps, base)


def _trunc(a: int, n: int) -> int:
    """The quotient as hardware gives it: towards zero."""
    return -(-a // n) if a < 0 else a // n


def _request_near(step: int) -> Step:
    def request(m: Mapping) -> int:
        return min(max(Mapping.request(m) + step, 0), m.case.num_reqs - 1)

    return request


def _position_near(step: int) -> Step:
    def position(m: Mapping) -> int:
        return m.case.positions[min(max(m.t + step, 0), len(m.case.positions) - 1)]

    return position


def _from_first(m: Mapping) -> int:
    start = m.case.query_start_loc[m.request()]
    return m.case.positions[start] + m.t - start


def _group_at(index: Callable[[Mapping], int]) -> Step:
    return lambda m: m.case.groups[min(max(index(m), 0), len(m.case.groups) - 1)]


_FIRST = _group_at(lambda m: 0)
_BEFORE = _group_at(lambda m: m.g - 1)
_NEXT = _group_at(lambda m: m.g + 1)


def _replayed(
    inside: Callable[[int, int, int], bool], of: Step = lambda m: m.request(), groups: Step | None = None
) -> Step:
    """Another rule for what is replayed: ``inside(start, p, window)``, with the start of another request, perhaps."""

    def replayed(m: Mapping) -> bool:
        replay = m.case.replay
        if replay is None or replay.window == 0:  # a host launches nothing for a window without tokens
            return False
        cacheable = m.own.kind != "circular" and m.g in replay.cacheable_groups
        if not (cacheable if groups is None else groups(m)):
            return False
        request = min(max(of(m), 0), len(replay.starts) - 1)
        return inside(replay.starts[request], m.position(), replay.window)

    return replayed


def _stored_from_float(m: Mapping, slot: int) -> int:
    """A float that the output's type does not hold becomes whatever the machine makes of it."""
    m.outside = m.outside or wrapped(slot, m.launch.output_dtype) != slot
    return wrapped(slot, m.launch.output_dtype)


def _value_through_float(m: Mapping) -> int:
    value = Mapping.value(m)
    return m.stored(value)


class _Staged(Mapping):
    """A row of which some cells are staged: what is taken for another one depends on what lies behind them."""

    tells_where = True

    def explains(self) -> bool:
        """Whether every element that differs needs a cell that was not staged."""
        return all(None in self.possible(*place) for place in self.seen.differing) and self.consistent()


def _staged_cell(m: Mapping, index: int) -> int:
    """Of a kernel that stages a row from its first cell on, as many as TOTAL_BLOCK_SIZE says."""
    if index < m.launch.constants["TOTAL_BLOCK_SIZE"]:
        return Mapping.cell(m, index)
    m.outside = True
    return 0


def _others_of_tile(m: Mapping) -> Iterator[Mapping]:
    """The mapping at every token of the tile that ``m`` is at."""
    tile = m.seen.tile or 1024
    start, end = m.case.query_start_loc[m.request()], m.case.query_start_loc[m.request() + 1]
    first = start + (m.t - start) // tile * tile
    other = Mapping(m.seen)
    for token in range(first, min(first + tile, end)):
        other.at(m.g, token)
        yield other


def _in_window(start: int, p: int, window: int) -> bool:
    return 0 < start <= p < start + window


_OWNERSHIP = "tokens are taken for another rank's, or another rank's for this one's: "
_LOCAL = "the place among this rank's own tokens is wrong: "
_INDEX = "the column of the row is wrong: "
_GROUPS = "in group {group} something of another group is used: "

HYPOTHESES: tuple[Hypothesis, ...] = (
    # Virtual block.
    _h(
        "virtual block",
        "ranks share the kernel block where they share the allocated one: the virtual block is taken for "
        "b*W = {b}*{W} = {bW} tokens, it is B*W = {B}*{W} = {V}. Compute virtual block, owner and local offset from "
        "the allocated block size",
        virtual_size=lambda m: m.b * m.W,
    ),
    _h(
        "virtual block",
        "ranks share the kernel block where they share the allocated one: all of the sharding is computed from b = "
        "{b}, the allocated block has B = {B} tokens",
        B=lambda m: m.b,
    ),
    _h(
        "virtual block",
        "ranks share the kernel block where they share the allocated one, and the row is advanced by one cell for "
        "b*W = {b}*{W} = {bW} tokens: an allocated block has B = {B} and k = {k} cells",
        virtual_size=lambda m: m.b * m.W,
        sharded_place=lambda m, v, o, l: (v, l),
    ),
    _h("virtual block", "the virtual block is taken for B = {B} tokens, it is B*W = {V}", virtual_size=lambda m: m.B),
    _h("virtual block", "the virtual block is taken for b = {b} tokens, it is B*W = {V}", virtual_size=lambda m: m.b),
    _h(
        "virtual block",
        "the virtual block is taken for W*I = {W}*{I} tokens, it is B*W = {V}",
        virtual_size=lambda m: m.W * m.I,
    ),
    # Ownership.
    _h(
        "ownership",
        _OWNERSHIP + "the owner is compared with 0, or not with this rank, R = {R}",
        local=lambda m, o: m.owner(o) == 0,
    ),
    _h("ownership", _OWNERSHIP + "the test of the owner is inverted", local=lambda m, o: m.owner(o) != m.R),
    _h(
        "ownership",
        "tokens of every rank get a slot: whether the owner is this rank (R = {R}) is not tested",
        local=lambda m, o: True,
    ),
    _h(
        "ownership",
        _OWNERSHIP + "the owner is compared with rank R + 1",
        local=lambda m, o: m.owner(o) == (m.R + 1) % m.W,
    ),
    _h("ownership", _OWNERSHIP + "the owner is compared with R + 1", local=lambda m, o: m.owner(o) == m.R + 1),
    _h(
        "ownership",
        _OWNERSHIP + "the owner is compared with rank R - 1",
        local=lambda m, o: m.owner(o) == (m.R - 1) % m.W,
    ),
    _h("ownership", _OWNERSHIP + "the owner is computed without the interleave I = {I}", owner=lambda m, o: o % m.W),
    _h("ownership", _OWNERSHIP + "the owner is o // I without % W", owner=lambda m, o: o // m.I),
    _h("ownership", _OWNERSHIP + "the owner is o // B: runs of B tokens, not of I", owner=lambda m, o: o // m.B % m.W),
    _h("ownership", _OWNERSHIP + "the owner is o // b: runs of b tokens, not of I", owner=lambda m, o: o // m.b % m.W),
    _h(
        "ownership",
        "the interleave I = {I} and the number of ranks W = {W} are swapped, in owner and local offset",
        owner=lambda m, o: o // m.W % m.I,
        local_offset=lambda m, o: o // (m.W * m.I) * m.W + o % m.W,
    ),
    _h(
        "ownership",
        "the interleave I = {I} and the number of ranks W = {W} are swapped where the owner is computed",
        owner=lambda m, o: o // m.W % m.I,
    ),
    _h(
        "ownership",
        "the interleave is ignored: tokens are dealt one by one, not in runs of I = {I}",
        I=lambda m: 1,
    ),
    _h("ownership", _OWNERSHIP + "the owner is (o // I + 1) % W", owner=lambda m, o: (o // m.I + 1) % m.W),
    _h("ownership", _OWNERSHIP + "ranks count backwards", owner=lambda m, o: m.W - 1 - o // m.I % m.W),
    _h(
        "ownership",
        _OWNERSHIP + "the owner is computed with W - 1 ranks",
        owner=lambda m, o: o // m.I % max(m.W - 1, 1),
    ),
    # Local offset.
    _h(
        "local offset",
        _LOCAL + "the runs of the other ranks are counted too, so that they leave gaps in this rank's blocks; "
        "l = (o // (W*I))*I + o % I",
        local_offset=lambda m, o: o,
    ),
    _h(
        "local offset",
        "the interleave I = {I} and the number of ranks W = {W} are swapped in the local offset",
        local_offset=lambda m, o: o // (m.W * m.I) * m.W + o % m.W,
    ),
    _h("local offset", _LOCAL + "it is o // W, as if I were 1", local_offset=lambda m, o: o // m.W),
    _h("local offset", _LOCAL + "o % I is missing", local_offset=lambda m, o: o // (m.W * m.I) * m.I),
    _h(
        "local offset",
        _LOCAL + "the turn is not multiplied by I = {I}",
        local_offset=lambda m, o: o // (m.W * m.I) + o % m.I,
    ),
    _h("local offset", _LOCAL + "only o % I is left of it", local_offset=lambda m, o: o % m.I),
    _h(
        "local offset",
        _LOCAL + "o is divided by I and not by W*I",
        local_offset=lambda m, o: o // m.I * m.I + o % m.I,
    ),
    _h(
        "local offset",
        _LOCAL + "o is divided by W and not by W*I",
        local_offset=lambda m, o: o // m.W * m.I + o % m.I,
    ),
    _h(
        "local offset",
        _LOCAL + "the turn is multiplied by W*I and not by I",
        local_offset=lambda m, o: o // (m.W * m.I) * m.W * m.I + o % m.I,
    ),
    _h(
        "local offset",
        _LOCAL + "o % (W*I) stands where o % I belongs",
        local_offset=lambda m, o: o // (m.W * m.I) * m.I + o % (m.W * m.I),
    ),
    _h("local offset", _LOCAL + "it is o % B", local_offset=lambda m, o: o % m.B),
    _h(
        "local offset",
        _LOCAL + "it begins one too far",
        local_offset=lambda m, o: o // (m.W * m.I) * m.I + o % m.I + 1,
    ),
    # Kernel block index.
    _h(
        "kernel block index",
        _INDEX + "a virtual block advances it by one kernel block, where an allocated block brings k = {k}: "
        "i = v*k + l // b",
        sharded_place=lambda m, v, o, l: (v + l // m.b, l % m.b),
    ),
    _h(
        "kernel block index",
        _INDEX + "l // b is missing, so that only the first of the k = {k} kernel blocks is used: i = v*k + l // b",
        sharded_place=lambda m, v, o, l: (v * m.k, l % m.b),
    ),
    _h(
        "kernel block index",
        _INDEX + "it is the virtual block alone: i = v*k + l // b",
        sharded_place=lambda m, v, o, l: (v, l % m.b),
    ),
    _h(
        "kernel block index",
        _INDEX + "the virtual block is not counted: i = v*k + l // b",
        sharded_place=lambda m, v, o, l: (l // m.b, l % m.b),
    ),
    _h(
        "kernel block index",
        _INDEX + "it is p // b, as if this rank had the whole sequence",
        sharded_place=lambda m, v, o, l: ((v * m.virtual_size() + o) // m.b, l % m.b),
    ),
    _h(
        "kernel block index",
        _INDEX + "the virtual block is multiplied by W",
        sharded_place=lambda m, v, o, l: (v * m.k * m.W + l // m.b, l % m.b),
    ),
    _h(
        "kernel block index",
        _INDEX + "it is the allocated block's, with k = {k} kernel blocks in one",
        sharded_place=lambda m, v, o, l: ((v * m.B + l) // m.B, l % m.b),
        paged_place=lambda m, p: (p // m.B, p % m.b),
    ),
    _h(
        "kernel block index",
        _INDEX + "l is divided by the allocated block B = {B} and not by b = {b}",
        sharded_place=lambda m, v, o, l: (v * m.k + l // m.B, l % m.b),
    ),
    _h(
        "kernel block index",
        _INDEX + "k = {k} is added and not multiplied",
        sharded_place=lambda m, v, o, l: (v + m.k + l // m.b, l % m.b),
    ),
    _h("table column", "the column behind the right one is read", column=lambda m, i: i + 1),
    _h("table column", "the column before the right one is read", column=lambda m, i: i - 1),
    _h("table column", "the first column is read, whichever is needed", column=lambda m, i: 0),
    _h(
        "table column",
        "the column is cut at the last one of the row",
        column=lambda m, i: min(i, max(m.table_group().row_width - 1, 0)),
    ),
    # Offset inside the block.
    _h(
        "block offset",
        "the offset in the block is taken from the position: it is l % b, of the local offset",
        sharded_place=lambda m, v, o, l: (v * m.k + l // m.b, (v * m.virtual_size() + o) % m.b),
    ),
    _h(
        "block offset",
        "the offset is not reduced to the kernel block of b = {b} tokens: it is counted in the allocated block of {B}",
        sharded_place=lambda m, v, o, l: (v * m.k + l // m.b, l % m.B),
        paged_place=lambda m, p: (p // m.b, p % m.B),
    ),
    _h(
        "block offset",
        "the offset is not reduced to the block of b = {b} tokens: % b is missing",
        sharded_place=lambda m, v, o, l: (v * m.k + l // m.b, l),
        paged_place=lambda m, p: (p // m.b, p),
        ring_place=lambda m, p: (0, p),
    ),
    _h("block offset", "the offset in the block is missing", slot=lambda m, number, offset: number * m.b),
    _h("block offset", "the offset in the block is one too large", slot=lambda m, number, o: number * m.b + o + 1),
    _h("block offset", "the offset in the block is one too small", slot=lambda m, number, o: number * m.b + o - 1),
    _h(
        "block offset",
        "the offset in the block wraps: one too large, modulo b = {b}",
        slot=lambda m, number, o: number * m.b + (o + 1) % m.b,
    ),
    _h(
        "block offset",
        "the offset counts from the end of the block",
        slot=lambda m, number, o: number * m.b + m.b - 1 - o,
    ),
    # Slot.
    _h(
        "slot",
        "the block number is multiplied by the allocated block size B = {B}: rows hold kernel blocks, of b = {b}",
        slot=lambda m, number, offset: number * m.B + offset,
    ),
    _h("slot", "the block number is not multiplied by b = {b}", slot=lambda m, number, offset: number + offset),
    _h("slot", "block number and offset are swapped", slot=lambda m, number, offset: offset * m.b + number),
    _h(
        "slot",
        "the column stands where the block number belongs: the table is not read",
        cell=lambda m, index: m.column(index),
    ),
    _h(
        "slot", "the slot is one too large for the block number: (number + 1)*b", slot=lambda m, n, o: (n + 1) * m.b + o
    ),
    # Row.
    _h(
        "idx_mapping",
        "request r reads row r of the block table: it must read row idx_mapping[r] (here row {row} for request {r})",
        row=lambda m: m.request(),
    ),
    _h(
        "idx_mapping",
        "idx_mapping is read one element too far",
        row=lambda m: m.case.row_of(_request_near(1)(m)),
    ),
    _h(
        "idx_mapping",
        "idx_mapping is read one element too early",
        row=lambda m: m.case.row_of(_request_near(-1)(m)),
    ),
    _h("idx_mapping", "every request uses idx_mapping[0]", row=lambda m: m.case.row_of(0)),
    _h(
        "table row", "a request reads the row behind its own: row {row} is right here", row=lambda m: Mapping.row(m) + 1
    ),
    _h(
        "table row", "a request reads the row before its own: row {row} is right here", row=lambda m: Mapping.row(m) - 1
    ),
    _h("table row", "every request reads row 0: row {row} is right here", row=lambda m: 0),
    _h("table row", "the token's number, not its request's, names the row", row=lambda m: m.t),
    _h(
        "row stride",
        "rows are taken to be as far apart as they are wide, {width} cells: their stride is {stride}",
        stride=lambda m: m.table_group().row_width,
    ),
    # Whose token, whose group.
    _h("position", "a token is given the position of the token behind it", position=_position_near(1)),
    _h("position", "a token is given the position of the token before it", position=_position_near(-1)),
    _h(
        "position",
        "positions of a request are taken to be consecutive: that of its first token is counted on",
        position=_from_first,
    ),
    _h("position", "the token's number stands where its position belongs", position=lambda m: m.t),
    _h("foreign group", _GROUPS + "the block table of group 0", table_group=_FIRST),
    _h("foreign group", _GROUPS + "the block table of the group before it", table_group=_BEFORE),
    _h("foreign group", _GROUPS + "the block table of the group behind it", table_group=_NEXT),
    _h(
        "foreign group",
        _GROUPS + "the row stride of group 0, {stride0} cells; its own is {stride}",
        stride=lambda m: m.case.groups[0].stride,
    ),
    _h("foreign group", _GROUPS + "the block sizes of group 0, b = {b0}; its own is b = {b}", sizes_group=_FIRST),
    _h("foreign group", _GROUPS + "the block sizes of the group before it", sizes_group=_BEFORE),
    _h("foreign group", _GROUPS + "the block sizes of the group behind it", sizes_group=_NEXT),
    _h(
        "foreign group",
        _GROUPS + "the smallest block size of all groups",
        b=lambda m: min(group.block_size for group in m.case.groups),
    ),
    _h("foreign group", _GROUPS + "the kind and the flags of group 0", flags_group=_FIRST),
    _h(
        "foreign group",
        _GROUPS + "everything of group 0",
        flags_group=_FIRST,
        sizes_group=_FIRST,
        table_group=_FIRST,
    ),
    # Rules.
    _h(
        "replicated group sharded",
        "group {group} is replicated on every rank, yet context parallelism is applied to it",
        sharded=lambda m: m.case.cp.size > 1,
    ),
    _h(
        "replicated group sharded",
        "group {group} is replicated on every rank: one rank shares it with nobody, and is rank 0 of it, not R = {R}",
        sharded=lambda m: m.case.cp.size > 1,
        W=lambda m: m.case.cp.size if m.own.sharded else 1,
    ),
    _h(
        "replicated group sharded",
        "the flag of sharded groups is inverted: group {group} is {sharding}",
        _Flagged,
        sharded=lambda m: m.case.cp.size > 1 and not m.own.sharded,
        flags_are_default=lambda m: all(group.sharded for group in m.case.groups),
    ),
    _h(
        "sharded group replicated",
        "ranks share group {group}, yet context parallelism is not applied to it",
        sharded=lambda m: False,
    ),
    _h(
        "circular",
        "a ring is looked up like a growing row: column p // b where only column 0 exists",
        ring=lambda m: False,
    ),
    _h("circular", "a growing row is taken for a ring: column 0 whatever the position", ring=lambda m: True),
    _h(
        "circular",
        "in a ring the offset is not reduced: % b is missing",
        ring_place=lambda m, p: (0, p),
    ),
    _h(
        "circular",
        "in a ring the block number is not read",
        cell=lambda m, index: 0 if m.ring() else Mapping.cell(m, index),
    ),
    _h(
        "disabled group",
        "group {group} gets slots although slot_mapping_enabled is false for it",
        enabled=lambda m: True,
    ),
    _h(
        "disabled group",
        "the flag of enabled groups is inverted",
        _Flagged,
        enabled=lambda m: not m.flags_group().enabled,
        flags_are_default=lambda m: all(group.enabled for group in m.case.groups),
    ),
    _h("disabled group", "group {group} is enabled and gets no slots", enabled=lambda m: False),
    # Replay.
    _h("replay window", "replayed tokens keep their slots: nothing is taken back", replayed=lambda m: False),
    _h(
        "replay window",
        "the first replayed token keeps its slot: start <= p, the start belongs to the window",
        replayed=_replayed(lambda start, p, window: 0 < start < p < start + window),
    ),
    _h(
        "replay window",
        "the token behind the window loses its slot: p < start + window",
        replayed=_replayed(lambda start, p, window: 0 < start <= p <= start + window),
    ),
    _h(
        "replay window",
        "the last token of the window keeps its slot: p < start + window",
        replayed=_replayed(lambda start, p, window: 0 < start <= p < start + window - 1),
    ),
    _h(
        "replay window",
        "a start of 0 means that nothing is replayed: start > 0 is not tested",
        replayed=_replayed(lambda start, p, window: start <= p < start + window),
    ),
    _h(
        "replay window",
        "a request that replays from position 1 on is left out",
        replayed=_replayed(lambda start, p, window: 1 < start <= p < start + window),
    ),
    _h(
        "replay window",
        "every token from the start on loses its slot: the window's end is not tested",
        replayed=_replayed(lambda start, p, window: 0 < start <= p),
    ),
    _h(
        "replay window",
        "tokens before the start lose their slots too: start <= p is not tested",
        replayed=_replayed(lambda start, p, window: start > 0 and p < start + window),
    ),
    _h(
        "replay window",
        "the window counts from position 0, not from the start",
        replayed=_replayed(lambda start, p, window: 0 < start <= p < window),
    ),
    _h(
        "replay window",
        "the window is half as long",
        replayed=_replayed(lambda start, p, window: 0 < start <= p < start + window // 2),
    ),
    _h(
        "replay window",
        "every token of a request that replays some loses its slot: only those in the window may",
        replayed=_replayed(lambda start, p, window: start > 0),
    ),
    _h(
        "replay window",
        "a tile with a replayed token loses all of its slots: only the tokens in the window may",
        replayed=lambda m: any(Mapping.replayed(other) for other in _others_of_tile(m)),
    ),
    _h(
        "foreign request",
        "a request takes slots back by the start of the request behind it",
        replayed=_replayed(_in_window, lambda m: m.request() + 1),
    ),
    _h(
        "foreign request",
        "a request takes slots back by the start of the request before it",
        replayed=_replayed(_in_window, lambda m: m.request() - 1),
    ),
    _h(
        "foreign request",
        "every request takes slots back by the start of request 0",
        replayed=_replayed(_in_window, lambda m: 0),
    ),
    _h(
        "foreign group",
        "replayed tokens lose their slots in groups that are not cacheable, too",
        replayed=_replayed(_in_window, groups=lambda m: True),
    ),
    _h(
        "foreign group",
        "slots are taken back in the first groups, not in those that cacheable_groups names",
        replayed=_replayed(_in_window, groups=lambda m: m.g < len(m.case.replay.cacheable_groups)),
    ),
    _h(
        "foreign group",
        "slots are taken back in the first of the cacheable groups only",
        replayed=_replayed(_in_window, groups=lambda m: m.g in m.case.replay.cacheable_groups[:1]),
    ),
    # Sign.
    _h(
        "sign",
        "a negative position gets a slot: it is taken for position 0 (p = {p}); whether it is negative is not tested",
        without_slot=lambda m, p: False,
        position=lambda m: max(Mapping.position(m), 0),
        replayed=lambda m: False,
    ),
    _h(
        "sign",
        "a negative position gets a slot (p = {p}): quotient and remainder are those of a division that rounds down",
        without_slot=lambda m, p: False,
    ),
    _h(
        "sign",
        "a negative position gets a slot (p = {p}): quotient and remainder are those of a division that truncates "
        "towards zero",
        without_slot=lambda m, p: False,
        paged_place=lambda m, p: (_trunc(p, m.b), p - _trunc(p, m.b) * m.b),
        ring_place=lambda m, p: (0, p - _trunc(p, m.b) * m.b),
    ),
    _h(
        "sign",
        "the sign is tested after a division that truncates towards zero: positions -b < p < 0 (p = {p}, b = {b}) pass",
        without_slot=lambda m, p: _trunc(p, m.b) < 0,
        paged_place=lambda m, p: (_trunc(p, m.b), p - _trunc(p, m.b) * m.b),
        ring_place=lambda m, p: (0, p - _trunc(p, m.b) * m.b),
    ),
    _h(
        "sign",
        "a negative position gets a slot (p = {p}): its sign is dropped",
        position=lambda m: abs(Mapping.position(m)),
    ),
    _h(
        "sign",
        "position 0 gets no slot: the test must be p < 0",
        without_slot=lambda m, p: p <= 0,
    ),
    _h(
        "sign",
        "positions above -2 pass the test of the sign (p = {p}): it must be p < 0",
        without_slot=lambda m, p: p < -1,
    ),
    # Precision and overflow.
    _h(
        "float32",
        "the slot is computed in float32 and loses its last bits above 2^24: {expected} became {actual}. Convert the "
        "block number back to an integer before it is multiplied",
        slot=lambda m, number, offset: rounded(rounded(rounded(number) * m.b) + offset),
    ),
    _h(
        "float32",
        "slot and PAD_ID are one float32: {expected} became {actual}, and what does not fit is anything. Convert the "
        "slot back to an integer before PAD_ID is chosen",
        slot=lambda m, number, offset: rounded(rounded(rounded(number) * m.b) + offset),
        pad=lambda m: rounded(m.case.pad_id),
        stored=_stored_from_float,
        value=_value_through_float,
    ),
    _h(
        "window",
        "no more than {staged} cells of a row are staged, and the block of another one is anything (column {column})",
        base=_Staged,
        cell=_staged_cell,
    ),
    _h(
        "float32",
        "the block number loses its last bits above 2^24 when it is gathered as float32",
        slot=lambda m, number, offset: rounded(number) * m.b + offset,
    ),
    _h(
        "float32",
        "the position loses its last bits above 2^24 when it is converted to float32 (p = {p})",
        position=lambda m: rounded(Mapping.position(m)),
    ),
    _h(
        "float32",
        "the product loses its last bits above 2^24 in float32 before the offset is added",
        slot=lambda m, number, offset: rounded(number * m.b) + offset,
    ),
    _h(
        "int32 overflow",
        "a slot above 2^31 - 1 wraps: {expected} became {actual}. Widen the block number to the output's int64 before "
        "it is multiplied",
        slot=lambda m, number, offset: wrapped(number * m.b + offset, "int32"),
    ),
    _h(
        "int32 overflow",
        "the product of block number and block size wraps at 2^31 before it is widened: {expected} became {actual}",
        slot=lambda m, number, offset: wrapped(number * m.b, "int32") + offset,
    ),
)
"""Simplest explanation first: of several of one cause the first that holds is told."""
