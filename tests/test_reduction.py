"""A failing case is made smaller as a case: on kernels that do not exist, each making one known mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.explained import can_be, signature
from conformance.reduction import reduced
from conformance.simpler import MOST, most_compilations, simpler_settings, specialization_of
from conformance.subjects.binding import V1
from conformance.subjects.entry import EntryPoint
from conformance.subjects.own import V1 as PROMISE
from conformance.verdicts import Finding
from reference.case import Case, ContextParallel, Group, Launch
from reference.contract import violations
from reference.verdict import CRASH, PASS, Verdict, compare
from tests.supposed_launches import all_hypotheses, cases, supposed

CONSTANTS = ("TILE_BLOCK_SIZE", "BLOCK_TABLE_WINDOW_SIZE")
ENTRY = EntryPoint("kernels", "", "v1", "f", "v1", "", 0, tuple(V1), CONSTANTS, PROMISE)


class Kernel:
    """Makes the first mistake whose sentence holds ``words``; counts what it is launched and compiled for."""

    def __init__(self, words: str, case: Case, launch: Launch) -> None:
        self.mistake = next(each for each in all_hypotheses(case, launch) if words in each.says)
        self.launches: list[tuple[Case, Launch]] = []

    @property
    def compiled(self) -> set[object]:
        return {specialization_of(*each) for each in self.launches}

    def run(self, case: Case, launch: Launch) -> Finding:
        assert not violations(case, launch=launch)
        self.launches.append((case, launch))
        seen = supposed(self.mistake, case, launch)
        assert seen is not None
        expected, actual = ([list(row) for row in rows] for rows in (seen.expected, seen.actual))
        return Finding(ENTRY, case, launch, compare(expected, actual), expected, actual)


def one_group(tokens: int, group: Group, cp: ContextParallel, tile: int = 64) -> tuple[Case, Launch]:
    case = Case((0, tokens), tuple(range(tokens)), tokens, tokens, (group,), cp)
    return case, Launch("int32", tokens, "after", {"TILE_BLOCK_SIZE": tile, "BLOCK_TABLE_WINDOW_SIZE": 64})


def rows(width: int) -> tuple[tuple[int, ...], ...]:
    return (tuple(range(width)),)


def test_a_mistake_in_the_second_tile_is_shown_with_a_smaller_tile() -> None:
    case, launch = one_group(70, Group(rows(5), 16, 16), ContextParallel())
    kernel = Kernel("behind the first tile", case, launch)
    smallest = reduced(kernel.run(case, launch), kernel.run, most_compilations=12)
    assert smallest.launch.constants["TILE_BLOCK_SIZE"] == 2
    assert smallest.case.num_tokens == 3
    assert can_be(smallest, {"tile"})


def test_without_compilations_the_settings_stay() -> None:
    case, launch = one_group(70, Group(rows(5), 16, 16), ContextParallel())
    kernel = Kernel("behind the first tile", case, launch)
    smallest = reduced(kernel.run(case, launch), kernel.run)
    assert smallest.case.num_tokens == 65
    assert len(kernel.compiled) == 1


def test_sharing_is_shown_on_two_ranks_and_small_blocks() -> None:
    case, launch = one_group(600, Group(rows(48), 16, 256), ContextParallel(8, 5, 64))
    kernel = Kernel("b*W", case, launch)
    smallest = reduced(kernel.run(case, launch), kernel.run, most_compilations=12)
    group = smallest.case.groups[0]
    assert (group.block_size, group.blocks_per_kv_block, smallest.case.cp.size) == (2, 2, 2)
    assert smallest.case.num_tokens == 1
    assert smallest.verdict.differences


@pytest.mark.parametrize(
    "words", ["b*W", "behind the first tile", "row behind its own", "first of them is not written"]
)
def test_the_budgets_hold_and_the_answer_is_always_the_same(words: str) -> None:
    case, launch = one_group(70, Group((tuple(range(8)), tuple(range(8, 16))), 4, 16), ContextParallel(3, 1, 8), 16)
    case = Case((0, 70), case.positions, 70, 72, case.groups, case.cp)
    launch = Launch("int32", 72, "after", launch.constants)
    kernels = [Kernel(words, case, launch) for _ in range(2)]
    found = [reduced(k.run(case, launch), k.run, most_launches=40, most_compilations=3) for k in kernels]
    assert found[0] == found[1]
    assert kernels[0].launches == kernels[1].launches
    assert len(kernels[0].compiled) <= 1 + 3
    assert len(kernels[0].launches) <= 1 + 40 + (1 + 3) * 10


def test_what_is_found_is_of_the_same_cause() -> None:
    """A kernel with two mistakes: the smaller one is not taken for the one that was found."""
    case, launch = one_group(20, Group(rows(10), 2, 2), ContextParallel(), 16)
    tile, offset = Kernel("behind the first tile", case, launch), Kernel("one too large", case, launch)

    def run(case: Case, launch: Launch) -> Finding:
        return (tile if case.num_tokens > 16 else offset).run(case, launch)

    first = run(case, launch)
    assert signature(first) == "tile"
    assert reduced(first, run, most_launches=120).case.num_tokens == 17


@pytest.mark.parametrize("number", range(6))
def test_simpler_settings_are_other_ones_and_rows_hold_every_token(number: int) -> None:
    case, launch = cases(1)[number]
    for simpler, bound in simpler_settings(case, launch):
        assert specialization_of(simpler, bound) != specialization_of(case, launch)
        assert simpler.num_tokens == case.num_tokens
        assert "row-width" not in {each.clause for each in violations(simpler, launch=bound)} or simpler.cp.size > 1


def test_tokens_keep_their_part_where_blocks_and_ranks_change() -> None:
    """W=3, R=1, I=4, b=2, k=4: position 4 is local, at the beginning of block 0, and 28 in the second virtual block."""
    group = Group((tuple(range(16)),), 2, 8)
    case = Case((0, 3), (4, 28, 0), 3, 3, (group,), ContextParallel(3, 1, 4))
    two = next(each for each, _ in simpler_settings(case, Launch()) if each.cp == ContextParallel(2, 1, 4))
    assert two.positions == (4, 20, 0)


@pytest.mark.parametrize(
    ("seconds", "check"),
    [(0.0, lambda n: n == MOST), (0.3, lambda n: n == MOST), (0.5, lambda n: n == MOST), (5.0, lambda n: n == 1)],
)
def test_slow_compilers_are_asked_less(seconds: float, check: Callable[[int], bool]) -> None:
    assert check(most_compilations(seconds))


@pytest.mark.parametrize(("padded", "output"), [(6, 6), (1, 37), (13, 40), (1501, 1501), (7, 5000), (6001, 6002)])
def test_what_depends_on_a_length_is_shown_with_exactly_that_length(padded: int, output: int) -> None:
    launches = []

    def run(case: Case, launch: Launch) -> Finding:
        launches.append(case)
        assert launch.output_length is not None
        crashes = case.max_num_tokens >= padded and launch.output_length >= output
        return Finding(ENTRY, case, launch, Verdict(CRASH if crashes else PASS), [], [])

    case, launch = one_group(20, Group(rows(10), 2, 2), ContextParallel())
    case, launch = replace(case, max_num_tokens=8192), replace(launch, output_length=8195, fence="before")
    smallest = reduced(run(case, launch), run)
    assert len(launches) < 400
    assert (smallest.case.num_tokens, smallest.case.max_num_tokens) == (0, padded)
    assert smallest.launch.output_length == output
    assert smallest.launch.fence == "after"


def test_of_hundreds_of_requests_those_that_a_failure_needs_are_left() -> None:
    """In few launches: each of a case as large takes long."""
    number = 800
    tables = tuple((row,) for row in range(number))
    case = Case(tuple(range(number + 1)), (0,) * number, number, number, (Group(tables, 2, 2),))
    sizes: list[int] = []

    def run(case: Case, launch: Launch) -> Finding:
        sizes.append(case.num_reqs)
        wrong = Verdict(CRASH, detail="of more than 514 requests") if case.num_reqs > 514 else Verdict(PASS)
        return Finding(ENTRY, case, launch, wrong, [], [])

    smallest = reduced(run(case, Launch()), run)
    assert smallest.case.num_reqs == 515
    assert sizes.index(515) < 200
