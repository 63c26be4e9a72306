"""Kernels of the second model runner: all groups in one launch, rows by idx_mapping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("v2")
@given(data=st.data())
def test_v2_slots_follow_the_row_that_idx_mapping_names(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("plain")))


@pytest.mark.entry_points("v2")
@given(data=st.data())
def test_v2_cp_slots_exist_on_the_owning_rank_only(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("cp")))
