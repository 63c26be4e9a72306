"""Which hypotheses are left when other launches of the same code are looked at, too.

A hypothesis that explains one small launch is easily found and easily wrong. It has to agree with all the others:

- launches that passed: it predicts no difference there;
- launches that failed: it explains them all; or, where no hypothesis does, every difference that it predicts is there
  and one other mistake, which agrees as well, explains what it leaves;
- and one of them has what it is about: flags that differ, a ring, several ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

from reports.diagnosis.features import met
from reports.diagnosis.hypotheses import HYPOTHESES, Hypothesis
from reports.diagnosis.launches import concerned
from reports.diagnosis.mapping import MOST, Observation

_IMPOSSIBLE = (ArithmeticError, LookupError, ValueError)
"""What a hypothesis raises that cannot be in this geometry."""

Place = tuple[int, int]


def explaining(seen: Observation) -> tuple[Hypothesis, ...]:
    """The hypotheses that predict all of what was seen."""
    return tuple(each for each in (*HYPOTHESES, *concerned(seen)) if _explains(each, seen))


def standing(
    supposed: Iterable[Hypothesis], seen: Observation, evidence: tuple[Observation, ...]
) -> tuple[Hypothesis, ...]:
    """Those of ``supposed``, which explain ``seen``, that agree with the evidence."""
    passed = [launch for launch in evidence if not launch.differing]
    failed = [launch for launch in evidence if launch.differing]
    everything = (seen, *evidence)
    left = _agreeing(supposed, passed, everything)
    others = [launch for launch in failed if launch != seen]  # which they explain
    alone = tuple(each for each in left if all(_consistent(each, launch) for launch in others))
    if alone or not left:
        return alone
    first = {each: places for each in left if (places := _left_by(each, failed)) is not None}
    if not first:
        return ()
    known = dict.fromkeys(hypothesis for launch in everything for hypothesis in (*HYPOTHESES, *concerned(launch)))
    second = [
        places
        for each in _agreeing(known, passed, everything)
        # One that allows several values would explain too much.
        if each.of(seen).contested() is None and (places := _left_by(each, failed)) is not None
    ]
    return tuple(each for each, places in first.items() if any(not places & others for others in second))


def supported(hypothesis: Hypothesis, launches: Iterable[Observation]) -> bool:
    """Whether the launches show what only this mistake shows: of a race, that the same request does not always lose; of
    a window, that it ends where it should, in one launch.
    """
    launches = tuple(launches)
    if not any(_tells_apart(hypothesis, launch) for launch in launches):
        return False
    lost: set[int] = set()
    won: set[int] = set()
    for launch in launches:
        contested = hypothesis.of(launch).contested()
        if contested is None:
            return True
        lost |= contested[0]
        won |= contested[1]
    return bool(lost & won)


def _agreeing(
    supposed: Iterable[Hypothesis], passed: Iterable[Observation], everything: tuple[Observation, ...]
) -> list[Hypothesis]:
    """Those that are about one of the launches, and predict that those which passed do."""
    left = [each for each in supposed if met(each.cause, everything)]
    for launch in passed:
        left = [each for each in left if _consistent(each, launch)]
    return left


def _left_by(hypothesis: Hypothesis, failed: Iterable[Observation]) -> frozenset[tuple[int, int, int]] | None:
    """(launch, group, element) of what differs for another reason; None: what it predicts is not there."""
    found = []
    for number, launch in enumerate(failed):
        places = _unexplained(hypothesis, launch)
        if places is None:
            return None
        found += [(number, *place) for place in places]
    return frozenset(found)


def _unexplained(hypothesis: Hypothesis, seen: Observation) -> list[Place] | None:
    """The elements that differ although the hypothesis predicts no difference there; None: it predicts one that is not
    there, or another.
    """
    found = []
    try:
        mapping = hypothesis.of(seen)
        for group, row in enumerate(seen.actual):
            for element in range(min(len(row), MOST)):
                possible, right = mapping.possible(group, element), seen.expected[group][element]
                if seen.actual[group][element] in possible or (None in possible and mapping.tells_where):
                    continue
                if None not in possible and right not in possible:
                    return None
                if seen.actual[group][element] != right:
                    found.append((group, element))
    except _IMPOSSIBLE:
        return None
    return found


def _explains(hypothesis: Hypothesis, seen: Observation) -> bool:
    try:
        return hypothesis.of(seen).explains()
    except _IMPOSSIBLE:
        return False


def _tells_apart(hypothesis: Hypothesis, seen: Observation) -> bool:
    try:
        return hypothesis.of(seen).tells_apart()
    except _IMPOSSIBLE:
        return False


def _consistent(hypothesis: Hypothesis, seen: Observation) -> bool:
    try:
        return hypothesis.of(seen).consistent()
    except _IMPOSSIBLE:
        return False
