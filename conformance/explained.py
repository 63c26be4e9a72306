"""One fault does not hide the next: a failure that has been reported is recognized, and what else is wrong is still
looked for.
"""

from __future__ import annotations

import re
from dataclasses import replace

from conformance.verdicts import Finding
from reference import verdict as v
from reference.case import Case, Group, Launch

# No block number and no position: what a kernel makes of such a cell shows in its output.
_FILLER = 1


def signature(finding: Finding) -> str | None:
    """What two failures of one cause have in common, or None where the verdict alone does not tell causes apart.

    Wrong values and hangs have no signature: the first one ends the search of its test.
    """
    verdict = finding.verdict
    if verdict.kind == v.GUARD and verdict.guards and not verdict.differences:
        guard = verdict.guards[0]
        side = "before" if guard.distance < 0 else "past"
        return f"{verdict.kind} {guard.direction} {side} {guard.buffer.partition('[')[0]}"
    if verdict.kind in (v.CRASH, v.COMPILE_ERROR, v.REFUSED):
        return f"{verdict.kind} {re.sub(r'0x[0-9a-f]+|-?[0-9]+', 'N', verdict.detail)}"
    return None


def relaxed(finding: Finding, case: Case, launch: Launch) -> tuple[Case, Launch]:
    """The same case, launched so that what ``finding`` is about does no harm: its values can then still be compared.

    Where memory ended, poison can be read; where a library checked an index, rows are as wide as every token needs.
    """
    if finding.verdict.kind == v.GUARD:
        return case, replace(launch, fence="open")
    return widened(case), launch


def widened(case: Case) -> Case:
    """The same case with rows wide enough for every token, other ranks' and all: legal, the same answer, nothing to
    read past.

    It is what an implementation that reads too far is compared on, once that has been reported.
    """
    return replace(case, groups=tuple(_widened(case, group) for group in case.groups))


def _widened(case: Case, group: Group) -> Group:
    if group.kind == "circular" or not group.block_table:
        return group
    size = case.cp.size if group.sharded else 1
    furthest = max((p // (group.kv_cache_block_size * size) for p in case.positions[: case.num_tokens]), default=0)
    width = (furthest + 1) * group.blocks_per_kv_block
    missing = width - group.row_width
    if missing <= 0 or width * len(group.block_table) > 1 << 20:
        return group
    stride = None if group.row_stride is None else group.row_stride + missing
    return replace(group, block_table=tuple(row + (_FILLER,) * missing for row in group.block_table), row_stride=stride)
