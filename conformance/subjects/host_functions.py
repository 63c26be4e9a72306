"""Host code of this project that takes objects, not only tensors: called with what can be bound to a case.

Each of these is called as an entry point is, by parameter name, makes the objects from its arguments, and calls the
code under test as its users do.
"""

from __future__ import annotations

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
        self.parameters = _parameters(OverGroupTables.__call__)

    def __call__(
        self,
        block_table_ptrs: torch.Tensor,
        table_rows: torch.Tensor,
        table_widths: torch.Tensor,
        block_table_strides: torch.Tensor,
        kernel_block_sizes: torch.Tensor,
        block_sizes: torch.Tensor | None,
        is_sharded: torch.Tensor | None,
        is_enabled: torch.Tensor | None,
        cp_size: int,
        cp_rank: int,
        cp_interleave: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        idx_mapping: torch.Tensor | None,
        slot_mappings: torch.Tensor,
        max_num_tokens: int | None,
        pad_id: int,
        validate: bool,
    ) -> None:
        places = zip(*map(_list, (block_table_ptrs, table_rows, table_widths, block_table_strides)), strict=True)
        groups = self._module.GroupTables(
            [_tensor(self._lane, address, (rows, width), stride) for address, rows, width, stride in places],
            _list(kernel_block_sizes),
            _given(block_sizes),
            cp_size=cp_size,
            cp_rank=cp_rank,
            cp_interleave=cp_interleave,
            sharded=_given(is_sharded),
            enabled=_given(is_enabled),
        )
        self._function(
            groups=groups,
            query_start_loc=query_start_loc,
            positions=positions,
            idx_mapping=idx_mapping,
            slot_mappings=slot_mappings,
            max_num_tokens=max_num_tokens,
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
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        num_speculative_tokens: int,
        max_num_blocks: torch.Tensor | None,
        kernel_block_sizes: torch.Tensor | None,
        block_sizes: torch.Tensor,
        is_circular: torch.Tensor | None,
        is_sharded: torch.Tensor | None,
        num_tokens: int,
        max_num_tokens: int,
        cp_size: int,
        cp_rank: int,
        cp_interleave: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        is_later_step: bool,
        pad_id: int,
        validate: bool,
    ) -> None:
        tables = self._module.MultiGroupBlockTable(
            max_num_reqs,
            max_model_len,
            max_num_batched_tokens,
            False,
            query_start_loc.device,
            _list(block_sizes),
            num_speculative_tokens,
            max_num_blocks=_given(max_num_blocks),
            kernel_sizes=None if kernel_block_sizes is None else [[size] for size in _list(kernel_block_sizes)],
            cp_kv_cache_interleave_size=cp_interleave,
            dcp_world_size=cp_size,
            dcp_rank=cp_rank,
            circular=_given(is_circular),
            sharded=_given(is_sharded),
            pad_id=pad_id,
        )
        for g, table in enumerate(tables.block_tables):
            table.block_table.gpu = _tensor(self._lane, int(block_table_ptrs[g]), table.block_table.gpu.shape)
            table.slot_mapping.gpu = _tensor(self._lane, int(slot_mapping_ptrs[g]), (max_num_tokens,))
        places = zip(*map(_list, (allocated_blocks_ptrs, table_rows, allocated_widths)), strict=True)
        rows = [_tensor(self._lane, address, (count, width)).tolist() for address, count, width in places]
        if is_later_step:
            step_before(tables, rows, query_start_loc, positions[:num_tokens], max_num_tokens)
        fill(tables, rows)
        tables.commit_block_table(len(rows[0]))
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
        as_numpy: bool,
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
        if as_numpy:
            indices = tuple(each.numpy() for each in indices)
        tables[0].compute_slot_mapping_draft(*indices, validate=validate)


def fill(tables: MultiGroupBlockTable, rows: Sequence[Sequence[Sequence[int]]]) -> None:
    """Bring row r of group g to hold the allocated blocks ``rows[g][r]``, as they stand after a while of serving:
    requests came and went before, began with a few blocks or with more, were moved, and grew by the others.
    """
    count, last = len(rows[0]), len(rows[0]) - 1
    begun = [[(row + 1) % (len(own[row]) + 1) for own in rows] for row in range(count)]  # with this many blocks
    for row in range(count):
        tables.add_row([[1] * len(own[row]) for own in rows], row)
        if row > 0:
            tables.clear_row(row)
    for row in range(last):
        tables.add_row([own[row][: begun[row][g]] for g, own in enumerate(rows)], last - row)
    for row in range(count // 2):
        tables.swap_row(row, last - row)
    if last > 0:
        tables.move_row(last - 1, last)
        tables.move_row(last, last - 1)
    tables.add_row([own[last][: begun[last][g]] for g, own in enumerate(rows)], last)
    for row in range(count):
        tables.append_row([own[row][begun[row][g] :] for g, own in enumerate(rows)], row)


def step_before(
    tables: MultiGroupBlockTable,
    rows: Sequence[Sequence[Sequence[int]]],
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    max_num_tokens: int,
) -> None:
    """Let the tables have had the rows of all groups, the requests and their tokens in the reverse order, and as many
    positions as the output has elements.
    """
    fill(tables, [own[::-1] for own in rows])
    tables.commit_block_table(len(rows[0]))
    reverse = positions.new_zeros(max_num_tokens)
    reverse[: positions.numel()] = positions.flip(0)
    starts = (query_start_loc[-1] - query_start_loc).flip(0)
    tables.compute_slot_mapping(starts.numel() - 1, starts, reverse)


def _list(values: torch.Tensor) -> list[Any]:
    found: list[Any] = values.tolist()
    return found


def _given(values: torch.Tensor | None) -> list[Any] | None:
    return None if values is None else _list(values)


def _tensor(lane: Lane, address: int, shape: Sequence[int], stride: int | None = None) -> torch.Tensor:
    """int32 memory of the launch as a tensor whose rows are ``stride`` elements apart (None: as long as they are)."""
    strides = None if stride is None else (stride, 1)
    size = shape[0] * stride if stride is not None else shape[0] * (shape[1] if len(shape) > 1 else 1)
    return lane.tensor(Buffer(address, "int32", tuple(shape), strides, size))
