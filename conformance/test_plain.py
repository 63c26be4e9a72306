"""Paged groups without context parallelism."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("v1")
@given(data=st.data())
def test_plain_slots_follow_the_block_table(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("plain")))
