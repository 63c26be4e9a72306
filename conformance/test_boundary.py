"""Outside the contract: nothing but the launch's own buffers is touched, and tokens inside it still get their slots.
A quarter of the cases must do.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.boundaries import boundaries, stays_inside
from conformance.under_test import UnderTest

quarter = settings(max_examples=-(-settings().max_examples // 4))


@pytest.mark.entry_points("v1", "v2", "fused", "parallel", "adaptive", "tiled", "replay")
@quarter
@given(data=st.data())
def test_boundary_cases_stay_inside_their_buffers(entry_point: UnderTest, data: st.DataObject) -> None:
    stays_inside(entry_point, data.draw(boundaries(entry_point, "plain")))


@pytest.mark.entry_points("v1", "v2", "tiled")
@quarter
@given(data=st.data())
def test_cp_boundary_cases_stay_inside_their_buffers(entry_point: UnderTest, data: st.DataObject) -> None:
    stays_inside(entry_point, data.draw(boundaries(entry_point, "cp")))


@pytest.mark.entry_points("dcp")
@quarter
@given(data=st.data())
def test_dcp_boundary_cases_stay_inside_their_buffers(entry_point: UnderTest, data: st.DataObject) -> None:
    stays_inside(entry_point, data.draw(boundaries(entry_point)))


@pytest.mark.entry_points("v1", "fused", "parallel", "adaptive")
@quarter
@given(data=st.data())
def test_circular_boundary_cases_stay_inside_their_buffers(entry_point: UnderTest, data: st.DataObject) -> None:
    stays_inside(entry_point, data.draw(boundaries(entry_point, "circular")))
