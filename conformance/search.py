"""Look for a failure of one entry point outside pytest: what measuring the suite with seeded faults needs."""

from __future__ import annotations

from hypothesis import given, seed, settings

from conformance.under_test import Drawn, UnderTest
from conformance.verdicts import ConformanceFailure, failures_in

KINDS = ("plain", "circular", "cp")


def failures(target: UnderTest, kinds: tuple[str, ...], profile: settings, number: int) -> list[ConformanceFailure]:
    """The shrunk failures, one a verdict, that the first of these kinds to find any finds with seed ``number``.

    None at all: the entry point passes every kind. Kinds that it does not have are left out. ``examples`` of a failure
    counts those of its own kind.
    """
    for kind in kinds:
        if target.entry.declaration.features >= _FEATURES[kind]:
            found = _search(target, kind, profile, number)
            if found:
                return [target.smallest(failure) for failure in found]
    return []


_FEATURES = {"plain": frozenset[str](), "circular": frozenset({"circular"}), "cp": frozenset({"cp"})}


def _search(target: UnderTest, kind: str, profile: settings, number: int) -> list[ConformanceFailure]:
    target.begin()

    @seed(number)
    @profile
    @given(target.cases(kind))
    def agrees(drawn: Drawn) -> None:
        target.agrees_with_the_oracle(drawn)

    try:
        agrees()
    except (ConformanceFailure, ExceptionGroup) as error:
        found = list(failures_in(error))
        if not found:
            raise
        return found
    return []
