"""Launches like a failing one tell its causes apart, and need no other compilation."""

from __future__ import annotations

import pytest

from conformance.probes import probes
from conformance.simpler import specialization_of
from reference.case import Case, ContextParallel, Group, Launch
from reference.contract import violations
from reference.verdict import compare
from reports.diagnosis import Diagnosis, Observation, diagnose
from tests.supposed_launches import all_hypotheses, cases, supposed

CASES = cases(1)[:5]  # the last has thousands of columns


def legal(case: Case, launch: Launch) -> list[tuple[Case, Launch]]:
    return [each for each in probes(case, launch) if not violations(each[0], launch=each[1])]


def of(seen: Observation, evidence: tuple[Observation, ...] = ()) -> Diagnosis:
    verdict = compare(seen.expected, seen.actual)
    return diagnose(seen.case, seen.launch, verdict, seen.expected, seen.actual, evidence)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_probes_are_compiled_already_and_few(number: int) -> None:
    case, launch = CASES[number]
    found = list(probes(case, launch))
    assert len(found) <= 100
    assert {specialization_of(*each) for each in found} == {specialization_of(case, launch)}
    assert len(legal(case, launch)) >= 4
    assert found == list(probes(case, launch))


def test_no_two_blocks_of_a_probe_are_alike() -> None:
    case, launch = CASES[2]
    longest = max((each for each, _ in probes(case, launch)), key=lambda each: each.num_tokens)
    for group in longest.groups:
        k = group.blocks_per_kv_block
        blocks = [row[column] // k for row in group.block_table for column in range(0, len(row), k)]
        assert len(set(blocks)) == len(blocks)
        assert all(row[c] // k == row[c - c % k] // k for row in group.block_table for c in range(len(row)))


@pytest.mark.parametrize(
    ("words", "cause"),
    [("b*W", "virtual block"), ("leave gaps", "local offset"), ("one kernel block", "kernel block index")],
)
def test_a_saved_case_that_is_ambiguous_alone_is_named_with_its_probes(words: str, cause: str) -> None:
    group = Group((tuple(range(12)),), 4, 12)
    launch = Launch()
    for position in range(72):
        case = Case((0, 1), (position,), 1, 1, (group,), ContextParallel(2, 1, 6))
        if violations(case, launch=launch):
            continue
        mistake = next(each for each in all_hypotheses(case, launch) if words in each.says)
        seen = supposed(mistake, case, launch)
        if seen is not None and seen.differing and of(seen).cause != cause:
            told = [supposed(mistake, *each) for each in legal(case, launch)]
            assert of(seen, tuple(each for each in told if each is not None)).cause == cause
            return
    pytest.fail("no case is ambiguous")


def test_failures_on_wide_rows_are_told_apart() -> None:
    """Where a table is too wide for batches on one like it, each of these passes for an element left out."""
    rows = tuple(tuple(range(row * 4100, (row + 1) * 4100)) for row in range(3))
    case, launch = Case((0, 1), (5,), 1, 2, (Group(rows, 16, 16),)), Launch()
    for words, cause in (("the first of them is not written", "padding start"), ("last of them", "padding end")):
        mistake = next(each for each in all_hypotheses(case, launch) if cause == each.cause and words in each.says)
        seen = supposed(mistake, case, launch)
        assert seen is not None
        told = [supposed(mistake, *each) for each in legal(case, launch)]
        assert of(seen, tuple(each for each in told if each is not None)).cause == cause


def test_nothing_is_told_of_a_launch_without_tokens() -> None:
    group = Group(((0,),), 2, 2)
    assert not list(probes(Case((0,), (), 0, 1, (group,)), Launch()))
