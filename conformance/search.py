"""Looking for failures of one entry point: all that differ within a test, or the first ones outside pytest, which
measuring the suite with seeded faults needs.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, seed, settings

from conformance.under_test import Drawn, UnderTest
from conformance.verdicts import ConformanceFailure, failures_in

KINDS = ("plain", "circular", "cp")
MOST_FAILURES = 8
"""Different ones that a test goes on after."""


def all_failures(target: UnderTest, first: BaseException, again: Callable[[], None]) -> Exception | None:
    """What a test of ``target`` that ended with ``first`` is to end with: each failure on its smallest case.

    The test runs ``again`` as long as it finds a new failure beside those it has explained. None: ``first`` is no
    failure of the kernel's.
    """
    found = list(failures_in(first))
    for _ in range(MOST_FAILURES if found else 0):
        new = {target.signature(failure.finding) for failure in found} - target.explained
        if not new or None in new:
            break
        target.explained |= {each for each in new if each is not None}
        try:
            target.begin()
            again()
            break
        except (ConformanceFailure, BaseExceptionGroup) as error:
            found += failures_in(error)
    smallest = _different([target.smallest(failure) for failure in found])
    return ExceptionGroup(f"{len(smallest)} failures", smallest) if len(smallest) > 1 else next(iter(smallest), None)


def _different(found: list[ConformanceFailure]) -> list[ConformanceFailure]:
    """One of each cause: two cases that looked different may, once they are small, show the same."""
    first: dict[object, ConformanceFailure] = {}
    for failure in found:
        finding = failure.finding
        first.setdefault((finding.verdict.kind, finding.diagnosis.key or id(failure)), failure)
    return list(first.values())


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
