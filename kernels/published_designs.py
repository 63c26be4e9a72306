"""The two published ways to do it, written again to be timed next to the others: one program a request, a loop over
its tiles, and a cell of the block table for every token, loaded one by one or gathered from a window of the row.

They do what the published kernels do and no more: no hybrid blocks, no check of what positions and tables hold. Nothing
but the benchmark uses them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _slots_of_tile(
    position,
    in_request,
    row_ptr,
    row_stride,
    block_size,
    CP_SIZE: tl.constexpr,
    CP_RANK: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
    PAD_ID: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Slots of one tile. ``WINDOW`` is the number of cells that are gathered from; 0: each token loads its own."""
    virtual_block_size = block_size * CP_SIZE
    block_index = position // virtual_block_size
    offset = position - block_index * virtual_block_size
    if WINDOW == 0:
        block_number = tl.load(row_ptr + block_index, mask=in_request, other=0)
    else:
        base = tl.min(tl.where(in_request, block_index, 2147483647), axis=0)
        cell = base + tl.arange(0, WINDOW)
        window = tl.load(row_ptr + cell, mask=cell < row_stride, other=0).to(tl.float32)
        block_number = tl.gather(window, tl.where(in_request, block_index - base, 0).to(tl.int32), 0).to(tl.int32)
    if CP_SIZE == 1:
        return block_number * block_size + offset
    is_local = offset // CP_INTERLEAVE % CP_SIZE == CP_RANK
    local_offset = offset // (CP_SIZE * CP_INTERLEAVE) * CP_INTERLEAVE + offset % CP_INTERLEAVE
    return tl.where(is_local, block_number * block_size + local_offset, PAD_ID)


@triton.jit(do_not_specialize=["num_tokens", "max_num_tokens"])
def one_group(
    num_tokens,
    max_num_tokens,
    query_start_loc,
    positions,
    block_table,
    block_table_stride,
    block_size,
    slot_mapping,
    CP_SIZE: tl.constexpr,
    CP_RANK: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
    PAD_ID: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Grid (num_reqs + 1,), the arguments of v1; ``WINDOW`` 0 for direct loads."""
    request = tl.program_id(0)
    if request == tl.num_programs(0) - 1:
        for tile_start in range(num_tokens, max_num_tokens, TILE):
            token = tile_start + tl.arange(0, TILE)
            tl.store(slot_mapping + token, PAD_ID, mask=token < max_num_tokens)
        return
    end = tl.load(query_start_loc + request + 1)
    row_ptr = block_table + request.to(tl.int64) * block_table_stride
    for tile_start in range(tl.load(query_start_loc + request), end, TILE):
        token = tile_start + tl.arange(0, TILE)
        position = tl.load(positions + token, mask=token < end, other=0)
        if WINDOW != 0:
            position = position.to(tl.int32)
        slots = _slots_of_tile(
            position,
            token < end,
            row_ptr,
            block_table_stride,
            block_size,
            CP_SIZE,
            CP_RANK,
            CP_INTERLEAVE,
            PAD_ID,
            WINDOW,
        )
        tl.store(slot_mapping + token, slots, mask=token < end)


@triton.jit(do_not_specialize=["max_num_tokens"])
def all_groups(
    max_num_tokens,
    idx_mapping,
    query_start_loc,
    positions,
    block_table_ptrs,
    block_table_strides,
    block_sizes,
    slot_mappings,
    slot_mappings_stride,
    CP_SIZE: tl.constexpr,
    CP_RANK: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
    PAD_ID: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Grid (num_groups, num_reqs + 1), the arguments of v2; ``WINDOW`` 0 for direct loads."""
    group = tl.program_id(0)
    request = tl.program_id(1)
    slot_mapping = slot_mappings + group * slot_mappings_stride
    start = tl.load(query_start_loc + request)
    if request == tl.num_programs(1) - 1:
        for tile_start in range(start, max_num_tokens, TILE):
            token = tile_start + tl.arange(0, TILE)
            tl.store(slot_mapping + token, PAD_ID, mask=token < max_num_tokens)
        return
    end = tl.load(query_start_loc + request + 1)
    row_stride = tl.load(block_table_strides + group)
    row = tl.load(idx_mapping + request)
    row_ptr = tl.load(block_table_ptrs + group).to(tl.pointer_type(tl.int32)) + row * row_stride
    block_size = tl.load(block_sizes + group)
    for tile_start in range(start, end, TILE):
        token = tile_start + tl.arange(0, TILE)
        position = tl.load(positions + token, mask=token < end, other=0)
        if WINDOW != 0:
            position = position.to(tl.int32)
        slots = _slots_of_tile(
            position, token < end, row_ptr, row_stride, block_size, CP_SIZE, CP_RANK, CP_INTERLEAVE, PAD_ID, WINDOW
        )
        tl.store(slot_mapping + token, slots, mask=token < end)
