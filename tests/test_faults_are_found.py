"""Every seeded fault goes red at profile gate, and its smallest case can be read at a glance."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.search import failures
from conformance.under_test import UnderTest
from tests.faults.catalogue import CATALOGUE, Fault, write_variant

ROOT = Path(__file__).parents[1]
UNAVAILABLE = lanes.by_name("lowered").unavailable()

pytestmark = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_found_and_shrunk(fault: Fault, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_variant(fault, tmp_path)
    options = Options(("kernels",), {"kernels": str(source)}, 64, 10.0, ROOT / ".cache", 1)
    engine = Engine(lanes.by_name("lowered"), options)
    try:
        entry = next(entry for entry in engine.entries() if entry.name == fault.entry_point)
        found = failures(UnderTest(engine, entry), ("plain", "circular", "cp"), settings.get_profile("gate"), 0)
    finally:
        engine.close()
    assert found, f"{fault.name} survives profile gate: {fault.summary}"
    with capsys.disabled():
        for failure in found:
            size = f"{failure.finding.case.num_tokens} tokens"
            summary = failure.finding.verdict.summary()
            print(f"\n{fault.name}: found after {failure.examples} examples, {size}: {summary}")
    assert all(failure.finding.case.num_tokens <= fault.tokens for failure in found)
