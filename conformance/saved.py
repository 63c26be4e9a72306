"""Cases from files, failure reports and bare ones, and the entry points that they concern."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from conformance.subjects.binding import Settings, settings_of
from conformance.subjects.entry import EntryPoint
from reference.case import Case, CaseError, Launch
from reference.contract import check, violations


@dataclass(frozen=True, slots=True)
class SavedCase:
    """A case and its launch as read from ``file``. ``subject`` and ``entry_points`` say whom it concerns; empty: everyone."""

    file: Path
    case: Case
    launch: Launch
    subject: str
    entry_points: tuple[str, ...]

    def drawn(self, entry: EntryPoint) -> tuple[Case, Launch, Settings]:
        return self.case, self.launch, settings_of(entry, self.launch)

    def concerns(self, entry: EntryPoint) -> bool:
        return (not self.subject or entry.subject == self.subject) and (not self.entry_points or entry.name in self.entry_points)

    def why_not(self, entry: EntryPoint) -> str | None:
        """Why ``entry`` cannot be given this case although it is concerned, or None."""
        reason = entry.cannot_take(self.case, self.launch)
        if reason is not None:
            return reason
        broken = violations(self.case, entry.declaration.clauses, self.launch)
        return f"outside what {entry.id} promises: {broken[0]}" if broken else None


def read(path: Path) -> SavedCase:
    """Raises CaseError, one line that says file, place and what is wrong."""
    try:
        item = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CaseError(f"{path}: cannot be read: {error}") from error
    if not isinstance(item, dict):
        raise CaseError(f"{path}: expected a JSON object")
    try:
        case = Case.from_json(item["case"] if "case" in item else item)
        launch = Launch.from_json(item["launch"]) if "launch" in item else Launch()
        check(case, launch=launch)
    except ValueError as error:
        raise CaseError(f"{path}: {error}") from error
    names = item.get("entry_points", [item["entry_point"]] if "entry_point" in item else [])
    return SavedCase(path, case, launch, str(item.get("subject", "")), tuple(map(str, names)))


def pairs(saved: Iterable[SavedCase], entries: Iterable[EntryPoint]) -> list[tuple[EntryPoint, SavedCase]]:
    """Who is given what. Raises CaseError for a file that concerns none of ``entries``: it must not pass by not being run."""
    entries = list(entries)
    found = []
    for item in saved:
        concerned = [entry for entry in entries if item.concerns(entry)]
        if not concerned:
            who = ".".join(filter(None, [item.subject or "any subject", "/".join(item.entry_points)]))
            raise CaseError(f"{item.file}: concerns {who}, and this run has {', '.join(entry.id for entry in entries) or 'nothing'}")
        found += [(entry, item) for entry in concerned]
    return found
