"""``python -m conformance.audit.block_sizes``: costs and bounds by block size."""

from __future__ import annotations

import re
import sys

import pytest

from conformance import lanes
from conformance.audit.block_sizes import main
from tests.commands import ROOT, run

_UNAVAILABLE = lanes.by_name("lowered").unavailable()


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_what_a_kernel_costs_is_what_the_page_says() -> None:
    done = run(sys.executable, "-m", "conformance.audit.block_sizes", "--kernel", "tiled", "--block-size", "3")
    assert done.status == 0, done.output
    header, _, row = (line for line in done.output.splitlines() if line.startswith("|"))
    assert header == "| b | `tiled`, W = 1 | `tiled`, W = 2 |"
    one, two = re.fullmatch(r"\| 3 \| (\d+), everywhere \| (\d+), everywhere \|", row).groups()  # type: ignore[union-attr]
    text = (ROOT / "docs" / "ascend-audit.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| 3 \|.*\| {one}, everywhere \|.*\| {two}, everywhere \|$", text, re.MULTILINE)


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("--block-size 0", "argument --block-size: 0 is not above 0"),
        ("--kernel v1 --block-size 16 --source nowhere", "nowhere holds no package kernels"),
    ],
)
def test_what_cannot_be_measured_is_said(asked: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(asked.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{says}\n")
