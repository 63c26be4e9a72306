"""``python -m conformance.rounding``: who depends on how a float32 division is rounded."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from conformance import lanes
from conformance.rounding import Row, status
from reference.verdict import CRASH
from tests.commands import run
from tests.faults.catalogue import DCP, Fault, write_variant

_UNAVAILABLE = lanes.by_name("hivm").unavailable()


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_a_kernel_that_divides_depends_on_it_and_plain_torch_does_not() -> None:
    asked = ["--cases", "12", "--compile-budget", "1", "--entry-point", "v1", "--entry-point", "dcp"]
    done = run(sys.executable, "-m", "conformance.rounding", *asked)
    assert done.status == 0, done.output
    header, _, *rows = (line for line in done.output.splitlines() if line.startswith("|"))
    assert header == "| entry point | cases | exact | low | high | failed |"
    found = [row.strip("| ").split(" | ") for row in rows]
    assert [row[0] for row in found] == ["`kernels.v1`", "`kernels.dcp`"]
    (_, cases, exact, low, _, failed), (_, _, *torch) = found
    assert int(cases) > 6
    assert exact == failed == "0"
    assert int(low.strip("*")) > 0
    assert torch == ["0", "0", "0", "0"]


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_nothing_to_run_is_said() -> None:
    done = run(sys.executable, "-m", "conformance.rounding", "--entry-point", "v9")
    assert done.status == 2
    assert "has no such entry point" in done.output


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_a_kernel_that_ends_in_every_case_is_not_right(tmp_path: Path) -> None:
    ends = ("position = positions.to(torch.int64)", 'raise RuntimeError("always")')
    source = write_variant(Fault("ends", "crash", "", DCP, (ends,), ()), tmp_path)
    asked = ["--cases", "4", "--compile-budget", "1", "--entry-point", "dcp", "--source", str(source)]
    done = run(sys.executable, "-m", "conformance.rounding", *asked)
    assert done.status == 1, done.output
    assert re.search(r"^\| `kernels\.dcp` \| 0 \| 0 \| 0 \| 0 \| \*\*[1-4]\*\* crash \|$", done.output, re.MULTILINE)
    assert "kernels.dcp: none of 4 cases has slots to judge" in done.output


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_of_cases_that_end_the_cause_is_said_and_slots_are_judged_all_the_same(tmp_path: Path) -> None:
    """Cells of other ranks' tokens are looked up, as published torch does. The slots are right."""
    found = "block_table[torch.where(found, req_indices, 0), torch.where(found, block_index, 0)]"
    unmasked = "block_table[req_indices.to(torch.int64), torch.where(positions >= 0, block_index, 0)]"
    source = write_variant(Fault("foreign", "crash", "", DCP, ((found, unmasked),), ()), tmp_path)
    asked = ["--cases", "40", "--compile-budget", "1", "--entry-point", "dcp", "--source", str(source)]
    done = run(sys.executable, "-m", "conformance.rounding", *asked)
    assert done.status == 1, done.output
    told = re.search(
        r"^\| `kernels\.dcp` \| (\d+) \| 0 \| 0 \| 0 \| \*\*(\d+)\*\* crash \|$", done.output, re.MULTILINE
    )
    assert told, done.output
    cases, failed = map(int, told.groups())
    causes = re.findall(
        r"^kernels\.dcp: (\d+) crash, (out of bounds read \w+ block_table): (.*)$", done.output, re.MULTILINE
    )
    assert sum(int(count) for count, _, _ in causes) == failed
    said = {cause: sentence for _, cause, sentence in causes}
    assert said["out of bounds read past block_table"].startswith(
        "the cell of another rank's token is looked up: token "
    )
    judged = re.search(
        rf"^kernels\.dcp: slots of (\d+) of these {failed} were judged all the same$", done.output, re.MULTILINE
    )
    assert judged, done.output
    assert 0 < int(judged[1]) <= failed
    assert cases > 40 - failed


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([Row("dcp", 9, (0, 0, 0), {})], 0),
        ([Row("v1", 9, (0, 4, 1), {})], 0),
        ([Row("v1", 9, (1, 0, 0), {})], 1),
        ([Row("v1", 9, (0, 0, 0), {CRASH: 1}), Row("dcp", 9, (0, 0, 0), {})], 1),
        ([Row("v1", 0, (0, 0, 0), {}), Row("dcp", 9, (0, 0, 0), {})], 2),
        ([], 2),
    ],
)
def test_what_was_not_judged_is_not_right(rows: list[Row], expected: int) -> None:
    assert status(rows) == expected
