"""A failure as data (JSON, schema 2), as a page to read (Markdown) and as a script that shows it.

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
from reference.verdict import CRASH, Verdict
from reports.call import Call
from reports.diagnosis import UNKNOWN, Diagnosis
from reports.files import json_lines, write_text
from reports.issue import page
from reports.property import BrokenProperty
from reports.reproduction import Reproduction, reproduction
from reports.shrinking import Shrinking

SCHEMA = 2
MAX_TRACES = 8
"""Differing elements that a report explains step by step."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """One entry point that does not pass one case.

    ``launch`` holds the constants as they were bound; ``version``, ``commit`` and ``source`` say which code it was (""
    where unknown, ``source`` is the path given by --source); ``test`` is the node id; ``seed`` is the run's,
    ``examples`` the number of examples drawn until this one was found (None: it was replayed), ``shrinking`` what came
    after it. ``call`` is the launch as bound, ``settings`` (``tile``, ``window``) what it was bound with, ``expected``
    the whole output, a row a group. ``environment`` is what
    ``reports.environment.environment()`` gives, ``diagnosis`` what ``reports.diagnosis.diagnose`` makes of the outcome.
    ``broken_property``: what shows the failure without an oracle, of which this case is one launch. ``lane_options``
    are the words of the command line that the lane was set with, ``on_device`` says that it is a device's.
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
    commit: str = ""
    settings: Mapping[str, int | None] = field(default_factory=dict)
    call: Call | None = None
    expected: Sequence[Sequence[int]] = ()
    shrinking: Shrinking | None = None
    broken_property: BrokenProperty | None = None
    lane_options: tuple[str, ...] = ()
    on_device: bool = False

    @property
    def name(self) -> str:
        """The file name without its ending: the same for the same failure, whichever run finds it."""
        identity = [self.case.to_json(), self.launch.to_json(), self.verdict.kind]
        if self.broken_property is not None:
            identity.append(self.broken_property.name)
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]
        return f"failure-{_file_name(self.subject)}-{_file_name(self.entry_point)}-{digest}"

    def replay_command(self, file: str | Path) -> str:
        """The command, one line for bash, that runs this failure again from its JSON ``file``."""
        return self._command(file, self.lane, *self.lane_options)

    def host_command(self, file: str | Path) -> str:
        """The same on lane ``lowered``, where the failure is a crash on a device, which does not say whose memory it
        was that a program touched: there, an access outside every buffer is one beside a buffer that has a name. ""
        for other failures.
        """
        return self._command(file, "lowered") if self.on_device and self.verdict.kind == CRASH else ""

    def _command(self, file: str | Path, *lane: str) -> str:
        words = ["pytest", "conformance", "--replay", str(file), "--lane", *lane, "--subject", self.subject]
        if self.source:
            words += ["--source", f"{self.subject}={self.source}"]
        return " ".join(map(_quoted, words))

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
        made = self.reproduction()
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "version": self.version,
            "commit": self.commit,
            "source": self.source,
            "entry_point": self.entry_point,
            "lane": self.lane,
            "test": self.test,
            "verdict": self.verdict.to_json(),
            "summary": self.verdict.summary(),
            "diagnosis": self.diagnosis.to_json(),
            "case": self.case.to_json(),
            "launch": self.launch.to_json(),
            "settings": dict(self.settings),
            "call": None if self.call is None else self.call.to_json(),
            "specialization": None if self.call is None else self.call.specialization(),
            "property": None if self.broken_property is None else self.broken_property.to_json(),
            "traces": [each.to_json() for each in self.traces()],
            "environment": dict(self.environment),
            "seed": self.seed,
            "examples": self.examples,
            "shrinking": None if self.shrinking is None else self.shrinking.to_json(self.case),
            "script": made.script,
            "script_note": made.note,
            "replay": self.replay_command(file),
            "replay_on_host": self.host_command(file),
        }

    def to_markdown(self, file: str | Path) -> str:
        """The report as a page to paste into an issue tracker; ``file`` is where the JSON lies."""
        return page(self, file)

    def reproduction(self) -> Reproduction:
        """The script that shows the failure without this project."""
        title = f"{self.subject} {self.version}, entry point {self.entry_point}: {self.verdict.kind}"
        case, launch, verdict = self.case, self.launch, self.verdict
        try:
            return reproduction(title, self.call, case, launch, verdict, self.expected, self.diagnosis, self.traces())
        except Exception as error:  # the report of a failure must not fail
            return Reproduction(note=f"No script: it could not be made ({type(error).__name__}: {error}).")


def write(report: FailureReport, folder: str | Path) -> tuple[Path, Path]:
    """Write the report into ``folder`` as JSON and Markdown, the script beside them, and return the first two paths.

    The folder is created; the same failure overwrites its own files. Raises ReportError when that cannot be done: the
    caller then prints ``report.to_markdown(...)`` instead.
    """
    path = Path(folder) / f"{report.name}.json"
    markdown = path.with_suffix(".md")
    script = report.reproduction().script
    write_text(path, json_lines(report.to_json(path)))
    write_text(markdown, report.to_markdown(path))
    if script is not None:
        write_text(path.with_suffix(".py"), script)
    return path, markdown


def moved(text: str, before: str | Path, after: str | Path) -> str:
    """``text`` of a report whose JSON file was ``before``, with commands that name it where it is now."""
    return text.replace(_quoted(str(before)), _quoted(str(after)))


def _quoted(word: str) -> str:
    """``word`` for a shell; one with characters that a terminal obeys, or that end a line, byte by byte in $'...'."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escaped(c) for c in word) + "'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if character.isprintable():
        return character
    # Python keeps a byte of a file name that is no UTF-8 as one of these surrogates.
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))


def _file_name(name: str) -> str:
    """``name`` with whatever is awkward in a file name replaced, and not too long for one."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60]
