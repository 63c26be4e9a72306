"""One request of any positions through one row, by the entry points that :mod:`conformance.int32_positions` sweeps."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from conformance import subjects
from conformance.lanes.base import Lane
from conformance.subjects.entry import TESTABLE
from strategies.geometry import Geometry

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Geometry], None]
"""Of (positions of one request, its row of the table, output, geometry)."""


@dataclass(frozen=True, slots=True)
class Launched:
    """How an entry point of ``family`` is launched, and what it ``divides`` in float32 on Ascend: ``distances``,
    ``positions`` or nothing. ``stages``: cells of a row that it ever looks at, None: all. ``shares``: whether there is
    more than one rank.
    """

    family: str
    launch: Launch
    divides: str = "distances"
    stages: int | None = None
    shares: bool = True


def _v1(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    tokens = len(positions)
    _function("slot_mapping", "compute_slot_mapping")(
        torch.tensor([0, tokens], dtype=torch.int32),
        positions,
        row,
        output,
        num_tokens=tokens,
        block_size=g.block_size,
        kv_cache_block_size=g.kv_cache_block_size,
        cp_size=g.cp.size,
        cp_rank=g.cp.rank,
        cp_interleave=g.cp.interleave,
    )


def _groups(row: torch.Tensor, g: Geometry) -> Any:
    return _function("group_tables", "GroupTables")(
        [row],
        [g.block_size],
        [g.kv_cache_block_size],
        cp_size=g.cp.size,
        cp_rank=g.cp.rank,
        cp_interleave=g.cp.interleave,
    )


def _v2(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    starts = torch.tensor([0, len(positions)], dtype=torch.int32)
    _function("slot_mappings_v2", "compute_slot_mappings")(
        _groups(row, g), torch.zeros(1, dtype=torch.int32), starts, positions, output.view(1, len(positions))
    )


def _tiled(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    starts = torch.tensor([0, len(positions)], dtype=torch.int32)
    launch = _function("tiled", "compute_slot_mapping_tiled")
    launch(_groups(row, g), starts, positions, output.view(1, len(positions)))


def _fused(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    launch = _function("fused_groups", "compute_slot_mapping_fused_groups")
    launch(1, 1, *_by_address(positions, row, output, g), g.block_size, pad_id=-1)


def _parallel(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    kernel = _function("fused_groups", "_compute_slot_mapping_fused_groups_kernel")
    kernel[_GRID](*_by_address(positions, row, output, g), None, **_tile(g, ""))


def _adaptive(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    kernel = _function("fused_groups", "_compute_slot_mapping_fused_groups_adaptive_kernel")
    kernel[_GRID](*_by_address(positions, row, output, g), None, **_tile(g, ""), **_tile(g, "SMALL_", 64))


_GRID = (1, 2, 4)  # groups; requests and the padding behind them; programs of each


def _by_address(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> tuple[Any, ...]:
    """What fused kernels and their host function take of one group, in this order."""
    tokens = len(positions)
    return (
        tokens,
        tokens,
        torch.tensor([0, tokens], dtype=torch.int32),
        positions,
        torch.tensor([row.data_ptr()], dtype=torch.uint64),
        torch.tensor([output.data_ptr()], dtype=torch.uint64),
        torch.tensor([row.shape[1]], dtype=torch.int64),
        torch.tensor([g.block_size], dtype=torch.int32),
    )


def _tile(g: Geometry, prefix: str, tile: int = 1024) -> dict[str, int]:
    window = _function("window", "block_table_window_size")(tile, g.block_size)
    padding = {} if prefix else {"PAD_ID": -1}
    return {**padding, f"{prefix}TILE_BLOCK_SIZE": tile, f"{prefix}BLOCK_TABLE_WINDOW_SIZE": window}


def _function(module: str, name: str) -> Any:
    """Of package ``kernels``, which ``--source`` chooses: so nothing of it may be imported before."""
    return getattr(importlib.import_module(f"kernels.{module}"), name)


def _block_table(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    tables = _tables(row, output, g)
    tables.compute_slot_mapping(1, torch.tensor([0, len(positions)], dtype=torch.int32), positions)


def _draft(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    tables = _tables(row, output, g)
    tables.compute_slot_mapping_draft(torch.zeros(len(positions), dtype=torch.int32), positions)


def _tables(row: torch.Tensor, output: torch.Tensor, g: Geometry) -> Any:
    """A block table of one request that has ``row`` for its own and writes into ``output``."""
    tables = _function("block_table", "MultiGroupBlockTable")(
        1,
        g.virtual_block_size,
        len(output),
        False,
        "cpu",
        [g.kv_cache_block_size],
        kernel_sizes=[[g.block_size]],
        cp_kv_cache_interleave_size=g.cp.interleave,
        dcp_world_size=g.cp.size,
        dcp_rank=g.cp.rank,
        use_cp_kernel=True,
    )
    table = tables.block_tables[0]
    # Block by block a row of 2**31 tokens would take minutes and gigabytes to fill.
    table.block_table.cpu, table.block_table.np, table.block_table.gpu = row, row.numpy(), row
    table.slot_mapping.cpu, table.slot_mapping.np, table.slot_mapping.gpu = output, output.numpy(), output
    return tables


def _dcp(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    _function("torch_dcp", "compute_dcp_slot_mapping")(
        torch.zeros(len(positions), dtype=torch.int32),
        positions,
        row,
        output,
        block_size=g.block_size,
        kv_cache_block_size=g.kv_cache_block_size,
        cp_size=g.cp.size,
        cp_rank=g.cp.rank,
        cp_interleave=g.cp.interleave,
    )


def ring(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    """Through ``v1``, the first cell of the row being all there is of it."""
    tokens = len(positions)
    starts = torch.tensor([0, tokens], dtype=torch.int32)
    launch = _function("slot_mapping", "compute_slot_mapping")
    launch(starts, positions, row[:, :1], output, num_tokens=tokens, block_size=g.block_size, is_circular=True)


OWN: Mapping[str, Launched] = {
    "v1": Launched("v1", _v1),
    "v2": Launched("v2", _v2),
    "fused": Launched("fused", _fused, shares=False),
    "parallel": Launched("fused", _parallel, shares=False),
    "adaptive": Launched("fused", _adaptive, shares=False),
    "tiled": Launched("tiled", _tiled),
    "block_table": Launched("v1", _block_table),
    "dcp": Launched("dcp", _dcp, "nothing"),
    "draft": Launched("draft", _draft, "nothing"),
}
"""Entry points of subject ``kernels``; ``v1``, ``v2`` and ``tiled`` by their host functions."""


# As published hosts launch them.


def _published_v1(kernel: Any, positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    tokens = len(positions)
    window = _function("window", "block_table_window_size")(1024, g.block_size)
    starts = torch.tensor([0, tokens], dtype=torch.int32)
    kernel[(2,)](
        num_tokens=tokens,
        max_num_tokens=tokens,
        query_start_loc_ptr=starts,
        positions_ptr=positions,
        block_table_ptr=row,
        block_table_stride=row.shape[1],
        block_size=g.block_size,
        slot_mapping_ptr=output,
        KV_CACHE_BLOCK_SIZE=g.kv_cache_block_size,
        BLOCKS_PER_KV_BLOCK=g.blocks_per_kv_block,
        TOTAL_CP_WORLD_SIZE=g.cp.size,
        TOTAL_CP_RANK=g.cp.rank,
        CP_KV_CACHE_INTERLEAVE_SIZE=g.cp.interleave,
        PAD_ID=-1,
        TILE_BLOCK_SIZE=1024,
        BLOCK_TABLE_WINDOW_SIZE=window,
    )


_STAGED = 4096


def _published_v2(kernel: Any, positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    tokens = len(positions)
    kernel[(1, 2)](
        max_num_tokens=tokens,
        idx_mapping=torch.zeros(1, dtype=torch.int32),
        query_start_loc=torch.tensor([0, tokens], dtype=torch.int32),
        pos=positions,
        block_table_ptrs=torch.tensor([row.data_ptr()], dtype=torch.uint64),
        block_table_strides=torch.tensor([row.shape[1]], dtype=torch.int64),
        block_sizes=torch.tensor([g.block_size], dtype=torch.int32),
        slot_mappings_ptr=output,
        slot_mappings_stride=tokens,
        cp_rank=g.cp.rank,
        CP_SIZE=g.cp.size,
        CP_INTERLEAVE=g.cp.interleave,
        PAD_ID=-1,
        TRITON_BLOCK_SIZE=1024,
        TOTAL_BLOCK_SIZE=_STAGED,
    )


_PUBLISHED: Mapping[str, tuple[Callable[..., None], Launched]] = {
    "v1": (_published_v1, Launched("v1", ring, "positions")),
    "v2": (_published_v2, Launched("v2", ring, "positions", _STAGED)),
}


def published(source: str, lane: Lane) -> dict[str, Launched]:
    """The kernels of vllm-ascend in ``source`` that have a place there. Raises FileNotFoundError where it is none."""
    found = {}
    for entry in subjects.load("vllm-ascend", source, lane):
        name = entry.description.name
        if entry.is_kernel and entry.description.status == TESTABLE and name in _PUBLISHED:
            launch, how = _PUBLISHED[name]
            found[name] = replace(how, launch=partial(launch, entry.kernel))
    return found
