"""What a test of the suite gets as ``entry_point``: draw a case for it, and assert that it agrees with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import strategies as st

from conformance.accepted import NOT_RUN, STILL_FAILS, Accepted
from conformance.engine import Engine, declared, narrowed, settings_of
from conformance.evidence import Evidence
from conformance.explained import Run, beyond, can_be, remainder, signature
from conformance.known import KnownFailure
from conformance.probes import probes
from conformance.properties.property import Property
from conformance.properties.upheld import Broken, NotForIt, NothingToCompare, PropertyFailure, contradicting, wrong
from conformance.reduction import reduced
from conformance.saved import Asked
from conformance.simpler import most_compilations
from conformance.subjects.allocated import with_allocated_rows
from conformance.subjects.binding import outside
from conformance.subjects.binding import settings_of as settings_of_launch
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.verdicts import ConformanceFailure, Finding, Search, failure_of
from reference import verdict as v
from reference.case import Case, Launch
from strategies.cases import cases, free_specializations
from strategies.specializations import Specialization

Drawn = tuple[Case, Launch, Settings]
Choice = Callable[[Sequence[Specialization]], Sequence[Specialization]]


class StillFails(Exception):
    """A known failure does what is known of it."""


class UnderTest:
    """One entry point of one subject on the run's lane."""

    def __init__(self, engine: Engine, entry: EntryPoint, accepted: Accepted | None = None) -> None:
        self.engine, self.entry = engine, entry
        self.accepted = accepted or Accepted((), engine)
        self.excused: list[KnownFailure] = []  # those that explained a case of this test
        self.explained: set[str] = set()  # signatures of failures that this test has already reported
        self.compared = 0  # launches of this test that left an output to compare
        self.unsupported: str | None = None  # why a case could not be run, if one could not
        # The last failure of each kind and search: what there is to report of a test that is interrupted.
        self.met: dict[tuple[int, str], ConformanceFailure] = {}
        self._search = Search()
        self._evidence = Evidence()
        self._drawing = lru_cache(maxsize=None)(self._cases_of_kind)

    def __repr__(self) -> str:
        return self.entry.id

    def cases(self, kind: str | None = None, chosen: Choice | None = None) -> st.SearchStrategy[Drawn]:
        """Cases of one kind ("plain", "circular", "cp"; None: all), legal for what the entry point declares.
        ``chosen``: of the specializations that it compiles, those to draw from.

        Skips the test when the entry point has no such kind.
        """
        if kind in ("circular", "cp") and kind not in self.entry.declaration.features:
            pytest.skip(f"{self.entry.id} {self.entry.version} does not have {kind}")
        return self._drawing(kind, chosen)

    def _cases_of_kind(self, kind: str | None, chosen: Choice | None) -> st.SearchStrategy[Drawn]:
        declaration = self.entry.declaration
        pool = self.engine.pool(self.entry)
        if pool is None:
            specializations = free_specializations(declaration, kind)
        else:
            of_kind = [each for each in pool if kind in (None, each.kind)]
            if not of_kind:
                pytest.skip(f"{self.entry.id}: no specialization of kind {kind} within --compile-budget {len(pool)}")
            specializations = st.sampled_from(of_kind if chosen is None else chosen(of_kind))
        strategy_of = lru_cache(maxsize=None)(lambda each: cases(narrowed(declared(self.entry, each), each), each))

        @st.composite
        def drawn(draw: st.DrawFn) -> Drawn:
            specialization: Specialization = draw(specializations)
            if self.engine.explored is not None:
                self.engine.explored.drew(self.entry, specialization)
            case, launch = draw(strategy_of(specialization))
            if self.entry.allocates:
                case = with_allocated_rows(case)
            return case, launch, settings_of(specialization)

        return drawn()

    def agrees_with_the_oracle(self, drawn: Drawn) -> None:
        """Every element of the output is what the contract says, and nothing else was touched."""
        self._search.examples += 1
        self._assert(drawn)

    def upholds(self, property: Property, drawn: Drawn, choice: int) -> None:
        """``property`` holds of the launches that it makes of a case; no oracle is asked unless it does not."""
        self._search.examples += 1
        self._uphold(property, drawn, choice)

    def upholds_saved(self, asked: Asked) -> None:
        """The same for one case that was not drawn."""
        try:
            self._uphold(asked.property, (asked.case, asked.launch, asked.settings), asked.choice)
        except ConformanceFailure as failure:
            failure.finding = self._with_evidence(failure.finding)
            raise

    def agrees_on(self, saved: Drawn) -> None:
        """The same for one case that was not drawn."""
        try:
            self._assert(saved)
        except ConformanceFailure as failure:
            failure.finding = self._with_evidence(failure.finding)
            raise

    def agrees_on_all(self, saved: Sequence[Drawn]) -> None:
        """``agrees_on`` for each, waited for together where the lane can; stops at the first that does not agree."""
        if len(saved) == 1:
            self.agrees_on(saved[0])
            return
        for drawn, finding in zip(saved, self.engine.run_all(self.entry, saved), strict=True):
            self._evidence.add(finding)
            self.compared += bool(finding.actual)
            if not finding.verdict.passed:
                self.agrees_on(drawn)  # says what else is wrong with it
                if finding.verdict.kind == v.MISMATCH and not self._explains(finding):  # only beside the others
                    raise failure_of(self._with_evidence(finding), None)

    def fails_as_known(self, known: KnownFailure) -> None:
        """Raises StillFails for the failure that is known, and whatever else there is as a failure; passes when there
        is none.
        """
        outcome = self.accepted.outcome(known)
        if outcome.status == NOT_RUN:
            pytest.skip(outcome.why)
        found = self.accepted.beside(known) if outcome.status == STILL_FAILS else outcome.finding
        if found is not None and not found.verdict.passed:
            raise failure_of(found, None)
        if outcome.status == STILL_FAILS:
            raise StillFails(known.reason)

    def begin(self) -> None:
        """A new search: what was counted for the last one is forgotten, what was explained is not.

        Known failures of the entry point are run first, if they have not been.
        """
        self.accepted.look_at(self.entry)
        self._search = Search()
        self.engine.session(self.entry.subject).hurried = False

    def smallest(self, failure: ConformanceFailure) -> ConformanceFailure:
        """The same failure on the smallest case that can be found from its own."""
        if isinstance(failure, PropertyFailure):
            return self._smallest_of_property(failure)
        launches = 0
        own = signature(replace(failure.finding, evidence=self._evidence.all()))

        def explains(finding: Finding) -> bool:
            if own is not None and can_be(finding, {own}):
                return False
            return can_be(finding, self._causes()) or self.accepted.explaining(finding) is not None

        def run(case: Case, launch: Launch) -> Finding:
            nonlocal launches
            launches += 1
            return remainder(self._run(case, launch, settings_of_launch(self.entry, launch)), explains)

        compilations = most_compilations(self.engine.lane.compile_seconds)
        smaller = reduced(failure.finding, run, most_compilations=compilations, cause=own)
        if smaller.verdict.kind == v.HANG:  # a machine that was busy for a moment must not make a hang
            self.engine.session(self.entry.subject).hurried = False
            smaller = run(smaller.case, smaller.launch)
        found = smaller if not smaller.verdict.passed else failure.finding
        result = failure_of(self._with_evidence(found), failure.examples)
        result.shrinking = failure.search.shrinking(launches) if failure.search is not None else None
        return result

    def _smallest_of_property(self, failure: PropertyFailure) -> PropertyFailure:
        """The same with the case that the property was asked of made smaller, not that of the launch that is wrong."""
        first, launches = failure.broken, 0
        smallest = failure.finding, first  # what succeeds last is the smallest
        own = signature(replace(failure.finding, evidence=self._evidence.all()))

        def run(case: Case, launch: Launch) -> Finding:
            nonlocal launches, smallest
            launches += 1
            asked = case, launch, settings_of_launch(self.entry, launch)
            with suppress(NotForIt, NothingToCompare):
                contradicted = self._contradicted(first.property, asked, first.choice)
                if contradicted is not None and (own is None or can_be(contradicted[0], {own})):
                    smallest = contradicted
                    return _standing_for(contradicted[1])
            return replace(_standing_for(first), verdict=v.Verdict(v.PASS))

        compilations = most_compilations(self.engine.lane.compile_seconds)
        reduced(_standing_for(first), run, most_compilations=compilations)
        finding, broken = smallest
        result = PropertyFailure(self._with_evidence(finding), broken, failure.examples)
        result.shrinking = failure.search.shrinking(launches) if failure.search is not None else None
        return result

    def _with_evidence(self, finding: Finding) -> Finding:
        """``finding`` with the launches of this test and, where values are wrong, of its neighbours: what nobody has
        launched cannot refute anything.
        """
        if finding.verdict.kind != v.MISMATCH:
            return replace(finding, evidence=self._evidence.all())
        settings = settings_of_launch(self.entry, finding.launch)
        for case, launch in probes(finding.case, finding.launch):
            if self.entry.cannot_take(case, launch) is None and not outside(self.entry, case, launch, settings):
                self._run(case, launch, settings)
        return replace(finding, evidence=self._evidence.all())

    def _run(self, case: Case, launch: Launch, settings: Settings) -> Finding:
        finding = self.engine.run(self.entry, case, launch, settings)
        self._evidence.add(finding)
        self.compared += bool(finding.actual)
        return finding

    def _uphold(self, property: Property, drawn: Drawn, choice: int) -> None:
        try:
            contradicted = self._contradicted(property, drawn, choice)
        except NotForIt:
            return
        except NothingToCompare as nothing:
            finding = nothing.finding
            if not finding.verdict.passed:
                self._assert((finding.case, finding.launch, drawn[2]))
            return
        if contradicted is not None:
            finding, broken = contradicted
            examples = self._search.until_first_failure(finding.case)
            failure = PropertyFailure(finding, broken, examples, self._search)
            self.met[id(self._search), property.name] = failure
            raise failure

    def _contradicted(self, property: Property, drawn: Drawn, choice: int) -> tuple[Finding, Broken] | None:
        """What contradicts ``property`` and is not explained, with the launch that is wrong."""
        broken = contradicting(self.engine, self.entry, property, drawn, choice, self._beyond)
        self.compared += 1
        if broken is None:
            return None
        finding = wrong(broken, lambda finding: remainder(finding, self._explains))
        if finding is None:
            return None
        for each in broken.judged():
            self._evidence.add(each)
        return finding, broken

    def _assert(self, drawn: Drawn) -> None:
        case, launch, settings = drawn

        def run(case: Case, launch: Launch) -> Finding:
            return self._run(case, launch, settings)

        finding = self._beyond(run, case, launch)
        verdict = finding.verdict
        if verdict.kind == v.UNSUPPORTED:
            self.unsupported = f"lane {self.engine.lane.name}: {verdict.detail}"
            return  # not a pass: the test ends as a skip, unless something else fails
        if not verdict.passed:
            examples = self._search.until_first_failure(finding.case)
            failure = failure_of(finding, examples, self._search)
            self.met[id(self._search), verdict.kind] = failure
            raise failure

    def _beyond(self, run: Run, case: Case, launch: Launch) -> Finding:
        """What is wrong with a case beside what is explained."""
        return beyond(run, case, launch, self._explains, lambda part: can_be(part, self.explained))

    def excuses(self, finding: Finding) -> bool:
        """Whether a known failure explains ``finding``, one thing that is wrong with a case of this test."""
        known = self.accepted.meets(finding)
        if known is not None and known not in self.excused:
            self.excused.append(known)
        return known is not None

    def _explains(self, finding: Finding) -> bool:
        return self.excuses(finding) or can_be(finding, self._causes())

    def _causes(self) -> set[str]:
        """What this test has reported and, as both may be wrong in one case, what is known, if it has reported any."""
        return self.explained | self.accepted.causes(self.entry) if self.explained else set()

    def signature(self, finding: Finding) -> str | None:
        """That of a failure which was found, as far as all launches of this test tell; None ends the search."""
        if finding.verdict.kind == v.MISMATCH and not self.accepted.thorough:
            return None
        return signature(replace(finding, evidence=self._evidence.all()))


def _standing_for(broken: Broken) -> Finding:
    """The case that a property was asked of as a finding: it is what is made smaller."""
    verdict = v.Verdict(v.MISMATCH, detail=broken.message)
    return Finding(broken.made[0].finding.entry, broken.case, broken.launch, verdict, [], [], broken.settings)
