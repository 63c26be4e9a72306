"""Host code of this project that takes objects, not only tensors: called with what can be bound to a case.

Each of these is called as an entry point is, by parameter name, makes the objects from its arguments, and calls the
code under test as its users do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conformance.execution.buffer import Buffer
from conformance.lanes.base import Lane

if TYPE_CHECKING:
    import torch

    from kernels.block_table import MultiGroupBlockTable


def _parameters(call: Callable[..., None]) -> tuple[str, ...]:
    code = call.__code__
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]  # without self


class OverGroupTables:
    """A function that takes ``GroupTables`` for the tables of all groups."""

    def __init__(self, module: ModuleType, function: str, lane: Lane) -> None:
        self._module, self._function, self._lane = module, getattr(module, function), lane
        self._in_order_by_default = inspect.signature(self._function).parameters["idx_mapping"].default is None
        self.parameters = _parameters(OverGroupTables.__call__)

    def __call__(
        self,
        block_table_ptrs: torch.Tensor,
        table_rows: torch.Tensor,
        table_widths: torch.Tensor,
        block_table_strides: torch.Tensor,
        kernel_block_sizes: torch.Tensor,
        block_sizes: torch.Tensor,
        is_sharded: torch.Tensor,
        is_enabled: torch.Tensor,
        cp_size: int,
        cp_rank: int,
        cp_interleave: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        idx_mapping: torch.Tensor | None,
        slot_mappings: torch.Tensor,
        max_num_tokens: int,
        pad_id: int,
        validate: bool,
    ) -> None:
        places = zip(*_lists(block_table_ptrs, table_rows, table_widths, block_table_strides), strict=True)
        sizes, allocated, sharded, enabled = _lists(kernel_block_sizes, block_sizes, is_sharded, is_enabled)
        # In half of the launches what is the default is left to it.
        brief = bool((positions.numel() + slot_mappings.shape[1]) % 2)
        groups = self._module.GroupTables(
            [_tensor(self._lane, address, (rows, width), stride) for address, rows, width, stride in places],
            sizes,
            None if brief and allocated == sizes else allocated,
            cp_size=cp_size,
            cp_rank=cp_rank,
            cp_interleave=cp_interleave,
            sharded=None if brief and all(sharded) else sharded,
            enabled=None if brief and all(enabled) else enabled,
        )
        if brief and self._in_order_by_default and _counts_up(idx_mapping):
            idx_mapping = None
        self._function(
            groups=groups,
            query_start_loc=query_start_loc,
            positions=positions,
            idx_mapping=idx_mapping,
            slot_mappings=slot_mappings,
            max_num_tokens=None if brief and max_num_tokens == slot_mappings.shape[1] else max_num_tokens,
            pad_id=pad_id,
            validate=validate,
        )


class Tables:
    """``MultiGroupBlockTable``, its rows filled through its own operations, its buffers on the device guarded."""

    def __init__(self, module: ModuleType, lane: Lane) -> None:
        self._module, self._lane = module, lane
        self.parameters = _parameters(Tables.__call__)

    def __call__(
        self,
        allocated_blocks_ptrs: torch.Tensor,
        table_rows: torch.Tensor,
        allocated_widths: torch.Tensor,
        block_table_ptrs: torch.Tensor,
        slot_mapping_ptrs: torch.Tensor,
        kernel_block_sizes: torch.Tensor,
        block_sizes: torch.Tensor,
        is_circular: torch.Tensor,
        is_sharded: torch.Tensor,
        num_tokens: int,
        cp_size: int,
        cp_rank: int,
        cp_interleave: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        pad_id: int,
        validate: bool,
    ) -> None:
        rows, widths = table_rows.tolist(), allocated_widths.tolist()
        sizes, kernel_sizes, sharded, rings = _lists(block_sizes, kernel_block_sizes, is_sharded, is_circular)
        # In some launches the output has room for draft tokens, and a table the width that its default gives it.
        drafts = 2 if num_tokens % 3 == 0 and num_tokens >= rows[0] and cp_size == 1 else 0
        alone = len(sizes) == 1 and sharded[0] and num_tokens % 2 == 1
        tables = self._module.MultiGroupBlockTable(
            rows[0],
            widths[0] * sizes[0] * cp_size if alone else 1,
            # The output is no longer than the tokens: nothing is padded, and what is behind them must stay as it is.
            num_tokens - (rows[0] if drafts else 0),
            False,
            query_start_loc.device,
            sizes,
            drafts,
            # A replicated group gets rows for the tokens of all ranks by itself.
            max_num_blocks=None
            if alone
            else [width if shared else -(-width // cp_size) for width, shared in zip(widths, sharded, strict=True)],
            kernel_sizes=None if alone and kernel_sizes == sizes else [[size] for size in kernel_sizes],
            cp_kv_cache_interleave_size=cp_interleave,
            dcp_world_size=cp_size,
            dcp_rank=cp_rank,
            circular=None if alone and not rings[0] else rings,
            sharded=None if alone else sharded,
            pad_id=pad_id,
        )
        for g, table in enumerate(tables.block_tables):
            table.block_table.gpu = _tensor(self._lane, int(block_table_ptrs[g]), table.block_table.gpu.shape)
            table.slot_mapping.gpu = _tensor(self._lane, int(slot_mapping_ptrs[g]), (num_tokens,))
        addresses = allocated_blocks_ptrs.tolist()
        places = zip(addresses, rows, widths, strict=True)
        fill(tables, [_tensor(self._lane, address, (count, width)).tolist() for address, count, width in places])
        tables.commit_block_table(rows[0])
        tables.compute_slot_mapping(query_start_loc.numel() - 1, query_start_loc, positions, validate=validate)


class DraftTable:
    """``BlockTable.compute_slot_mapping_draft``: on a host, the rows that it looks at are guarded."""

    def __init__(self, module: ModuleType, lane: Lane) -> None:
        self._module, self._lane = module, lane
        self.parameters = _parameters(DraftTable.__call__)

    def __call__(
        self,
        allocated_blocks: torch.Tensor,
        block_table: torch.Tensor,
        slot_mapping: torch.Tensor,
        kernel_block_size: int,
        block_size: int,
        max_num_tokens: int,
        cp_size: int,
        cp_rank: int,
        cp_interleave: int,
        req_indices: torch.Tensor,
        positions: torch.Tensor,
        pad_id: int,
        validate: bool,
    ) -> None:
        rows, width = allocated_blocks.shape
        tables = self._module.MultiGroupBlockTable(
            rows,
            1,
            max_num_tokens,
            False,
            slot_mapping.device,
            [block_size],
            max_num_blocks=[width],
            kernel_sizes=[[kernel_block_size]],
            cp_kv_cache_interleave_size=cp_interleave,
            dcp_world_size=cp_size,
            dcp_rank=cp_rank,
            pad_id=pad_id,
        )
        own = tables[0].block_table
        own.gpu, tables[0].slot_mapping.gpu = block_table, slot_mapping
        if block_table.device.type == "cpu":
            own.cpu, own.np = block_table, block_table.numpy()
            tables.clear()
        fill(tables, [allocated_blocks.tolist()])
        indices: tuple[Any, Any] = req_indices.cpu(), positions.cpu()
        if positions.numel() % 2:  # either kind of array
            indices = tuple(each.numpy() for each in indices)
        tables[0].compute_slot_mapping_draft(*indices, validate=validate)


def fill(tables: MultiGroupBlockTable, rows: Sequence[Sequence[Sequence[int]]]) -> None:
    """Bring row r of group g to hold the allocated blocks ``rows[g][r]``, as they stand after a while of serving:
    requests came and went before, grew by a part of their blocks, and were moved.
    """
    count = len(rows[0])
    for row in range(count):
        tables.add_row([[1] * len(own[row]) for own in rows], row)
        tables.clear_row(row)
    for row in range(count):
        blocks = [own[count - 1 - row] for own in rows]
        tables.add_row([own[: len(own) // 2] for own in blocks], row)
        tables.append_row([own[len(own) // 2 :] for own in blocks], row)
    for row in range(count // 2):
        tables.swap_row(row, count - 1 - row)


def _counts_up(rows: torch.Tensor | None) -> bool:
    return rows is not None and rows.tolist() == list(range(rows.numel()))


def _lists(*tensors: torch.Tensor) -> list[list[Any]]:
    return [tensor.tolist() for tensor in tensors]


def _tensor(lane: Lane, address: int, shape: Sequence[int], stride: int | None = None) -> torch.Tensor:
    """int32 memory of the launch as a tensor whose rows are ``stride`` elements apart (None: as long as they are)."""
    strides = None if stride is None else (stride, 1)
    size = shape[0] * stride if stride is not None else shape[0] * (shape[1] if len(shape) > 1 else 1)
    return lane.tensor(Buffer(address, "int32", tuple(shape), strides, size))
