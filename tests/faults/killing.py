"""One fault with one seed: which test of the suite kills it, after how many examples, at profile gate and at quick."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypothesis import settings

from conformance import options as registered  # noqa: F401  (the profiles)
from conformance.engine import Engine, Options
from conformance.execution.session import SubjectError
from conformance.lanes.lowered import LoweredLane
from conformance.subjects.allocated import with_allocated_rows
from conformance.subjects.binding import outside
from conformance.subjects.launching import Settings
from conformance.under_test import UnderTest
from reference import verdict as v
from tests.faults.naive import naive
from tests.faults.published import published
from tests.faults.trials import AGREES, KEYS, PREWARM, Killed, Trial, run, runs_at_all, trials

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 64
"""Specializations, as many as a run of the suite compiles."""
TIMEOUT, PATIENT = 2.0, 10.0
"""Seconds for a launch that may hang, and those of the suite, with which the first hang of a fault is confirmed."""
ALIKE = 10
"""One in so many of the fewer examples come first in both profiles: what is found among them is found with either."""

KILLED, SURVIVED, INVALID = "killed", "survived", "does not run"
CONFORMANCE, PUBLISHED, RANDOM = "conformance", "published", "random"
"""What faults are looked for with: this suite, the cases of published tests, naive random ones."""


@dataclass(frozen=True, slots=True)
class Target:
    """A wrong ``kernels`` in ``source``, looked for in ``entry_point``; ``first`` are the kinds to begin with."""

    name: str
    entry_point: str
    source: str
    first: tuple[str, ...] = ()


@dataclass(slots=True)
class Result:
    """What became of one fault with one seed. ``test`` killed it after ``examples`` at profile gate; ``quick`` is the
    same at profile quick (None: it survives that). ``tokens`` are those of the shrunk case, where one was made.
    """

    status: str
    test: str = ""
    examples: int | None = None
    quick_test: str = ""
    quick: int | None = None
    verdict: str = ""
    detail: str = ""
    tokens: int | None = None
    cause: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Sparing(LoweredLane):
    """The lane of a run that spends less on smaller examples: here each is compiled for one fault only."""

    compile_seconds = 1.5


class Hunt:
    """The searches for one fault, all seeds of it: one process of the subject, what is compiled is compiled once.

    ``runs``: the fault is known to run, whatever is refused now.
    """

    def __init__(self, target: Target, cache: Path, *, runs: bool) -> None:
        self.target, self._cache, self._known_to_run = target, cache, runs
        self._engine: Engine | None = None
        self._confirmed = False  # a hang has been
        self._best: str | None = None  # the test that killed it last

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def kill(self, number: int, *, shrink: bool, quickly: bool = False) -> Result:
        """Look for the fault with seed ``number``; ``quickly``: at profile quick only."""
        started = time.perf_counter()
        try:
            result = self._result(number, shrink=shrink, quickly=quickly)
        except SubjectError as error:
            result = Result(INVALID, detail=str(error)[-300:])
        result.seconds = round(time.perf_counter() - started, 2)
        return result

    def kill_with(self, suite: str, number: int) -> Result:
        """Launch the cases of another suite one after the other until one fails: those published for the entry point,
        or random ones of seed ``number``. ``examples`` counts them; guards count, which the originals do not have.
        """
        started = time.perf_counter()
        try:
            result = self._of_cases(suite, number)
        except SubjectError as error:
            result = Result(INVALID, detail=str(error)[-300:])
        result.seconds = round(time.perf_counter() - started, 2)
        return result

    def _of_cases(self, suite: str, number: int) -> Result:
        engine = self._started()
        entry = engine.session("kernels").entries[self.target.entry_point]
        cases = published(entry.name) if suite == PUBLISHED else naive(entry.declaration, number)
        launched = 0
        for case, launch in cases:
            if entry.allocates:
                case = with_allocated_rows(case)
            if entry.cannot_take(case, launch) is None and not outside(entry, case, launch, Settings()):
                launched += 1
                verdict = engine.run(entry, case, launch, Settings()).verdict
                if not verdict.passed and verdict.kind != v.UNSUPPORTED:
                    return Result(KILLED, suite, launched, verdict=verdict.kind, detail=verdict.summary()[:200])
        return Result(SURVIVED, detail=f"{launched} cases")

    def _result(self, number: int, *, shrink: bool, quickly: bool) -> Result:
        engine = self._started()
        entry = engine.session("kernels").entries.get(self.target.entry_point)
        if entry is None or entry.status != "testable":
            return Result(INVALID, detail="the entry point is gone" if entry is None else entry.status)
        under_test = UnderTest(engine, entry)
        order = self._order(entry.name)
        quick, gate = settings.get_profile("quick"), settings.get_profile("gate")
        fast = self._first(under_test, order, quick, number)
        stillborn = fast is not None and _is_stillborn(fast) and not self._known_to_run
        if fast is not None and stillborn and not self._runs(under_test, order, quick, number):
            return Result(INVALID, fast.trial.test, fast.examples, verdict=fast.verdict, detail=fast.detail)
        slow = fast
        if not quickly and (fast is None or (fast.examples or 0) > fast.trial.examples(quick) // ALIKE):
            slow = self._first(under_test, order, gate, number)
        if slow is None and under_test.unsupported is not None:  # the suite skips it, and whoever asked is told why
            return Result(INVALID, verdict=v.UNSUPPORTED, detail=under_test.unsupported)
        if slow is None:
            return Result(SURVIVED)
        self._best = slow.trial.test
        result = Result(KILLED, slow.trial.test, slow.examples, verdict=slow.verdict, detail=slow.detail[:200])
        if fast is not None:
            result.quick_test, result.quick = fast.trial.test, fast.examples
        if shrink and slow.failure is not None:
            smallest = under_test.smallest(slow.failure).finding
            result.tokens, result.cause = smallest.case.num_tokens, smallest.diagnosis.cause
        return result

    def _runs(self, target: UnderTest, order: Sequence[Trial], profile: settings, number: int) -> bool:
        """Whether any of the first cases is launched so that there is something to judge: what fails with the defaults
        alone, or on several ranks alone, is a fault.
        """
        agreeing = (each for each in order if each.how == AGREES)
        return any(runs_at_all(target, each, profile, number, _is_refused) for each in agreeing)

    def _first(self, target: UnderTest, order: Sequence[Trial], profile: settings, number: int) -> Killed | None:
        for trial in order:
            killed = run(target, trial, profile, number)
            if killed is not None and killed.verdict == v.HANG and not self._confirmed:
                target.engine.session("kernels").case_timeout = PATIENT
                killed = run(target, trial, profile, number)
                target.engine.session("kernels").case_timeout = TIMEOUT
                self._confirmed = killed is not None and killed.verdict == v.HANG
            if killed is not None:
                return killed
        return None

    def _order(self, entry: str) -> list[Trial]:
        """The tests, those in front that are likely to kill. What is compiled again is only looked at where that can
        have changed: it takes 200 launches, and a change inside a kernel changes no signature.
        """
        first = self.target.first
        compiled = entry == "fused" or KEYS in first
        found = [each for each in trials(entry) if compiled or each.how not in (KEYS, PREWARM)]
        places = {name: place for place, name in enumerate(first)}

        def place(trial: Trial) -> tuple[bool, int, bool]:
            of_kind = 0 if trial.kind is None else places.get(trial.kind, len(first))
            return trial.test != self._best, min(of_kind, places.get(trial.how, len(first))), trial.how != AGREES

        return sorted(found, key=place)

    def _started(self) -> Engine:
        if self._engine is None:
            options = Options(("kernels",), {"kernels": self.target.source}, BUDGET, TIMEOUT, self._cache, 1)
            self._engine = Engine(_Sparing(), options)
        return self._engine


_STILLBORN = re.compile(r"\b(NameError|TypeError|AttributeError|UnboundLocalError|ImportError|SyntaxError)\b")


def _is_stillborn(killed: Killed) -> bool:
    """Whether the very first launch fails because Python or the compiler cannot make sense of it."""
    return killed.examples in (None, 1) and _is_refused(killed.verdict, killed.detail)


def _is_refused(verdict: str, detail: str) -> bool:
    return verdict == v.COMPILE_ERROR or (verdict == v.CRASH and bool(_STILLBORN.search(detail)))
