"""``python -m tests.faults``: which faults the suite finds, by which test, after how many examples."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.comparing import compared, side_by_side
from tests.faults.killing import CONFORMANCE, INVALID, PUBLISHED, RANDOM
from tests.faults.matrix import RESULTS, Bar, Fault, faults, missing, run, searches
from tests.faults.results import Results
from tests.faults.table import document, lines, write
from tests.faults.tables import tables

CORES = os.cpu_count() or 1
REPORT = Path("reports/output/faults.json")


def main(arguments: list[str] | None = None) -> int:
    """0: every fault that is none of the equivalents is killed with every seed, and no equivalent is."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="faults whose name or entry point this expression matches")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 .. N-1 (default 5)")
    parser.add_argument("--workers", type=int, default=CORES, metavar="N", help="at once (default: all cores)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="what is known, appended to")
    parser.add_argument("--report", type=Path, default=REPORT, metavar="FILE", help=f"default {REPORT}")
    parser.add_argument("--compare", action="store_true", help="also what published tests and naive random cases kill")
    parser.add_argument(
        "--tables",
        action="store_true",
        help="look for nothing; print the report's figures as docs/detection.md has them",
    )
    options = parser.parse_args(arguments)
    if options.tables:
        return _tables(parser, options.report)
    if options.seeds < 1 or options.workers < 1:
        parser.error("--seeds and --workers must be at least 1")
    try:
        wanted = re.compile(options.only or "")
    except re.error as error:
        parser.error(f"--only {options.only}: {error}")
    chosen = [fault for fault in faults() if wanted.search(fault.name) or wanted.search(fault.entry_point)]
    if not chosen:
        parser.error(f"--only {options.only}: no fault's name or entry point matches")
    seeds, known = range(options.seeds), Results.read(options.results)
    for line in expected(chosen, seeds, known, workers=options.workers, compare=options.compare):
        print(line, flush=True)
    try:
        found = run(chosen, seeds, known, workers=options.workers, tell=Bar())
        report = document(chosen, found, seeds)
        if options.compare:
            real = [fault for fault in chosen if not fault.equivalent and found[fault.name][0]["status"] != INVALID]
            others = {
                suite: run(real, part, known, workers=options.workers, suite=suite, tell=Bar())
                for suite, part in ((PUBLISHED, range(1)), (RANDOM, seeds))
            }
            report["compared"] = compared(report["faults"], real, others)
    except KeyboardInterrupt:
        print(f"\ninterrupted; what is known is in {options.results}, the same command goes on", file=sys.stderr)
        return 130
    write(report, options.report)
    print()
    for line in lines(report):
        print(line)
    if options.compare:
        print()
        for line in side_by_side(report["compared"]):
            print(line)
    return 0 if report["summary"]["as_it_should_be"] else 1


def expected(
    chosen: Sequence[Fault], seeds: Sequence[int], known: Results, *, workers: int, compare: bool
) -> Iterator[str]:
    """What is to be done, and how long it is likely to take."""
    real = [fault for fault in chosen if not fault.equivalent]
    parts: list[tuple[str, Sequence[Fault], Sequence[int]]] = [(CONFORMANCE, chosen, seeds)]
    parts += [(PUBLISHED, real, range(1)), (RANDOM, real, seeds)] if compare else []
    minutes = 0.0
    for suite, faults_of, seeds_of in parts:
        wanted = searches(faults_of, seeds_of, suite, known)
        left = missing(wanted, known)
        takes = sum(each.seconds for each in left) / workers / 60
        minutes += takes
        yield f"{suite}: {len(wanted)} searches, {len(wanted) - len(left)} of them known, about {takes:.0f} min"
    if compare:
        yield f"about {minutes:.0f} min in all, as long as earlier searches took"


def _tables(parser: argparse.ArgumentParser, file: Path) -> int:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"--tables {file}: {error}")
    for line in tables(report):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
