"""Make a failing case smaller than Hypothesis can: it knows choices, not cases.

Leaving the first tokens of a request out, for one, means to draw another start and another length at once. Here a
case is changed as a case, token by token and cell by cell, and every candidate is legal, launched and judged like any
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from conformance.explained import can_be, signature
from conformance.simpler import simpler_settings, specialization_of
from conformance.subjects.binding import outside, settings_of
from conformance.verdicts import Finding
from reference.case import Case, Group, Launch

MOST_LAUNCHES = 500
FEW = 64
"""Requests or tokens that are left out one by one. More than that would take hundreds of launches of large cases."""

Candidate = tuple[Case, Launch]
Item = TypeVar("Item")


def reduced(
    finding: Finding,
    run: Callable[[Case, Launch], Finding],
    most_launches: int = MOST_LAUNCHES,
    most_compilations: int = 0,
    cause: str | None = None,
) -> Finding:
    """The smallest finding of the same kind, and of the same cause as far as one launch tells, that changes of
    ``finding.case`` lead to.

    ``run`` launches a case and judges it. ``cause`` is the signature that what is found must be able to have (None:
    that of ``finding`` itself). Small changes are tried until none helps or ``most_launches`` are spent; then simpler
    settings that the run has not compiled, ``most_compilations`` at most, and small changes again after each that
    helps.
    """
    search = _Reduction(finding, run, most_launches, cause or signature(finding))
    finding = search.descend(finding)
    compiled = {specialization_of(finding.case, finding.launch)}

    def affordable(case: Case, launch: Launch) -> bool:
        compiled.add(specialization_of(case, launch))
        return len(compiled) <= most_compilations + 1

    while True:
        search.left = max(search.left, most_launches // 4)
        simpler = search.first(simpler_settings(finding.case, finding.launch), finding, affordable)
        if simpler is None:
            return finding
        finding = search.descend(simpler)


class _Reduction:
    """Looks for a smaller case of one failure; ``left`` launches may still be spent."""

    def __init__(
        self, finding: Finding, run: Callable[[Case, Launch], Finding], most_launches: int, cause: str | None
    ) -> None:
        self.entry, self.kind = finding.entry, finding.verdict.kind
        self.cause, self.run, self.left = cause, run, most_launches

    def descend(self, finding: Finding) -> Finding:
        """From smaller to smaller, until nothing is."""
        while (smaller := self.first(_candidates(finding.case, finding.launch), finding)) is not None:
            finding = smaller
        return finding

    def first(
        self,
        candidates: Iterator[Candidate],
        current: Finding,
        affordable: Callable[[Case, Launch], bool] = lambda case, launch: True,
    ) -> Finding | None:
        """The first of the candidates that fails in the same way."""
        for case, launch in candidates:
            if self.left <= 0:
                return None
            if (case, launch) == (current.case, current.launch) or not self._legal(case, launch):
                continue
            if not affordable(case, launch):
                continue
            self.left -= 1
            found = self.run(case, launch)
            if found.verdict.kind == self.kind and (self.cause is None or can_be(found, {self.cause})):
                return found
        return None

    def _legal(self, case: Case, launch: Launch) -> bool:
        entry = self.entry
        if entry.cannot_take(case, launch) is not None:
            return False
        return not outside(entry, case, launch, settings_of(entry, launch))


def _candidates(case: Case, launch: Launch) -> Iterator[Candidate]:
    """Simpler cases, the boldest change first. Each is strictly simpler in one respect, so trying them over and over
    ends.
    """
    if len(case.groups) > 1:
        for index in range(len(case.groups)):
            yield _without_group(case, index), launch
    if case.num_reqs > FEW:
        for first, last in _runs(case.num_reqs, case.num_reqs // 2):
            yield _without_requests(case, first, last), launch
    elif case.num_reqs > 1 or case.num_tokens:
        for request in range(case.num_reqs):
            yield _without_requests(case, request, request + 1), launch
    for first, last in _runs(case.num_tokens, case.num_tokens):
        yield _without_tokens(case, first, last), launch
    if len(case.positions) > case.num_tokens:
        yield replace(case, positions=case.positions[: case.num_tokens]), launch
    for length in _least(max(case.num_tokens, 1), case.max_num_tokens):
        yield from _padded_to(length, case, launch)
    for length in _least(case.max_num_tokens, launch.output_length or 0):
        yield case, replace(launch, output_length=length)
    if launch.fence != "after":
        yield case, replace(launch, fence="after")
    for index, group in enumerate(case.groups):
        for simpler in _simpler_groups(case, group):
            groups = (*case.groups[:index], simpler, *case.groups[index + 1 :])
            yield replace(case, groups=groups), launch
    for token, position in enumerate(case.positions[:FEW]):
        for lower in _lower(case, position):
            yield replace(case, positions=(*case.positions[:token], lower, *case.positions[token + 1 :])), launch
    for length in _between(max(case.num_tokens, 1), case.max_num_tokens):
        yield from _padded_to(length, case, launch)
    for length in _between(case.max_num_tokens, launch.output_length or 0):
        yield case, replace(launch, output_length=length)


def _padded_to(length: int, case: Case, launch: Launch) -> Iterator[Candidate]:
    shorter = replace(case, max_num_tokens=length)
    yield shorter, replace(launch, output_length=length)
    if launch.output_length is not None:
        yield shorter, launch


def _least(least: int, length: int) -> Iterator[int]:
    """The least length that there can be instead of ``length``, and the next one."""
    return (each for each in (least, least + 1) if each < length)


def _between(least: int, length: int) -> Iterator[int]:
    """Lengths that bisect what lies between: the exact one that a failure needs is a few dozen launches away."""
    return (length - part for part in _halvings((length - least) // 2))


def _halvings(number: int) -> Iterator[int]:
    while number > 0:
        yield number
        number //= 2


def _runs(number: int, longest: int) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of what may be left out of ``number`` things: the longest first. Of more than a few things,
    short runs are tried at the end alone, where they find how many a failure needs.
    """
    for count in _halvings(longest):
        first = 0 if count * FEW >= number else number - count
        yield from ((each, each + count) for each in range(first, number - count + 1, count))


def _without_group(case: Case, index: int) -> Case:
    """Without the group; those that can be replayed keep their number in what is left."""
    replay = case.replay
    if replay is not None:
        cacheable = (each - (each > index) for each in replay.cacheable_groups if each != index)
        replay = replace(replay, cacheable_groups=tuple(cacheable))
    return replace(case, groups=_without(case.groups, index, index + 1), replay=replay)


def _without_requests(case: Case, first: int, last: int) -> Case:
    """Without requests [first, last) and, where requests and rows go together, without their rows."""
    bounds = case.query_start_loc
    case = _without_tokens(case, bounds[first], bounds[last])
    if case.replay is not None:
        case = replace(case, replay=replace(case.replay, starts=_without(case.replay.starts, first, last)))
    starts = (*case.query_start_loc[: first + 1], *case.query_start_loc[last + 1 :])
    if case.idx_mapping is not None:
        return replace(case, query_start_loc=starts, idx_mapping=_without(case.idx_mapping, first, last))
    groups = tuple(replace(each, block_table=_without(each.block_table, first, last)) for each in case.groups)
    return replace(case, query_start_loc=starts, groups=groups)


def _without_tokens(case: Case, first: int, last: int) -> Case:
    """Without tokens [first, last); what was padded stays padded."""
    starts = tuple(
        bound - max(0, min(bound, last) - first) if bound > first else bound for bound in case.query_start_loc
    )
    gone = last - first
    return replace(
        case,
        query_start_loc=starts,
        positions=case.positions[:first] + case.positions[last:],
        num_tokens=case.num_tokens - gone,
        max_num_tokens=max(case.max_num_tokens - gone, 1),
    )


def _without(items: tuple[Item, ...], first: int, last: int) -> tuple[Item, ...]:
    return items[:first] + items[last:]


def _simpler_groups(case: Case, group: Group) -> Iterator[Group]:
    rows, width, k = len(group.block_table), group.row_width, group.blocks_per_kv_block
    if group.row_stride is not None:
        yield replace(group, row_stride=None)
    if case.idx_mapping is None and rows > max(case.num_reqs, 1):
        yield replace(group, block_table=group.block_table[: max(case.num_reqs, 1)])
    for narrower in dict.fromkeys((k, width // 2 // k * k, width - k)):
        if 0 < narrower < width:
            yield replace(group, block_table=tuple(row[:narrower] for row in group.block_table), row_stride=None)
    identity = tuple(tuple(range(row * width, (row + 1) * width)) for row in range(rows))
    if group.block_table != identity and _weight(group.block_table) > _weight(identity):
        yield replace(group, block_table=identity)


def _weight(table: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(sum, table))


def _lower(case: Case, position: int) -> Iterator[int]:
    """Positions closer to 0 that play the same part: in the same place of an earlier block, of an earlier virtual
    block.
    """
    if position < 0:
        if position < -1:
            yield -1
        return
    group = case.groups[0]
    allocated = group.kv_cache_block_size
    for size in dict.fromkeys((allocated * case.cp.size, allocated, group.block_size)):
        if position >= size:
            yield from dict.fromkeys((position % size, position % size + size, position - size))
    if position:
        yield from dict.fromkeys((0, position // 2, position - 1))
