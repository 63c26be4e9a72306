"""Random interleavings of row operations and slot computations, on every path: never a stale or a foreign slot; and
mistakes in the code that the same machine finds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.block_table_machine import LAYOUTS, OnLane


@pytest.fixture(scope="module")
def on_lane() -> Iterator[OnLane]:
    with OnLane() as process:
        yield process


def test_every_path_has_a_layout() -> None:
    assert {layout.path for layout in LAYOUTS} == {"kernel", "fused", "torch"}


def test_no_slot_is_stale_or_foreign(on_lane: OnLane) -> None:
    assert on_lane(examples=200, steps=30) is None


ROWS, TABLE, TABLES, BUFFER = "block_rows.py", "group_block_table.py", "block_table.py", "host_device_buffer.py"

FAULTS = {
    "cleared-row-keeps-its-cells": (
        ROWS,
        "self.block_table.np[row] = NULL_BLOCK\n",
        "pass\n",
    ),
    "cleared-row-keeps-its-count": (ROWS, "        self.num_blocks_per_row[row] = 0\n", ""),
    "shorter-row-keeps-its-old-end": (
        ROWS,
        "        self._empty(row)\n        self._put(row, 0, kernel_blocks)",
        "        self._put(row, 0, kernel_blocks)",
    ),
    "moved-row-keeps-the-end-of-another": (
        ROWS,
        "            self._empty(target)\n            self.swap_row(source, target)",
        "            held = self.num_blocks_per_row[source]\n"
        "            self.block_table.np[target, :held] = self.block_table.np[source, :held]\n"
        "            self.num_blocks_per_row[target] = held\n"
        "            self._empty(source)\n"
        "            self._is_new[target] = True",
    ),
    "moved-row-stays-where-it-was": (
        ROWS,
        "            self._empty(target)\n",
        "            self._empty(target)\n"
        "            self.block_table.np[target] = self.block_table.np[source]\n"
        "            self.num_blocks_per_row[target] = self.num_blocks_per_row[source]\n"
        "            return\n",
    ),
    "swapped-rows-keep-their-counts": (
        ROWS,
        "        self.num_blocks_per_row[there] = self.num_blocks_per_row[back]\n",
        "",
    ),
    "swapped-through-views": (
        ROWS,
        "self.block_table.np[there] = self.block_table.np[back]",
        "self.block_table.np[there[0]], self.block_table.np[there[1]] = "
        "self.block_table.np[back[0]], self.block_table.np[back[1]]",
    ),
    "appended-over-the-last-block": (
        ROWS,
        "self._put(row, int(self.num_blocks_per_row[row]), ",
        "self._put(row, max(int(self.num_blocks_per_row[row]) - 1, 0), ",
    ),
    "kernel-blocks-of-the-next-block": (ROWS, "[:, None] * k + self._split", "[:, None] * k + self._split + 1"),
    "last-row-not-copied": (
        ROWS,
        "self.block_table.copy_to_gpu(num_reqs)",
        "self.block_table.copy_to_gpu(max(num_reqs - 1, 0))",
    ),
    "launched-on-rows-not-copied": (ROWS, "        if self._is_new[:num_reqs].any():", "        if False:"),
    "cleared-on-the-host-only": (BUFFER, "        self.gpu.fill_(value)\n", ""),
    "draft-ignores-the-row": (TABLE, "number = table[rows, ", "number = table[rows * 0, "),
    "draft-of-a-rank-ignores-whether-its-row-exists": (
        TABLE,
        "        if on_host:\n            check_rows",
        "        if 0:\n            check_rows",
    ),
    "positions-behind-the-batch-are-tokens": (TABLE, "torch.where(request < num_reqs, positions, -1)", "positions"),
    "draft-of-a-ring-looked-up": (TABLE, "if self.is_circular else position", "if False else position"),
    "draft-with-allocated-blocks": (
        TABLE,
        "else position // self.block_size",
        "else position // self.physical_block_size",
    ),
    "draft-of-the-device-stays": (TABLE, "        self.slot_mapping.copy_to_gpu(slots.size)\n", ""),
    "replicated-group-shared": (TABLE, "        if not self.is_sharded:\n", "        if self.is_mamba_group:\n"),
    "draft-tokens-without-room": (
        TABLE,
        "max_num_batched_tokens + max(num_speculative_tokens - 1, 0) * max_num_reqs,",
        "max_num_batched_tokens,",
    ),
    "first-kernel-size-taken-unseen": (TABLE, "if size > 0 and block_size % size == 0]", "if size > 0 or not size]"),
    "kernel-without-its-rank": (
        TABLE,
        "            cp_rank=geometry.cp_rank,\n            cp_interleave="
        "geometry.cp_interleave,\n            is_circular",
        "            cp_rank=0,\n            cp_interleave=geometry.cp_interleave,\n            is_circular",
    ),
    "fused-although-shared": (
        TABLES,
        "and not any(table.is_shared for table in self._with_slots):",
        "and self.block_tables:",
    ),
    "fused-with-state": (
        TABLES,
        "for table in self.block_tables if not table.is_mamba_group)",
        "for table in self.block_tables)",
    ),
    "fused-without-rings": (TABLES, "device=device) if any(rings) else None", "device=device) if False else None"),
    "one-group-refuses-after-another-changed": (
        TABLES,
        "        self._check_blocks(block_ids, row_idx, after_the_rest=True)\n",
        "",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_is_found(name: str, on_lane: OnLane) -> None:
    found = on_lane(examples=500, steps=30, fault=FAULTS[name])
    assert found is not None, name
    assert not found.startswith(("SyntaxError", "AssertionError: '")), found  # it applied, and ran
