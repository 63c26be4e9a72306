"""``python -m conformance.subjects --source PATH``: which entry points a checkout, a wheel or an installed package
has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conformance import lanes
from conformance.execution.session import Session, SubjectError
from conformance.subjects import NAMES
from conformance.subjects.binding import BindingError, check
from conformance.subjects.entry import TESTABLE, EntryPoint
from reference.fields import printable


def _row(entry: EntryPoint) -> tuple[str, ...]:
    status = TESTABLE if _status(entry) == TESTABLE else "see below"  # reasons are too long for a column
    return entry.name, status, _where(entry), entry.function, ", ".join(entry.parameters) or "-"


def _where(entry: EntryPoint) -> str:
    """The path inside the package, and the line: several files of one package have the same name."""
    if entry.package is None:
        return "-"
    return f"{Path(entry.file).relative_to(entry.package).as_posix()}:{entry.line}"


def _status(entry: EntryPoint) -> str:
    """Its own, unless its parameters cannot be bound."""
    try:
        if entry.status == TESTABLE:
            check(entry)
    except BindingError as error:
        return str(error)
    return entry.status


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.subjects", description=__doc__)
    parser.add_argument("--subject", choices=NAMES, help="default: the package that PATH holds, else vllm-ascend")
    parser.add_argument("--source", type=Path, help="a checkout or an unpacked wheel instead of the installed package")
    options = parser.parse_args(arguments)
    subject = options.subject or _guess(options.source)
    source = None if options.source is None else str(options.source)
    try:
        with (
            tempfile.TemporaryDirectory() as cache,
            Session(lanes.automatic(), subject, source, cache=Path(cache)) as found,
        ):
            entries = list(found.entries.values())
    except (SubjectError, lanes.LaneUnavailable) as error:
        print(error, file=sys.stderr)
        return 2
    rows = [("entry point", "status", "where", "function", "parameters"), *map(_row, entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    print(f"{subject} {entries[0].version if entries else ''}")
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip())
    reasons = {entry.name: _status(entry) for entry in entries if _status(entry) != TESTABLE}
    if reasons:
        print("\n" + "\n".join(f"{name}: {printable(reason)}" for name, reason in reasons.items()))
    return 0


def _guess(source: Path | None) -> str:
    """The subject whose package a folder is or holds. The folder itself first: vLLM's package has one named kernels."""
    packages = {subject.replace("-", "_"): subject for subject in NAMES}
    if source is not None:
        folder = source.resolve()
        if folder.name in packages and (folder / "__init__.py").is_file():
            return packages[folder.name]
        for package, subject in packages.items():
            if (folder / package).is_dir():
                return subject
    return "vllm-ascend"


if __name__ == "__main__":
    sys.exit(main())
