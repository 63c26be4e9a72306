"""Properties that hold whatever the right values are: no oracle is asked. Each example asks one of its family.

What is read off a batch's slots, or what a rearranged batch must have in common with it: see conformance/properties/.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.properties import BATCHES, ONE_RANK, SLOTS
from conformance.properties.drawing import asked, compiles, fewer, one_compiled, two_of_two_ranks
from conformance.under_test import UnderTest

KERNELS = ("v1", "v2", "fused", "parallel", "adaptive", "tiled")
HOSTS = ("v1_host", "v2_host", "tiled_host", "block_table", "draft")
SHARING = ("v1", "v2", "tiled", *HOSTS)
WITH_RINGS = ("v1", "fused", "parallel", "adaptive", "v1_host")
few = fewer()


@pytest.mark.entry_points(*KERNELS, *HOSTS)
@few
@given(data=st.data())
def test_slots_tell_whose_they_are(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.upholds(*data.draw(asked(entry_point, SLOTS, "plain")))


@pytest.mark.entry_points(*SHARING, "dcp")
@few
@given(data=st.data())
def test_cp_slots_of_all_ranks_tell_whose_they_are(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.upholds(*data.draw(asked(entry_point, SLOTS, "cp", two_of_two_ranks)))


@pytest.mark.entry_points(*WITH_RINGS)
@few
@given(data=st.data())
def test_circular_slots_tell_whose_they_are(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.upholds(*data.draw(asked(entry_point, SLOTS, "circular")))


@pytest.mark.entry_points(*KERNELS, *HOSTS, "replay")
@few
@given(data=st.data())
def test_rearranged_batches_keep_their_slots(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.upholds(*data.draw(asked(entry_point, BATCHES, "plain")))


@pytest.mark.entry_points(*SHARING, "dcp")
@few
@given(data=st.data())
def test_cp_rearranged_batches_keep_their_slots(entry_point: UnderTest, data: st.DataObject) -> None:
    # What compiles has a test of its own for one rank: it costs a compilation.
    properties = BATCHES if compiles(entry_point) else BATCHES + ONE_RANK
    entry_point.upholds(*data.draw(asked(entry_point, properties, "cp")))


@pytest.mark.entry_points(*WITH_RINGS)
@few
@given(data=st.data())
def test_circular_rearranged_batches_keep_their_slots(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.upholds(*data.draw(asked(entry_point, BATCHES, "circular")))


@pytest.mark.entry_points(*SHARING)
@few
@given(data=st.data())
def test_one_rank_shares_with_nobody(entry_point: UnderTest, data: st.DataObject) -> None:
    entry_point.upholds(*data.draw(asked(entry_point, ONE_RANK, "plain", one_compiled)))
