"""Changed copies of this project's kernels: what they may leave out, and that no ring is drawn for what cannot be told
of one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance import lanes
from conformance.execution.session import Session, SubjectError
from conformance.subjects.entry import TESTABLE, EntryPoint

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def _compute_slot_mapping_kernel(
    query_start_loc_ptr, positions_ptr, block_table_ptr, slot_mapping_ptr, {flag}TILE_BLOCK_SIZE: tl.constexpr
):
    pass
"""


def found(source: Path | None, folder: Path) -> dict[str, EntryPoint]:
    with Session(
        lanes.automatic(), "kernels", None if source is None else str(source), cache=folder / "cache"
    ) as session:
        return dict(session.entries)


def tree(folder: Path, **modules: str) -> Path:
    (folder / "kernels").mkdir(parents=True)
    for name, text in modules.items():
        (folder / "kernels" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_a_function_that_a_copy_does_not_have_is_a_reason_and_no_error(tmp_path: Path) -> None:
    """One kernel in one file is enough."""
    source = tree(
        tmp_path / "one",
        __init__="",
        slot_mapping=KERNEL.format(flag="IS_CIRCULAR: tl.constexpr, "),
        group_block_table="",
        block_table="class MultiGroupBlockTable:\n    pass\n",
    )
    entries = found(source, tmp_path)
    statuses = {name: entry.status for name, entry in entries.items()}
    assert statuses["v1"] == TESTABLE
    assert statuses["v1_host"] == "no compute_slot_mapping in kernels/slot_mapping.py"
    assert statuses["block_table"] == "no MultiGroupBlockTable.compute_slot_mapping in kernels/block_table.py"
    assert statuses["v2"] == "no kernels/slot_mappings_v2.py"
    assert [name for name, status in statuses.items() if status == TESTABLE] == ["v1"]


@pytest.mark.parametrize("flag", ["", "IS_CIRCULAR: tl.constexpr, "])
def test_a_kernel_that_cannot_be_told_of_rings_is_given_none(flag: str, tmp_path: Path) -> None:
    entry = found(tree(tmp_path / "one", __init__="", slot_mapping=KERNEL.format(flag=flag)), tmp_path)["v1"]
    assert ("circular" in entry.declaration.features) == bool(flag)
    assert {"cp", "hybrid", "tail"} <= entry.declaration.features


def test_this_project_s_own_are_told_of_rings_or_need_not_be(tmp_path: Path) -> None:
    rings = {name for name, entry in found(None, tmp_path).items() if "circular" in entry.declaration.features}
    assert rings == {"v1", "v1_host", "fused", "parallel", "adaptive", "replay", "block_table"}


@pytest.mark.parametrize("there", ["nothing", "no-init"])
def test_a_folder_that_is_no_package_says_what_is_missing(there: str, tmp_path: Path) -> None:
    if there == "no-init":
        tree(tmp_path, slot_mapping=KERNEL.format(flag=""))
    message = {
        "nothing": f"{tmp_path} holds no package kernels",
        "no-init": f"{tmp_path}/kernels holds no __init__.py: add one, it may be empty",
    }[there]
    with pytest.raises(SubjectError, match=re.escape(message)):
        found(tmp_path, tmp_path)
