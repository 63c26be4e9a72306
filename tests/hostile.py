"""Kernels that misbehave, as source trees that the suite loads with ``--source kernels=FOLDER``."""

from __future__ import annotations

import shutil
from pathlib import Path

_KERNELS = Path(__file__).parents[1] / "kernels"

_HEADER = """
import os
import signal

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_tokens", "max_num_tokens"])
def _compute_slot_mapping_kernel(
    num_tokens, max_num_tokens, query_start_loc_ptr, positions_ptr, block_table_ptr, block_table_stride, block_size,
    slot_mapping_ptr, KV_CACHE_BLOCK_SIZE: tl.constexpr, BLOCKS_PER_KV_BLOCK: tl.constexpr,
    TOTAL_CP_WORLD_SIZE: tl.constexpr, TOTAL_CP_RANK: tl.constexpr, CP_KV_CACHE_INTERLEAVE_SIZE: tl.constexpr,
    PAD_ID: tl.constexpr, TILE_BLOCK_SIZE: tl.constexpr, BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,
    IS_CIRCULAR: tl.constexpr = False,
):
"""

_TORCH = """
import ctypes
import os
import signal
import sys


def compute_dcp_slot_mapping(
    req_indices, positions, block_table, slot_mapping, *, block_size, kv_cache_block_size, cp_size=1, cp_rank=0,
    cp_interleave=1, pad_id=-1,
):
"""


def tree(folder: Path, *, kernel: str = "pass", host: str = "pass") -> Path:
    """A copy of the package ``kernels`` whose v1 kernel and torch path have these bodies."""
    package = folder / "kernels"
    shutil.copytree(_KERNELS, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (("slot_mapping.py", _HEADER + _body(kernel)), ("torch_dcp.py", _TORCH + _body(host))):
        with (package / name).open(
            "a", encoding="utf-8"
        ) as file:  # the last definition of a name is the one that counts
            file.write(text)
    return folder


def _body(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip().splitlines())
