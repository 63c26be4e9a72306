"""Cases from files: what once failed, run again. Collected with ``--replay FILE`` only."""

from conformance.saved import SavedCase


def test_saved_case_agrees(entry_point, saved_case: SavedCase):
    entry_point.agrees_with_the_oracle(saved_case.drawn(entry_point.entry))
