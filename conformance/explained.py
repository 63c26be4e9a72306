"""One fault does not hide the next: what is wrong with a case beside the failures that are explained already.

A failure is explained when this test has reported another of its cause, or when it is known and accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from conformance.verdicts import Finding
from reference import verdict as v
from reference.case import Case, Group, Launch
from reports.diagnosis import Diagnosis, Observation
from reports.diagnosis.hypotheses import HYPOTHESES, Hypothesis
from reports.diagnosis.launches import concerned
from reports.diagnosis.mapping import MOST
from reports.diagnosis.observations import shown

# No block number and no position: what a kernel makes of such a cell shows in its output.
_FILLER = 1

Run = Callable[[Case, Launch], Finding]
Explains = Callable[[Finding], bool]


def signature(finding: Finding) -> str | None:
    """What two failures of one cause have in common; None where causes cannot be told apart: it ends a search.

    A hang has none, because to go on means to wait for every launch that hangs.
    """
    if finding.verdict.passed or finding.verdict.kind in (v.HANG, v.UNSUPPORTED):
        return None
    return finding.diagnosis.key


def can_be(finding: Finding, causes: Collection[str]) -> bool:
    """Whether ``finding`` can be a failure with one of these signatures, or with several of them at once, as far as its
    one launch tells.

    A small case can often be of several causes, and a mistake may read where nobody can say what it finds. Which cause
    it is, other launches tell; whether a search goes on past it must not depend on which those were.
    """
    if finding.verdict.passed or finding.verdict.kind == v.UNSUPPORTED or not causes:
        return False
    if finding.diagnosis.key in causes:
        return True
    if finding.verdict.kind != v.MISMATCH:
        return False
    seen = Observation(finding.case, finding.launch, finding.expected, finding.actual)
    found = shown(seen)
    if found is not None and Diagnosis(*found).key in causes:
        return True
    supposed = [each for each in (*HYPOTHESES, *concerned(seen)) if Diagnosis(each.cause, "").key in causes]
    whole = [(group, element) for group, row in enumerate(seen.actual) for element in range(min(len(row), MOST))]
    if any(_allows(each, seen, whole) for each in supposed):
        return True
    if len({each.cause for each in supposed}) < 2:
        return False
    return all(any(_allows(each, seen, [place]) for each in supposed) for place in seen.differing)


def _allows(hypothesis: Hypothesis, seen: Observation, places: Iterable[tuple[int, int]]) -> bool:
    """Whether these elements are as they would be if ``hypothesis`` held."""
    try:
        mapping = hypothesis.of(seen)
        return all(mapping.right(group, element) for group, element in places)
    except (ArithmeticError, LookupError, ValueError):  # an impossible supposition in this geometry
        return False


def parts(finding: Finding) -> tuple[Finding, ...]:
    """``finding`` once for each thing that is wrong: an access outside each buffer, and the values. None: it passed."""
    verdict = finding.verdict
    if verdict.passed:
        return ()
    if verdict.kind != v.GUARD or not verdict.guards:
        return (finding,)
    guards: dict[tuple[str, str, bool], v.Guard] = {}
    for each in verdict.guards:
        guards.setdefault((each.buffer.partition("[")[0], each.direction, each.distance < 0), each)
    found = [v.Verdict(v.GUARD, guards=(guard,), detail=verdict.detail) for guard in guards.values()]
    if verdict.differences:
        found.append(v.Verdict(v.MISMATCH, verdict.differences, verdict.total_differences))
    return (finding,) if len(found) == 1 else tuple(replace(finding, verdict=each) for each in found)


def remainder(finding: Finding, explains: Explains) -> Finding:
    """What of ``finding`` is not explained: all of it, the first part of it, or nothing, which is a pass."""
    whole = parts(finding)
    left = [part for part in whole if not explains(part)]
    if len(left) == len(whole):
        return finding
    return left[0] if left else replace(finding, verdict=v.Verdict(v.PASS))


def beyond(
    run: Run, case: Case, launch: Launch, explains: Explains, reported: Explains = lambda finding: False
) -> Finding:
    """What is wrong with the case beside what is explained.

    Where all of it is, the case runs again so that an access outside does no harm, and its values are still compared.
    An access outside that leaves nothing to compare whatever is done about it is explained by nothing: anything may be
    wrong behind it. Unless it is ``reported``, so that the run is red for it already.
    """
    while True:
        finding = run(case, launch)
        left = remainder(finding, explains)
        harmless = relaxed(finding, case, launch)
        if harmless is None or not left.verdict.passed:
            return left
        if harmless == (case, launch):
            blind = finding.verdict.kind == v.GUARD and not finding.actual and not reported(finding)
            return finding if blind else left
        case, launch = harmless


def relaxed(finding: Finding, case: Case, launch: Launch) -> tuple[Case, Launch] | None:
    """The same case, launched so that what ``finding`` is about does no harm: its values can then still be compared.
    None where they have been.

    Where memory ended, poison can be read, around the buffers concerned and no others. Where a library checked an
    index, or the access was further than the poison reaches, rows are as wide as every token needs.
    """
    if finding.verdict.kind == v.GUARD:
        buffers = {guard.buffer.partition("[")[0] for guard in finding.verdict.guards}
        opened = tuple(sorted({*launch.open_buffers, *buffers}))
        if opened != launch.open_buffers:
            return case, replace(launch, open_buffers=opened)
        return (case if finding.actual else widened(case)), launch
    return (widened(case), launch) if finding.verdict.kind in (v.CRASH, v.REFUSED) else None


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
