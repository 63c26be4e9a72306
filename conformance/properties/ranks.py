"""Of the ranks that share a sequence: together they have each token once, and one rank alone has no partners."""

from __future__ import annotations

from dataclasses import replace

from conformance.properties.prepared import apart, roomy
from conformance.properties.property import Changed, Launches, Property, contradiction, token_of
from conformance.properties.slots import on_every_rank, tokens_of
from conformance.subjects.entry import EntryPoint
from reference.case import Case, ContextParallel
from reference.steps import DISABLED, SHARDED, rule_of


def _one_owner(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    case = apart(roomy(case))
    of_rank = {own.cp.rank: rows for own, rows in on_every_rank(launch, case)}
    for index, group in enumerate(case.groups):
        rule = rule_of(case, group)
        for request in range(case.num_reqs):
            for token, _ in tokens_of(case, request):
                owners = [rank for rank in sorted(of_rank) if of_rank[rank][index][token] != case.pad_id]
                if len(owners) == {DISABLED: 0, SHARDED: 1}.get(rule, case.cp.size):
                    continue
                ranks = f"rank{'s'[: len(owners) != 1]} {', '.join(map(str, owners))}" if owners else "no rank"
                return f"{token_of(case, token)} has a slot of group {index} ({rule}) on {ranks} of {case.cp.size}"
    return None


def _one_rank(launch: Launches, case: Case, choice: int, entry: EntryPoint) -> str | None:
    case = roomy(replace(case, cp=ContextParallel()))
    alone = replace(case, cp=ContextParallel(1, 0, min(group.kv_cache_block_size for group in case.groups)))
    rows = launch("the batch without context parallelism", case)
    what = f"a launch of one rank with interleave {alone.cp.interleave}"
    if alone == case:  # blocks of one token: there is no other interleave
        return None
    changed = Changed(what, alone, range(case.num_tokens), range(len(case.groups)))
    return contradiction(launch, case, rows, changed, entry)


ONE_OWNER = Property(
    "one owner",
    "a token of a sharded group has a slot on exactly one rank, of a replicated one on all, of a disabled one on none",
    _one_owner,
)
ONE_RANK = Property(
    "one rank",
    "with one rank the interleave plays no part: the slots are those of a launch without context parallelism",
    _one_rank,
    frozenset({"cp"}),
)
