"""Looks for seeded faults, several at once: each in a process of its own, begun before a test asks for it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings

from conformance import options as registered  # noqa: F401  (the profiles)
from conformance.engine import Engine, Options
from conformance.lanes.lowered import LoweredLane
from conformance.search import failures
from conformance.under_test import UnderTest
from reference.case import Case
from reports.diagnosis import UNKNOWN, Diagnosis
from tests.faults.catalogue import Fault, by_name, write_variant
from tests.faults.preloaded import fork_servers

CACHE = Path(__file__).resolve().parents[2] / ".cache"
BUDGETS = (8, 64)
"""Specializations to look for a fault with: few, then as many as profile gate has where those do not show it."""
RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True, slots=True)
class Found:
    """One failure of a fault: its smallest case, what the diagnosis says, the examples drawn until it was met."""

    case: Case
    verdict: str
    diagnosis: Diagnosis
    examples: int | None


class _Sparing(LoweredLane):
    """The lane of a run that spends less on smaller examples: here each is compiled for one fault only."""

    compile_seconds = 1.5


def search(name: str, folder: Path) -> list[Found]:
    """What the suite finds at profile gate in the kernels with the fault of that name, written below ``folder``."""
    fault = by_name(name)
    source = write_variant(fault, folder / name)
    found = (_found(fault, source, budget) for budget in BUDGETS)
    return next((each for each in found if each), [])


def _found(fault: Fault, source: Path, budget: int) -> list[Found]:
    engine = Engine(_Sparing(), Options(("kernels",), {"kernels": str(source)}, budget, 10.0, CACHE, 1))
    try:
        entry = next(entry for entry in engine.entries() if entry.name == fault.entry_point)
        found = failures(UnderTest(engine, entry), fault.kinds, settings.get_profile("gate"), 0)
    finally:
        engine.close()
    return [
        Found(each.finding.case, each.finding.verdict.summary(), each.finding.diagnosis, each.examples)
        for each in found
    ]


def named(fault: Fault, found: list[Found]) -> str:
    """How the failures of a fault are named, together: wrongly as soon as one is."""
    causes = {each.diagnosis.cause for each in found}
    if causes - {UNKNOWN} - set(fault.causes):
        return WRONG
    return RIGHT if causes & set(fault.causes) else UNKNOWN


class Searches:
    """The searches for ``faults``, in that order, begun a few ahead of what is asked for."""

    def __init__(
        self, faults: Sequence[Fault], folder: Path, begin: Callable[[str, Path], list[Found]] = search
    ) -> None:
        workers = os.cpu_count() or 1
        self._faults = faults
        # A process that has been forked shares Hypothesis's state and the terminal with this one.
        self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=fork_servers)
        self._folder, self._begin, self._ahead = folder, begin, workers
        self._begun: dict[str, Future[list[Found]]] = {}

    def of(self, fault: Fault) -> list[Found]:
        """What was found of ``fault``, waiting for it."""
        first = self._faults.index(fault)
        for each in self._faults[first : first + 1 + self._ahead]:
            if each.name not in self._begun:
                self._begun[each.name] = self._pool.submit(self._begin, each.name, self._folder)
        return self._begun[fault.name].result()

    def close(self) -> None:
        """End what nobody waits for any more."""
        self._pool.shutdown(cancel_futures=True)
