"""What changes from step to step is not compiled in: batches of 200 shapes over one layout compile next to nothing."""

import pytest

from conformance.compile_keys import compiles_for_no_batch, compiles_nothing_after_the_prewarm
from conformance.under_test import UnderTest


@pytest.mark.entry_points("v1", "v2", "fused", "parallel", "adaptive", "tiled", "replay")
def test_batches_of_every_shape_compile_nothing_new(entry_point: UnderTest) -> None:
    compiles_for_no_batch(entry_point)


@pytest.mark.entry_points("v1", "fused", "parallel", "adaptive")
def test_circular_batches_of_every_shape_compile_nothing_new(entry_point: UnderTest) -> None:
    compiles_for_no_batch(entry_point, circular=True)


@pytest.mark.entry_points("fused")
def test_after_the_prewarm_no_batch_compiles_anything(entry_point: UnderTest) -> None:
    compiles_nothing_after_the_prewarm(entry_point)


@pytest.mark.entry_points("fused")
def test_after_the_prewarm_no_circular_batch_compiles_anything(entry_point: UnderTest) -> None:
    compiles_nothing_after_the_prewarm(entry_point, circular=True)
