"""``python -m reference CASE.json [--trace G T]``: the slots of a case, or how one of them comes about, as JSON.

CASE.json holds a bare case, or an object with ``case`` in it such as a failure report. Whatever is wrong with the file
or the arguments is one line on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from reference.case import CaseError, load
from reference.contract import ContractError, check
from reference.fields import printable
from reference.oracle import slot_mapping, trace


class _UsageError(ValueError):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message} (see --help)")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m reference", description="What the slot mappings of a case must be.")
    parser.add_argument("case", metavar="CASE.json", help="a case, or a failure report that holds one")
    parser.add_argument(
        "--trace", nargs=2, type=int, metavar=("G", "T"), help="how token T gets its slot in group G, step by step"
    )
    return parser.parse_args(argv)


def _answer(arguments: argparse.Namespace) -> str:
    case, launch = load(arguments.case)
    try:
        check(case, launch=launch)
        if arguments.trace is None:
            return json.dumps({"slot_mappings": slot_mapping(case)})
        return json.dumps(trace(case, *arguments.trace).to_json(), indent=2)
    except (ContractError, IndexError) as error:
        raise CaseError(f"{printable(arguments.case)}: {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Print the answer and return the exit status: 0, or 2 with one line on stderr."""
    try:
        answer = _answer(_arguments(argv))
    except (CaseError, _UsageError) as error:
        print(f"python -m reference: {error}", file=sys.stderr)
        return 2
    print(answer)
    return 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone (`| head`): nothing left to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
