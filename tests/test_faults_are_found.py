"""Every seeded fault goes red at profile gate, its smallest case can be read at a glance, and the diagnosis says what
is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.search import failures
from conformance.under_test import UnderTest
from conformance.verdicts import ConformanceFailure
from reports.diagnosis import CAUSES, UNKNOWN
from tests.faults.catalogue import CATALOGUE, PACKAGE, Fault, write_variant

ROOT = Path(__file__).parents[1]
UNAVAILABLE = lanes.by_name("lowered").unavailable()

pytestmark = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))

RIGHT, WRONG = "right", "wrong"
NAMED_RIGHTLY = 0.85
"""The part of the faults that a diagnosis must name rightly. None may be named wrongly."""
USUAL_TOKENS, MOST_TOKENS = 3, 8
"""Tokens that the smallest case of nine faults in ten has at most, and that any has."""

_found: dict[str, list[ConformanceFailure]] = {}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    prepared = Engines(tmp_path_factory.mktemp("faults"))
    yield prepared
    prepared.close()


class Engines:
    """An engine a fault. The next one's process starts while the last one's is searched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._workers = ThreadPoolExecutor(1)
        self._next = self._workers.submit(self._started, CATALOGUE[0])
        self._which = CATALOGUE[0]

    def of(self, fault: Fault) -> Engine:
        ready = self._next.result()
        if self._which is not fault:
            ready.close()
            ready = self._started(fault)
        following = CATALOGUE[(CATALOGUE.index(fault) + 1) % len(CATALOGUE)]
        self._which, self._next = following, self._workers.submit(self._started, following)
        return ready

    def close(self) -> None:
        self._next.result().close()
        self._workers.shutdown()

    def _started(self, fault: Fault) -> Engine:
        folder = self.folder / fault.name
        source = folder if folder.is_dir() else write_variant(fault, folder)
        options = Options(("kernels",), {"kernels": str(source)}, 64, 10.0, ROOT / ".cache", 1)
        engine = Engine(lanes.by_name("lowered"), options)
        engine.entries()
        return engine


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_found_and_shrunk(fault: Fault, engines: Engines, capsys: pytest.CaptureFixture[str]) -> None:
    engine = engines.of(fault)
    try:
        entry = next(entry for entry in engine.entries() if entry.name == fault.entry_point)
        found = failures(UnderTest(engine, entry), fault.kinds, settings.get_profile("gate"), 0)
    finally:
        engine.close()
    assert found, f"{fault.name} survives profile gate: {fault.summary}"
    _found[fault.name] = found
    with capsys.disabled():
        for failure in found:
            finding = failure.finding
            said = f"{finding.case.num_tokens} tokens: {finding.diagnosis.cause}: {finding.diagnosis.summary}"
            print(f"\n{fault.name}: found after {failure.examples} examples, {said}")
    assert all(failure.finding.case.num_tokens <= fault.tokens for failure in found)
    assert named(fault, found) != WRONG


def named(fault: Fault, found: list[ConformanceFailure]) -> str:
    """How the failures of a fault are named, together: wrongly as soon as one is."""
    causes = {failure.finding.diagnosis.cause for failure in found}
    if causes - {UNKNOWN} - set(fault.causes):
        return WRONG
    return RIGHT if causes & set(fault.causes) else UNKNOWN


def test_most_faults_are_named_and_none_wrongly() -> None:
    """From the runs of the test above."""
    faults = searched()
    names = {fault.name: named(fault, _found[fault.name]) for fault in faults}
    wrong = [name for name, how in names.items() if how == WRONG]
    assert not wrong
    right = sum(how == RIGHT for how in names.values())
    assert right >= NAMED_RIGHTLY * len(faults), f"{right} of {len(faults)}: {names}"


def test_most_smallest_cases_have_three_tokens() -> None:
    """From the same runs."""
    tokens = [failure.finding.case.num_tokens for fault in searched() for failure in _found[fault.name]]
    assert max(tokens) <= MOST_TOKENS
    assert sum(count <= USUAL_TOKENS for count in tokens) >= 0.9 * len(tokens)


def searched() -> list[Fault]:
    faults = [fault for fault in CATALOGUE if fault.name in _found]
    if len(faults) < len(CATALOGUE):
        pytest.skip(f"{len(faults)} of {len(CATALOGUE)} faults were searched for: select the whole file")
    return faults


def test_the_catalogue_has_faults_in_every_kernel() -> None:
    files = [fault.file for fault in CATALOGUE]
    kernels = {path.name for path in PACKAGE.glob("*.py") if "@triton.jit" in path.read_text(encoding="utf-8")}
    few = {
        name: files.count(name) for name in kernels - {"example.py", "published_designs.py"} if files.count(name) < 4
    }
    assert not few
    assert len(CATALOGUE) >= 45


def test_causes_are_known_and_names_are_unique() -> None:
    assert all(fault.causes and set(fault.causes) <= set(CAUSES) - {UNKNOWN} for fault in CATALOGUE)
    assert len({fault.name for fault in CATALOGUE}) == len(CATALOGUE)
