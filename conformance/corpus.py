"""``--corpus FOLDER``: failing cases as JSON files, found anywhere, for everybody.

A folder may be a network share, or what a CI job left behind: others write into it at the same time, and nothing that
lies in it is trusted. Whatever cannot be read or written is a problem that is told, and never ends a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.saved import Asked, SavedCase, of_document
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from reference.case import Case, CaseError, Launch
from reference.fields import parse_json, printable, shown
from reports import failure
from reports.files import ReportError, json_lines, write_text

MOST_BYTES = 16 << 20
"""Of a file. A case of 131,072 tokens, the largest that the suite makes itself, takes a tenth of it."""
MOST_FILES = 10_000
"""That a run reads; replaying one costs some milliseconds, and a compilation where its settings are new."""
_LONGEST = 400  # characters of a problem


@dataclass(frozen=True, slots=True)
class Unkept:
    """A failing case that the folder could not take: why, the ``text`` that its file would have had, and whether a
    report of the failure is there.
    """

    problem: str
    text: str
    reported: bool


class Corpus:
    """The cases in ``folder``. ``texts`` are its files as somebody else has read them already, by name."""

    def __init__(self, folder: Path, texts: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self.unkept: list[Unkept] = []
        self.added = 0
        self._texts = None if texts is None else dict(texts)
        self._cases: list[SavedCase] | None = None
        self._digests: set[str] = set()  # of the cases that are there, whatever their files are called

    def texts(self) -> Mapping[str, str]:
        """What is in the files that can be read, by their path in the folder. They are read once."""
        if self._texts is None:
            self._texts = {}
            for path in self._files():
                try:
                    self._texts[path.relative_to(self.folder).as_posix()] = _read(path)
                except CaseError as error:
                    self._problem(path, error)
        return self._texts

    def cases(self) -> list[SavedCase]:
        """The cases, each once, whichever files it is in."""
        if self._cases is None:
            found: dict[str, SavedCase] = {}
            for name, text in self.texts().items():
                path = self.folder / name
                try:
                    case = _parsed(text, path)
                except Exception as error:  # no file, whatever is in it, ends a run
                    self._problem(path, error)
                else:
                    found.setdefault(digest(case), case)
            self._cases = list(found.values())
            self._digests = set(found)
        return self._cases

    def pairs(self, entries: Iterable[EntryPoint]) -> list[tuple[EntryPoint, SavedCase]]:
        """Who of ``entries`` is given what: those that a file names, of whatever subject, or where it names none, all;
        as far as the case is one that they promise to take.
        """
        entries = list(entries)
        found = []
        for case in self.cases():
            try:
                found += [(entry, case) for entry in entries if _concerns(case, entry) and case.why_not(entry) is None]
            except Exception as error:
                self._problem(case.file, error)
        return found

    def add(
        self,
        entry: EntryPoint,
        case: Case,
        launch: Launch,
        settings: Settings,
        asked: Asked | None = None,
        reported: bool = False,
    ) -> None:
        """Keep a failing case of ``entry``. The same one has the same file, whoever finds it."""
        self.keep(json_lines(_document([entry.name], case, launch, settings, asked)), reported)

    def keep(self, text: str, reported: bool = False) -> None:
        """The same for the text of a file, as ``add`` writes it. ``reported``: a report of the failure is there."""
        file = self.folder / file_name(text)
        try:
            if len(text) > MOST_BYTES:
                raise ReportError(f"{printable(file)} is not written: it would have more than {MOST_BYTES >> 20} MiB")
            if _digest(text) not in self._digests and not _holds(file, text):
                write_text(file, text)
                self.added += 1
        except ReportError as error:
            self.unkept.append(Unkept(str(error), text, reported))

    def _files(self) -> list[Path]:
        """In the folder and those in it, in the order of their names."""
        found: list[Path] = []
        for folder, folders, names in os.walk(self.folder, onerror=self._unreadable):
            folders.sort()
            for each in (Path(folder) / name for name in folders):
                if each.is_symlink():  # it may lead anywhere, to / for example
                    self._problem(each, "a link to a folder, which is not followed")
            found += [Path(folder) / name for name in sorted(names) if name.endswith(".json") and name[0] != "."]
            if len(found) > MOST_FILES:
                self._problem(self.folder, f"more than {MOST_FILES:,} files; the first are replayed, no others")
                break
        return found[:MOST_FILES]

    def _unreadable(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # it is made with the first case that is found
            self._problem(Path(error.filename or self.folder), error.strerror or error)

    def _problem(self, path: Path, what: object) -> None:
        name = "" if isinstance(what, CaseError) else f"{type(what).__name__}: " if isinstance(what, Exception) else ""
        self.problems.append(f"{printable(path)}: not replayed: {name}{printable(str(what))}"[:_LONGEST])


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s'[: number != 1]}"


def kind_of(case: Case) -> str:
    """The words that tests of such cases are selected by."""
    words = {"cp": case.cp.size > 1, "circular": any(group.kind == "circular" for group in case.groups)}
    return "-".join(word for word, applies in words.items() if applies) or "plain"


def name_of(entry: EntryPoint, saved: SavedCase) -> str:
    """What a test of it is called: the words that select it, and the digest in the name of the file."""
    return f"{kind_of(saved.case)}-{digest(saved)}-{entry.id}"


def text_of(saved: SavedCase) -> str:
    """A file of this case alone, the same whatever else is in the file that it was read from."""
    return json_lines(_document(saved.entry_points, saved.case, saved.launch, saved.settings, saved.asked))


def file_name(text: str) -> str:
    """What the file with this text, which ``text_of`` has made, is called."""
    names = "-".join(json.loads(text).get("entry_points", ["any"]))
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', names)[:60]}-{_digest(text)}.json"


def digest(saved: SavedCase) -> str:
    return _digest(text_of(saved))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _document(
    names: Sequence[str], case: Case, launch: Launch, settings: Settings | None, asked: Asked | None
) -> dict[str, object]:
    """What ``--replay`` takes. No word of who found it, and on what: the same case is the same file."""
    document: dict[str, object] = {"entry_points": list(names)} if names else {}
    document |= {"case": case.to_json(), "launch": launch.to_json()}
    if settings is not None and not launch.constants:  # which constants a kernel is given says it too
        document["settings"] = asdict(settings)
    if asked is not None:
        document["property"] = {
            "name": asked.property.name,
            "choice": asked.choice,
            "case": asked.case.to_json(),
            "launch": asked.launch.to_json(),
            "settings": asdict(asked.settings),
        }
    return document


def _concerns(case: SavedCase, entry: EntryPoint) -> bool:
    return not case.entry_points or entry.name in case.entry_points


def _parsed(text: str, path: Path) -> SavedCase:
    document = parse_json(text)
    if isinstance(document, dict) and "case" in document:
        schema = document.get("schema", failure.SCHEMA)
        if type(schema) is not int or not 1 <= schema <= failure.SCHEMA:
            raise CaseError(f"schema: expected one up to {failure.SCHEMA}, got {shown(schema)}")
    return of_document(document, path)


def _read(path: Path) -> str:
    """The text of a file. Raises CaseError: also for what is no file, which to open could mean to wait for ever."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CaseError("it is no regular file")
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise CaseError(f"more than {MOST_BYTES >> 20} MiB")
        return data.decode()
    except UnicodeDecodeError as error:
        raise CaseError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise CaseError(error.strerror or str(error)) from None


def _holds(file: Path, text: str) -> bool:
    try:
        return _read(file) == text
    except CaseError:
        return False
