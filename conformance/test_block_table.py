"""The host's block tables: rows filled by their own operations, then slots, by whichever path they choose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("block_table")
@given(data=st.data())
def test_block_table_gives_each_token_a_slot_of_its_own_row(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("plain")))


@pytest.mark.entry_points("block_table")
@given(data=st.data())
def test_block_table_cp_slots_exist_on_the_owning_rank_only(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("cp")))
