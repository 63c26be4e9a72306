"""A run of pytest in which tests fail as the suite's do, as many and in whatever words are wanted, and nothing is
launched.

As a program it takes the folder for reports and the arguments of pytest, and on its input a JSON list: the details of
the failures, one a test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance import outputs
from conformance.engine import Tally
from conformance.outside import BoundaryFailure
from conformance.recording import Recorder
from conformance.shards import Shard
from conformance.stash import ENGINE, RECORDER
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.verdicts import Finding, failure_of
from reference import verdict as v
from reference.case import Case, Group, Launch
from reports.coverage import Coverage
from strategies.declaration import Declaration

PARAMETERS = ("req_indices", "positions", "block_table", "slot_mapping", "block_size", "kv_cache_block_size", "pad_id")
ENTRY = EntryPoint("kernels", "1", "dcp", "f", "dcp", "", 44, PARAMETERS, (), Declaration(frozenset(), frozenset()))
SOURCE = "/tmp/a 'tree'\n::error file=x::y\x1b[31m"
"""Where the kernels are said to come from: it is in the command that replays a failure."""
CASE = Case((0, 1), (0,), 1, 1, (Group(((3,),), 2, 2),))


class Failing:
    """Gives a run an engine that launches nothing, and one test a failure; equal details are one failure met twice."""

    def __init__(self, folder: Path, details: Sequence[str]) -> None:
        self._folder, self._details = folder, details

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[ENGINE] = SimpleNamespace(
            lane=SimpleNamespace(name="lowered", options=tuple, on_device=False),
            options=SimpleNamespace(subjects=("kernels",), sources={"kernels": SOURCE}, shard=Shard()),
            tallies={"kernels.dcp": Tally()},
            coverage=Coverage(),
            session=lambda subject: SimpleNamespace(hardware={}),
        )
        config.stash[RECORDER] = Recorder(self._folder, 17)

    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        module = items[0].parent
        assert module is not None
        items[:] = [
            pytest.Function.from_parent(
                module, name=f"test_{number}", callobj=lambda each=each: self._fail(self._details.index(each), each)
            )
            for number, each in enumerate(self._details)
        ]

    @staticmethod
    def _fail(number: int, detail: str) -> None:
        entry = replace(ENTRY, function=f"f{detail}", file=f"/kernels/{detail}.py", version=detail)
        case = replace(CASE, positions=(0, number))
        if detail.startswith("outside"):
            verdict = v.Verdict(v.CRASH, detail=detail)
            raise BoundaryFailure(entry, case, Launch(), Settings(), verdict, "positions: \x1b[31m")
        if detail.isdigit():
            raise failure_of(Finding(entry, case, Launch(), v.compare([[6]], [[77]]), [[6]], [[77]]), 3)
        raise failure_of(Finding(entry, case, Launch(), v.Verdict(v.CRASH, detail=detail), [[6]], []), 3)


def main() -> int:
    folder, *arguments = sys.argv[1:]
    plugins = [Failing(Path(folder), json.loads(sys.stdin.read())), outputs]
    return int(pytest.main(["-p", "no:cacheprovider", *arguments], plugins=plugins))


if __name__ == "__main__":
    sys.exit(main())
