"""Context parallelism: paged groups sharded over W > 1 ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.under_test import UnderTest


@pytest.mark.entry_points("v1")
@given(data=st.data())
def test_cp_slots_exist_on_the_owning_rank_only(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.agrees_with_the_oracle(data.draw(entry_point.cases("cp")))
