"""Launches outside the contract: what an entry point that promises to be ``total`` must still do.

It touches no memory that is not the launch's, ends, writes nothing at or past ``max_num_tokens`` and gives every token
that is itself inside the contract its slot. A block index past the stride of its row gives PAD. Host functions may
refuse instead, naming the clause.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from conformance.engine import Engine, narrowed, settings_of
from conformance.explained import beyond
from conformance.outside import BoundaryFailure
from conformance.subjects.binding import bind, clauses
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings, output_length
from conformance.under_test import Drawn, UnderTest
from conformance.verdicts import Finding
from reference import verdict as v
from reference.case import Case, Group, Launch
from reference.contract import CLAUSES, FLOAT32_EXACT, violations
from reference.fields import INT32_MAX, INT32_MIN, INT64_MAX
from reference.steps import CIRCULAR, DISABLED, placing, rule_of
from strategies.boundaries import BREAKABLE, boundary_cases, breakable
from strategies.specializations import Axes, Specialization, pool

_LARGEST = {"int32": INT32_MAX, "int64": INT64_MAX}

# What is drawn for entry points that compile nothing.
_FREE = Axes(tiles=(None,), windows=(None,))
_FREE_BUDGET = 40

Promised = list[list[int | None]]
"""The elements of each group's output; None: the contract says nothing about that one."""


def boundaries(target: UnderTest, kind: str | None = None) -> st.SearchStrategy[Drawn]:
    """Launches that break one clause each, of one kind ("plain", "circular", "cp"; None: all).

    Skips the test when the entry point promises nothing about them, or has no such kind.
    """
    entry = target.entry
    if "total" not in entry.declaration.features:
        pytest.skip(f"{entry.id} {entry.version} does not promise to stay inside its buffers outside the contract")
    return _boundaries(target.engine, entry, kind)


@lru_cache(maxsize=64)
def _boundaries(engine: Engine, entry: EntryPoint, kind: str | None) -> st.SearchStrategy[Drawn]:
    declaration = entry.declaration
    among = engine.pool(entry) or pool(declaration, _FREE, _FREE_BUDGET)
    specializations = [each for each in among if kind in (None, each.kind)]
    if not specializations:
        pytest.skip(f"{entry.id}: no specialization of kind {kind} within --compile-budget {len(among)}")
    by_clause = {
        clause: [each for each in specializations if breakable(narrowed(declaration, each), each, clause)]
        for clause in BREAKABLE
    }
    strategy_of = lru_cache(maxsize=None)(
        lambda each, clause: boundary_cases(narrowed(declaration, each), each, clause)
    )

    @st.composite
    def drawn(draw: st.DrawFn) -> Drawn:
        clause = draw(st.sampled_from([clause for clause, able in by_clause.items() if able]))
        specialization: Specialization = draw(st.sampled_from(by_clause[clause]))
        case, launch = draw(strategy_of(specialization, clause))
        return case, launch, settings_of(specialization)

    return drawn()


def stays_inside(target: UnderTest, drawn: Drawn) -> None:
    """Launch it, and assert what is promised. An access outside, a crash or a hang that is known is no failure, and
    what else is wrong with the case is; wrong values are never excused.
    """
    entry, (case, launch, settings) = target.entry, drawn

    def run(case: Case, launch: Launch) -> Finding:
        finding = finding_of(target.engine, entry, case, launch, settings)
        target.compared += bool(finding.actual)
        return finding

    def explains(finding: Finding) -> bool:
        return finding.verdict.kind not in (v.MISMATCH, v.UNSUPPORTED) and target.excuses(finding)

    finding = beyond(run, case, launch, explains)
    verdict, case, launch = finding.verdict, finding.case, finding.launch
    if verdict.kind == v.UNSUPPORTED:
        target.unsupported = f"lane {target.engine.lane.name}: {verdict.detail}"
    elif not verdict.passed:
        broken = violations(case, CLAUSES, bind(entry, case, launch, settings)[1])
        bare = replace(launch, constants={})
        raise BoundaryFailure(entry, case, bare, settings, verdict, str(broken[0]) if broken else "")


def verdict_of(engine: Engine, entry: EntryPoint, case: Case, launch: Launch, settings: Settings) -> v.Verdict:
    """What became of one launch, held against what is promised."""
    return finding_of(engine, entry, case, launch, settings).verdict


def finding_of(engine: Engine, entry: EntryPoint, case: Case, launch: Launch, settings: Settings) -> Finding:
    """The same with all that was seen of it."""
    _, bound = bind(entry, case, launch, settings)
    needed = clauses(entry, case, launch, settings)
    expected = promised(case, bound, needed, writes_tail=entry.writes_tail)
    finding = engine.run(entry, case, launch, settings, expected)
    verdict = finding.verdict
    if verdict.kind == v.REFUSED and _names_what_is_broken(verdict.detail, case, bound):
        return replace(finding, verdict=v.Verdict(v.PASS))
    return finding


def _names_what_is_broken(message: str, case: Case, launch: Launch) -> bool:
    """Whether a refusal begins with a clause that the case does break."""
    said = message.removeprefix("ValueError: ").partition(":")[0]
    return any(each.clause == said for each in violations(case, CLAUSES, launch))


def promised(case: Case, launch: Launch, needed: frozenset[str], *, writes_tail: bool) -> Promised:
    """What the outputs must hold after a launch that may be outside the contract.

    ``needed`` are the clauses beyond the answer's own that the entry point needs: where one of them is broken it owes
    nothing. What a replay takes back is taken back.
    """
    length = output_length(case, launch)
    if case.replay is not None:
        return [list(row) for row in v.expected_output(case, length, writes_tail)]
    loose = "window" in needed and bool(violations(case, {"window"}, launch))
    rows = []
    for group in case.groups:
        row: list[int | None] = [case.pad_id if writes_tail else v.UNWRITTEN] * case.max_num_tokens
        row[: case.num_tokens] = _promised_tokens(case, group, needed, _LARGEST[launch.output_dtype], loose=loose)
        rows.append(row + [v.UNWRITTEN] * (length - len(row)))
    return rows


def _promised_tokens(
    case: Case, group: Group, needed: frozenset[str], largest: int, *, loose: bool
) -> list[int | None]:
    """``loose``: nothing is promised of requests with sparse positions."""
    rule, pad = rule_of(case, group), case.pad_id
    if rule == DISABLED:
        return [pad] * case.num_tokens
    limit = FLOAT32_EXACT if "pos-f32" in needed else INT32_MAX + 1
    place, found = placing(case, group), list[int | None]()
    for request in range(case.num_reqs):
        tokens = case.positions[case.query_start_loc[request] : case.query_start_loc[request + 1]]
        if loose and any(after != before + 1 for before, after in pairwise(tokens)):
            found += [None] * len(tokens)
            continue
        for position in tokens:
            if not INT32_MIN <= position <= INT32_MAX:
                found.append(None)  # its low half may be taken for it
                continue
            if position < 0:
                found.append(None if rule != CIRCULAR and "pos-nonneg" in needed else pad)
                continue
            _, _, owner, _, index, offset = place(position)
            if owner != case.cp.rank or index >= group.stride:
                found.append(pad)
            elif index >= group.row_width or position >= limit:
                found.append(None)
            else:
                number = group.block_table[case.row_of(request)][index]
                slot = number * group.block_size + offset
                found.append(slot if 0 <= number < FLOAT32_EXACT and slot <= largest else None)
    return found
