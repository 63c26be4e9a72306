"""Look for a failure of one entry point outside pytest: what measuring the suite with seeded faults needs."""

from __future__ import annotations

from hypothesis import given, seed, settings

from conformance.under_test import UnderTest
from conformance.verdicts import ConformanceFailure

KINDS = ("plain", "circular", "cp")


def first_failure(
    target: UnderTest, kinds: tuple[str, ...], profile: settings, number: int
) -> ConformanceFailure | None:
    """The shrunk failure that the tests of these kinds find, in their order, with seed ``number``; None: they all pass.

    A kind that the entry point does not have is left out; ``examples`` of the failure counts those of its own kind.
    """
    for kind in kinds:
        if target.entry.declaration.features >= _FEATURES[kind]:
            found = _search(target, kind, profile, number)
            if found is not None:
                return found
    return None


_FEATURES = {"plain": frozenset[str](), "circular": frozenset({"circular"}), "cp": frozenset({"cp"})}


def _search(target: UnderTest, kind: str, profile: settings, number: int) -> ConformanceFailure | None:
    target.begin()

    @seed(number)
    @profile
    @given(target.cases(kind))
    def agrees(drawn: object) -> None:
        target.agrees_with_the_oracle(drawn)  # type: ignore[arg-type]

    try:
        agrees()
    except ConformanceFailure as failure:
        return target.smallest(failure)
    except ExceptionGroup as group:
        failures, others = group.split(ConformanceFailure)
        if failures is None or others is not None:
            raise
        return target.smallest(failures.exceptions[0])  # type: ignore[arg-type]
    return None
