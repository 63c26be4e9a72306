"""The contract: the clauses that say when a case has a defined answer, each with a stable id.

A subject declares the clauses it needs; a case that breaks one of them is a boundary case, not a conformance case.
Clauses about a group bind enabled groups only: a disabled group gets no slots, whatever its table holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from reference.case import Case, Group, Launch
from reference.fields import INT32_MAX, INT32_MIN, INT64_MAX
from reference.steps import CIRCULAR, DISABLED, SHARDED, placing, rule_of

FLOAT32_EXACT = 1 << 24
"""Below this every integer is a float32; the NPU divides and gathers integers through float32."""

_LARGEST = {"int32": INT32_MAX, "int64": INT64_MAX}


@dataclass(frozen=True, slots=True)
class Violation:
    """One clause that a case breaks. ``message`` is one line that names the place, the values and the limit."""

    clause: str
    message: str

    def __str__(self) -> str:
        return f"{self.clause}: {self.message}"


class ContractError(ValueError):
    """A case without a defined answer. ``violations`` holds what it breaks; the message, one line, says the first."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__(tuple(violations))
        self.violations = tuple(violations)

    def __str__(self) -> str:
        first, *others = self.violations
        return f"{first} (broken too: {', '.join(other.clause for other in others)})" if others else str(first)


@dataclass(frozen=True, slots=True)
class Clause:
    """``find(case, launch)`` describes the first place where the clause is broken, or gives None."""

    id: str
    statement: str
    find: Callable[[Case, Launch], str | None]


def violations(case: Case, clauses: Iterable[str] | None = None, launch: Launch | None = None) -> tuple[Violation, ...]:
    """The clauses that ``case`` breaks, in the order of ``CLAUSES``, each with the first place where it is broken.

    ``clauses`` are the ids to look at; None means ``ANSWER_CLAUSES``, those without which no answer is defined.
    ``launch`` gives the output (``qsl-capacity``, ``slot-fits``) and the constants (``window``, which cannot be broken
    unless they hold TILE_BLOCK_SIZE and BLOCK_TABLE_WINDOW_SIZE). Raises ValueError for an unknown id.
    """
    wanted = ANSWER_CLAUSES if clauses is None else frozenset(clauses)
    if unknown := wanted - CLAUSES.keys():
        raise ValueError(f"unknown clause {', '.join(sorted(unknown))}; known are {', '.join(CLAUSES)}")
    launch = launch or Launch()
    found = ((name, clause.find(case, launch)) for name, clause in CLAUSES.items() if name in wanted)
    return tuple(Violation(name, message) for name, message in found if message is not None)


def check(case: Case, clauses: Iterable[str] | None = None, launch: Launch | None = None) -> None:
    """Raise ContractError when ``case`` breaks one of ``clauses``."""
    if broken := violations(case, clauses, launch):
        raise ContractError(broken)


# Each check stands alone: what another clause is there to refuse is left out of the walk, so that one mistake in a case
# is reported once, under its own id.


def _requests(case: Case) -> Iterator[tuple[int, range]]:
    """Every request with the indices of its tokens that have a position."""
    bounds = case.query_start_loc
    for request in range(case.num_reqs):
        yield request, range(max(bounds[request], 0), min(bounds[request + 1], len(case.positions)))


def _tokens(case: Case) -> Iterator[tuple[int, int]]:
    """Every token with its position."""
    return ((token, case.positions[token]) for _, tokens in _requests(case) for token in tokens)


def _enabled(case: Case) -> Iterator[tuple[int, Group, str]]:
    for index, group in enumerate(case.groups):
        if (rule := rule_of(case, group)) != DISABLED:
            yield index, group, rule


def _divides(group: Group) -> bool:
    return group.kv_cache_block_size % group.block_size == 0


def _local_places(case: Case, group: Group) -> Iterator[tuple[int, int, int, int, int]]:
    """(request, row, token, block index, offset) of every local token whose request has a row."""
    if not _divides(group):
        return
    place, rank = placing(case, group), case.cp.rank
    rows, positions = len(group.block_table), case.positions
    for request, tokens in _requests(case):
        row = case.row_of(request)
        if not 0 <= row < rows:
            continue
        for token in tokens:
            if positions[token] < 0:
                continue
            _, _, owner, _, index, offset = place(positions[token])
            if owner == rank:
                yield request, row, token, index, offset


def _qsl_monotone(case: Case, launch: Launch) -> str | None:
    bounds = case.query_start_loc
    if not bounds or bounds[0] != 0:
        return f"query_start_loc starts at {bounds[0] if bounds else 'nothing'}, it must start at 0"
    for request in range(case.num_reqs):
        if bounds[request + 1] < bounds[request]:
            return f"query_start_loc decreases from {bounds[request]} to {bounds[request + 1]} at request {request}"
    return None


def _qsl_capacity(case: Case, launch: Launch) -> str | None:
    if case.query_start_loc and case.query_start_loc[-1] != case.num_tokens:
        return f"query_start_loc ends at {case.query_start_loc[-1]}, it must end at num_tokens, {case.num_tokens}"
    if len(case.positions) < case.num_tokens:
        return f"{len(case.positions)} positions for num_tokens {case.num_tokens}: every token needs one"
    if case.num_tokens > case.max_num_tokens:
        return f"num_tokens {case.num_tokens} exceeds max_num_tokens {case.max_num_tokens}"
    if launch.output_length is not None and launch.output_length < case.max_num_tokens:
        return f"max_num_tokens {case.max_num_tokens} exceeds the output's {launch.output_length} elements"
    return None


def _pos_int32(case: Case, launch: Launch) -> str | None:
    for token, position in _tokens(case):
        if not INT32_MIN <= position <= INT32_MAX:
            return f"position {position} of token {token} is outside {INT32_MIN}..{INT32_MAX}"
    return None


def _pos_nonneg(case: Case, launch: Launch) -> str | None:
    paged = [index for index, _, rule in _enabled(case) if rule != CIRCULAR]
    if not paged:
        return None
    for token, position in _tokens(case):
        if position < 0:
            return f"position {position} of token {token} is below 0 and group {paged[0]} is not circular"
    return None


def _pos_f32(case: Case, launch: Launch) -> str | None:
    for token, position in _tokens(case):
        if position >= FLOAT32_EXACT:
            return f"position {position} of token {token} is not below 2^24 = {FLOAT32_EXACT}"
    return None


def _row_width(case: Case, launch: Launch) -> str | None:
    for index, group, _ in _enabled(case):
        for request, row, token, block, _ in _local_places(case, group):
            if block >= group.row_width:
                return (
                    f"group {index}: token {token} (request {request}, position {case.positions[token]}) needs "
                    f"block index {block}, row {row} is {group.row_width} blocks wide"
                )
    return None


def _row_exists(case: Case, launch: Launch) -> str | None:
    for index, group, _ in _enabled(case):
        rows = len(group.block_table)
        for request in range(case.num_reqs):
            if case.idx_mapping is not None and request >= len(case.idx_mapping):
                return f"idx_mapping has {len(case.idx_mapping)} entries for {case.num_reqs} requests"
            row = case.row_of(request)
            empty = case.query_start_loc[request] >= case.query_start_loc[request + 1]
            if not (0 <= row < rows or (row == -1 and empty)):
                limit = f"the table has {rows} rows" if row != -1 else "only an empty request may have no row"
                return f"group {index}: request {request} uses row {row}, {limit}"
    return None


def _hybrid_divides(case: Case, launch: Launch) -> str | None:
    for index, group, _ in _enabled(case):
        if not _divides(group):
            return (
                f"group {index}: kv_cache_block_size {group.kv_cache_block_size} is no multiple of "
                f"block_size {group.block_size}"
            )
    return None


def _hybrid_width(case: Case, launch: Launch) -> str | None:
    for index, group, _ in _enabled(case):
        if _divides(group) and group.row_width % group.blocks_per_kv_block:
            return (
                f"group {index}: rows are {group.row_width} kernel blocks wide, no multiple of the "
                f"{group.blocks_per_kv_block} that an allocated block brings"
            )
    return None


def _interleave_divides(case: Case, launch: Launch) -> str | None:
    for index, group, rule in _enabled(case):
        if rule == SHARDED and group.kv_cache_block_size % case.cp.interleave:
            return (
                f"group {index}: kv_cache_block_size {group.kv_cache_block_size} is no multiple of "
                f"interleave {case.cp.interleave}"
            )
    return None


def _rank_range(case: Case, launch: Launch) -> str | None:
    if 0 <= case.cp.rank < case.cp.size:
        return None
    return f"rank {case.cp.rank} is outside 0..{case.cp.size - 1}"


def _slot_fits(case: Case, launch: Launch) -> str | None:
    largest = _LARGEST[launch.output_dtype]
    for index, group, _ in _enabled(case):
        for _, row, token, block, offset in _local_places(case, group):
            if block >= group.row_width:
                continue
            number = group.block_table[row][block]
            slot = number * group.block_size + offset
            where = f"group {index}: token {token} uses block {number} (row {row}, index {block})"
            if not 0 <= number < FLOAT32_EXACT:
                return f"{where}, block numbers are 0..2^24-1 = {FLOAT32_EXACT - 1}"
            if slot > largest:
                return f"{where}, slot {slot} exceeds {launch.output_dtype}'s {largest}"
    return None


def _window(case: Case, launch: Launch) -> str | None:
    tile, window = launch.constants.get("TILE_BLOCK_SIZE"), launch.constants.get("BLOCK_TABLE_WINDOW_SIZE")
    if not tile or not window:
        return None
    for index, group, _ in _enabled(case):
        place = placing(case, group)
        for request, tokens in _requests(case):
            for start in range(tokens.start, tokens.stop, tile):
                positions = case.positions[start : min(start + tile, tokens.stop)]
                if all(after == before + 1 for before, after in pairwise(positions)):
                    continue
                places = [place(p) for p in positions if p >= 0]
                local = [block for _, _, owner, _, block, _ in places if owner == case.cp.rank]
                if local and (reach := max(local) - min(block for _, _, _, _, block, _ in places)) >= window:
                    return (
                        f"group {index}: the tile at token {start} (request {request}) reaches {reach} blocks past "
                        f"its first, BLOCK_TABLE_WINDOW_SIZE is {window}"
                    )
    return None


def _circular_no_cp(case: Case, launch: Launch) -> str | None:
    for index, _, rule in _enabled(case):
        if rule == CIRCULAR and case.cp.size > 1:
            return f"group {index} is circular and enabled, the context-parallel size is {case.cp.size}, it must be 1"
    return None


def _circular_one_block(case: Case, launch: Launch) -> str | None:
    for index, group, rule in _enabled(case):
        if rule == CIRCULAR and group.block_table and group.row_width != 1:
            return f"group {index} is circular, its rows are {group.row_width} blocks wide, they must be 1 wide"
    return None


CLAUSES: Mapping[str, Clause] = MappingProxyType(
    {
        clause.id: clause
        for clause in (
            Clause("qsl-monotone", "query_start_loc starts at 0 and never decreases", _qsl_monotone),
            Clause("qsl-capacity", "query_start_loc[-1] = num_tokens <= max_num_tokens <= output", _qsl_capacity),
            Clause("pos-int32", "every position fits int32", _pos_int32),
            Clause("pos-nonneg", "positions in paged groups are >= 0", _pos_nonneg),
            Clause("pos-f32", "positions are below 2^24", _pos_f32),
            Clause("row-width", "the block index of every local token is inside its row", _row_width),
            Clause("row-exists", "every request has a row of the table; -1 only for an empty request", _row_exists),
            Clause("hybrid-divides", "B = k*b with integer k >= 1", _hybrid_divides),
            Clause("hybrid-width", "the row width is a multiple of k", _hybrid_width),
            Clause("interleave-divides", "I divides B in every group sharded over W > 1 ranks", _interleave_divides),
            Clause("rank-range", "0 <= R < W", _rank_range),
            Clause("slot-fits", "every slot fits the output; block numbers are below 2^24", _slot_fits),
            Clause("window", "sparse positions of one tile stay within BLOCK_TABLE_WINDOW_SIZE blocks", _window),
            Clause("circular-no-cp", "no enabled circular group under W > 1", _circular_no_cp),
            Clause("circular-one-block", "the rows of a circular group are one block wide", _circular_one_block),
        )
    }
)

ANSWER_CLAUSES = frozenset(CLAUSES) - {"pos-nonneg", "pos-f32", "window"}
"""The clauses without which no answer is defined: a negative position is PAD, the other two limit some kernels only."""
