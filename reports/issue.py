"""A failure as a page to paste into an issue tracker: what is wrong first, then what shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reference.oracle import Trace
from reference.verdict import UNWRITTEN, Difference, Verdict, shown_element
from reports.diagnosis import UNKNOWN
from reports.markdown import block, code, prose, table
from reports.reproduction import WITHOUT_GATHER

if TYPE_CHECKING:
    from reports.failure import FailureReport

# Together below the 65,536 characters that GitHub takes for an issue.
MOST_GUARDS = 8
LONGEST_SCRIPT = 24_000
LONGEST_CASE = 16_000
LONGEST_LAUNCH = 4_000
LONGEST_DETAIL = 4_000
UNVERSIONED = "source tree"
"""What a subject gives for the version of a tree that has none."""
ON_HOST = "A device does not say which buffer was left. Any machine with the suite's own environment does, without one"
_LETTERS = (
    "`p` is the position, `b` the tokens of a kernel block, `B` those of an allocated one, `k = B/b`, `W` the number "
    "of ranks, `R` this one, `I` how many consecutive tokens stay on a rank"
)


def page(report: FailureReport, file: str | Path) -> str:
    """The page; ``file`` is where the JSON lies. Names and messages in it can hold anything."""
    traces = report.traces()
    verdict = report.verdict
    is_known = report.diagnosis.cause not in (UNKNOWN, verdict.kind)
    cause = f", {code(report.diagnosis.cause)}" if is_known else ""
    parts = [f"# {verdict.kind}{cause}: {code(report.subject)} {code(report.entry_point)}"]
    if report.call is not None:
        parts.append(code(f"{report.call.file}:{report.call.line} {report.call.function}"))
    if report.diagnosis.summary:
        summary = report.diagnosis.summary
        parts.append(prose(summary[0].upper() + summary[1:]))
    parts.append(_who(report))
    parts += _property(report)
    parts += [f"- {code(guard.message)}" for guard in verdict.guards[:MOST_GUARDS]]
    if verdict.differences:
        parts.append(_differences(verdict, traces))
    if traces:
        parts += _steps(traces[0])
    if verdict.detail:
        parts += ["What it said:", block(verdict.detail, limit=LONGEST_DETAIL)]
    parts += _script(report, file)
    parts += ["Run it again:", block(report.replay_command(file), "sh", limit=LONGEST_LAUNCH)]
    if on_host := report.host_command(file):
        parts += [f"{ON_HOST}:", block(on_host, "sh", limit=LONGEST_LAUNCH)]
    parts += ["The case and its launch:", block(json.dumps(report.case.to_json()), "json", limit=LONGEST_CASE)]
    parts.append(block(json.dumps(report.launch.to_json()), "json", limit=LONGEST_LAUNCH))
    parts.append(", ".join(f"{code(name)} {code(version)}" for name, version in report.environment.items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _who(report: FailureReport) -> str:
    has_version = report.version not in ("", UNVERSIONED)
    versions = [code(each) for each in (report.version if has_version else "", report.commit) if each]
    who = " ".join([code(report.subject), *versions])
    who += "" if has_version else " (a source tree without a version)"
    where = f" read from {code(report.source)}" if report.source else ""
    found = f"Example {report.examples}" if report.examples is not None else "A saved case"
    seed = f", seed {report.seed}" if report.seed is not None else ""
    return (
        f"{who}{where}, entry point {code(report.entry_point)}, lane {code(report.lane)}: "
        f"{code(report.verdict.summary())}. {found} of {code(report.test)}{seed}."
    )


def _property(report: FailureReport) -> list[str]:
    """What the launches of a property show, none of which an oracle was asked about."""
    found = report.broken_property
    if found is None:
        return []
    launches = [f"{number}. {prose(each.what)}" for number, each in enumerate(found.launches, 1)]
    return [
        f"Property {code(found.name)} does not hold: {prose(found.statement)}.",
        f"{prose(found.message[0].upper() + found.message[1:])}.",
        "Its launches, which the report has as JSON; the case below is the first of them that is wrong:",
        "\n".join(launches),
    ]


def _steps(first: Trace) -> list[str]:
    """How an element should come about, and what the letters in it mean."""
    element = f"element {first.token} of group {first.group}"
    if not first.steps:
        return [f"What {element} should be: {code(first.reason)}."]
    row = f" of row {first.row}" if first.row is not None else ""
    return [
        f"How {element} should come about ({code(first.reason)}):",
        "\n".join(f"{number}. {code(step)}" for number, step in enumerate(first.steps, 1)),
        f"{_LETTERS}, {code('bt[i]')} cell i{row}.",
    ]


def _script(report: FailureReport, file: str | Path) -> list[str]:
    """The reproduction script, folded away, or why there is none here."""
    made = report.reproduction()
    if made.script is None:
        return [prose(made.note)]
    name = code(Path(file).with_suffix(".py").name)
    said = f"The script {name} shows it without this suite: exit status 1 where it fails, 0 where it does not."
    if report.call is not None and report.call.launches:
        said += f" With {code('TRITON_INTERPRET=1')} it needs {WITHOUT_GATHER}."
    if made.note:
        said += f" {prose(made.note)}"
    if len(made.script) > LONGEST_SCRIPT:
        return [f"{said} It is too long for this page and lies beside it."]
    shown = block(made.script.rstrip("\n"), "python", limit=LONGEST_SCRIPT)
    return [said, f"<details><summary>The script</summary>\n\n{shown}\n\n</details>"]


_STEPS = ("virtual_block", "virtual_offset", "owner", "local_offset")


def _differences(verdict: Verdict, traces: Sequence[Trace]) -> str:
    """A table: one row a differing element, with the steps that lead to what was expected."""
    known = {(each.group, each.token): each for each in traces}
    sharded = any(each.owner is not None for each in traces)
    columns = ("request", "position", "row", *(_STEPS if sharded else ()), "block_index", "block_number", "offset")
    header = ("group", "element", "expected", "got", *(name.replace("_", " ") for name in columns), "why")
    rows = []
    for each in verdict.differences:
        found = known.get((each.group, each.index))
        steps = [_cell(getattr(found, name)) if found else "" for name in columns]
        values = (str(each.group), str(each.index), shown_element(each.expected), shown_element(each.actual))
        rows.append((*values, *steps, _why(each, found)))
    shown = table(header, rows)
    more = verdict.total_differences - len(verdict.differences)
    return f"{shown}\n\n{more} more differ." if more else shown


def _why(difference: Difference, found: Trace | None) -> str:
    if difference.expected == UNWRITTEN:
        return "not to be written"
    return found.reason if found else ""


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)
