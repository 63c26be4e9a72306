"""Host functions: what they make of their arguments before they launch kernels that are tested on their own. A third of
the cases that other tests draw is enough for that.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.under_test import UnderTest

HOSTS = pytest.mark.entry_points("v1_host", "v2_host", "tiled_host")
third = settings(max_examples=-(-settings().max_examples // 3))


@HOSTS
@third
@given(data=st.data())
def test_host_plain_slots_follow_the_block_table(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("plain")))


@pytest.mark.entry_points("v1_host")
@third
@given(data=st.data())
def test_host_circular_slots_wrap_inside_one_block(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("circular")))


@HOSTS
@third
@given(data=st.data())
def test_host_cp_slots_exist_on_the_owning_rank_only(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("cp")))
