"""This project's kernels compile for three chips, stay within the on-chip buffer and have no scalar loop that could be
avoided.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import lanes, subjects

if lanes.by_name("lowered").unavailable() is not None:
    pytest.skip("the audit needs triton-ascend and ascendnpu-ir", allow_module_level=True)

from conformance.audit import budgets
from conformance.audit.__main__ import LAUNCHING_HOSTS
from conformance.audit.launches import builds, production
from conformance.audit.rows import Row
from conformance.audit.workers import audit
from conformance.lanes.ascend import compiler
from tests.audited import CHIP_950, CHIPS, rows

BUDGETS = budgets.read()


@pytest.fixture(scope="module")
def own() -> list[Row]:
    """Of each kernel, the setting of serving that computes most."""
    loaded = subjects.load("kernels", None, lanes.by_name("lowered"))
    jobs = [
        build
        for entry in loaded
        if entry.description.name in BUDGETS.entries
        for build in builds(entry, production(entry.description)[-1:])
    ]
    return audit(jobs, BUDGETS.targets, compiler.find(60), os.cpu_count() or 1, lambda done, total: None)


def test_every_kernel_has_a_budget() -> None:
    loaded = [entry.description for entry in subjects.load("kernels", None, lanes.by_name("lowered"))]
    kernels = {entry.name for entry in loaded if entry.constants or entry.family in LAUNCHING_HOSTS}
    # The host function `fused` launches the kernels `parallel` and `adaptive`.
    assert kernels - {"fused"} == BUDGETS.entries.keys()


def test_the_chips_are_of_three_kinds() -> None:
    assert BUDGETS.targets == (*CHIPS, CHIP_950)


def test_no_kernel_costs_more_than_its_budget(own: list[Row]) -> None:
    assert {(row.entry.name, row.target) for row in own} == {
        (name, target) for name in BUDGETS.entries for target in BUDGETS.targets
    }
    assert [line for row in own for line in BUDGETS.exceeded(row)] == []


def test_what_could_be_counted_was_counted(own: list[Row]) -> None:
    assert [row.target for row in own if row.measures is None] == [CHIP_950] * len(BUDGETS.entries)


def test_a_budget_is_exceeded_by_what_it_forbids() -> None:
    (row,) = rows("remainders", CHIPS[0])
    row = replace(row, entry=replace(row.entry, name="v1"))
    (line,) = BUDGETS.exceeded(row)
    assert line.endswith("has 1 scalar loops, not 0: audited_kernels.py:12 arith.remsi:i32")
    assert "bytes of UB" in BUDGETS.exceeded(replace(row, ub=(190_000, 196_608)))[0]
    (line,) = BUDGETS.exceeded(replace(row, status="refused", message="why"))
    assert line.endswith("does not compile: refused: why")
    (line,) = BUDGETS.exceeded(replace(row, ub=None, not_measured="another program"))
    assert "UB is not known" in line


def test_scalar_loops_need_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text("targets = []\nub_share = 0.5\n[v1]\nscalar_loops = 2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"budgets\.toml: v1 may have 2 scalar loops and does not say why"):
        budgets.read(path)
