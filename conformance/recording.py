"""Between a failed check and its report: gathers what a report needs, writes it, and says in a few lines what was
found.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.calls import call_of
from conformance.checkout import commit_of
from conformance.engine import Engine
from conformance.subjects.binding import bind
from conformance.verdicts import ConformanceFailure
from reference.fields import printable
from reports import failure, page, summary
from reports.diagnosis import UNKNOWN
from reports.environment import environment
from reports.files import ReportError


@dataclass(frozen=True, slots=True)
class Recorded:
    """A report and the JSON file that it is in, or would be if the folder could be written."""

    report: failure.FailureReport
    file: Path


class Recorder:
    """Writes a JSON file, a Markdown file and a script a failure into ``folder``, and ``summary.json`` at the end."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.reports: list[str] = []
        self.recorded: list[Recorded] = []
        self._failures: Counter[str] = Counter()
        self._environment = environment()
        self._started = time.monotonic()

    def record(self, engine: Engine, nodeid: str, failed: ConformanceFailure) -> str:
        """Write the report of ``failed``; returns what the terminal shows of it."""
        finding = failed.finding
        entry = finding.entry
        report = self._report(engine, nodeid, failed)
        self._failures[entry.id] += 1
        # The code under test may have put anything into its message: no escape sequence reaches the terminal.
        head = [printable(f"{entry.id}: {finding.verdict.summary()}")[:400]]
        if report.diagnosis.cause != UNKNOWN:
            head.append(printable(f"{report.diagnosis.cause}: {report.diagnosis.summary}")[:400])
        head.append(printable(f"{entry.file}:{entry.line} {entry.function}"))
        saved = self.folder / f"{report.name}.json"
        if str(saved) not in self.reports:
            self.recorded.append(Recorded(report, saved))
        # A replay knows less than the report that it replays.
        if failed.examples is not None or not saved.exists():
            try:
                failure.write(report, self.folder)
            except ReportError as error:  # the finding itself must not be lost
                return "\n".join([*head, str(error), report.to_markdown(saved.name)])
        if str(saved) not in self.reports:
            self.reports.append(str(saved))
        return "\n".join([*head, f"report: {saved.with_suffix('.md')}", f"replay: {report.replay_command(saved)}"])

    def _report(self, engine: Engine, nodeid: str, failed: ConformanceFailure) -> failure.FailureReport:
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
            environment=self._environment,
            diagnosis=finding.diagnosis,
            commit=commit_of(entry.file),
            settings=asdict(settings),
            call=call_of(entry, invocation),
            expected=finding.expected,
            shrinking=failed.shrinking,
        )

    def finish(self, engine: Engine) -> list[str]:
        """Write ``summary.json``; returns the lines that end the run."""
        tallies = {
            name: summary.Tally(tally.cases, len(tally.specializations), self._failures[name])
            for name, tally in engine.tallies.items()
        }
        result = summary.Summary(
            subjects=engine.options.subjects,
            lane=engine.lane.name,
            seconds=time.monotonic() - self._started,
            entry_points=tallies,
            reports=tuple(self.reports),
            seed=self.seed,
            environment=self._environment,
        )
        lines = [result.line()]
        try:
            summary.write(result, self.folder)
            lines += page.finish(engine.coverage, self.folder)
        except ReportError as error:
            lines.append(str(error))
        return lines
