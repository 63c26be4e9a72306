"""All groups in one launch, rings and paged groups together, without context parallelism."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("fused", "parallel", "adaptive")
@given(data=st.data())
def test_fused_groups_each_get_their_own_slots(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("plain")))
