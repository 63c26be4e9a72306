"""What is worth a remark in the rows: findings by rule, each once, however many settings and chips show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from conformance.audit.measure import Measures
from conformance.audit.rows import FRONT_END, OTHER_VERSION, Row
from conformance.lanes.ascend.compiler import REFUSED
from conformance.lanes.ascend.ir import Line
from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """``severity`` is error (it does not run, or not in serving), warning (it is slow, or wrong beyond a bound) or note
    (it is not known).
    """

    id: str
    name: str
    severity: str
    explanation: str
    remedy: str


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.id: rule
        for rule in (
            Rule(
                "ASC001",
                "ub-overflow",
                ERROR,
                "All buffers of a program must fit the on-chip buffer (UB) at once, with those of double buffering.",
                "A smaller tile, a smaller window, or fewer vectors that live at the same time.",
            ),
            Rule(
                "ASC002",
                "scalar-fallback",
                WARNING,
                "The operation has no vector form, so the scalar unit does it one element at a time.",
                "int32 instead of int64; x - x // n * n instead of %; one contiguous load and tl.gather instead of"
                " scattered loads.",
            ),
            Rule(
                "ASC003",
                "float32-integer-division",
                WARNING,
                "The chip divides integer vectors in float32: exact for dividends below 2^24 only.",
                "Promise positions below 2^24 (clause pos-f32), or correct the quotient:"
                " r = p - q*b; q += (r >= b) - (r < 0).",
            ),
            Rule(
                "ASC004",
                "unbounded-specialization",
                ERROR,
                "A value that changes with every batch is compiled in: each new one compiles again, seconds on an NPU.",
                "A run-time argument, listed in do_not_specialize.",
            ),
            Rule(
                "ASC005",
                "unsupported-operation",
                ERROR,
                "The compiler refuses the kernel.",
                "Its message names the operation; write it with one that the chip has.",
            ),
            Rule(
                "ASC006",
                "float32-integer-gather",
                WARNING,
                "Integers are converted to float32 for the gather: above 2^24 they lose their last bits.",
                "Gather their bits: x.to(tl.float32, bitcast=True), and back the same way.",
            ),
            Rule(
                "ASC007",
                "float32-integer-arithmetic",
                WARNING,
                "Integers are multiplied, added or compared in float32: a result above 2^24 is rounded.",
                "Convert back to an integer type first.",
            ),
            Rule(
                "ASC008",
                "not-measured",
                NOTE,
                "The compiled program is of a kind that the audit cannot count in: it compiles, no more is known.",
                "None in the kernel.",
            ),
            Rule(
                "ASC009",
                "not-compiled",
                ERROR,
                "Nothing is known: no compiler, a chip it does not know, or it died or took too long.",
                "The message says what is missing.",
            ),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark about an entry point. ``cause`` is one word that tells it from others of its rule; ``targets`` and
    ``settings`` are where it was seen, ``rows`` how often.
    """

    rule: Rule
    entry: str
    function: str
    cause: str
    line: Line | None
    message: str
    targets: tuple[str, ...]
    settings: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "rule": self.rule.id,
            "name": self.rule.name,
            "severity": self.rule.severity,
            "entry_point": self.entry,
            "function": self.function,
            "cause": self.cause,
            "file": self.line.file if self.line else None,
            "line": self.line.line if self.line else None,
            "message": self.message,
            "targets": list(self.targets),
            "settings": list(self.settings),
        }


@dataclass(frozen=True, slots=True)
class _Remark:
    """About one row. ``limit``: of several settings, the one with the smallest tells most."""

    rule: str
    cause: str
    line: Line | None
    message: str
    limit: int = 0


def findings(rows: Iterable[Row]) -> list[Finding]:
    """By rule, then in the order of the rows. Rows that differ only in setting or chip give one finding, with the
    message of the one that is right the least far.
    """
    found: dict[tuple[object, ...], list[tuple[_Remark, Row]]] = {}
    for row in rows:
        for remark in dict.fromkeys(_remarks(row)):
            key = (remark.rule, row.entry.id, row.function, remark.cause, remark.line)
            found.setdefault(key, []).append((remark, row))
    made = [_finding(min(seen, key=lambda pair: pair[0].limit)[0], [row for _, row in seen]) for seen in found.values()]
    return sorted(made, key=lambda finding: finding.rule.id)


def _finding(remark: _Remark, seen: list[Row]) -> Finding:
    return Finding(
        RULES[remark.rule],
        seen[0].entry.id,
        seen[0].function,
        remark.cause,
        remark.line,
        remark.message,
        tuple(dict.fromkeys(row.target for row in seen)),
        tuple(dict.fromkeys(row.setting for row in seen)),
    )


def _remarks(row: Row) -> Iterator[_Remark]:
    whole = Line(row.entry.file, row.entry.line) if row.entry.file else None
    for name in row.every_step:
        yield _Remark("ASC004", name, whole, f"{name} is compiled in: one compilation for each value in serving")
    if not row.compiled:
        told = f"{row.status}: {row.message}"
        if row.status == REFUSED and "overflow" in row.message:
            yield _Remark("ASC001", "overflow", row.line or whole, row.message)
        elif row.status in (REFUSED, FRONT_END):
            yield _Remark("ASC005", "refused", row.line or whole, told)
        else:
            yield _Remark("ASC009", row.status.replace(" ", "-"), whole, told)
    elif row.measures is None:
        cause = "other-version" if row.not_measured.startswith(OTHER_VERSION) else "other-program"
        yield _Remark("ASC008", cause, whole, f"compiled, not measured: {row.not_measured}")
    else:
        yield from _slow(row.measures)
        yield from _rounded(row, row.measures)


def _slow(measures: Measures) -> Iterator[_Remark]:
    for loop in measures.scalar_loops:
        times = f"{loop.trips} times" if loop.trips is not None else "for each element"
        what = loop.operation.replace("+", ", ")
        # Of several settings, the one with most.
        yield _Remark(
            "ASC002", loop.operation, loop.line, f"{what}: by the scalar unit, {times} a tile", -(loop.trips or 0)
        )


def _rounded(row: Row, measures: Measures) -> Iterator[_Remark]:
    for use in measures.float32:
        if use.kind == "division":
            limit = row.bounds.position if row.bounds else INT32_MAX
            told = f"right for positions up to {limit:,} ({row.setting})"
            yield _Remark("ASC003", "division", use.line, told, limit)
        elif use.kind == "gather":
            limit = row.bounds.block if row.bounds else INT32_MAX
            told = f"right for block numbers up to {limit:,} ({row.setting})"
            yield _Remark("ASC006", "gather", use.line, told, limit)
        else:
            told = f"{use.operation}: integers above {FLOAT32_EXACT:,} are rounded"
            yield _Remark("ASC007", use.kind, use.line, told)
