"""``python -m conformance.rounding``: which kernels depend on how the chip rounds a float32 division.

The same drawn cases of every entry point run on lane ``hivm`` with each quotient correctly rounded, and on the float32
number below and above it (``--vdiv``). Prints how many get wrong slots, as the table of docs/ascend-audit.md. Cases
that fail otherwise where quotients are correctly rounded (refused, ended, memory touched that is not the launch's) are
counted apart, each cause of them is said, and they run again so that it does no harm: with poison that can be read
around that memory, or with rows wide enough for every token. Their slots count where that leaves any. Those that the
lane does not take are left out.
Exit status 0: none is wrong and none fails where quotients are correctly rounded; 1: some are or do; 2: of some entry
point no case has slots to judge.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from conformance.agreement import Progress, _positive
from conformance.both_lanes import LaneError, Who, draw
from conformance.engine import Engine
from conformance.execution.session import SubjectError
from conformance.explained import relaxed
from conformance.lanes.hivm import VDIV, HivmLane
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.under_test import Drawn, UnderTest
from conformance.verdicts import Finding
from reference import verdict as v
from reference.contract import violations
from reports.diagnosis import UNKNOWN

HEADER = ("entry point", "cases", *VDIV, "failed")
_JUDGED = (v.PASS, v.MISMATCH)


@dataclass(frozen=True, slots=True)
class Row:
    """How many of the ``cases`` of an entry point are wrong, by rounding. ``failed``: how many did not get as far as
    slots as they were drawn, by their verdict, ``causes`` the same in words; ``judged`` of them did once it did no
    harm, and are among ``cases``.
    """

    entry: str
    cases: int
    wrong: tuple[int, ...]
    failed: Mapping[str, int]
    causes: Sequence[str] = ()
    judged: int = 0

    def __str__(self) -> str:
        cells = (f"**{each:,}**" if each else "0" for each in self.wrong)
        failed = ", ".join(f"**{count:,}** {kind}" for kind, count in sorted(self.failed.items())) or "0"
        return f"| `{self.entry}` | {self.cases:,} | {' | '.join(cells)} | {failed} |"


def harmless_of(engine: Engine, entry: EntryPoint, drawn: Drawn, finding: Finding) -> tuple[Drawn, Finding] | None:
    """The case that did ``finding``, launched so that this does no harm, and what comes of it. None: no slots come."""
    case, launch, settings = drawn
    while finding.verdict.kind not in _JUDGED:
        harmless = relaxed(finding, case, launch)
        if harmless is None or harmless == (case, launch):
            return None
        case, launch = harmless
        finding = engine.run(entry, case, launch, settings)
    return (case, launch, settings), finding


@dataclass(slots=True)
class _Failed:
    """Cases that failed otherwise, by verdict and cause; ``said`` is the diagnosis of the first of each."""

    count: Counter[tuple[str, str]] = field(default_factory=Counter)
    said: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        found = finding.diagnosis
        key = finding.verdict.kind, found.key or UNKNOWN
        self.count[key] += 1
        self.said.setdefault(key, found.summary)

    def kinds(self) -> Counter[str]:
        kinds = Counter[str]()
        for (kind, _), count in self.count.items():
            kinds[kind] += count
        return kinds

    def causes(self) -> tuple[str, ...]:
        return tuple(
            f"{count:,} {kind}, {cause}: {self.said[kind, cause]}" for (kind, cause), count in self.count.items()
        )


def row(engines: Sequence[Engine], entry: EntryPoint, cases: int, seed: int, progress: Progress) -> Row:
    """``cases`` drawn of ``entry``, launched by every engine; the first divides exactly and says what is left out."""
    for engine in engines:
        engine.compile(entry, lambda done, total: None)
    counted, judged, wrong, failed = 0, 0, [0] * len(engines), _Failed()
    for drawn in draw(UnderTest(engines[0], entry), cases, seed):
        progress.add(1, entry.id)
        if violations(drawn[0], engines[0].lane.clauses):
            continue
        first = engines[0].run(entry, *drawn)
        if first.verdict.kind == v.UNSUPPORTED:
            continue
        harmless = drawn
        if first.verdict.kind not in _JUDGED:
            failed.add(first)
            found = harmless_of(engines[0], entry, drawn, first)
            if found is None:
                continue
            harmless, first = found
            judged += 1
        counted += 1
        kinds = [first.verdict.kind, *(engine.run(entry, *harmless).verdict.kind for engine in engines[1:])]
        wrong = [before + (kind != v.PASS) for before, kind in zip(wrong, kinds, strict=True)]
    return Row(entry.id, counted, tuple(wrong), failed.kinds(), failed.causes(), judged)


def status(rows: Sequence[Row]) -> int:
    """1 where quotients are correctly rounded and something is wrong nevertheless, 2 where nobody can tell."""
    if any(row.wrong[0] or row.failed for row in rows):
        return 1
    return 0 if rows and all(row.cases for row in rows) else 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.rounding", description=__doc__)
    parser.add_argument("--cases", type=_positive, default=300, help="of each entry point (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default 0)")
    parser.add_argument("--subject", default="kernels", help="whose kernels (default kernels)")
    parser.add_argument("--source", metavar="PATH", help="a checkout or an unpacked wheel to read them from")
    parser.add_argument("--entry-point", action="append", metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--compile-budget", type=_positive, default=12, metavar="N", help="as of pytest (default 12)")
    options = parser.parse_args(arguments)
    who = Who(options.subject, options.source and os.path.abspath(options.source))
    try:
        return _run(who, options)
    except (LaneError, SubjectError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _run(who: Who, options: argparse.Namespace) -> int:
    reason = HivmLane().unavailable()
    if reason is not None:
        raise LaneError(f"lane hivm: {reason}")
    started, rows = time.monotonic(), []
    with ExitStack() as stack:
        engines = [
            who.engine(HivmLane(each), options.compile_budget, workers=len(os.sched_getaffinity(0))) for each in VDIV
        ]
        for engine in engines:
            stack.callback(engine.close)
        entries = [
            entry
            for entry in engines[0].entries()
            if entry.status == TESTABLE and entry.name in (options.entry_point or [entry.name])
        ]
        if not entries:
            raise LaneError(f"subject {who.subject} has no such entry point that can be tested")
        progress = Progress(len(entries) * options.cases)
        print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
        for entry in entries:
            rows.append(row(engines, entry, options.cases, options.seed, progress))
            print(rows[-1], flush=True)
    for each in rows:
        for cause in each.causes:
            print(f"{each.entry}: {cause}", file=sys.stderr)
        if each.causes:
            of = f"{each.judged:,} of these {sum(each.failed.values()):,}"
            print(f"{each.entry}: slots of {of} were judged all the same", file=sys.stderr)
        if not each.cases:
            print(f"{each.entry}: none of {options.cases:,} cases has slots to judge", file=sys.stderr)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return status(rows)


if __name__ == "__main__":
    sys.exit(main())
