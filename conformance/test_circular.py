"""Groups of one ring block a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("v1")
@given(data=st.data())
def test_circular_slots_wrap_inside_one_block(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("circular")))


@pytest.mark.entry_points("fused", "parallel", "adaptive")
@given(data=st.data())
def test_circular_and_paged_groups_in_one_launch_each_get_their_own_slots(
    entry_point: UnderTest, data: st.DataObject
) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("circular")))
