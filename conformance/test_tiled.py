"""Kernels whose programs share the output evenly, whatever the lengths of the requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("tiled")
@given(data=st.data())
def test_tiled_slots_follow_the_row_of_the_owning_request(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("plain")))


@pytest.mark.entry_points("tiled")
@given(data=st.data())
def test_tiled_cp_slots_exist_on_the_owning_rank_only(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("cp")))
