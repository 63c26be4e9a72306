"""The report folder of one run: what of it can be read, and a line for each file that cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from reference.fields import CaseError, parse_json, printable, shown
from reports import coverage, failure
from reports.files import read_text
from reports.merging.junit import suites
from reports.merging.summaries import of_document
from reports.summary import Summary


@dataclass(frozen=True, slots=True)
class Found:
    """A failure and where it lies. ``named`` is its file as the run named it, ``report`` what is in it."""

    file: Path
    named: str
    report: Mapping[str, Any]

    @property
    def entry_point(self) -> str:
        return f"{self.report['subject']}.{self.report['entry_point']}"


@dataclass(slots=True)
class Folder:
    """``outside`` are launches outside the contract; ``problems`` has a line for each thing that is left out."""

    path: Path
    summary: Summary
    coverage: Mapping[str, Any] | None = None
    audit: object = None
    failures: list[Found] = field(default_factory=list)
    outside: list[Found] = field(default_factory=list)
    suites: list[ET.Element] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read(path: Path) -> Folder:
    """Raises CaseError, one line that names file and reason, where there is no summary to begin with."""
    if not path.is_dir():
        raise CaseError(f"{printable(path)}: {'is no folder' if path.exists() else 'there is no such folder'}")
    file = path / "summary.json"
    try:
        found = Folder(path, of_document(parse_json(read_text(file))))
    except CaseError as error:
        raise CaseError(_once(file, error)) from None
    found.failures = list(_reports(found, found.summary.reports, _is_failure))
    found.outside = list(_reports(found, found.summary.outside_the_contract, _is_outside))
    for name, schema in (("coverage", coverage.SCHEMA), ("audit", None)):
        file = path / f"{name}.json"
        if file.exists():
            try:
                setattr(found, name, _object(file, schema))
            except CaseError as error:
                found.problems.append(_once(file, error))
    for file in sorted(path.glob("*.xml")):
        try:
            found.suites += suites(file, path.name)
        except CaseError as error:
            found.problems.append(_once(file, error))
    return found


def _reports(found: Folder, names: tuple[str, ...], check: Any) -> Iterator[Found]:
    """Those that can be read. Where a run has put them when it ran may be a folder of another machine."""
    for name in names:
        file = found.path / Path(name).name
        try:
            report = parse_json(read_text(file))
            check(report)
            assert isinstance(report, dict)
            yield Found(file, name, report)
        except CaseError as error:
            found.problems.append(_once(file, error))


def _is_failure(report: object) -> None:
    _has(report, range(1, failure.SCHEMA + 1), subject=str, entry_point=str, case=dict, verdict=dict)
    _has(report["verdict"], None, kind=str)  # type: ignore[index]


def _is_outside(report: object) -> None:
    _has(report, range(1, 2), subject=str, entry_point=str, case=dict, verdict=dict)
    _has(report["verdict"], None, kind=str)  # type: ignore[index]


def _has(report: object, schemas: range | None, **fields: type) -> None:
    """Raises CaseError unless ``report`` is an object of one of these schemas with these fields."""
    if not isinstance(report, dict):
        raise CaseError(f"expected an object, got {shown(report)}")
    if schemas is not None and report.get("schema") not in schemas:
        raise CaseError(f"schema: expected one up to {schemas[-1]}, got {shown(report.get('schema'))}")
    for name, kind in fields.items():
        if not isinstance(report.get(name), kind):
            raise CaseError(f"{name}: {'missing' if name not in report else f'is {shown(report[name])}'}")


def _object(file: Path, schema: int | None) -> Mapping[str, Any]:
    document = parse_json(read_text(file))
    _has(document, None if schema is None else range(1, schema + 1))
    assert isinstance(document, dict)
    return document


def _once(file: Path, error: CaseError) -> str:
    """The message with the file in front of it, which an error in reading it names already."""
    name = printable(file)
    return str(error) if str(error).startswith(f"{name}: ") else f"{name}: {error}"
