"""``python -m reports page``: draw the page of a run again from its files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reports.files import ReportError
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
    options = parser.parse_args(arguments)
    try:
        print(draw(options.report_dir))
    except ReportError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
