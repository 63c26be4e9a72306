"""What was found in published code stays right here: the values of each case, and this project's kernels on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.saved import read
from reference.oracle import slot_mapping

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "tests" / "data" / "findings").glob("*.json"))
UNAVAILABLE = lanes.by_name("lowered").unavailable()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_expected_slots_of_a_finding_are_the_oracle_s(file: Path) -> None:
    assert slot_mapping(read(file).case) == json.loads(file.read_text())["slot_mappings"]


@pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))
def test_own_kernels_are_right_where_published_ones_were_not() -> None:
    engine = Engine(lanes.by_name("lowered"), Options(("kernels",), {}, 64, 10.0, ROOT / ".cache", 1))
    try:
        entries = {entry.name: entry for entry in engine.entries()}
        ran = 0
        for file in FILES:
            saved = read(file)
            for name in saved.entry_points:
                finding = engine.run(entries[name], *saved.drawn(entries[name]))
                assert finding.verdict.passed, f"{file.stem} on {name}: {finding.verdict.summary()}"
                ran += 1
    finally:
        engine.close()
    assert ran >= len(FILES) > 0
