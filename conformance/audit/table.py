"""The rows for a reader: lines for a terminal, a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conformance.audit.accepted import Acceptance
from conformance.audit.rows import Row
from conformance.audit.rules import RULES, Finding
from reference.fields import printable
from reports import markdown as md

HEADER = (
    "entry point",
    "settings",
    "chip",
    "compiles",
    "UB",
    "vector operations",
    "a tile",
    "scalar loops",
    "float32",
    "moved a tile",
    "position up to",
    "block up to",
    "seconds",
)
_UNKNOWN = "not measured"


def cells(row: Row) -> tuple[str, ...]:
    """One row under ``HEADER``."""
    m = row.measures
    ub = f"{row.ub[0] / row.ub[1]:.0%} of {row.ub[1] // 1024} KiB" if row.ub is not None else _UNKNOWN
    if not row.compiled:
        figures: tuple[str, ...] = ("-",) * 8
    elif m is None:
        figures = (ub, *(_UNKNOWN,) * 7)
    else:
        kinds = [use.kind for use in m.float32]
        assert row.bounds is not None
        figures = (
            ub,
            str(m.vector.total()),
            str(m.vector_per_tile),
            str(len(m.scalar_loops)),
            ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "0",
            f"{(m.read_per_tile + m.written_per_tile) / 1024:.1f} KiB",
            f"{row.bounds.position:,}",
            f"{row.bounds.block:,}",
        )
    seconds = f"{row.front_end_seconds + row.compile_seconds:.1f}"
    return (row.entry.id, row.setting, row.target, "yes" if row.compiled else row.status, *figures, seconds)


def terminal(rows: Iterable[Row], most: int = 46) -> str:
    """Columns as wide as their cells; settings, and what a compiler said, are cut to ``most`` characters."""
    lines = [HEADER, *(tuple(_clipped(printable(cell), most) for cell in cells(row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def finding_lines(found: Sequence[tuple[Finding, Acceptance | None]]) -> list[str]:
    """Every finding that nobody has accepted, in two lines; the others are counted."""
    lines = []
    for finding, acceptance in found:
        if acceptance is None:
            where = f"{finding.line}: " if finding.line else ""
            chips = ", ".join(finding.targets)
            head = f"{finding.rule.id} {finding.rule.name} ({finding.rule.severity}) {finding.entry}"
            lines.append(f"{head} [{finding.cause}]: {where}{printable(finding.message)}")
            lines.append(f"    {len(finding.settings)} settings on {chips}; {finding.rule.remedy}")
    accepted = sum(acceptance is not None for _, acceptance in found)
    lines.append(f"{len(found)} findings, {accepted} of them accepted")
    return lines


def markdown(
    rows: Sequence[Row],
    found: Sequence[tuple[Finding, Acceptance | None]],
    compiler: str,
    left_out: Sequence[tuple[str, str]],
) -> str:
    """A page with everything the terminal shows, uncut."""
    parts = [
        "# Ascend compile audit",
        f"Compiled by {md.code(compiler)}. Nothing here was run.",
        md.table(HEADER, ([md.code(cell) for cell in cells(row)] for row in rows)),
    ]
    refused = [row for row in rows if not row.compiled]
    if refused:
        parts += ["## What did not compile", "\n".join(f"- {_refusal(row)}" for row in refused)]
    parts += ["## Findings", _findings_table(found) if found else "None."]
    if left_out:
        lines = [f"- {md.code(name)}: {md.prose(reason)}" for name, reason in left_out]
        parts += ["## Not audited", "\n".join(lines)]
    parts += [
        "## Rules",
        "\n".join(f"- {rule.id} {rule.name}: {rule.explanation} {rule.remedy}" for rule in RULES.values()),
    ]
    return "\n\n".join(parts) + "\n"


def _refusal(row: Row) -> str:
    where = f"{row.line}: " if row.line else ""
    return f"{md.code(row.entry.id)} {md.code(row.setting)} {md.code(row.target)}: {md.code(where + row.message)}"


def _findings_table(found: Sequence[tuple[Finding, Acceptance | None]]) -> str:
    header = ("rule", "severity", "entry point", "line", "what", "chips", "accepted because")
    return md.table(
        header,
        (
            (
                f"{finding.rule.id} {finding.rule.name}",
                finding.rule.severity,
                md.code(finding.entry),
                md.code(str(finding.line)) if finding.line else "-",
                md.prose(finding.message),
                ", ".join(map(md.code, finding.targets)),
                md.prose(acceptance.reason) if acceptance else "**not accepted**",
            )
            for finding, acceptance in found
        ),
    )


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
