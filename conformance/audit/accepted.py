"""Findings that somebody has looked at: a text file, one acceptance a line, each with its reason.

    ASC002  kernels.v1  arith.*:i64  *  int64 slots have no vector form

Rule, entry point, cause and chip are compared as shell patterns; everything after the fourth is the reason, which must
be there. Empty lines, and those that begin with #, mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from conformance.audit.rules import RULES, Finding
from reference.fields import printable

DEFAULT = Path(__file__).with_name("accepted.txt")


class AcceptedError(ValueError):
    """A file of acceptances that cannot be read. The message, one line, says where and what."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One line of such a file."""

    rule: str
    entry: str
    cause: str
    target: str
    reason: str
    where: str

    def covers(self, finding: Finding) -> bool:
        """Whether it is about this finding on every chip where that was seen."""
        return (
            fnmatchcase(finding.rule.id, self.rule)
            and fnmatchcase(finding.entry, self.entry)
            and fnmatchcase(finding.cause, self.cause)
            and all(fnmatchcase(target, self.target) for target in finding.targets)
        )


def read(path: Path) -> list[Acceptance]:
    """The acceptances in a file. Raises AcceptedError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AcceptedError(f"cannot read {printable(path)}: {getattr(error, 'strerror', None) or error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        words = line.split(maxsplit=4)
        if not words or words[0].startswith("#"):
            continue
        where = f"{printable(path)}:{number}"
        if len(words) < 5:
            raise AcceptedError(
                f"{where}: expected rule, entry point, cause, chip and a reason, got {len(words)} words"
            )
        if not any(fnmatchcase(rule, words[0]) for rule in RULES):
            raise AcceptedError(f"{where}: there is no rule {printable(words[0])}")
        found.append(Acceptance(words[0], words[1], words[2], words[3], words[4].rstrip(), where))
    return found


def acceptance_of(finding: Finding, acceptances: Iterable[Acceptance]) -> Acceptance | None:
    """The first that covers it."""
    return next((each for each in acceptances if each.covers(finding)), None)


def unused(acceptances: Sequence[Acceptance], findings: Sequence[Finding]) -> list[Acceptance]:
    """Those that nothing needs any more."""
    return [each for each in acceptances if not any(each.covers(finding) for finding in findings)]
