"""Draft tokens, whose slots the host computes; where ranks share the group, torch does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("draft")
@given(data=st.data())
def test_draft_slots_follow_the_block_table(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("plain")))


@pytest.mark.entry_points("draft")
@given(data=st.data())
def test_draft_cp_slots_exist_on_the_owning_rank_only(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("cp")))
