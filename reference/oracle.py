"""The per-token oracle: what a launch must write, in plain loops; and traces, which show how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from reference.case import Case, Group, Replay
from reference.contract import ContractError, check, violations
from reference.steps import CIRCULAR, DISABLED, SHARDED, Place, placing, rule_of

PADDING = "padding"
"""The rule of the elements in [num_tokens, max_num_tokens)."""


def slot_mapping(case: Case) -> list[list[int]]:
    """The slots of every group: one list of ``max_num_tokens`` integers a group.

    Elements past ``num_tokens`` and tokens that may not be written hold ``case.pad_id``. The case must keep
    ``contract.ANSWER_CLAUSES``; they are not checked here (``contract.check`` does that), but a token without a row or
    a block raises ContractError rather than taking somebody else's.
    """
    slots = [_group_slots(case, group) for group in case.groups]
    if case.replay is not None:
        for index in case.replay.cacheable_groups:
            if case.groups[index].kind != "circular":
                _pad_replayed(case, case.replay, slots[index])
    return slots


def _group_slots(case: Case, group: Group) -> list[int]:
    slots = [case.pad_id] * case.max_num_tokens
    if not group.enabled:
        return slots
    place, rank, block_size = placing(case, group), case.cp.rank, group.block_size
    positions, bounds = case.positions, case.query_start_loc
    try:
        for request in range(case.num_reqs):
            if bounds[request] == bounds[request + 1]:
                continue
            blocks = _row(case, group, request)
            for token in range(bounds[request], bounds[request + 1]):
                position = positions[token]
                if position < 0:
                    continue
                _, _, owner, _, index, offset = place(position)
                if owner == rank:
                    slots[token] = blocks[index] * block_size + offset
    except IndexError:
        raise ContractError(violations(case)) from None
    return slots


def _row(case: Case, group: Group, request: int) -> Sequence[int]:
    row = case.row_of(request)
    if row < 0:
        raise IndexError(f"request {request} has no row")
    return group.block_table[row]


def _replayed(replay: Replay, request: int, position: int) -> bool:
    start = replay.starts[request]
    return 0 < start <= position < start + replay.window


def _pad_replayed(case: Case, replay: Replay, slots: list[int]) -> None:
    for request in range(case.num_reqs):
        for token in range(case.query_start_loc[request], case.query_start_loc[request + 1]):
            if _replayed(replay, request, case.positions[token]):
                slots[token] = case.pad_id


@dataclass(frozen=True, slots=True)
class Trace:
    """How one element came about. A step that was not reached is None; ``reason`` says why the slot is what it is.

    ``rule`` is disabled, circular, paged, sharded or padding. ``steps`` are the steps reached, a line each, in numbers.
    """

    group: int
    token: int
    rule: str
    slot: int
    reason: str
    steps: tuple[str, ...] = ()
    request: int | None = None
    position: int | None = None
    row: int | None = None
    virtual_block: int | None = None
    virtual_offset: int | None = None
    owner: int | None = None
    is_local: bool | None = None
    local_offset: int | None = None
    block_index: int | None = None
    offset: int | None = None
    block_number: int | None = None

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "steps": list(self.steps)}


def trace(case: Case, group: int, token: int) -> Trace:
    """How element ``token`` of ``group`` gets its value, tail included.

    Raises IndexError when there is no such element to write, ContractError when the case has no defined answer.
    """
    if not 0 <= group < len(case.groups):
        raise IndexError(f"there is no group {group}, the last is {len(case.groups) - 1}")
    if not 0 <= token < case.max_num_tokens:
        raise IndexError(f"there is no token {token}, the last is {case.max_num_tokens - 1} (max_num_tokens - 1)")
    check(case)
    if token >= case.num_tokens:
        return Trace(group, token, PADDING, case.pad_id, f"PAD: past the {case.num_tokens} tokens of the batch")
    request = next(r for r in range(case.num_reqs) if case.query_start_loc[r] <= token < case.query_start_loc[r + 1])
    position, kv_group, pad = case.positions[token], case.groups[group], case.pad_id
    rule = rule_of(case, kv_group)
    start = Trace(group, token, rule, pad, "", (), request, position, case.row_of(request))
    if rule == DISABLED:
        return replace(start, reason="PAD: the group is disabled (slot_mapping_enabled is false)")
    if position < 0:
        return replace(start, reason=f"PAD: position {position} is negative")
    located = _trace_place(case, kv_group, request, start, placing(case, kv_group)(position))
    replay = case.replay
    if replay is None or rule == CIRCULAR or group not in replay.cacheable_groups:
        return located
    if not _replayed(replay, request, position):
        return located
    first = replay.starts[request]
    step = f"replay: {first} <= p = {position} < {first} + {replay.window} (start, window): PAD"
    reason = "PAD: the token is replayed after a prefix-cache hit"
    return replace(located, slot=pad, steps=(*located.steps, step), reason=reason)


def _trace_place(case: Case, group: Group, request: int, start: Trace, place: Place) -> Trace:
    """``start`` with the steps that lead from its position to ``place``, and the slot there."""
    virtual_block, virtual_offset, owner, local_offset, index, offset = place
    is_local = owner == case.cp.rank
    if start.rule == SHARDED:
        start = replace(
            start,
            virtual_block=virtual_block,
            virtual_offset=virtual_offset,
            owner=owner,
            is_local=is_local,
            local_offset=local_offset if is_local else None,
        )
    steps = _steps_in_words(case, group, start, index, offset)
    if not is_local:
        return replace(start, steps=steps, reason=f"PAD: the token is rank {owner}'s, this is rank {case.cp.rank}")
    number = _row(case, group, request)[index]
    slot = number * group.block_size + offset
    last = f"slot = bt[{index}]*b + offset = {number}*{group.block_size} + {offset} = {slot}"
    return replace(
        start, slot=slot, reason="a slot", steps=(*steps, last), block_index=index, block_number=number, offset=offset
    )


def _steps_in_words(case: Case, group: Group, at: Trace, index: int, offset: int) -> tuple[str, ...]:
    """The steps before the table is consulted, with their numbers; those after a foreign owner are not reached."""
    b, p = group.block_size, at.position
    if at.rule == CIRCULAR:
        return (f"ring: i = 0; offset = p % b = {p} % {b} = {offset}",)
    if at.rule != SHARDED:
        return (f"kernel block: i = p // b = {p} // {b} = {index}; offset = p % b = {p} % {b} = {offset}",)
    size, world, rank, turn = group.kv_cache_block_size, case.cp.size, case.cp.rank, case.cp.interleave
    v, o, local, k = at.virtual_block, at.virtual_offset, at.local_offset, group.blocks_per_kv_block
    virtual, mine = size * world, "local" if at.is_local else "not local"
    steps = (
        f"virtual block: V = B*W = {size}*{world} = {virtual}; v = p // V = {p} // {virtual} = {v}; o = p % V = {o}",
        f"owner: (o // I) % W = ({o} // {turn}) % {world} = {at.owner}; R = {rank}: {mine}",
        f"local offset: l = (o // (W*I))*I + o % I = ({o} // {world * turn})*{turn} + {o} % {turn} = {local}",
        f"kernel block: i = v*k + l // b = {v}*{k} + {local} // {b} = {index}; offset = l % b = {offset}",
    )
    return steps if at.is_local else steps[:2]
