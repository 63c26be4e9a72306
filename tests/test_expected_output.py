"""What is expected of a large launch is what the per-token oracle says, whichever oracle is asked."""

from __future__ import annotations

import pytest

from conformance import expected
from reference import verdict
from reference.case import Case, Group

LARGE = expected.LARGE


def case(num_tokens: int) -> Case:
    """Two requests over two groups, the positions of the second from -3 on."""
    table = tuple(tuple((row * 7919 + index * 104_729) % 65_521 for index in range(600)) for row in range(2))
    groups = (Group(table, 16, 16), Group(table, 48, 48))
    half = num_tokens // 2
    positions = (*range(half), *range(-3, num_tokens - half - 3))
    return Case((0, half, num_tokens), positions, num_tokens, num_tokens + 9, groups, pad_id=-2)


@pytest.mark.parametrize("num_tokens", [LARGE - 1, LARGE, LARGE + 2])
@pytest.mark.parametrize("writes_tail", [True, False])
def test_both_oracles_expect_the_same(num_tokens: int, writes_tail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    vectorized = expected.vectorized.slot_mapping
    monkeypatch.setattr(expected.vectorized, "slot_mapping", lambda each: asked.append(each) or vectorized(each))
    each = case(num_tokens)
    found = expected.expected_output(each, num_tokens + 12, writes_tail)
    assert found == verdict.expected_output(each, num_tokens + 12, writes_tail)
    assert bool(asked) == (num_tokens >= LARGE)


def test_an_output_that_is_too_short_is_refused_alike() -> None:
    with pytest.raises(ValueError, match="qsl-capacity"):
        expected.expected_output(case(LARGE), LARGE)
