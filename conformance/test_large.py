"""Batches as large as serving's."""

import pytest

from conformance.large import large_batches, shapes
from conformance.under_test import UnderTest


@pytest.mark.entry_points(
    "v1",
    "v2",
    "fused",
    "parallel",
    "adaptive",
    "tiled",
    "replay",
    "v1_host",
    "v2_host",
    "tiled_host",
    "block_table",
    "draft",
)
def test_large_batches_get_their_slots(entry_point: UnderTest) -> None:
    agrees_on_large_batches(entry_point, shared=False)


@pytest.mark.entry_points("v1", "v2", "tiled", "dcp", "v1_host", "v2_host", "tiled_host", "block_table")
def test_large_cp_batches_are_shared_among_ranks(entry_point: UnderTest) -> None:
    if "cp" not in entry_point.entry.declaration.features:
        pytest.skip(f"{entry_point.entry.id} {entry_point.entry.version} does not have cp")
    agrees_on_large_batches(entry_point, shared=True)


def agrees_on_large_batches(entry_point: UnderTest, *, shared: bool) -> None:
    lane = entry_point.engine.lane
    if not shapes(entry_point.entry.family, lane):
        pytest.skip(f"lane {lane.name} takes long, and the kernel of this host function is given large batches itself")
    for batch in large_batches(entry_point.entry, lane, shared=shared):
        entry_point.agrees_on(batch)
