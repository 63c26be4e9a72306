"""A failure as data (JSON, schema 1) and as a page to read (Markdown).

The JSON holds ``case`` and ``launch``, so ``python -m reference FILE`` and ``pytest --replay FILE`` take it as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reference.case import Case, Launch
from reference.contract import ContractError
from reference.oracle import Trace, trace
from reference.verdict import UNWRITTEN, Difference, Verdict, shown_element
from reports.diagnosis import UNKNOWN, Diagnosis
from reports.files import json_lines, write_text
from reports.markdown import block, code, prose, table

SCHEMA = 1
MAX_TRACES = 8
"""Differing elements that a report explains step by step."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """One entry point that does not pass one case.

    ``launch`` holds the constants as they were bound; ``version`` and ``source`` say which code it was ("" where
    unknown, ``source`` is the path given by --source); ``test`` is the node id; ``seed`` is the run's, ``examples`` the
    number of examples drawn until this one was found (None: it was replayed). ``environment`` is what
    ``reports.environment.environment()`` gives, ``diagnosis`` what ``reports.diagnosis.diagnose`` makes of the outcome.
    """

    subject: str
    entry_point: str
    lane: str
    test: str
    case: Case
    launch: Launch
    verdict: Verdict
    version: str = ""
    source: str = ""
    seed: int | None = None
    examples: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    diagnosis: Diagnosis = field(default_factory=lambda: Diagnosis(UNKNOWN, ""))

    @property
    def name(self) -> str:
        """The file name without its ending: the same for the same failure, whichever run finds it."""
        identity = [self.case.to_json(), self.launch.to_json(), self.verdict.kind]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]
        return f"failure-{_file_name(self.subject)}-{_file_name(self.entry_point)}-{digest}"

    def replay_command(self, file: str | Path) -> str:
        """The shell command that runs this failure again from its JSON ``file``."""
        words = ["pytest", "conformance", "--replay", str(file), "--lane", self.lane, "--subject", self.subject]
        if self.source:
            words += ["--source", f"{self.subject}={self.source}"]
        return shlex.join(words)

    def traces(self) -> tuple[Trace, ...]:
        """How the first differing elements should have come about; none for elements that nothing may write.

        Where there is no output to compare (a crash, a hang), the first tokens of every group.
        """
        places = [
            (each.group, each.index) for each in self.verdict.differences if each.index < self.case.max_num_tokens
        ]
        if not self.verdict.differences:
            places = [(group, token) for group in range(len(self.case.groups)) for token in range(self.case.num_tokens)]
        try:
            return tuple(trace(self.case, group, token) for group, token in places[:MAX_TRACES])
        except ContractError:
            return ()

    def to_json(self, file: str | Path) -> dict[str, object]:
        """The report as JSON; ``file`` is where it will lie, for the command that replays it."""
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "version": self.version,
            "source": self.source,
            "entry_point": self.entry_point,
            "lane": self.lane,
            "test": self.test,
            "verdict": self.verdict.to_json(),
            "summary": self.verdict.summary(),
            "diagnosis": self.diagnosis.to_json(),
            "case": self.case.to_json(),
            "launch": self.launch.to_json(),
            "traces": [each.to_json() for each in self.traces()],
            "environment": dict(self.environment),
            "seed": self.seed,
            "examples": self.examples,
            "replay": self.replay_command(file),
        }

    def to_markdown(self, file: str | Path) -> str:
        """The report as a page; ``file`` is where the JSON lies. Names and messages in it can hold anything."""
        traces = self.traces()
        parts = [f"# {self.verdict.kind}: {code(self.subject)} {code(self.entry_point)}", self._paragraph()]
        if self.diagnosis.summary and self.diagnosis.cause != UNKNOWN:
            parts.insert(1, f"{prose(self.diagnosis.summary)} (Cause: {code(self.diagnosis.cause)})")
        parts += [f"- {code(guard.message)}" for guard in self.verdict.guards]
        if self.verdict.differences:
            parts.append(_differences(self.verdict, traces))
        if traces:
            first = traces[0]
            parts.append(f"How element {first.token} of group {first.group} should come about ({code(first.reason)}):")
            parts.append("\n".join(f"{number}. {code(step)}" for number, step in enumerate(first.steps, 1)))
        if self.verdict.detail:
            parts.append(block(self.verdict.detail, limit=4000))
        parts += ["Run it again:", block(self.replay_command(file), "sh")]
        parts += ["The case and its launch:", block(json.dumps(self.case.to_json()), "json")]
        parts.append(block(json.dumps(self.launch.to_json()), "json"))
        parts.append(", ".join(f"{code(name)} {code(version)}" for name, version in self.environment.items()))
        return "\n\n".join(part for part in parts if part) + "\n"

    def _paragraph(self) -> str:
        who = f"{code(self.subject)} {code(self.version)}" if self.version else code(self.subject)
        where = f" read from {code(self.source)}" if self.source else ""
        found = f"Example {self.examples}" if self.examples is not None else "A saved case"
        seed = f", seed {self.seed}" if self.seed is not None else ""
        return (
            f"{who}{where}, entry point {code(self.entry_point)}, lane {code(self.lane)}: "
            f"{code(self.verdict.summary())}. {found} of {code(self.test)}{seed}."
        )


def write(report: FailureReport, folder: str | Path) -> tuple[Path, Path]:
    """Write the report into ``folder`` as JSON and Markdown and return both paths.

    The folder is created; the same failure overwrites its own files. Raises ReportError when that cannot be done: the
    caller then prints ``report.to_markdown(...)`` instead.
    """
    path = Path(folder) / f"{report.name}.json"
    page = path.with_suffix(".md")
    write_text(path, json_lines(report.to_json(path)))
    write_text(page, report.to_markdown(path))
    return path, page


_STEPS = ("virtual_block", "virtual_offset", "owner", "local_offset")


def _differences(verdict: Verdict, traces: Sequence[Trace]) -> str:
    """A table: one row a differing element, with the steps that lead to what was expected."""
    known = {(each.group, each.token): each for each in traces}
    sharded = any(each.owner is not None for each in traces)
    columns = ("request", "position", "row", *(_STEPS if sharded else ()), "block_index", "block_number", "offset")
    header = ("group", "element", "expected", "got", *(name.replace("_", " ") for name in columns), "why")
    rows = []
    for each in verdict.differences:
        found = known.get((each.group, each.index))
        steps = [_cell(getattr(found, name)) if found else "" for name in columns]
        values = (str(each.group), str(each.index), shown_element(each.expected), shown_element(each.actual))
        rows.append((*values, *steps, _why(each, found)))
    shown = table(header, rows)
    more = verdict.total_differences - len(verdict.differences)
    return f"{shown}\n\n{more} more differ." if more else shown


def _why(difference: Difference, found: Trace | None) -> str:
    if difference.expected == UNWRITTEN:
        return "not to be written"
    return found.reason if found else ""


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)


def _file_name(name: str) -> str:
    """``name`` with whatever is awkward in a file name replaced, and not too long for one."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60]
