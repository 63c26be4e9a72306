"""Failure reports made ready for the page: grouped by cause, as many in full as the page can bear, the rest as rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from reference.case import Case
from reference.contract import ContractError
from reference.fields import CaseError
from reference.verdict import UNWRITTEN, Difference, Guard, shown_element
from reports.diagnosis import UNKNOWN, Diagnosis
from reports.failure import SCHEMA
from reports.page.picture import Picture, pictures

LONGEST_COPIED = 16_000
"""Characters of a case or a script that the page holds; a longer one is in its file only."""


class UnreadableError(ValueError):
    """A failure report that the page cannot show. The message is one line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One element, expected against actual; the page shows it as text."""

    group: int
    index: int
    request: int | None
    position: int | None
    expected: str
    actual: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure report as the page shows it. ``file`` is its JSON, relative to the page."""

    file: str
    subject: str
    version: str
    entry_point: str
    lane: str
    test: str
    kind: str
    summary: str
    detail: str
    diagnosis: Diagnosis
    guards: tuple[Guard, ...]
    rows: tuple[Row, ...]
    total_differences: int
    tokens: int
    settings: tuple[tuple[str, str], ...]
    report: Mapping[str, Any]

    @property
    def anchor(self) -> str:
        """The id of the failure on the page: the name of its file where that can be one."""
        return re.sub(r"[^A-Za-z0-9_-]", "-", PurePosixPath(self.file).stem)

    @property
    def link(self) -> str:
        """The JSON file as a relative address: nothing in it is a scheme, a query or a fragment."""
        return f"./{quote(self.file, errors='replace')}"

    @property
    def markdown_link(self) -> str:
        return self.link.removesuffix(".json") + ".md"

    @property
    def script_link(self) -> str:
        """The script as a file, or nothing."""
        return self.link.removesuffix(".json") + ".py" if isinstance(self.report.get("script"), str) else ""

    @property
    def several_groups(self) -> bool:
        return len(self.report["case"]["groups"]) > 1

    @property
    def copies(self) -> list[tuple[str, str, str]]:
        """(what, name of its language, text) of each text that can be copied; texts too long for the page are ""."""
        texts = [("command", "sh", str(self.report.get("replay", "")))]
        texts.append(("host-command", "sh", str(self.report.get("replay_on_host", ""))))
        texts.append(("case", "json", json.dumps(self.report["case"])))
        script = self.report.get("script")
        if isinstance(script, str):
            texts.append(("script", "python", script))
        return [(what, name, text if len(text) <= LONGEST_COPIED else "") for what, name, text in texts if text]

    @property
    def launch(self) -> str:
        """What is not part of the case, and the call as it was bound."""
        return json.dumps({name: self.report[name] for name in ("launch", "call") if name in self.report}, indent=1)

    @property
    def shrunk(self) -> str:
        """How far the case was shrunk, or nothing."""
        told = self.report.get("shrinking")
        if not isinstance(told, Mapping):
            return ""
        before, after = told["before"]["tokens"], told["after"]["tokens"]
        return f"shrunk from {before} to {after} tokens in {told['launches']} launches"

    @property
    def contradiction(self) -> str:
        """What contradicts the property that showed the failure, or nothing."""
        told = self.report.get("property")
        return f"{told.get('name')}: {told.get('message')}" if isinstance(told, Mapping) else ""

    def pictures(self) -> tuple[list[Picture], str]:
        """The pictures of the failure, or why there are none."""
        try:
            return pictures(Case.from_json(self.report["case"]), self._differences()), ""
        except (CaseError, ContractError, IndexError) as error:
            return [], str(error)

    def _differences(self) -> list[Difference]:
        return [_difference(each) for each in self.report["verdict"]["differences"]]


@dataclass(slots=True)
class Group:
    """Failures of one cause; ``cause`` is None where it is not known and they may have nothing in common."""

    subject: str
    entry_point: str
    cause: str | None
    failures: list[Failure] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.cause or "cause unknown"

    @property
    def summary(self) -> str:
        """What is wrong, in the words of the first failure's diagnosis."""
        if self.cause is None:
            return "No single step explains these failures; they may have different causes."
        return self.failures[0].diagnosis.summary or self.failures[0].summary

    @property
    def kinds(self) -> str:
        return ", ".join(dict.fromkeys(each.kind for each in self.failures))


def read(file: str, report: object) -> Failure:
    """A failure report for the page. Raises UnreadableError."""
    if not isinstance(report, Mapping) or report.get("schema") not in range(1, SCHEMA + 1):
        raise UnreadableError(f"{file}: not a failure report of a schema up to {SCHEMA}")
    try:
        return _read(file, report)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UnreadableError(f"{file}: {type(error).__name__}: {error}") from None


def _read(file: str, report: Mapping[str, Any]) -> Failure:
    verdict, case = report["verdict"], report["case"]
    traces = {(each["group"], each["token"]): each for each in report.get("traces", ())}
    rows = []
    for item in verdict["differences"]:
        each = _difference(item)
        found = traces.get((each.group, each.index), {})
        reason = "not to be written" if each.expected == UNWRITTEN else _reason(found)
        values = shown_element(each.expected), shown_element(each.actual)
        rows.append(Row(each.group, each.index, found.get("request"), found.get("position"), *values, reason))
    told = report.get("diagnosis") or {}
    return Failure(
        file=file,
        subject=str(report["subject"]),
        version=str(report.get("version", "")),
        entry_point=str(report["entry_point"]),
        lane=str(report["lane"]),
        test=str(report["test"]),
        kind=str(verdict["kind"]),
        summary=str(report["summary"]),
        detail=str(verdict.get("detail", "")),
        diagnosis=Diagnosis(str(told.get("cause", UNKNOWN)), str(told.get("summary", "")), str(told.get("buffer", ""))),
        guards=tuple(
            Guard(str(each["buffer"]), str(each["direction"]), 0, int(each["distance"]), str(each["message"]))
            for each in verdict["guards"]
        ),
        rows=tuple(rows),
        total_differences=int(verdict["total_differences"]),
        tokens=int(case["num_tokens"]),
        settings=tuple(_settings(case)),
        report=report,
    )


def _reason(found: Mapping[str, Any]) -> str:
    """Why the element should hold what it should, from its trace."""
    if found.get("block_number") is None:
        return str(found.get("reason", ""))
    return f"block {found['block_number']}, offset {found['offset']}"


def _difference(item: Mapping[str, Any]) -> Difference:
    return Difference(int(item["group"]), int(item["index"]), int(item["expected"]), int(item["actual"]))


def _settings(case: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The geometry in the letters of the contract."""
    cp, group = case["cp"], case["groups"][0]
    found = [("b", group["block_size"]), ("B", group["kv_cache_block_size"])]
    found += [("W", cp["size"]), ("R", cp["rank"]), ("I", cp["interleave"])] if cp["size"] != 1 else [("W", 1)]
    if len(case["groups"]) > 1:
        found.append(("groups", len(case["groups"])))
    if group["kind"] != "paged":
        found.append(("kind", group["kind"]))
    return [(name, str(value)) for name, value in found]


def grouped(failures: Sequence[Failure]) -> list[Group]:
    """The failures by subject, entry point and ``Diagnosis.key``: those with most failures first, the unknown last."""
    groups: dict[tuple[str, str, str | None], Group] = {}
    for each in failures:
        key = (each.subject, each.entry_point, each.diagnosis.key)
        groups.setdefault(key, Group(*key)).failures.append(each)
    for group in groups.values():
        group.failures.sort(key=lambda each: each.tokens)
    return sorted(groups.values(), key=lambda group: (group.cause is None, -len(group.failures)))
