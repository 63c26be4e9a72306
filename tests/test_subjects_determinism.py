"""The same seed and the same tree give the same verdicts, the same shrunk cases and the same report, but for times."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands import pytest_
from tests.faults.catalogue import by_name, write_variant

# A fault, and the tests that are to find it.
FOUND = {
    "torch-pads-the-tail": ("dcp", "60"),
    "interleave-and-world-size-swapped": ("test_cp", "80"),
    "request-mask-one-too-far": ("test_plain", "80"),
}


def reports(folder: Path) -> dict[str, object]:
    """Every file of a report folder, without the times; the page is drawn from the others and shows these."""
    found: dict[str, object] = {}
    for file in sorted(folder.iterdir()):
        text = file.read_text(encoding="utf-8")
        found[file.name] = json.loads(text) if file.suffix == ".json" else text
    summary = found["summary.json"]
    assert isinstance(summary, dict)
    assert summary.pop("seconds") > 0
    coverage: Any = found["coverage.json"]
    assert coverage.pop("started")
    for counts in coverage["entry_points"].values():
        assert counts.pop("seconds").keys() == {"compile", "launch"}
    assert found.pop("index.html")
    return found


def timeless(text: str) -> list[str]:
    """What pytest printed, with every time and every rate taken out, and the line of dashes around some."""
    return [re.sub(r"=+|\d+\.\d+ ?s\b|\(\d:\d\d:\d\d\)", "", line).strip() for line in text.splitlines()]


@pytest.mark.parametrize("fault", FOUND)
def test_the_same_seed_gives_the_same_run(fault: str, tmp_path: Path) -> None:
    keyword, examples = FOUND[fault]
    source = write_variant(by_name(fault), tmp_path / "wrong")
    folder = tmp_path / "reports"
    runs = []
    for number in range(2):
        done = pytest_(
            "conformance",
            *("-k", keyword, "--source", f"kernels={source}", "--hypothesis-seed", "11", "--report-dir", folder),
            *("--max-examples", examples, "--compile-budget", "4", "-p", "no:cacheprovider"),
            variables={"PYTHONHASHSEED": str(number)},  # the order of sets must not decide anything
        )
        assert done.status == 1, done.tail
        runs.append((timeless(done.output), reports(folder)))
        folder.rename(tmp_path / f"reports-{number}")
    (first_output, first), (second_output, second) = runs
    assert any(name.startswith("failure-") for name in first)
    assert first == second
    assert first_output == second_output
