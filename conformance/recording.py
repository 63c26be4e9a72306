"""Between a failed check and its report: gathers what a report needs, writes it, and says in a few lines what was
found.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from conformance.engine import Engine
from conformance.verdicts import Finding
from reference.fields import printable
from reports import failure, summary
from reports.diagnosis import diagnose
from reports.environment import environment
from reports.files import ReportError


class Recorder:
    """Writes one JSON and one Markdown file a failure into ``folder``, and ``summary.json`` at the end."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.reports: list[str] = []
        self._failures: Counter[str] = Counter()
        self._environment = environment()
        self._started = time.monotonic()

    def record(self, engine: Engine, nodeid: str, finding: Finding, examples: int | None) -> str:
        """Write the report of ``finding``; returns what the terminal shows of it."""
        entry = finding.entry
        report = failure.FailureReport(
            subject=entry.subject,
            entry_point=entry.name,
            lane=engine.lane.name,
            test=nodeid,
            case=finding.case,
            launch=finding.launch,
            verdict=finding.verdict,
            version=entry.version,
            source=engine.options.sources.get(entry.subject, ""),
            seed=self.seed,
            examples=examples,
            environment=self._environment,
            diagnosis=diagnose(finding.case, finding.launch, finding.verdict, finding.expected, finding.actual),
        )
        self._failures[entry.id] += 1
        # The code under test may have put anything into its message: no escape sequence reaches the terminal.
        said = printable(f"{entry.id}: {finding.verdict.summary()}")[:400]
        head = [said, f"{entry.file}:{entry.line} {entry.function}"]
        saved = self.folder / f"{report.name}.json"
        if examples is not None or not saved.exists():  # a replay knows less than the report that it replays
            try:
                failure.write(report, self.folder)
            except ReportError as error:  # the finding itself must not be lost
                return "\n".join([*head, str(error), report.to_markdown(saved.name)])
        if str(saved) not in self.reports:
            self.reports.append(str(saved))
        return "\n".join([*head, f"report: {saved.with_suffix('.md')}", f"replay: {report.replay_command(saved)}"])

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
        except ReportError as error:
            lines.append(str(error))
        return lines
