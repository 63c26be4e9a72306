"""``index.html``: a run as one page to look at, which needs nothing but itself.

``page`` draws it from data as it is in the files of a run: ``summary.json``, ``coverage.json`` and failure reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from markupsafe import Markup

from reference.fields import CaseError, printable, read_json
from reports import coverage
from reports.files import ReportError, write_text
from reports.page import charts
from reports.page.audit import Audited, audited
from reports.page.failures import Failure, Group, UnreadableError, grouped, read
from reports.page.rendering import content_hash, environment, own
from reports.summary import STILL_FAILS, of_causes

NAME = "index.html"
MOST_IN_FULL = 120
"""Failures that are shown with their picture, as long as there is room."""
ROOM = 1_800_000
"""Bytes that these may take together."""
MOST_ROWS = 2000
"""Failures that are shown as a row; the others are counted, and are in their files."""
MOST_GROUPS = 250
MOST_KNOWN = 250
"""Known failures that are shown."""


def page(
    summary: Mapping[str, Any],
    failures: Mapping[str, object],
    coverage: Mapping[str, Any] | None,
    unreadable: tuple[str, ...] = (),
    audit: Mapping[str, Any] | None = None,
) -> str:
    """The page as HTML.

    ``summary``, ``coverage`` and ``audit`` are the objects of ``summary.json``, ``coverage.json`` and ``audit.json``
    (None: not known), and ``failures`` holds the failure reports by the address of their file, relative to the page.
    What cannot be shown, and the messages of ``unreadable``, are listed on the page. Raises ReportError for a summary
    that is none.
    """
    shown: list[Failure] = []
    problems = list(unreadable)
    for file, report in failures.items():
        try:
            shown.append(read(file, report))
        except UnreadableError as error:
            problems.append(str(error))
    engine = environment()
    groups = grouped(shown)
    outside = summary.get("outside_the_contract", ())
    accepted = summary.get("known_failures", ())
    style, script = own(engine, "style.css"), own(engine, "script.js")
    try:
        in_full = _in_full(engine.get_template("failure.html"), groups)
        pictures, more = _coverage(coverage, problems)
        return engine.get_template(
            "page.html"
        ).render(
            summary=summary,
            groups=groups[:MOST_GROUPS],
            groups_left_out=groups[MOST_GROUPS:],
            counted=max(
                summary["failures"], len(shown) + len(outside)
            ),  # some may be in no file, or in one that cannot be read
            of_causes=of_causes(
                sum(group.cause is not None for group in groups),
                sum(len(group.failures) for group in groups if group.cause is None),
                len(outside),
            ),
            outside=[Path(str(name)).name for name in outside],
            accepted=accepted,
            runs=summary.get("runs", ()),
            shard=summary.get("shard", ""),
            still_fail=sum(each["status"] == STILL_FAILS for each in accepted),
            most_rows=MOST_KNOWN,
            in_full=in_full,
            rows_left=_rows(groups[:MOST_GROUPS], in_full),
            failures=shown,
            drawn=pictures,
            drawn_each=more,
            coverage=coverage or {},
            times=_times(summary, coverage),
            audit=_audit(audit, problems),
            problems=problems,
            style=style,
            script=script,
            style_hash=content_hash(style),
            script_hash=content_hash(script),
            levels=range(1, charts.LEVELS + 1),
        )
    except (TemplateError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(f"cannot draw {NAME}: {type(error).__name__}: {printable(str(error))}") from error


def write(text: str, folder: str | Path) -> Path:
    """Write the page into ``folder``, over the one of an earlier run. Raises ReportError."""
    return write_text(Path(folder) / NAME, text)


def draw(folder: str | Path) -> Path:
    """Draw the page of the run whose files lie in ``folder``, and write it there. Raises ReportError."""
    folder = Path(folder)
    summary = _object(folder / "summary.json")
    coverage = _object(folder / "coverage.json") if (folder / "coverage.json").exists() else None
    audit = _object(folder / "audit.json") if (folder / "audit.json").exists() else None
    failures, problems = {}, []
    for name in summary.get("reports", ()):
        file = Path(str(name)).name
        try:
            failures[file] = read_json(folder / file)
        except CaseError as error:
            problems.append(str(error))
    return write(page(summary, failures, coverage, tuple(problems), audit), folder)


def finish(drawn: coverage.Coverage, folder: str | Path) -> list[str]:
    """At the end of a run: write ``coverage.json`` and the page, and return the lines to print.

    Nothing that goes wrong here may cost the run what it has found: it is said in a line.
    """
    try:
        coverage.write(drawn, folder)
        return [f"page: {draw(folder)}"]
    except ReportError as error:
        return [str(error)]
    except Exception as error:
        return [f"cannot draw {NAME}: {type(error).__name__}: {printable(str(error))[:200]}"]


def _object(path: Path) -> Mapping[str, Any]:
    try:
        found = read_json(path)
    except CaseError as error:
        raise ReportError(f"cannot draw {NAME}: {error}") from None
    if not isinstance(found, Mapping) or found.get("schema") != 1:
        raise ReportError(f"cannot draw {NAME}: {printable(path)}: not an object of schema 1")
    return found


def _in_full(template: Any, groups: list[Group]) -> dict[str, Markup]:
    """The failures that are shown with everything, by file: the smallest of each group first, then the next ones."""
    found: dict[str, Markup] = {}
    used = turn = 0
    while any(turn < len(group.failures) for group in groups):
        for group in groups:
            if turn < len(group.failures):
                each = group.failures[turn]
                pictures, why = each.pictures()
                opened = turn == 0 and len(found) < 8
                text = template.render(failure=each, pictures=pictures, why=why, opened=opened)
                size = len(text.encode())
                if used + size > ROOM or len(found) == MOST_IN_FULL:
                    return found
                used += size
                found[each.file] = Markup(text)
        turn += 1
    return found


def _rows(groups: list[Group], in_full: Mapping[str, Markup]) -> dict[int, list[Failure]]:
    """What of each group is shown as rows, and no more than ``MOST_ROWS`` of all."""
    left = MOST_ROWS
    rows = {}
    for place, group in enumerate(groups):
        others = [each for each in group.failures if each.file not in in_full]
        rows[place] = others[:left]
        left -= len(rows[place])
    return rows


def _coverage(found: Mapping[str, Any] | None, problems: list[str]) -> tuple[charts.Drawn | None, list[charts.Drawn]]:
    """The pictures of all entry points together, and those of each where there are several."""
    if found is None:
        return None, []
    try:
        entries = {name: counts for name, counts in found["entry_points"].items() if counts["cases"]}
        if not entries:
            return None, []
        each = [charts.drawn(name, [counts]) for name, counts in entries.items()] if len(entries) > 1 else []
        return charts.drawn("all entry points", entries.values()), each
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problems.append(f"coverage.json: {type(error).__name__}: {error}")
        return None, []


def _audit(found: Mapping[str, Any] | None, problems: list[str]) -> Audited | None:
    if found is None:
        return None
    try:
        return audited(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problems.append(f"audit.json: {type(error).__name__}: {error}")
        return None


def _times(summary: Mapping[str, Any], found: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """A line for each entry point of the run: what the summary counts and, where coverage tells it, the seconds."""
    counted = found.get("entry_points", {}) if found else {}
    lines = []
    for name, tally in summary["entry_points"].items():
        seconds = counted.get(name, {}).get("seconds", {})
        lines.append({"name": name, **tally, "compile": seconds.get("compile"), "launch": seconds.get("launch")})
    return lines
