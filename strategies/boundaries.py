"""Cases at the boundary of the contract: each breaks one clause, by one position or by one cell of a block table.

What a launch of such a case must still do is not in the contract. Whoever promises to be ``total`` reads and writes
nothing outside its buffers, whatever positions and tables hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from hypothesis import strategies as st

from reference.case import Case, Group, Launch, Replay
from reference.contract import CLAUSES, FLOAT32_EXACT, violations
from reference.fields import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
from strategies.cases import MAX_TOKENS, cases
from strategies.declaration import Declaration
from strategies.geometry import NO_CP, Geometry
from strategies.picking import MOST_ITEMS, Picker
from strategies.specializations import Specialization
from strategies.tables import blocks_that_fit

BREAKABLE = ("pos-nonneg", "pos-int32", "pos-f32", "row-width", "window", "slot-fits")
"""The clauses that one position or one cell breaks."""

IMPLIED: dict[str, frozenset[str]] = {"pos-int32": frozenset({"pos-nonneg", "pos-f32", "row-width", "window"})}
"""What cannot be kept where a clause is broken: a position beyond int32 is negative, or not below 2^24, past any row
that there could be, and far from the others of its tile."""

_MOST_CELLS = 1 << 15
_TRIES = 4
_MOST_VALUES = 18  # of a menu below

_NOT_EXACT = frozenset({"pos-nonneg", "pos-f32", "window"})


@dataclass(frozen=True, slots=True)
class _Choice:
    """Numbers from which everything about a break follows: which token, which group, which value."""

    token: int
    group: int
    value: int


Change = Callable[[Case, Specialization, _Choice], Iterator[Case]]
"""The candidates that one choice leads to, the one that was drawn first."""


def boundary_cases(
    declaration: Declaration, specialization: Specialization, clause: str, *, max_tokens: int = MAX_TOKENS
) -> st.SearchStrategy[tuple[Case, Launch]]:
    """Cases that keep every clause of the contract but ``clause``, and what that one implies (``IMPLIED``).

    Raises ValueError for a clause that this specialization cannot break (``breakable``).
    """
    if not breakable(declaration, specialization, clause):
        raise ValueError(f"{clause}: not broken by one position or one cell of {specialization}")
    return _boundary_cases(declaration, specialization, clause, max_tokens)


@lru_cache(maxsize=4096)
def breakable(declaration: Declaration, specialization: Specialization, clause: str) -> bool:
    """Whether there are such cases: no position is outside the row of a ring, none above 2^24 is inside a row of 4096
    blocks of 2.
    """
    return bool(_smallest_broken(declaration, specialization, clause))


@st.composite
def _boundary_cases(
    draw: st.DrawFn, declaration: Declaration, s: Specialization, clause: str, max_tokens: int
) -> tuple[Case, Launch]:
    needy = Declaration(declaration.clauses | _NOT_EXACT, declaration.features)
    case, launch = draw(cases(needy, s, max_tokens=max_tokens))
    case = _with_a_token(case)
    launch = replace(launch, output_length=max(launch.output_length or 0, case.max_num_tokens))
    picker = Picker(draw)
    choice = _Choice(*(picker.pick(range(MOST_ITEMS)) for _ in range(3)))
    for broken in islice(_CHANGES[clause](case, s, choice), _TRIES):
        if _breaks_only(broken, launch, s, clause):
            return broken, launch
    # Where the rest of the case is in the way, the clause is broken by one request alone.
    smallest = _smallest_broken(declaration, s, clause)
    broken = smallest[choice.value % len(smallest)]
    return broken, Launch(s.output_dtype, broken.max_num_tokens, launch.fence)


@lru_cache(maxsize=4096)
def _smallest_broken(declaration: Declaration, s: Specialization, clause: str) -> tuple[Case, ...]:
    """Every way to break ``clause`` in a batch of one request, or none."""
    rows = ((tuple(range(s.blocks_per_kv_block))),)
    group = Group(rows, s.block_size, s.kv_cache_block_size, kind="circular" if s.circular else "paged")
    features = declaration.features
    case = Case(
        (0, 2),
        (0, 0),
        2,
        2,
        (group,),
        cp=s.cp,
        pad_id=s.pad_id,
        idx_mapping=(0,) if "idx_mapping" in features else None,
        replay=Replay((1,), 5, (0,) if group.kind == "paged" else ()) if "replay" in features else None,
    )
    if clause in _CHANGES and ("replay" not in features or clause not in _ABOUT_TABLES):
        values = range(_MOST_VALUES if clause != "window" else 2)
        found = (each for value in values for each in islice(_CHANGES[clause](case, s, _Choice(1, 0, value)), 2))
        launch = Launch(s.output_dtype, 2)
        return tuple(each for each in dict.fromkeys(found) if _breaks_only(each, launch, s, clause))
    return ()


def _breaks_only(case: Case, launch: Launch, s: Specialization, clause: str) -> bool:
    found = {each.clause for each in violations(case, CLAUSES, bound(s, launch))}
    # Slots of a case with a replay are computed before they are taken back: they must exist.
    implied = IMPLIED.get(clause, frozenset()) - ({"row-width"} if case.replay is not None else set())
    return clause in found and found <= {clause} | implied


def bound(s: Specialization, launch: Launch) -> Launch:
    """``launch`` with the constants that the clause ``window`` asks for, as far as ``s`` says them."""
    if s.tile is None or s.window is None:
        return launch
    return replace(launch, constants={"TILE_BLOCK_SIZE": s.tile, "BLOCK_TABLE_WINDOW_SIZE": s.window})


def _with_a_token(case: Case) -> Case:
    """A batch without tokens gets one, at position 0 of its last request."""
    if case.num_tokens:
        return case
    requests = max(case.num_reqs, 1)
    mapping, replay = case.idx_mapping, case.replay
    if mapping is not None:
        mapping = (*mapping[: requests - 1], max(mapping[-1], 0) if mapping else 0)
    if replay is not None:
        replay = replace(replay, starts=(0,) * requests)
    return replace(
        case,
        query_start_loc=(*[0] * requests, 1),
        positions=(0, *case.positions[1:]),
        num_tokens=1,
        idx_mapping=mapping,
        replay=replay,
    )


# Positions


def _moved(values: Callable[[Case, Specialization], Sequence[int]]) -> Change:
    """One token goes to another position."""

    def change(case: Case, s: Specialization, choice: _Choice) -> Iterator[Case]:
        positions = values(case, s)
        for index in range(len(positions)):
            for token in _tokens(case, choice):
                yield _at(case, token, positions[(choice.value + index) % len(positions)])

    return change


def _tokens(case: Case, choice: _Choice) -> Iterator[int]:
    """Any token; if that will not do, one that is alone in its request, so that it is far from no other."""
    bounds = case.query_start_loc
    yield choice.token % case.num_tokens
    alone = [bounds[r] for r in range(case.num_reqs) if bounds[r + 1] - bounds[r] == 1]
    if alone:
        yield alone[choice.token % len(alone)]


def _at(case: Case, token: int, position: int) -> Case:
    return replace(case, positions=(*case.positions[:token], position, *case.positions[token + 1 :]))


def _negative(case: Case, s: Specialization) -> Sequence[int]:
    b = s.block_size
    return (-1, -2, -b, -b - 1, -s.virtual_block_size, -200, -FLOAT32_EXACT - 1, INT32_MIN)


def _beyond_int32(case: Case, s: Specialization) -> Sequence[int]:
    """Half of them would be ordinary positions in 32 bits."""
    wrapped = [sign * turns + p for p in (0, 1, s.block_size) for sign in (1, -1) for turns in (1 << 32, 3 << 32)]
    ends = (INT32_MAX + 1, INT32_MAX + 1 + s.block_size, INT32_MIN - 1, 1 << 62, INT64_MAX, INT64_MIN)
    return (*wrapped, *ends)


def _beyond_float32(case: Case, s: Specialization) -> Sequence[int]:
    """In rings, at positions of other ranks, and where blocks are so large that a row gets there."""
    positions = [FLOAT32_EXACT, FLOAT32_EXACT + 1, FLOAT32_EXACT + 133, INT32_MAX]
    if s.cp.size > 1:
        positions = [p for each in positions for p in (s.non_local_from(each - s.turn), s.non_local_from(each))]
    return [p for p in positions if p <= INT32_MAX]


# Tables


def _grouped(change: Callable[[Case, Specialization, _Choice, int], Iterator[Case]], *, rings: bool) -> Change:
    """What is changed is about one group that has slots."""

    def changed(case: Case, s: Specialization, choice: _Choice) -> Iterator[Case]:
        fit = [index for index, group in enumerate(case.groups) if group.enabled and (rings or group.kind == "paged")]
        if fit:
            yield from change(case, s, choice, fit[choice.group % len(fit)])

    return changed


def _past_the_row(case: Case, s: Specialization, choice: _Choice, index: int) -> Iterator[Case]:
    """A local token in a column that its row does not have: next to it, in the cells that belong to nobody, past them,
    in the next row, past the table.
    """
    group = case.groups[index]
    width, stride, rows = group.row_width, group.stride, len(group.block_table)
    columns = (width, stride, stride + 1, stride + (s.window or 7), 2 * stride, rows * stride, 10 * stride + 3, 1 << 14)
    for at in range(len(columns)):
        column = columns[(choice.value + at) % len(columns)]
        if column >= width:
            for token in _tokens(case, choice):
                yield _at(case, token, _position_of(_geometry(case, group), column, choice.group % 2))


def _apart(case: Case, s: Specialization, choice: _Choice, index: int) -> Iterator[Case]:
    """Two tokens of one tile whose blocks are further apart than the window is wide; rows are as wide as they need."""
    if s.tile is None or s.window is None:
        return
    geometry = _geometry(case, case.groups[index])
    for further in (0, 1, 7):
        last = _position_of(geometry, s.window + (choice.value + further) % 9, 0)
        pair = _first_pair(case, s.tile, choice.token)
        widened = _wide_enough(case, last, s.output_dtype)
        if pair is not None and widened is not None:
            yield _at(_at(widened, pair[0], _position_of(geometry, 0, 0)), pair[1], last)


def _first_pair(case: Case, tile: int, choice: int) -> tuple[int, int] | None:
    """The first and the last token of a request's first tile."""
    bounds = case.query_start_loc
    long_enough = [r for r in range(case.num_reqs) if bounds[r + 1] - bounds[r] > 1]
    if not long_enough:
        return None
    request = long_enough[choice % len(long_enough)]
    return bounds[request], min(bounds[request] + tile, bounds[request + 1]) - 1


def _wide_enough(case: Case, position: int, output_dtype: str) -> Case | None:
    """``case`` where every row of a growing group has a column for ``position``; None where that takes too much."""
    groups = []
    for group in case.groups:
        if group.enabled and group.kind == "paged":
            k, size = group.blocks_per_kv_block, _geometry(case, group).virtual_block_size
            width = max((position // size + 1) * k, group.row_width)
            if width * len(group.block_table) > _MOST_CELLS:
                return None
            limit, extra = blocks_that_fit(group.block_size, output_dtype), width - group.row_width
            table = tuple(
                row + tuple((last + i) % limit for i in range(1, extra + 1))
                for row, last in ((row, row[-1] if row else -1) for row in group.block_table)
            )
            stride = None if group.row_stride is None else group.row_stride + extra
            group = replace(group, block_table=table, row_stride=stride)
        groups.append(group)
    return replace(case, groups=tuple(groups))


def _wrong_block(case: Case, s: Specialization, choice: _Choice, index: int) -> Iterator[Case]:
    """The cell that a token uses holds no block, or one whose slots do not fit."""
    group = case.groups[index]
    largest = INT32_MAX // group.block_size + 1
    numbers = (-1, -2, INT32_MIN, FLOAT32_EXACT, FLOAT32_EXACT + 1, 1 << 30, INT32_MAX, min(largest, INT32_MAX))
    number = numbers[choice.value % len(numbers)]
    geometry = _geometry(case, group)
    bounds = case.query_start_loc
    token = choice.token % case.num_tokens
    request = next(r for r in range(case.num_reqs) if bounds[r] <= token < bounds[r + 1])
    for position in (case.positions[token], _position_of(geometry, 0, 0)):
        if position >= 0 and geometry.is_local(position):
            column = 0 if group.kind == "circular" else geometry.block_index(position)
            row = case.row_of(request)
            if column < group.row_width:  # a rank without tokens may have no column
                yield _at(_with_cell(case, index, row, column, number), token, position)


def _with_cell(case: Case, index: int, row: int, column: int, number: int) -> Case:
    group = case.groups[index]
    cells = group.block_table[row]
    table = (
        *group.block_table[:row],
        (*cells[:column], number, *cells[column + 1 :]),
        *group.block_table[row + 1 :],
    )
    groups = (*case.groups[:index], replace(group, block_table=table), *case.groups[index + 1 :])
    return replace(case, groups=groups)


def _geometry(case: Case, group: Group) -> Geometry:
    return Geometry(group.block_size, group.blocks_per_kv_block, case.cp if group.sharded else NO_CP)


def _position_of(geometry: Geometry, column: int, offset: int) -> int:
    """A position of this rank in ``column``, ``offset`` tokens (0 or 1) from its beginning or its end."""
    b, k, cp = geometry.block_size, geometry.blocks_per_kv_block, geometry.cp
    local = column % k * b + (b - 1 if offset else 0)
    if cp.size == 1:
        return column // k * geometry.virtual_block_size + local
    turn, behind = divmod(local, cp.interleave)
    return column // k * geometry.virtual_block_size + turn * geometry.turn + cp.rank * cp.interleave + behind


_ABOUT_TABLES = ("row-width", "window", "slot-fits")

_CHANGES: dict[str, Change] = {
    "pos-nonneg": _moved(_negative),
    "pos-int32": _moved(_beyond_int32),
    "pos-f32": _moved(_beyond_float32),
    "row-width": _grouped(_past_the_row, rings=False),
    "window": _grouped(_apart, rings=False),
    "slot-fits": _grouped(_wrong_block, rings=True),
}
