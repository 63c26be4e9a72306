"""Failures that are known and accepted, as a file: TOML, one ``[[failure]]`` each, with the case that shows it.

schema = 1

[[failure]]
entry_point = "vllm-ascend.v2"
kind = "guard violation"
cause = "..."
buffer = "block_table"
reason = "why it is accepted"
case = '''{"case": {...}, "launch": {...}}'''
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from conformance import lanes, subjects
from conformance.explained import can_be
from conformance.saved import SavedCase, of_document
from conformance.saved import read as read_case
from conformance.verdicts import Finding
from reference import verdict as v
from reference.fields import CaseError, choice, fields, parse_json, printable, shown
from reports.diagnosis import CAUSES, Diagnosis

SCHEMA = 1
KINDS = tuple(kind for kind in v.KINDS if kind not in (v.PASS, v.UNSUPPORTED))
_REQUIRED = ("entry_point", "kind", "cause", "reason")
_OPTIONAL = ("buffer", "lane", "specializations", "case", "case_file")
ALL = "all"
_WITHOUT_PLACE = (v.CRASH, v.HANG)
_HEAD = """\
# Known failures. Each entry is accepted for its reason: one without a reason is refused.
# An entry's own case is run first; what it explains is what fails with the same cause on the same buffer.
"""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One entry. ``where`` names file and entry in a message; ``lane`` is "" where it is the same on all of them.

    ``everywhere``: somebody has decided that launches which end so are this failure whatever they are compiled for.
    ``summary`` is the diagnosis in a sentence, of a failure that this run found: for whoever has to give the reason.
    """

    where: str
    kind: str
    cause: str
    buffer: str
    reason: str
    lane: str
    saved: SavedCase
    summary: str = field(default="", compare=False)
    everywhere: bool = False

    @property
    def entry_point(self) -> str:
        return f"{self.saved.subject}.{self.saved.entry_points[0]}"

    @property
    def key(self) -> str | None:
        """As of the diagnosis that it is about: None where the cause is not known."""
        return Diagnosis(self.cause, "", self.buffer).key

    def describe(self) -> str:
        """Whose failure it is and of what kind, in a few words."""
        of = f"{self.cause} {self.buffer}".rstrip()
        return printable(f"{self.entry_point}: {self.kind}" + (f", {of}" if of != self.kind else ""))

    def is_about(self, finding: Finding) -> bool:
        """Whether ``finding``, a failure of this entry point, can be the one that the entry says.

        Where the cause is not known, nothing but the kind of verdict can be compared.
        """
        if finding.verdict.kind != self.kind:
            return False
        return self.key is None or can_be(finding, {self.key})

    def difference(self, finding: Finding) -> str:
        """What the entry says of its case and what ``finding`` is instead, where the two differ."""
        found = finding.diagnosis
        pairs = {
            "kind": (self.kind, finding.verdict.kind),
            "cause": (self.cause, found.cause),
            "buffer": (self.buffer, found.buffer),
        }
        differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        said = ", ".join(f"{name} {shown(pair[0])}" for name, pair in differing.items())
        now = ", ".join(f"{name} {shown(pair[1])}" for name, pair in differing.items())
        what = found.summary if found.key is None else finding.verdict.summary()
        return f"the entry says {said}; the case now has {now}: {what}"


def of_finding(finding: Finding, lane: str) -> KnownFailure:
    """The entry for a failure that was found, its reason left empty."""
    found = finding.diagnosis
    entry = finding.entry
    saved = SavedCase(Path(), finding.case, finding.launch, entry.subject, (entry.name,), finding.settings)
    return KnownFailure("", finding.verdict.kind, _plain(found.cause), found.buffer, "", lane, saved, found.summary)


def read(path: Path) -> tuple[KnownFailure, ...]:
    """The entries of a file. Raises CaseError, one line that says file, entry and what is wrong."""
    document = _toml(path)
    try:
        found = fields(document, "the file", ("schema",), ("failure",))
        if found["schema"] != SCHEMA or isinstance(found["schema"], bool):
            raise CaseError(f"schema: expected {SCHEMA}, got {shown(found['schema'])}")
        entries = found.get("failure", [])
        if not isinstance(entries, list):
            raise CaseError(f"failure: expected entries, each under [[failure]], got {shown(entries)}")
    except CaseError as error:
        raise CaseError(f"{printable(path)}: {error}") from None
    return tuple(_entry(path, number, item) for number, item in enumerate(entries, 1))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CaseError(f"{printable(path)}: not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise CaseError(f"{printable(path)}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise CaseError(f"{printable(path)}: {error.strerror or error}") from None
    except (RecursionError, ValueError) as error:  # a path with a NUL in it, an integer of thousands of digits
        raise CaseError(f"{printable(path)}: cannot be read: {error}") from None


def _entry(path: Path, number: int, item: object) -> KnownFailure:
    where = f"{printable(path)}: failure {number}"
    try:
        found = fields(item, "", _REQUIRED, _OPTIONAL) if isinstance(item, dict) else fields(item, "entry", ())
        texts = {name: _text(value, name) for name, value in found.items()}
        where += f" ({printable(texts['entry_point'])})"
        subject, dot, name = texts["entry_point"].partition(".")
        if not dot or not name or subject not in subjects.NAMES:
            known = ", ".join(f"{each}.NAME" for each in subjects.NAMES)
            raise CaseError(f"entry_point: expected one of {known}, got {shown(texts['entry_point'])}")
        choice(texts["kind"], "kind", KINDS)
        if not texts["cause"].strip():
            raise CaseError("cause: it is empty; a report says it under diagnosis")
        if texts["cause"] not in CAUSES:
            alike = "".join(f", did you mean {shown(each)}" for each in get_close_matches(texts["cause"], CAUSES, 1))
            raise CaseError(f"cause: expected one of those in docs/diagnosis.md, got {shown(texts['cause'])}{alike}")
        if not texts["reason"].strip():
            raise CaseError("reason: it is empty; say why this failure is accepted")
        if "specializations" in texts:
            choice(texts["specializations"], "specializations", (ALL,))
            if texts["kind"] not in _WITHOUT_PLACE:
                kinds = " or ".join(_WITHOUT_PLACE)
                raise CaseError(f"specializations: of a {kinds} alone, a {texts['kind']} is compared by its cause")
        if "lane" in texts:
            choice(texts["lane"], "lane", ("", *lanes.names()))
        saved = _case(path, texts)
    except CaseError as error:
        raise CaseError(f"{where}: {error}") from None
    return KnownFailure(
        where=where,
        kind=texts["kind"],
        cause=texts["cause"],
        buffer=texts.get("buffer", ""),
        reason=texts["reason"].strip(),
        lane=texts.get("lane", ""),
        saved=replace(saved, subject=subject, entry_points=(name,)),
        everywhere="specializations" in texts,
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise CaseError(f"{where}: expected a text, got {shown(value)}")
    return value


def _case(path: Path, texts: dict[str, str]) -> SavedCase:
    """The case in the entry, or in the file that it names, from the folder of the entry's own."""
    if ("case" in texts) == ("case_file" in texts):
        raise CaseError("expected either case, a JSON text, or case_file, a path from this file's folder")
    if "case_file" in texts:
        return read_case(path.parent / texts["case_file"])
    try:
        return of_document(parse_json(texts["case"]), path)
    except CaseError as error:
        raise CaseError(f"case: {error}") from None


def text_of(entries: Iterable[KnownFailure]) -> str:
    """The file that holds ``entries``, each with its case in it."""
    return "\n".join([f"{_HEAD}schema = {SCHEMA}\n", *map(_text_of, entries)])


def _text_of(known: KnownFailure) -> str:
    values = {
        "entry_point": known.entry_point,
        "kind": known.kind,
        "cause": known.cause,
        "buffer": known.buffer,
        "lane": known.lane,
        "specializations": ALL if known.everywhere else "",
        "reason": known.reason,
    }
    lines = [f"{name} = {_quoted(value)}" for name, value in values.items() if value]
    if not known.reason:
        lines += [f"# {printable(known.summary)}"] if known.summary else []
        lines.append('reason = ""')
    case = json.dumps(_document(known.saved))
    lines.append(f"case = {_quoted(case)}" if "'" in case else f"case = '''{case}'''")
    return "\n".join(["[[failure]]", *lines, ""])


def _document(saved: SavedCase) -> dict[str, object]:
    """The case as a report holds it. The settings of a host function are in no constant: which flags it is given hangs
    on them.
    """
    document: dict[str, object] = {"case": saved.case.to_json(), "launch": saved.launch.to_json()}
    if saved.settings is not None and not saved.launch.constants:
        document["settings"] = asdict(saved.settings)
    return document


def _quoted(value: str) -> str:
    """A TOML string on one line: what does not print, quotes and backslashes are escaped."""
    text = re.sub(r'["\\]', lambda found: "\\" + found[0], value)
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text) + '"'


def _plain(text: str) -> str:
    """A message as a file can hold it: half of a surrogate pair is no character."""
    return text.encode("utf-8", "replace").decode()
