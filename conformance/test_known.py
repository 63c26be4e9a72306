"""Failures that are known and accepted: each case fails as it did. Collected with ``--known-failures FILE`` only."""

from conformance.known import KnownFailure
from conformance.under_test import UnderTest


def test_known_failure_is_there_and_nothing_else(entry_point: UnderTest, known_failure: KnownFailure) -> None:
    entry_point.fails_as_known(known_failure)
