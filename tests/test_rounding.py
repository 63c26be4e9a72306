"""``python -m conformance.rounding``: who depends on how a float32 division is rounded."""

from __future__ import annotations

import sys

import pytest

from conformance import lanes
from tests.commands import run

_UNAVAILABLE = lanes.by_name("hivm").unavailable()


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_a_kernel_that_divides_depends_on_it_and_plain_torch_does_not() -> None:
    asked = ["--cases", "12", "--compile-budget", "1", "--entry-point", "v1", "--entry-point", "dcp"]
    done = run(sys.executable, "-m", "conformance.rounding", *asked)
    assert done.status == 0, done.output
    header, _, *rows = (line for line in done.output.splitlines() if line.startswith("|"))
    assert header == "| entry point | cases | exact | low | high |"
    found = [row.strip("| ").split(" | ") for row in rows]
    assert [row[0] for row in found] == ["`kernels.v1`", "`kernels.dcp`"]
    (_, cases, exact, low, _), (_, _, *torch) = found
    assert int(cases) > 6
    assert exact == "0"
    assert int(low.strip("*")) > 0
    assert torch == ["0", "0", "0"]


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_nothing_to_run_is_said() -> None:
    done = run(sys.executable, "-m", "conformance.rounding", "--entry-point", "v9")
    assert done.status == 2
    assert "has no such entry point" in done.output
