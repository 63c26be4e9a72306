"""``python -m conformance.audit``: what Ascend's compiler makes of every kernel, without an NPU.

Exit status 1 when there is a finding that nobody has accepted, 2 when nothing could be audited as asked.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance import subjects
from conformance.audit import accepted, table
from conformance.audit.report import Audit
from conformance.audit.rows import NO_COMPILER, NOT_LAUNCHED, Row
from conformance.lanes.ascend import compiler
from conformance.lanes.lowered import LoweredLane
from conformance.subjects.binding import BindingError, check
from conformance.subjects.entry import TESTABLE, EntryPoint, LoadedEntry
from reference.fields import printable
from reports import page
from reports.files import ReportError

TARGETS = ("Ascend910B3", "Ascend910_9392", "Ascend950PR_9579")
"""One 910B, one A3 and one 950."""

ROOT = Path(__file__).parents[2]


class UsageError(Exception):
    """Options that make no sense together. The message, one line, names the option."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m conformance.audit", description=__doc__)
    add = options.add_argument
    add("--subject", action="append", choices=subjects.NAMES, help="whose kernels (default kernels); repeatable")
    add(
        "--source",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="a checkout or an unpacked wheel; repeatable",
    )
    add("--target", nargs="+", default=list(TARGETS), metavar="CHIP", help=f"default {' '.join(TARGETS)}")
    add("--entry-point", action="append", default=[], metavar="NAME", help="only this one (v1, ...); repeatable")
    add(
        "--specializations",
        type=int,
        default=8,
        metavar="N",
        help="settings of the pool that each kernel is compiled in, at most (default 8)",
    )
    add(
        "--production",
        action="store_true",
        help="instead of the pool, what serving uses: tile 1024, block 128; one rank, a ring, two ranks",
    )
    add(
        "--accepted",
        type=Path,
        default=accepted.DEFAULT,
        metavar="FILE",
        help="findings that are accepted, one a line with its reason (default conformance/audit/accepted.txt)",
    )
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds for one compilation (default 60)")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="compilations at once (default: the cores)")
    add("--report-dir", type=Path, default=Path("reports/output"), metavar="DIR", help="default reports/output")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        acceptances = accepted.read(options.accepted)
        if min(options.specializations, options.jobs) < 1 or options.timeout <= 0:
            raise UsageError("--specializations and --jobs are at least 1, --timeout is more than 0")
        loaded = _loaded(options)
    except (UsageError, accepted.AcceptedError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    started = time.perf_counter()
    rows, version, left_out = _audited(loaded, options)
    if not rows:
        print(f"nothing to audit: {'; '.join(f'{name}: {reason}' for name, reason in left_out)}", file=sys.stderr)
        return 2
    seconds = time.perf_counter() - started
    found = Audit(tuple(rows), version, tuple(options.target), seconds, tuple(left_out), tuple(acceptances))
    print(table.terminal(rows))
    print("\n".join(["", *table.finding_lines(found.findings)]))
    for name, reason in left_out:
        print(f"not audited: {name}: {printable(reason)}")
    if not options.entry_point:
        for each in found.unused:
            print(f"{each.where}: nothing that was found here needs it")
    try:
        for path in found.write(options.report_dir, ROOT):
            print(f"written: {path}")
        if (options.report_dir / "summary.json").exists():
            print(f"page: {page.draw(options.report_dir)}")
    except ReportError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{version}: {len(rows)} rows, {len(found.open)} findings not accepted, {seconds:.1f} s")
    return 1 if found.open else 0


def _loaded(options: argparse.Namespace) -> list[LoadedEntry]:
    """The entry points of the subjects asked for. Raises UsageError and FileNotFoundError."""
    names = options.subject or ["kernels"]
    sources = _sources(options.source, names)
    found = [entry for name in names for entry in _of_subject(name, sources.get(name))]
    known = {entry.description.name for entry in found}
    if unknown := set(options.entry_point) - known:
        raise UsageError(f"--entry-point {', '.join(sorted(unknown))}: there are {', '.join(sorted(known))}")
    return [entry for entry in found if not options.entry_point or entry.description.name in options.entry_point]


def _of_subject(name: str, source: str | None) -> list[LoadedEntry]:
    try:
        return subjects.load(name, source, LoweredLane())
    except FileNotFoundError:
        raise
    except Exception as error:  # somebody else's code, imported
        raise UsageError(f"{name} cannot be loaded: {type(error).__name__}: {printable(str(error))}") from error


def _sources(given: Sequence[str], names: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for item in given:
        name, equals, path = item.partition("=")
        if not equals:
            if len(names) != 1:
                raise UsageError(f"--source {item}: with several subjects write --source NAME=PATH")
            name, path = names[0], item
        if name not in names:
            raise UsageError(f"--source {item}: {name!r} is not a subject of this audit ({', '.join(names)})")
        found[name] = path
    return found


def _audited(
    loaded: Sequence[LoadedEntry], options: argparse.Namespace
) -> tuple[list[Row], str, list[tuple[str, str]]]:
    """Rows, the compiler's name and version, and what has no row and why."""
    left_out = [(entry.description.id, reason) for entry in loaded if (reason := _not_for_an_audit(entry.description))]
    entries = [entry for entry in loaded if not _not_for_an_audit(entry.description)]
    missing = LoweredLane().unavailable()
    if missing is None:
        try:
            program = compiler.find(options.timeout)
            version, _ = f"bishengir-compile {program.version}", program.targets
            return _compiled(entries, program, options), version, left_out
        except compiler.Unavailable as error:
            missing = str(error)
    rows = [_without(entry.description, options.target, NO_COMPILER, missing) for entry in entries]
    return [row for each in rows for row in each], "no compiler", left_out


def _not_for_an_audit(entry: EntryPoint) -> str | None:
    """Why an entry point has no row, or None."""
    if entry.status != TESTABLE:
        return entry.status
    try:
        check(entry)
    except BindingError as error:
        return str(error)
    if entry.constants or entry.family in LAUNCHING_HOSTS:
        return None
    return "launches kernels that are entry points of their own, or none"


LAUNCHING_HOSTS = ("fused", "replay")
"""Families of host functions whose kernels are audited as they are launched."""


def _compiled(entries: Sequence[LoadedEntry], program: compiler.Compiler, options: argparse.Namespace) -> list[Row]:
    # Both need triton-ascend.
    from conformance.audit.launches import NotLaunchable, builds, pooled, production
    from conformance.audit.workers import audit

    planned = []
    rows: list[Row] = []
    for entry in entries:
        chosen = (
            production(entry.description) if options.production else pooled(entry.description, options.specializations)
        )
        try:
            planned += builds(entry, chosen)
        except NotLaunchable as error:
            rows += _without(entry.description, options.target, NOT_LAUNCHED, str(error))
    return rows + audit(planned, options.target, program, options.jobs, _progress)


def _without(entry: EntryPoint, targets: Sequence[str], status: str, message: str) -> list[Row]:
    return [Row(entry, entry.function, {}, target, status, message) for target in targets]


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rcompiled {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
