"""One audit: its rows and findings, and the files it leaves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from conformance.audit import sarif, table
from conformance.audit.accepted import Acceptance, acceptance_of, unused
from conformance.audit.rows import Row
from conformance.audit.rules import Finding, findings
from reports.environment import environment
from reports.files import write_text

SCHEMA = 1
PACKAGES = ("triton-ascend", "ascendnpu-ir", "torch", "numpy")


@dataclass(frozen=True)
class Audit:
    """What was compiled with which compiler, in how many seconds. ``left_out``: entry points without a row, and why."""

    rows: tuple[Row, ...]
    compiler: str
    targets: tuple[str, ...]
    seconds: float
    left_out: tuple[tuple[str, str], ...] = ()
    acceptances: tuple[Acceptance, ...] = ()
    findings: tuple[tuple[Finding, Acceptance | None], ...] = field(init=False)

    def __post_init__(self) -> None:
        found = tuple((each, acceptance_of(each, self.acceptances)) for each in findings(self.rows))
        object.__setattr__(self, "findings", found)

    @property
    def open(self) -> list[Finding]:
        """Those that nobody has accepted."""
        return [finding for finding, acceptance in self.findings if acceptance is None]

    @property
    def unused(self) -> list[Acceptance]:
        """Acceptances for what was audited which no finding needs."""
        audited = {row.entry.id for row in self.rows}
        about = [each for each in self.acceptances if any(fnmatchcase(name, each.entry) for name in audited)]
        return unused(about, [finding for finding, _ in self.findings])

    def to_json(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "compiler": self.compiler,
            "targets": list(self.targets),
            "environment": environment(PACKAGES),
            "seconds": round(self.seconds, 1),
            "rows": [row.to_json() for row in self.rows],
            "findings": [
                {**finding.to_json(), "accepted": None if acceptance is None else acceptance.reason}
                for finding, acceptance in self.findings
            ],
            "left_out": [{"entry_point": name, "reason": reason} for name, reason in self.left_out],
        }

    def write(self, folder: Path, root: Path) -> list[Path]:
        """``audit.json``, ``audit.md`` and ``audit.sarif``; paths in the last are relative to ``root``. Raises
        ReportError.
        """
        texts = {
            "audit.json": json.dumps(self.to_json(), indent=1) + "\n",
            "audit.md": table.markdown(self.rows, self.findings, self.compiler, self.left_out),
            "audit.sarif": json.dumps(sarif.log(self.findings, root), indent=1) + "\n",
        }
        return [write_text(folder / name, text) for name, text in texts.items()]
