"""Cases from files: what once failed, run again. Collected with ``--replay FILE`` only."""

from conformance.boundaries import stays_inside
from conformance.saved import SavedCase
from conformance.under_test import UnderTest


def test_saved_case_agrees(entry_point: UnderTest, saved_case: SavedCase) -> None:
    if saved_case.boundary:
        stays_inside(entry_point, saved_case.drawn(entry_point.entry))
        return
    if saved_case.asked is not None:
        entry_point.upholds_saved(saved_case.asked)
    entry_point.agrees_on(saved_case.drawn(entry_point.entry))
