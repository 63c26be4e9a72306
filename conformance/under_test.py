"""What a test of the suite gets as ``entry_point``: draw a case for it, and assert that it agrees with the oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import strategies as st

from conformance.engine import Engine, declared, narrowed, settings_of
from conformance.evidence import Evidence
from conformance.explained import relaxed, signature
from conformance.reduction import reduced
from conformance.subjects.allocated import with_allocated_rows
from conformance.subjects.binding import settings_of as settings_of_launch
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.verdicts import ConformanceFailure, Finding, Search, failure_of
from reference import verdict as v
from reference.case import Case, Launch
from strategies.cases import cases, free_specializations
from strategies.specializations import Specialization

Drawn = tuple[Case, Launch, Settings]


class UnderTest:
    """One entry point of one subject on the run's lane."""

    def __init__(self, engine: Engine, entry: EntryPoint) -> None:
        self.engine, self.entry = engine, entry
        self.explained: set[str] = set()  # signatures of failures that this test has already reported
        self.unsupported: str | None = None  # why a case could not be run, if one could not
        self._search = Search()
        self._evidence = Evidence()
        self._drawing = lru_cache(maxsize=None)(self._cases_of_kind)

    def __repr__(self) -> str:
        return self.entry.id

    def cases(self, kind: str | None = None) -> st.SearchStrategy[Drawn]:
        """Cases of one kind ("plain", "circular", "cp"; None: all), legal for what the entry point declares.

        Skips the test when the entry point has no such kind.
        """
        if kind in ("circular", "cp") and kind not in self.entry.declaration.features:
            pytest.skip(f"{self.entry.id} {self.entry.version} does not have {kind}")
        return self._drawing(kind)

    def _cases_of_kind(self, kind: str | None) -> st.SearchStrategy[Drawn]:
        declaration = self.entry.declaration
        pool = self.engine.pool(self.entry)
        if pool is None:
            specializations = free_specializations(declaration, kind)
        else:
            of_kind = [each for each in pool if kind in (None, each.kind)]
            if not of_kind:
                pytest.skip(f"{self.entry.id}: no specialization of kind {kind} within --compile-budget {len(pool)}")
            specializations = st.sampled_from(of_kind)
        strategy_of = lru_cache(maxsize=None)(lambda each: cases(narrowed(declared(self.entry, each), each), each))

        @st.composite
        def drawn(draw: st.DrawFn) -> Drawn:
            specialization: Specialization = draw(specializations)
            case, launch = draw(strategy_of(specialization))
            if self.entry.allocates:
                case = with_allocated_rows(case)
            return case, launch, settings_of(specialization)

        return drawn()

    def agrees_with_the_oracle(self, drawn: Drawn) -> None:
        """Every element of the output is what the contract says, and nothing else was touched."""
        self._search.examples += 1
        self._assert(drawn)

    def agrees_on(self, saved: Drawn) -> None:
        """The same for one case that was not drawn."""
        self._assert(saved)

    def begin(self) -> None:
        """A new search: what was counted for the last one is forgotten, what was explained is not."""
        self._search = Search()
        self.engine.session(self.entry.subject).hurried = False

    def smallest(self, failure: ConformanceFailure) -> ConformanceFailure:
        """The same failure on the smallest case that can be found from its own."""

        launches = 0

        def run(case: Case, launch: Launch) -> Finding:
            nonlocal launches
            launches += 1
            return self._run(case, launch, settings_of_launch(self.entry, launch))

        smaller = reduced(failure.finding, run)
        if smaller.verdict.kind == v.HANG:  # a machine that was busy for a moment must not make a hang
            self.engine.session(self.entry.subject).hurried = False
            smaller = run(smaller.case, smaller.launch)
        found = smaller if not smaller.verdict.passed else failure.finding
        result = failure_of(replace(found, evidence=self._evidence.all()), failure.examples)
        result.shrinking = failure.search.shrinking(launches) if failure.search is not None else None
        return result

    def _run(self, case: Case, launch: Launch, settings: Settings) -> Finding:
        finding = self.engine.run(self.entry, case, launch, settings)
        self._evidence.add(finding)
        return finding

    def _assert(self, drawn: Drawn) -> None:
        finding = self._run(*drawn)
        if signature(finding) in self.explained:
            case, launch, settings = drawn
            finding = self._run(*relaxed(finding, case, launch), settings)
            if signature(finding) in self.explained:
                return
        verdict = finding.verdict
        if verdict.kind == v.UNSUPPORTED:
            self.unsupported = f"lane {self.engine.lane.name}: {verdict.detail}"
            return  # not a pass: the test ends as a skip, unless something else fails
        if not verdict.passed:
            examples = self._search.until_first_failure(finding.case)
            raise failure_of(finding, examples, self._search)
