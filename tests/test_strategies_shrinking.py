"""What fails shrinks to a few tokens in the simplest setting: the structure of a case is drawn, so it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from reference.case import Case, Launch
from strategies.cases import Declaration, cases_of
from strategies.specializations import V1_AXES, Specialization, pool

EVERYTHING = Declaration(features=frozenset({"circular", "cp", "hybrid", "pad_id", "int64", "row_stride", "tail"}))
POOL = pool(EVERYTHING, V1_AXES, 64)
ONE_RANK = [s for s in POOL if s.kind != "cp"]
RANKS = [s for s in POOL if s.kind == "cp"]
HYBRID_RANKS = [s for s in RANKS if s.cp.interleave > s.block_size]

Property = Callable[[Specialization, Case], bool]


class Found(Exception):
    """Stands for a subject that fails."""


def shrunk(specializations: list[Specialization], fails: Property, start: int) -> tuple[Specialization, Case, Launch]:
    """The case that Hypothesis reports for a subject that fails where ``fails`` holds."""
    last: list[tuple[Specialization, Case, Launch]] = []

    @seed(start)
    @settings(max_examples=600, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases_of(EVERYTHING, st.sampled_from(specializations)))
    def search(drawn: tuple[Specialization, Case, Launch]) -> None:
        if fails(drawn[0], drawn[1]):
            last.append(drawn)
            raise Found

    with pytest.raises(Found):
        search()
    return last[-1]


def requests(case: Case) -> Iterator[tuple[int, ...]]:
    bounds = case.query_start_loc
    return (case.positions[bounds[r] : bounds[r + 1]] for r in range(case.num_reqs))


def local(s: Specialization, positions: tuple[int, ...]) -> list[int]:
    return [p for p in positions if p >= 0 and s.is_local(p)]


def columns(s: Specialization, positions: list[int]) -> list[int]:
    return [0 if s.circular else s.block_index(p) for p in positions]


def token_of_another_rank(s: Specialization, case: Case) -> bool:
    return any(p >= 0 and not s.is_local(p) for own in requests(case) for p in own)


def second_block(s: Specialization, case: Case) -> bool:
    return any(1 in columns(s, local(s, own)) for own in requests(case))


def second_row_with_a_block(s: Specialization, case: Case) -> bool:
    row = case.groups[0].block_table[1:2]
    second = list(requests(case))[1:2]
    return any(row[0][column] != 0 for own in second for column in columns(s, local(s, own)))


def padded_tail(s: Specialization, case: Case) -> bool:
    return case.max_num_tokens > case.num_tokens > 0


def second_turn_of_unequal_sizes(s: Specialization, case: Case) -> bool:
    return s.cp.size != s.cp.interleave and any(p // s.turn == 1 for own in requests(case) for p in local(s, own))


def base_of_foreign_tokens(s: Specialization, case: Case) -> bool:
    """The smallest column over all tokens of a request is not that over its local ones."""
    for own in requests(case):
        of_all, of_local = columns(s, [p for p in own if p >= 0]), columns(s, local(s, own))
        if of_local and min(of_local) != min(of_all):
            return True
    return False


def kernel_block_for_the_allocated_one(s: Specialization, case: Case) -> bool:
    """Sharding by b instead of B names another owner (vllm-ascend PR 10442)."""
    virtual = s.block_size * s.cp.size
    return any(
        (p % virtual // s.cp.interleave % s.cp.size == s.cp.rank) != s.is_local(p)
        for own in requests(case)
        for p in own
        if p >= 0
    )


def negative_in_a_ring(s: Specialization, case: Case) -> bool:
    return s.circular and any(p < 0 for own in requests(case) for p in own)


@pytest.mark.parametrize(
    ("specializations", "fails"),
    [
        pytest.param(ONE_RANK, second_block, id="second-block"),
        pytest.param(ONE_RANK, second_row_with_a_block, id="second-row-with-a-block"),
        pytest.param(ONE_RANK, padded_tail, id="padded-tail"),
        pytest.param(ONE_RANK[1:], negative_in_a_ring, id="negative-in-a-ring"),
        pytest.param(RANKS, token_of_another_rank, id="token-of-another-rank"),
        pytest.param(RANKS, second_turn_of_unequal_sizes, id="second-turn-of-unequal-sizes"),
        pytest.param(RANKS, base_of_foreign_tokens, id="base-of-foreign-tokens"),
        pytest.param(HYBRID_RANKS, kernel_block_for_the_allocated_one, id="kernel-block-for-the-allocated-one"),
    ],
)
def test_shrinks_to_three_tokens_in_a_simple_setting(specializations: list[Specialization], fails: Property) -> None:
    """From two of three starts. From the third a run of consecutive tokens may be left, whose middle no smaller choice
    takes out: that is for the reduction.
    """
    found = [shrunk(specializations, fails, start) for start in range(3)]
    assert sorted(case.num_tokens for _, case, _ in found)[1] <= 3, found
    for specialization, case, launch in found:
        assert case.num_tokens <= 8, (specialization, case)
        assert case.max_num_tokens <= case.num_tokens + 1
        assert (launch.output_length, launch.fence) == (case.max_num_tokens, "after")
        assert len(case.positions) == case.num_tokens
        assert len(case.groups[0].block_table) <= 3
        assert case.groups[0].row_stride is None
        assert case.groups[0].block_table[0][0] == 0  # the identity
    # Every first setting can fail; one draw is changed after the other, so that not every search gets there.
    simplest = min(specializations.index(specialization) for specialization, _, _ in found)
    assert simplest < len(specializations) / 5
