"""Every position of a range, through every entry point: the settings of serving, and unusual ones."""

import pytest
from hypothesis import settings

from conformance.sweep import every_position
from conformance.under_test import UnderTest

ALONE = (
    "v1",
    "v2",
    "fused",
    "parallel",
    "adaptive",
    "tiled",
    "v1_host",
    "v2_host",
    "tiled_host",
    "block_table",
    "draft",
)


@pytest.mark.entry_points(*ALONE)
def test_every_position_gets_its_slot(entry_point: UnderTest) -> None:
    every_position(entry_point, "plain", settings().max_examples)


@pytest.mark.entry_points("v1", "fused", "parallel", "adaptive", "v1_host")
def test_every_position_of_a_circular_group_gets_its_slot(entry_point: UnderTest) -> None:
    every_position(entry_point, "circular", settings().max_examples)


@pytest.mark.entry_points("v1", "v2", "tiled", "dcp", "v1_host", "v2_host", "tiled_host", "block_table", "draft")
def test_every_cp_position_gets_its_slot_on_the_owning_rank(entry_point: UnderTest) -> None:
    every_position(entry_point, "cp", settings().max_examples)


@pytest.mark.entry_points("replay")
def test_every_replayed_position_loses_its_slot(entry_point: UnderTest) -> None:
    every_position(entry_point, "plain", settings().max_examples)
