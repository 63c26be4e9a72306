"""Tokens computed again after a prefix-cache hit: their slots are taken back, all others stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("replay")
@given(data=st.data())
def test_replayed_tokens_alone_lose_their_slots(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases()))
