"""``python -m reports``: draw the page of a run again from its files, or merge several runs into one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reference.fields import printable
from reports.files import ReportError
from reports.merging import merge
from reports.page import draw


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reports", description="What a run has written, read again.")
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser("page", help="draw index.html from summary.json, coverage.json and the failure reports")
    page.add_argument(
        "--report-dir",
        type=Path,
        default=Path("reports/output"),
        metavar="DIR",
        help="the folder of the run (default reports/output)",
    )
    merging = commands.add_parser("merge", help="make one report folder of several; status 1: something was left out")
    merging.add_argument("--into", type=Path, required=True, metavar="DIR", help="the folder to write")
    merging.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="report folders of runs")
    options = parser.parse_args(arguments)
    try:
        if options.command == "merge":
            return _merge(options.into, options.folders)
        print(draw(options.report_dir))
    except ReportError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _merge(into: Path, folders: Sequence[Path]) -> int:
    """Merge, and say what came of it: figures and notes, and on standard error what was left out."""
    done = merge(into, folders)
    for problem in done.problems:
        print(f"warning: {problem}", file=sys.stderr)
    if done.summary is None:
        print("nothing was merged: none of the folders can be read", file=sys.stderr)
        return 1
    for line in (done.summary.line(), *done.notes, f"page: {printable(done.page or into)}"):
        print(line)
    return 1 if done.problems else 0


if __name__ == "__main__":
    sys.exit(main())
