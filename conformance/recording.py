"""Between a failed check and its report: gathers what a report needs, writes it, and says in a few lines what was
found.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from conformance.calls import call_of
from conformance.checkout import commit_of
from conformance.corpus import Corpus
from conformance.engine import Engine
from conformance.interrupts import within
from conformance.outside import BoundaryFailure, Outside, outside
from conformance.properties.upheld import PropertyFailure
from conformance.saved import Asked
from conformance.subjects.binding import bind
from conformance.verdicts import ConformanceFailure
from reference.fields import printable
from reports import failure, page, summary
from reports.diagnosis import UNKNOWN, Diagnosis
from reports.environment import environment
from reports.files import ReportError

_LONGEST = 400  # characters of what the code under test says
_EXPLAINING = 2.5  # seconds for all failures of a run that is told to end: its reports are due within 5
_NO_TIME = "(the run ended before it was explained; replay it)"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A report and the JSON file that it is in. ``problem`` says why it could not be written, if it could not.

    The code under test may have put anything into its message: what is shown is one line each, without control
    characters.
    """

    report: failure.FailureReport
    file: Path
    problem: str = ""

    @property
    def page(self) -> Path:
        return self.file.with_suffix(".md")

    @property
    def entry_point(self) -> str:
        return f"{self.report.subject}.{self.report.entry_point}"

    @property
    def message(self) -> str:
        """What is wrong, in a sentence: the diagnosis where there is one, else the verdict."""
        diagnosis = self.report.diagnosis
        if diagnosis.cause in (UNKNOWN, self.report.verdict.kind):
            return self.verdict
        return printable(f"{self.entry_point}: {diagnosis.cause}: {diagnosis.summary}")[:_LONGEST]

    @property
    def verdict(self) -> str:
        return printable(f"{self.entry_point}: {self.report.verdict.summary()}")[:_LONGEST]

    @property
    def contradiction(self) -> str:
        """What contradicts the property that the test was about, or nothing."""
        found = self.report.broken_property
        return printable(f"{self.entry_point}: {found.name}: {found.message}")[:_LONGEST] if found else ""

    def lines(self) -> list[str]:
        """What a terminal shows of it: at most five lines, or all of the page where it could not be written."""
        call = self.report.call
        where = printable(f"{call.file}:{call.line} {call.function}")[:_LONGEST] if call else ""
        head = [line for line in dict.fromkeys((self.contradiction or self.verdict, self.message, where)) if line]
        if self.problem:
            return [*head, self.problem, *self.report.to_markdown(self.file.name).splitlines()]
        return [*head, f"report: {printable(self.page)}", f"replay: {self.report.replay_command(self.file)}"]


class Recorder:
    """Writes a JSON file, a Markdown file and a script a failure into ``folder``, and ``summary.json`` at the end. Its
    case is added to the ``corpus``.

    ``recorded`` are the failures of the run that differ from one another, ``outside`` those outside the contract.
    """

    def __init__(self, folder: Path, seed: int, corpus: Corpus | None = None) -> None:
        self.folder, self.seed, self.corpus = folder, seed, corpus
        self.recorded: dict[Path, Recorded] = {}
        self.outside: dict[Path, Outside] = {}
        self.result: summary.Summary | None = None
        self._environment = environment()
        self._started = time.monotonic()

    def record(self, engine: Engine, nodeid: str, failed: ConformanceFailure) -> Recorded:
        """Write the report of ``failed``; returns what there is to say of it."""
        return self._keep(failed, self._report(engine, nodeid, failed, failed.finding.diagnosis))

    def record_in_haste(self, engine: Engine, nodeid: str, failures: Sequence[ConformanceFailure]) -> None:
        """The same for each, of a run that is told to end: they are written before anything explains them, which may
        take longer than whoever ends it waits. Each is explained and written again while there is time.
        """
        hasty = []
        for each in failures:
            diagnosis = Diagnosis(UNKNOWN, f"{each.finding.verdict.summary()} {_NO_TIME}")
            report = self._report(engine, nodeid, each, diagnosis)
            file = self.folder / f"{report.name}.json"
            if file not in self.recorded:
                hasty += [] if self._is_told(each, file) else [(each, file)]
                self._keep(each, report)
        until = time.monotonic() + _EXPLAINING
        for each, file in hasty:
            explained = within(until - time.monotonic(), partial(getattr, each.finding, "diagnosis"))
            if explained is not None:
                del self.recorded[file]
                self._keep(each, self._report(engine, nodeid, each, explained), anew=True)

    @staticmethod
    def _is_told(failed: ConformanceFailure, file: Path) -> bool:
        """Whether a report is there that knows more: a replay knows less than what it replays."""
        return failed.examples is None and file.exists()

    def _keep(self, failed: ConformanceFailure, report: failure.FailureReport, *, anew: bool = False) -> Recorded:
        """Write ``report``, unless one that knows more is there and is not to be written ``anew``."""
        file = self.folder / f"{report.name}.json"
        done = Recorded(report, file)
        if anew or not self._is_told(failed, file):
            try:
                failure.write(report, self.folder)
            except ReportError as error:  # the finding itself must not be lost
                done = Recorded(report, file, problem=str(error))
        if self.corpus is not None and file not in self.recorded and not anew:
            found, asked = failed.finding, _asked(failed)
            self.corpus.add(found.entry, report.case, report.launch, found.settings, asked, reported=not done.problem)
        return self.recorded.setdefault(file, done)

    def record_outside(self, engine: Engine, nodeid: str, failed: BoundaryFailure, *, drawn: bool) -> Outside:
        """The same for a launch outside the contract, ``drawn`` or read from a file."""
        done = outside(engine, self.folder, self.seed, nodeid, failed, drawn=drawn)
        return self.outside.setdefault(done.file, done)

    def groups(self) -> list[list[Recorded]]:
        """The failures by what is wrong, in the order in which they were met; one of an unknown cause is alone."""
        found: dict[object, list[Recorded]] = {}
        for each in self.recorded.values():
            key = each.report.diagnosis.key
            found.setdefault((each.entry_point, key) if key is not None else each.file, []).append(each)
        return list(found.values())

    def _report(
        self, engine: Engine, nodeid: str, failed: ConformanceFailure, diagnosis: Diagnosis
    ) -> failure.FailureReport:
        finding = failed.finding
        entry, case, launch, settings = finding.entry, finding.case, finding.launch, finding.settings
        invocation, _ = bind(entry, case, launch, settings)
        return failure.FailureReport(
            subject=entry.subject,
            entry_point=entry.name,
            lane=engine.lane.name,
            test=nodeid,
            case=case,
            launch=launch,
            verdict=finding.verdict,
            version=entry.version,
            source=engine.options.sources.get(entry.subject, ""),
            seed=self.seed,
            examples=failed.examples,
            environment={**self._environment, **engine.session(entry.subject).hardware},
            diagnosis=diagnosis,
            commit=commit_of(entry.file),
            settings=asdict(settings),
            call=call_of(entry, invocation),
            expected=finding.expected,
            shrinking=failed.shrinking,
            broken_property=failed.broken.told() if isinstance(failed, PropertyFailure) else None,
            lane_options=engine.lane.options(),
            on_device=engine.lane.on_device,
        )

    def finish(self, engine: Engine, known: tuple[summary.Known, ...] = ()) -> list[str]:
        """Write ``summary.json``, ``known`` failures in it; returns the lines that end the run."""
        failures = Counter(each.entry_point for each in self.recorded.values())
        failures.update(each.entry_point for each in self.outside.values())
        tallies = {
            name: summary.Tally(
                tally.cases,
                len(tally.specializations),
                failures[name],
                tally.compared,
                tally.unsupported.total(),
            )
            for name, tally in engine.tallies.items()
        }
        result = self.result = summary.Summary(
            subjects=engine.options.subjects,
            lane=engine.lane.name,
            seconds=time.monotonic() - self._started,
            entry_points=tallies,
            reports=tuple(str(file) for file, each in self.recorded.items() if not each.problem),
            seed=self.seed,
            compiled={
                name: tuple(sorted(map(summary.specialization_id, tally.specializations)))
                for name, tally in engine.tallies.items()
            },
            shard="" if engine.options.shard.is_whole else str(engine.options.shard),
            environment=self._environment,
            known_failures=known,
            outside_the_contract=tuple(str(file) for file, each in self.outside.items() if not each.problem),
        )
        lines = [result.line()]
        try:
            summary.write(result, self.folder)
            lines += page.finish(engine.coverage, self.folder)
        except ReportError as error:
            lines.append(str(error))
        return lines


def _asked(failed: ConformanceFailure) -> Asked | None:
    """What has to be asked again to see it: the case alone may pass."""
    if not isinstance(failed, PropertyFailure):
        return None
    broken = failed.broken
    return Asked(broken.property, broken.case, broken.launch, broken.settings, broken.choice)
