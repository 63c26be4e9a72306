"""Several report folders as one, as if one run had found it all: the files of the failures, the figures, the page.

The same failure, which several runs have found, is there once: the same subject, entry point, case, and cause or, where
that is not known, kind of verdict.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reference.fields import CaseError, printable
from reports import page
from reports.diagnosis import UNKNOWN, Diagnosis
from reports.failure import moved
from reports.files import ReportError, json_lines, read_text, remove, write_text
from reports.merging import counts, junit
from reports.merging.reading import Folder, Found, read
from reports.merging.summaries import missing_shards, together
from reports.summary import Summary, write

COMMANDS = ("replay", "replay_on_host", "again")
"""What a report holds that names its own file."""


@dataclass(slots=True)
class Merged:
    """``problems``: a line for each thing that was left out. ``notes`` are worth a line and no problem; ``summary`` and
    ``page`` are None where there was nothing to merge.
    """

    summary: Summary | None = None
    page: Path | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def merge(into: Path, paths: Iterable[Path]) -> Merged:
    """Merge the runs in the folders ``paths`` into the folder ``into``. Raises ReportError when that cannot be
    written.
    """
    done = Merged()
    folders = _folders(into, paths, done.problems)
    if not folders:
        return done
    failures = _distinct(each for folder in folders for each in folder.failures)
    outside = _distinct(each for folder in folders for each in folder.outside)
    found = [(str(folder.path), folder.summary) for folder in folders]
    summary = together(found, _counted(folders, [*failures, *outside]))
    taken: set[str] = set()
    done.summary = replace(
        summary,
        reports=tuple(str(_copied(each, into, taken, done.problems)) for each in failures),
        outside_the_contract=tuple(str(_copied(each, into, taken, done.problems)) for each in outside),
    )
    suites = [each for folder in folders for each in folder.suites]
    _write(into / junit.NAME, junit.text_of(suites) if suites else None)
    drawn = _coverage(folders, done.problems)
    _write(into / "coverage.json", json_lines(drawn) if drawn is not None else None)
    audits = [folder.audit for folder in folders if isinstance(folder.audit, Mapping)]
    _write(into / "audit.json", json_lines(audits[0]) if audits else None)
    write(done.summary, into)
    missing = missing_shards(done.summary.runs)
    if missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        done.notes.append(f"not among these runs: shard {shown}")
    done.page = page.draw(into)
    return done


def _folders(into: Path, paths: Iterable[Path], problems: list[str]) -> list[Folder]:
    """Those that can be read, each once."""
    folders, seen = [], {into.resolve()}
    for path in paths:
        if path.resolve() in seen:
            what = "it is the folder to merge into" if path.resolve() == into.resolve() else "it is named twice"
            problems.append(f"{printable(path)}: left out: {what}")
            continue
        seen.add(path.resolve())
        try:
            folder = read(path)
        except CaseError as error:
            problems.append(f"{error}")
            continue
        folders.append(folder)
        problems += folder.problems
    return folders


def _distinct(found: Iterable[Found]) -> list[Found]:
    """The first of each that is the same, in the order in which they were met."""
    first: dict[tuple[object, ...], Found] = {}
    for each in found:
        first.setdefault(_identity(each.report), each)
    return list(first.values())


def _identity(report: Mapping[str, Any]) -> tuple[object, ...]:
    told = report.get("diagnosis")
    told = told if isinstance(told, Mapping) else {}
    key = Diagnosis(str(told.get("cause", UNKNOWN)), "", str(told.get("buffer", ""))).key
    case = json.dumps(report["case"], sort_keys=True)
    return report["subject"], report["entry_point"], key or report["verdict"]["kind"], case


def _counted(folders: Sequence[Folder], distinct: Iterable[Found]) -> Counter[str]:
    """Failures of each entry point: those that are there, and those that a run has counted and that cannot be read."""
    found = Counter(each.entry_point for each in distinct)
    for folder in folders:
        there = Counter(each.entry_point for each in (*folder.failures, *folder.outside))
        for name, tally in folder.summary.entry_points.items():
            found[name] += max(tally.failures - there[name], 0)
    return found


def _copied(found: Found, into: Path, taken: set[str], problems: list[str]) -> Path:
    """Copy the files of a failure; the commands in them name the copy. Another failure may have the name already."""
    name, number = found.file.stem, 1
    while name in taken:
        number += 1
        name = f"{found.file.stem}-{number}"
    taken.add(name)
    target = into / f"{name}.json"
    report = {
        key: moved(value, found.named, target) if key in COMMANDS and isinstance(value, str) else value
        for key, value in found.report.items()
    }
    write_text(target, json_lines(report))
    for ending in (".md", ".py"):
        beside = found.file.with_suffix(ending)
        if beside.exists():
            try:
                text = read_text(beside)
            except CaseError as error:
                problems.append(f"{printable(beside)}: cannot be read: {error}")
            else:
                write_text(target.with_suffix(ending), moved(text, found.named, target))
    return target


def _write(path: Path, text: str | None) -> None:
    """None: these runs have no such file, and what an earlier merge has left there is not theirs."""
    if text is None:
        remove(path)
    else:
        write_text(path, text)


def _coverage(folders: Iterable[Folder], problems: list[str]) -> dict[str, Any] | None:
    """What all runs have drawn; one whose counts cannot be added to the others' is left out."""
    total: dict[str, Any] | None = None
    for folder in folders:
        if folder.coverage is None:
            continue
        try:
            total = counts.added([folder.coverage] if total is None else [total, folder.coverage])
        except CaseError as error:
            problems.append(f"{printable(folder.path / 'coverage.json')}: {error}")
    return total


__all__ = ["Merged", "ReportError", "merge"]
