"""Batches as large as serving's."""

import pytest

from conformance.large import large_batches
from conformance.under_test import UnderTest


@pytest.mark.entry_points("v1", "v2", "fused", "parallel", "adaptive", "tiled", "replay", "draft", "block_table")
def test_large_batches_get_their_slots(entry_point: UnderTest) -> None:
    for batch in large_batches(entry_point.entry, shared=False):
        entry_point.agrees_on(batch)


@pytest.mark.entry_points("v1", "v2", "tiled", "dcp", "block_table")
def test_large_cp_batches_are_shared_among_ranks(entry_point: UnderTest) -> None:
    if "cp" not in entry_point.entry.declaration.features:
        pytest.skip(f"{entry_point.entry.id} {entry_point.entry.version} does not have cp")
    for batch in large_batches(entry_point.entry, shared=True):
        entry_point.agrees_on(batch)
