"""What once failed somewhere, run again before anything is drawn. Collected with ``--corpus FOLDER`` only."""

from conformance.saved import SavedCase
from conformance.under_test import UnderTest


def test_case_of_the_corpus_agrees(entry_point: UnderTest, corpus_case: SavedCase) -> None:
    asked = corpus_case.asked
    if asked is not None and asked.property.why_not(entry_point.entry) is None:
        entry_point.upholds_saved(asked)
    entry_point.agrees_on(corpus_case.drawn(entry_point.entry))
