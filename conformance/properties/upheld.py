"""Launches what a property asks for, and says what came of it.

A property is no oracle: where it does not hold, one of its launches is wrong, and only then the oracle is asked which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from conformance.engine import Engine
from conformance.properties.property import Property, Rows
from conformance.subjects.binding import bind, outside
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings, output_length
from conformance.verdicts import ConformanceFailure, Finding, Search
from reference import verdict as v
from reference.case import Case, Launch
from reports.property import BrokenProperty, PropertyLaunch

Run = Callable[[Case, Launch], Finding]
Look = Callable[[Run, Case, Launch], Finding]


class NotForIt(Exception):
    """A launch that a property asks for is outside what the entry point promises: nothing can be said."""


class NothingToCompare(Exception):
    """A launch left no output: what became of it is told as of any other launch of its case."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.verdict.summary())
        self.finding = finding


@dataclass(frozen=True, slots=True)
class Made:
    """One launch of a property: its part, what the output held before (None: nothing), and what came of it."""

    what: str
    finding: Finding
    held: Rows | None


@dataclass(frozen=True, slots=True)
class Broken:
    """``property`` does not hold of ``case``, launched as ``launch`` says (constants as bound) with ``settings``."""

    property: Property
    case: Case
    launch: Launch
    settings: Settings
    choice: int
    message: str
    made: tuple[Made, ...]

    def judged(self) -> list[Finding]:
        """Each launch held against the oracle."""
        return [_judged(each) for each in self.made]

    def told(self) -> BrokenProperty:
        """For a report."""
        launches = tuple(
            PropertyLaunch(each.what, each.finding.case, each.finding.launch, each.held, each.finding.actual)
            for each in self.made
        )
        return BrokenProperty(
            self.property.name,
            self.property.statement,
            self.message,
            self.choice,
            self.case,
            self.launch,
            asdict(self.settings),
            launches,
        )


class PropertyFailure(ConformanceFailure):
    """A property does not hold. ``finding`` is the first of its launches that the oracle finds wrong; if it finds none,
    the last, with the property for a verdict.
    """

    def __init__(self, finding: Finding, broken: Broken, examples: int | None, search: Search | None = None) -> None:
        super().__init__(finding, examples, search)
        self.broken = broken
        self.args = (f"{finding.entry.id}: {broken.property.name}: {broken.message}",)


class _Launches:
    """Launches for one property. Memory that was found to be open to an access that is explained stays open."""

    def __init__(
        self, engine: Engine, entry: EntryPoint, case: Case, launch: Launch, settings: Settings, look: Look
    ) -> None:
        self._engine, self._entry, self._settings, self._look = engine, entry, settings, look
        self._launch, self._behind = launch, output_length(case, launch) - case.max_num_tokens
        self.made: list[Made] = []

    def __call__(self, what: str, case: Case, held: Rows | None = None) -> Rows:
        entry, settings = self._entry, self._settings
        launch = replace(self._launch, output_length=case.max_num_tokens + self._behind, constants={})
        if (reason := entry.cannot_take(case, launch)) is not None:
            raise NotForIt(reason)
        if broken := outside(entry, case, launch, settings):
            raise NotForIt(str(broken[0]))
        written = case.max_num_tokens if entry.writes_tail else case.num_tokens
        rest = case.max_num_tokens + self._behind - written
        promised: list[list[int | None]] = [
            [None] * written + (held[group][written : written + rest] if held else [v.UNWRITTEN] * rest)
            for group in range(len(case.groups))
        ]
        finding = self._look(
            lambda case, launch: self._engine.run(entry, case, launch, settings, promised, held), case, launch
        )
        self._launch = replace(self._launch, open_buffers=finding.launch.open_buffers)
        passed = finding.verdict.passed or (held is not None and finding.verdict.kind == v.MISMATCH)
        if not passed or not finding.actual:  # all that is wrong may be explained, and nothing be left of the output
            raise NothingToCompare(finding)
        self.made.append(Made(what, finding, held))
        return finding.actual


def contradicting(
    engine: Engine,
    entry: EntryPoint,
    property: Property,
    drawn: tuple[Case, Launch, Settings],
    choice: int,
    look: Look = lambda run, case, launch: run(case, launch),
) -> Broken | None:
    """What contradicts ``property`` in the launches that it makes of a case; None: it holds. ``look`` launches a case
    and takes away what is explained.

    Raises NotForIt and NothingToCompare.
    """
    case, launch, settings = drawn
    launches = _Launches(engine, entry, case, launch, settings, look)
    message = property.check(launches, case, choice, entry)
    if message is None:
        return None
    bound = bind(entry, case, launch, settings)[1]
    return Broken(property, case, bound, settings, choice, message, tuple(launches.made))


def wrong(found: Broken, left: Callable[[Finding], Finding]) -> Finding | None:
    """The first launch of which the oracle finds wrong what is ``left`` of it when all that is explained is taken away.
    None: all that is wrong is explained.

    Where the oracle finds nothing wrong at all it contradicts the property, which must not go unseen.
    """
    judged = found.judged()
    for finding in judged:
        if not (rest := left(finding)).verdict.passed:
            return rest
    if any(not finding.verdict.passed for finding in judged):
        return None
    detail = f"{found.property.name}: {found.message} (each of the launches agrees with the oracle)"
    return replace(judged[-1], verdict=v.Verdict(v.MISMATCH, detail=detail))


def _judged(made: Made) -> Finding:
    """The launch held against the oracle."""
    finding, entry = made.finding, made.finding.entry
    length = output_length(finding.case, finding.launch)
    expected = v.expected_output(finding.case, length, entry.writes_tail)
    written = finding.case.max_num_tokens if entry.writes_tail else finding.case.num_tokens
    expected = [
        [*row[:written], *(row[written:] if made.held is None else made.held[group][written:])]
        for group, row in enumerate(expected)
    ]
    expected = [
        row + [v.UNWRITTEN] * (len(actual) - len(row)) for row, actual in zip(expected, finding.actual, strict=True)
    ]
    return replace(finding, expected=expected, verdict=v.compare(expected, finding.actual))
