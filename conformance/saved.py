"""Cases from files, failure reports and bare ones, and the entry points that they concern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from conformance.properties import ALL as PROPERTIES
from conformance.properties import by_name
from conformance.properties.property import Property
from conformance.subjects import NAMES
from conformance.subjects.binding import outside, settings_of
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.subjects.launching import Settings
from reference.case import Case, CaseError, Launch, from_document
from reference.contract import CLAUSES, violations
from reference.fields import choice, fields, integer, printable, read_json, shown
from strategies.boundaries import BREAKABLE, IMPLIED

_LARGEST = 1 << 20  # cells of a tile or a window


@dataclass(frozen=True, slots=True)
class Asked:
    """A property and what it was asked of."""

    property: Property
    case: Case
    launch: Launch
    settings: Settings
    choice: int


@dataclass(frozen=True, slots=True)
class SavedCase:
    """A case and its launch as read from ``file``. ``subject`` and ``entry_points`` say whom it concerns; empty:
    everyone.

    ``settings`` are those that it was bound with, for an entry point whose constants do not say them. ``asked``: the
    property that did not hold, and of what; the case is then one launch of several. ``boundary``: the case may be
    outside the contract, by the clause that its file names, and is asked what an entry point that promises to be
    ``total`` does there.
    """

    file: Path
    case: Case
    launch: Launch
    subject: str
    entry_points: tuple[str, ...]
    settings: Settings | None = None
    asked: Asked | None = None
    boundary: bool = False

    def drawn(self, entry: EntryPoint) -> tuple[Case, Launch, Settings]:
        chosen = self.settings if self.settings is not None and not self.launch.constants else None
        return self.case, self.launch, chosen or settings_of(entry, self.launch)

    def concerns(self, entry: EntryPoint) -> bool:
        return (not self.subject or entry.subject == self.subject) and (
            not self.entry_points or entry.name in self.entry_points
        )

    def why_not(self, entry: EntryPoint) -> str | None:
        """Why ``entry`` cannot be given this case although it is concerned, or None."""
        if entry.status != TESTABLE:
            return f"{entry.id}: {entry.status}"
        reason = entry.cannot_take(self.case, self.launch)
        if reason is not None:
            return reason
        chosen = self.drawn(entry)[2]
        for name, value in (("tile", chosen.tile), ("window", 1 if chosen.window is None else chosen.window)):
            if type(value) is not int or not 1 <= value <= _LARGEST:
                return f"{entry.id}: no launch has a {name} of {shown(value)}"
        if self.boundary:
            kept = "total" in entry.declaration.features
            return None if kept else f"{entry.id} does not promise to stay inside its buffers outside the contract"
        broken = outside(entry, *self.drawn(entry))
        return f"outside what {entry.id} promises: {broken[0]}" if broken else None


def read(path: Path, *, boundary: bool = False) -> SavedCase:
    """A failure report, a field case, a bare case or, where ``boundary`` allows it, a launch outside the contract.

    Raises CaseError, one line that says file, place and what is wrong.
    """
    document = read_json(path)
    try:
        return of_document(document, path, boundary=boundary)
    except CaseError as error:
        raise CaseError(f"{printable(path)}: {error}") from None


def of_document(document: object, path: Path, *, boundary: bool = False) -> SavedCase:
    """The same from what stands in ``path``. Raises CaseError, which does not name the file."""
    case, launch = from_document(document)
    found = document if isinstance(document, dict) else {}
    is_boundary = "broken" in found  # the clause, in a file that conformance.outside has written
    if is_boundary and not boundary:
        raise CaseError("a launch outside the contract, which has no answer to compare with: only --replay takes it")
    if is_boundary:
        _check_broken(found["broken"], case, launch)
    elif broken := violations(case, launch=launch):
        raise CaseError(str(broken[0]))
    names = found.get("entry_points", [found["entry_point"]] if "entry_point" in found else [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CaseError(f"entry_points: expected a list of names, got {shown(names)}")
    settings = _settings(found["settings"]) if found.get("settings") else None
    asked = _asked(found["property"]) if found.get("property") else None
    return SavedCase(path, case, launch, str(found.get("subject", "")), tuple(names), settings, asked, is_boundary)


def _check_broken(said: object, case: Case, launch: Launch) -> None:
    """Refuse a launch that breaks other clauses than it says, or others than one position or one cell can break: what
    it promises is not defined, or cannot even be bound.

    ``said`` is a clause and where it is broken; "" for none. A file has not the constants by which ``window`` is
    broken.
    """
    if not isinstance(said, str):
        raise CaseError(f"broken: expected a clause, got {shown(said)}")
    named = said.partition(":")[0]
    if named and named not in BREAKABLE:
        raise CaseError(f"broken: expected one of {', '.join(BREAKABLE)}, or nothing, got {shown(named)}")
    there = violations(case, CLAUSES, launch)
    allowed = {named, *IMPLIED.get(named, ())}
    others = [each for each in there if each.clause not in allowed]
    if others:
        raise CaseError(f"{others[0]} (broken says {shown(named)})")
    if named not in ("", "window") and named not in {each.clause for each in there}:
        raise CaseError(f"broken: it says {named}, which the case does not break")


def _asked(value: object) -> Asked:
    where = "property"
    others = ("statement", "message", "launches")
    found = fields(value, where, ("name", "choice", "case", "launch", "settings"), others)
    name = choice(found["name"], f"{where}.name", [each.name for each in PROPERTIES])
    case, launch = Case.from_json(found["case"], f"{where}.case"), Launch.from_json(found["launch"], f"{where}.launch")
    if broken := violations(case, launch=launch):
        raise CaseError(f"{where}.case: {broken[0]}")
    number = integer(found["choice"], f"{where}.choice", 0)
    return Asked(by_name(name), case, launch, _settings(found["settings"]), number)


def _settings(value: object) -> Settings:
    found = fields(value, "settings", ("tile", "window"))
    window = found["window"]
    return Settings(
        tile=integer(found["tile"], "settings.tile", 1, _LARGEST),
        window=None if window is None else integer(window, "settings.window", 1, _LARGEST),
    )


def pairs(saved: Iterable[SavedCase], entries: Iterable[EntryPoint]) -> list[tuple[EntryPoint, SavedCase]]:
    """Who is given what. Raises CaseError for a file that none of ``entries`` can run: it must not pass by not being
    run.
    """
    entries = list(entries)
    found = []
    for item in saved:
        concerned = [entry for entry in entries if item.concerns(entry)]
        if not concerned:
            who = ".".join(filter(None, [item.subject or "any subject", "/".join(item.entry_points)]))
            there = ", ".join(entry.id for entry in entries) or "nothing"
            raise CaseError(f"{item.file}: concerns {who}, and this run has {there}{_advice(item.subject, entries)}")
        reasons = [item.why_not(entry) for entry in concerned]
        if None not in reasons:
            raise CaseError(f"{item.file}: cannot be run: {reasons[0]}")
        found += [(entry, item) for entry in concerned]
    return found


def _advice(subject: str, entries: Iterable[EntryPoint]) -> str:
    """What to add to the command for a case of a subject that is not in the run."""
    if subject not in NAMES or subject in {entry.subject for entry in entries}:
        return ""
    return f"; add --subject {subject}" + (" --source PATH" if subject != "kernels" else "")
