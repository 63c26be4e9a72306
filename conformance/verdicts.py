"""A failed check is an exception that carries everything a report needs. One class a verdict, so that Hypothesis
keeps them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from conformance.execution.session import Outcome
from conformance.expected import expected_output
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import OUTPUT, Settings, output_length, output_name
from reference import verdict as v
from reference.case import Case, Launch
from reports.diagnosis import Diagnosis, Observation, diagnose
from reports.shrinking import Shrinking


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one launch: ``expected`` and ``actual`` outputs, one list of elements a group; ``settings`` are
    those that it was bound with, ``evidence`` other launches of the entry point, by which the diagnosis of a small case
    tells apart what it could be.
    """

    entry: EntryPoint
    case: Case
    launch: Launch
    verdict: v.Verdict
    expected: list[list[int]]
    actual: list[list[int]]
    settings: Settings = field(default_factory=Settings)
    evidence: tuple[Observation, ...] = field(default=(), repr=False, compare=False)

    @property
    def diagnosis(self) -> Diagnosis:
        """Which step went wrong, of one that did not pass."""
        return diagnose(self.case, self.launch, self.verdict, self.expected, self.actual, self.evidence)


@dataclass(slots=True)
class Search:
    """Counts the examples of one search, which ends with the first failure: what runs after it is shrinking."""

    examples: int = 0
    found_after: int | None = None
    first: Case | None = None

    def until_first_failure(self, case: Case) -> int | None:
        """How many examples it took; ``case`` is the one that fails now, and the first only once."""
        if self.found_after is None:
            self.found_after, self.first = self.examples, case
        return self.found_after or None

    def shrinking(self, launches: int) -> Shrinking | None:
        """What came after the first failure, ``launches`` outside the search included; None: nothing was drawn."""
        if not self.found_after or self.first is None:
            return None
        return Shrinking(self.found_after, self.examples - self.found_after + launches, self.first)


class ConformanceFailure(AssertionError):
    """An entry point disagrees with the contract. ``examples`` were drawn until the first failure; None: nothing was
    drawn. ``search`` is the search that met it, ``shrinking`` what was done to make its case smaller.
    """

    def __init__(self, finding: Finding, examples: int | None, search: Search | None = None) -> None:
        super().__init__(f"{finding.entry.id}: {finding.verdict.summary()}")
        self.finding, self.examples, self.search = finding, examples, search
        self.shrinking: Shrinking | None = None


class Mismatch(ConformanceFailure):
    """The output differs from what the contract says."""


class GuardViolation(ConformanceFailure):
    """Memory was touched that is not the launch's."""


class Crashed(ConformanceFailure):
    """The launch ended its process or raised."""


class Hung(ConformanceFailure):
    """The launch did not end in time."""


class DoesNotCompile(ConformanceFailure):
    """The specialization does not compile."""


class Refused(ConformanceFailure):
    """The host refused a legal case."""


_CLASSES: dict[str, type[ConformanceFailure]] = {
    v.MISMATCH: Mismatch,
    v.GUARD: GuardViolation,
    v.CRASH: Crashed,
    v.HANG: Hung,
    v.COMPILE_ERROR: DoesNotCompile,
    v.REFUSED: Refused,
}


def failures_in(error: BaseException) -> Iterator[ConformanceFailure]:
    """What Hypothesis raises for one failure is the failure, for several a group of them."""
    if isinstance(error, ConformanceFailure):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from failures_in(inner)


def judge(
    entry: EntryPoint,
    case: Case,
    launch: Launch,
    outcome: Outcome,
    promised: Sequence[Sequence[int | None]] | None = None,
) -> Finding:
    """Expected against actual, and what else the launch did.

    ``promised``: what to expect of a launch outside the contract, which has no answer; None stands for any value.
    """
    actual = _rows(case, outcome) if outcome.status == "ok" else []
    if promised is None:
        expected = expected_output(case, output_length(case, launch), entry.writes_tail)
    else:
        expected = _filled(promised, actual)
    if outcome.status == "ok":
        expected = [row + [v.UNWRITTEN] * (len(actual[0]) - len(row)) for row in expected]
        return Finding(entry, case, launch, v.compare(expected, actual, outcome.guards), expected, actual)
    if outcome.status == "crash" and outcome.guards:
        verdict = v.Verdict(v.GUARD, guards=outcome.guards)
    elif outcome.status == "raised":
        kind = v.REFUSED if outcome.message.startswith("ValueError") else v.CRASH
        verdict = v.Verdict(kind, detail=outcome.message)
    else:
        kinds = {"crash": v.CRASH, "hang": v.HANG, "compile": v.COMPILE_ERROR, "unsupported": v.UNSUPPORTED}
        verdict = v.Verdict(kinds[outcome.status], detail=outcome.message)
    return Finding(entry, case, launch, verdict, expected, [])


def failure_of(finding: Finding, examples: int | None, search: Search | None = None) -> ConformanceFailure:
    """The exception for a finding that did not pass."""
    return _CLASSES[finding.verdict.kind](finding, examples, search)


def _filled(promised: Sequence[Sequence[int | None]], actual: list[list[int]]) -> list[list[int]]:
    """``promised`` with what is there in place of None."""
    rows = actual or [[v.UNWRITTEN] * len(row) for row in promised]
    return [
        [have if want is None else want for want, have in zip(row, found, strict=False)]
        for row, found in zip(promised, rows, strict=True)
    ]


def _rows(case: Case, outcome: Outcome) -> list[list[int]]:
    """One row a group, whether each has a buffer of its own or all share one."""
    groups = len(case.groups)
    if groups > 1 and OUTPUT in outcome.outputs:
        flat = outcome.outputs[OUTPUT]
        length = len(flat) // groups
        return [flat[group * length : (group + 1) * length] for group in range(groups)]
    return [outcome.outputs[output_name(case, group)] for group in range(groups)]
