"""What became of the known failures in one run: each is run once, on its own case, and explains others only while it
still fails as it did.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conformance.engine import Engine
from conformance.explained import Run, beyond, can_be, parts
from conformance.known import KnownFailure, of_finding
from conformance.simpler import specialization_of
from conformance.subjects.entry import EntryPoint
from conformance.verdicts import Finding
from reference import verdict as v
from reference.case import CaseError
from reports import summary
from reports.diagnosis import GENERAL

STILL_FAILS = summary.STILL_FAILS
FIXED = "passes now"
FAILS_DIFFERENTLY = "fails differently"
NOT_RUN = summary.NOT_RUN

_RAISED_AT = re.compile(r" \(([^()]+:[0-9]+)\)$")
"""The lines that an exception came through, which end what it says: those of the code under test."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status`` is one of the four above; ``finding`` is what the case did, ``why`` the reason that it was not run."""

    status: str
    finding: Finding | None = None
    why: str = ""

    @property
    def weight(self) -> int:
        """Which of several counts, of processes that do not agree: the one that has to be looked at."""
        return (NOT_RUN, STILL_FAILS, FIXED, FAILS_DIFFERENTLY).index(self.status)


class Accepted:
    """The known failures of a run, in the order of their files. Raises CaseError for an entry point that a subject of
    the run does not have.

    ``thorough``: a search goes on past wrong values that it has found, too. Their causes are told apart well enough to
    list what is there, not always well enough to show one fault once, so other runs end with the first.
    """

    def __init__(self, known: Sequence[KnownFailure], engine: Engine, thorough: bool = False) -> None:
        self.known, self.engine, self.thorough = tuple(known), engine, thorough
        self.met: Counter[str] = Counter()  # drawn and saved cases that each explained, by its place
        self._entries = {entry.id: entry for entry in engine.entries()} if known else {}
        self._outcomes: dict[str, Outcome] = {}
        for each in self.known:
            if each.saved.subject in engine.options.subjects and each.entry_point not in self._entries:
                there = ", ".join(entry.id for entry in self._entries.values() if entry.subject == each.saved.subject)
                raise CaseError(f"{each.where}: there is no such entry point; this run has {there}")

    def adopt(self, outcomes: Mapping[str, Outcome], met: Mapping[str, int]) -> None:
        """Take for what became of them, by their places, what other processes have found."""
        self._outcomes.update(outcomes)
        self.met.update(met)

    def entry(self, known: KnownFailure) -> EntryPoint | None:
        return self._entries.get(known.entry_point)

    def why_not(self, known: KnownFailure) -> str | None:
        """Why its case is not run in this run, or None."""
        entry = self.entry(known)
        if entry is None:
            return f"{known.describe()}: this run is not about {known.saved.subject}"
        if known.lane not in ("", self.engine.lane.name):
            return f"{known.describe()}: known on lane {known.lane}, this is lane {self.engine.lane.name}"
        return known.saved.why_not(entry)

    def outcome(self, known: KnownFailure) -> Outcome:
        """What its case does now. It is run when this is first asked."""
        if known.where not in self._outcomes:
            self._outcomes[known.where] = self._run(known)
        return self._outcomes[known.where]

    def by_place(self) -> dict[str, Outcome]:
        """The same as ``outcomes``, for another process."""
        return dict(self._outcomes)

    def outcomes(self) -> list[tuple[KnownFailure, Outcome]]:
        """Those that were asked for."""
        return [(known, self._outcomes[known.where]) for known in self.known if known.where in self._outcomes]

    def told(self) -> tuple[summary.Known, ...]:
        """What became of each, for the summary of the run."""
        return tuple(
            summary.Known(
                entry_point=each.entry_point,
                kind=each.kind,
                cause=each.cause,
                buffer=each.buffer,
                reason=each.reason,
                status=self._outcomes[each.where].status if each.where in self._outcomes else NOT_RUN,
                cases=self.met[each.where],
            )
            for each in self.known
        )

    def explaining(self, finding: Finding) -> KnownFailure | None:
        """The entry that explains ``finding``, one part of what is wrong with a case.

        One whose cause is unknown, or true of failures that have others, explains its own case and nothing else.
        """
        for known in self.known:
            if known.entry_point == finding.entry.id and known.is_about(finding):
                outcome = self.outcome(known)
                if outcome.status == STILL_FAILS and covers(known, finding, outcome.finding):
                    return known
        several = self.causes(finding.entry)
        if finding.verdict.kind == v.MISMATCH and len(several) > 1 and can_be(finding, several):
            return next(known for known in self.known if known.key in several and known.entry_point == finding.entry.id)
        return None

    def causes(self, entry: EntryPoint) -> set[str]:
        """Of the wrong values that are known of ``entry`` and still there, but for causes that many failures have."""
        known = (each for each in self.known if (each.entry_point, each.kind) == (entry.id, v.MISMATCH))
        told = (each for each in known if each.cause not in GENERAL)
        return {each.key for each in told if each.key is not None and self.outcome(each).status == STILL_FAILS}

    def meets(self, finding: Finding) -> KnownFailure | None:
        """The same for a case of a test, counted."""
        known = self.explaining(finding)
        if known is not None:
            self.met[known.where] += 1
        return known

    def look_at(self, entry: EntryPoint) -> None:
        """Run every case that is known of ``entry``."""
        for known in self.known:
            if known.entry_point == entry.id:
                self.outcome(known)

    def beside(self, known: KnownFailure) -> Finding | None:
        """What else is wrong with the case of an entry that still fails, beside all that is known; None: nothing."""
        entry = self._entries[known.entry_point]

        def explains(finding: Finding) -> bool:
            return self.explaining(finding) is not None

        found = beyond(self._runs(entry, known), known.saved.case, known.saved.launch, explains)
        return None if found.verdict.passed or found.verdict.kind == v.UNSUPPORTED else found

    def refreshed(self, found: Sequence[Finding]) -> list[KnownFailure]:
        """What a file about this run holds: the entries that are not fixed, and one for each cause in ``found``."""
        ran = {known.where: outcome for known, outcome in self.outcomes()}
        gone = [where for where, outcome in ran.items() if outcome.status in (FIXED, FAILS_DIFFERENTLY)]
        kept = [
            (known, ran[known.where].finding if known.where in ran else None)
            for known in self.known
            if known.where not in gone
        ]
        for finding in found:
            known = of_finding(finding, self.engine.lane.name)
            if not any(_identity(known) == _identity(other) and _alike(known, finding, own) for other, own in kept):
                kept.append((known, finding))
        return [known for known, _ in kept]

    def _run(self, known: KnownFailure) -> Outcome:
        entry, why = self.entry(known), self.why_not(known)
        if entry is None or why is not None:
            return Outcome(NOT_RUN, why=why or "")
        session = self.engine.session(entry.subject)
        session.hurried = False
        found = self._runs(entry, known)(known.saved.case, known.saved.launch)
        session.hurried = False
        if found.verdict.kind == v.UNSUPPORTED:
            return Outcome(NOT_RUN, why=f"{known.describe()}: lane {self.engine.lane.name}: {found.verdict.detail}")
        if found.verdict.passed:
            return Outcome(FIXED, found)
        agrees = any(map(known.is_about, parts(found)))
        return Outcome(STILL_FAILS if agrees else FAILS_DIFFERENTLY, found)

    def _runs(self, entry: EntryPoint, known: KnownFailure) -> Run:
        """Launches cases of ``entry`` with the settings of an entry's own."""
        settings = known.saved.drawn(entry)[2]
        return lambda case, launch: self.engine.run(entry, case, launch, settings)


def _identity(known: KnownFailure) -> tuple[object, ...]:
    """Entries that are alike in this need be there once."""
    which = known.key or (known.saved.case, known.saved.launch)
    return known.entry_point, known.kind, known.lane, which


def covers(known: KnownFailure, finding: Finding, own: Finding | None) -> bool:
    """Whether ``known``, whose case did ``own``, says enough to explain ``finding``, which has its cause."""
    if _same(finding, own):
        return True
    if known.cause == "stale element":
        return own is not None and _where(finding) <= _where(own)
    return known.key is not None and known.cause not in GENERAL and _alike(known, finding, own)


def _alike(known: KnownFailure, finding: Finding, own: Finding | None) -> bool:
    """Whether ``finding`` ended where the case of ``known`` did, if what it says is all that is known of it.

    Many statements can raise the same, and a process that dies or hangs names none: then it has to run the same code,
    which is what was compiled for the same parameters, unless the entry says that it need not.
    """
    if known.cause not in (v.CRASH, v.HANG, v.REFUSED):
        return True
    if own is None:
        return False
    here, there = (_RAISED_AT.search(each.verdict.detail) for each in (finding, own))
    if here and there:
        return here[1] == there[1]
    if here != there:
        return False
    compiled, own_compiled = (specialization_of(each.case, each.launch) for each in (finding, own))
    return known.everywhere or compiled == own_compiled


def _where(finding: Finding) -> set[bool]:
    """Whether elements that differ are a token's, or lie in the tail behind all of them."""
    return {
        element < finding.case.num_tokens
        for expected, actual in zip(finding.expected, finding.actual, strict=False)
        for element, (want, have) in enumerate(zip(expected, actual, strict=False))
        if want != have
    }


def _same(finding: Finding, other: Finding | None) -> bool:
    return other is not None and (finding.case, finding.launch) == (other.case, other.launch)
