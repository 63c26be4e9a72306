"""Of a batch and the same tokens in other batches: a slot depends on nothing but its token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.properties.property import Changed, Launches, Property, contradiction
from conformance.subjects.entry import EntryPoint
from reference.case import Case

_LONGER = (1, 16, 0, 3, 63, 300)


def _chunks(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    bounds = case.query_start_loc
    lengths = [bounds[r + 1] - bounds[r] for r in range(case.num_reqs)]
    cuts = [(choice + 1) % (length + 1) for length in lengths]
    first = [range(bounds[r], bounds[r] + cuts[r]) for r in range(case.num_reqs)]
    last = [range(bounds[r] + cuts[r], bounds[r + 1]) for r in range(case.num_reqs)]
    parts = {"the first chunks": first, "the last chunks": last}
    made = [_changed(what, case, tokens) for what, tokens in parts.items() if any(tokens)]
    return _each(launch, case, made if len(made) == 2 else [], entry)


def _order(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    """Without idx_mapping each request takes its row along; with it the rows are exchanged, and all rows named anew."""
    if case.num_reqs < 2:
        return _each(launch, case, [], entry)
    turn = 1 + choice % (case.num_reqs - 1) if choice % 2 == 0 else None
    requests = list(range(case.num_reqs))
    order = requests[::-1] if turn is None else requests[turn:] + requests[:turn]
    tokens = [range(case.query_start_loc[r], case.query_start_loc[r + 1]) for r in order]
    changed = _changed("the batch in another order", case, tokens)
    if case.replay is not None:
        starts = tuple(case.replay.starts[r] for r in order)
        changed = replace(changed, case=replace(changed.case, replay=replace(case.replay, starts=starts)))
    height = len(case.groups[0].block_table)
    if case.idx_mapping is None:
        rows = [*order, *range(case.num_reqs, height)]
    else:
        rows = list(range(height))[::-1]
        mapping = tuple(height - 1 - row if row >= 0 else row for row in (case.idx_mapping[r] for r in order))
        changed = replace(changed, case=replace(changed.case, idx_mapping=mapping))
    return _each(launch, case, [replace(changed, case=_with_rows(changed.case, rows))], entry)


def _split(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    if case.num_reqs < 2:
        return _each(launch, case, [], entry)
    cut = 1 + choice % (case.num_reqs - 1)
    made = [_part(what, case, part) for what, part in _halves(case, cut)]
    return _each(launch, case, made, entry)


def _halves(case: Case, cut: int) -> Sequence[tuple[str, range]]:
    return ("the first requests alone", range(cut)), ("the last requests alone", range(cut, case.num_reqs))


def _part(what: str, case: Case, requests: range) -> Changed:
    """``requests`` alone. Without idx_mapping the tables begin with the row of the first of them."""
    tokens = [range(case.query_start_loc[r], case.query_start_loc[r + 1]) for r in requests]
    changed = _changed(what, case, tokens)
    part = changed.case
    if case.replay is not None:
        part = replace(part, replay=replace(case.replay, starts=case.replay.starts[requests.start : requests.stop]))
    if case.idx_mapping is not None:
        part = replace(part, idx_mapping=case.idx_mapping[requests.start : requests.stop])
    else:
        part = _with_rows(part, range(requests.start, len(case.groups[0].block_table)))
    return replace(changed, case=part)


def _length(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    longer = case.max_num_tokens + _LONGER[choice % len(_LONGER)]
    length = max(case.num_tokens, 1) if longer == case.max_num_tokens else longer
    if length == case.max_num_tokens:
        return _each(launch, case, [], entry)
    tokens = [range(case.query_start_loc[r], case.query_start_loc[r + 1]) for r in range(case.num_reqs)]
    changed = _changed(f"the batch with max_num_tokens {length}", case, tokens)
    return _each(launch, case, [replace(changed, case=replace(changed.case, max_num_tokens=length))], entry)


def _changed(what: str, case: Case, requests: Sequence[range]) -> Changed:
    """A batch of ``requests``, each some tokens of ``case``, in outputs of the same length; rows stay as they are."""
    bounds = [0]
    for own in requests:
        bounds.append(bounds[-1] + len(own))
    tokens = [token for own in requests for token in own]
    positions = tuple(case.positions[token] for token in tokens)
    stale = case.positions[case.num_tokens :]
    made = replace(case, query_start_loc=tuple(bounds), positions=(*positions, *stale), num_tokens=len(tokens))
    return Changed(what, made, tokens, range(len(case.groups)))


def _with_rows(case: Case, rows: Sequence[int]) -> Case:
    """With these rows of each table, in this order."""
    groups = tuple(replace(each, block_table=tuple(each.block_table[row] for row in rows)) for each in case.groups)
    return replace(case, groups=groups)


def _each(launch: Launches, case: Case, made: Sequence[Changed], entry: EntryPoint) -> str | None:
    """The batch and what is ``made`` of it: nothing where it is too small for that."""
    rows = launch("the batch", case)
    found = (contradiction(launch, case, rows, changed, entry) for changed in made)
    return next((each for each in found if each is not None), None)


CHUNKS = Property("chunks", "splitting requests into chunks, one launch each, changes no slot", _chunks)
ORDER = Property("order", "permuting requests, with their rows or idx_mapping, changes no slot", _order)
SPLIT = Property("split", "splitting a batch into two changes no slot", _split)
LENGTH = Property("length", "max_num_tokens changes what is padded and no slot", _length)
