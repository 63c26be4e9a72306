"""Slot mapping for GPUs: programs share the output evenly, whatever the lengths of the requests."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.arguments import launching
from kernels.group_tables import GroupTables, check_batch, check_launch
from kernels.slot_mappings_v2 import shard_offset

TILE_BLOCK_SIZE = 256  # tokens a program handles


@triton.jit
def find_requests(query_start_loc, num_reqs, first_token, TILE_BLOCK_SIZE: tl.constexpr):
    """For each token of a tile the last request that starts at or before it. That is the one that owns it: empty
    requests before it start there too. ``num_reqs`` for a token that nobody owns.

    Nothing outside ``query_start_loc[: num_reqs + 1]`` is read, whatever the offsets hold.
    """
    FEW_REQUESTS: tl.constexpr = 4
    SAMPLES: tl.constexpr = 256
    # The answer for every token is in [first, first + left].
    first = 0
    left = num_reqs
    # Bisection waits for memory at every step. One load of evenly spread offsets takes most steps' place; for a few
    # requests the sum over them would cost more than it saves (H200: 64 requests of 128 tokens 2.10 us without it and
    # 1.65 us with it, one request of 4096 tokens 1.49 and 1.58 us).
    if num_reqs > FEW_REQUESTS:
        last_token = first_token + TILE_BLOCK_SIZE - 1
        step = num_reqs // SAMPLES + 1
        start = tl.load(query_start_loc + tl.minimum((tl.arange(0, SAMPLES) + 1) * step, num_reqs))
        # Both counts in one sum, each in 16 bits of it.
        counts = tl.sum((start <= first_token).to(tl.int32) + (start <= last_token).to(tl.int32) * 65536, axis=0)
        first = tl.minimum((counts & 65535) * step, num_reqs)
        left = tl.minimum(((counts >> 16) + 1) * step - 1, num_reqs) - first

    token = first_token + tl.arange(0, TILE_BLOCK_SIZE)
    request = tl.zeros_like(token) + first
    while left > 0:
        half = (left + 1) // 2
        start = tl.load(query_start_loc + request + half)
        request = tl.where(start <= token, request + half, request)
        left -= half
    return request


@triton.jit
def divide_positions(position, divisor):
    """``position // divisor`` for int32 positions >= 0 and a divisor that all of them share: by a shift where it is a
    power of two, as block sizes nearly always are.

    A GPU has no instruction for dividing integers, and what takes its place is a third of this kernel's work (H200, one
    request of 1,048,576 tokens: 4.86 us without the shift and 4.17 us with it and 32-bit strides).

    Ascend divides int32 vectors in float32, which is exact below 2**24, and int64 ones exactly, one by one in its
    scalar unit, as it loads the cells of the table here. The tokens of a tile belong to many requests: there is no
    beginning near all of them from which to count small distances.
    """
    if divisor & (divisor - 1) == 0:
        # The exponent of the divisor as a float, which is exact: the bits above the fraction, less their bias.
        quotient = position >> ((divisor.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127)
    else:
        quotient = (position.to(tl.int64) // divisor).to(tl.int32)
    return quotient


# What may change with every step is not specialized on: each new kind of batch would compile again.
@triton.jit(
    do_not_specialize=["max_num_tokens", "num_reqs", "num_positions"],
    do_not_specialize_on_alignment=["idx_mapping", "query_start_loc", "pos"],
)
def _compute_slot_mapping_tiled_kernel(
    max_num_tokens,
    num_reqs,
    num_positions,
    idx_mapping,
    query_start_loc,
    pos,
    block_table_ptrs,
    block_table_strides,
    block_sizes,
    kernel_block_sizes,
    slot_mappings_ptr,
    slot_mappings_stride,
    cp_rank,
    CP_SIZE: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
    PAD_ID: tl.constexpr,
    TILE_BLOCK_SIZE: tl.constexpr,
    slot_mapping_enabled=None,
    dcp_sharded=None,
):
    """Grid (cdiv(max_num_tokens, TILE_BLOCK_SIZE), num_groups): program (i, g) writes elements [i, i + 1) *
    TILE_BLOCK_SIZE of row g, slots and padding alike.

    Takes what :func:`kernels.slot_mappings_v2._compute_slot_mappings_kernel` takes, and writes the same.
    ``idx_mapping`` may be absent (None): request r then uses row r. ``pos`` has ``num_positions`` elements; those of no
    token are read and mean nothing.

    Every token reads its own cell of the table, which a GPU does fast and Ascend one by one.
    """
    slot_type: tl.constexpr = slot_mappings_ptr.dtype.element_ty
    group = tl.program_id(1)
    first_token = tl.program_id(0) * TILE_BLOCK_SIZE
    token = first_token + tl.arange(0, TILE_BLOCK_SIZE)
    # Masked by what there is, not by the number of tokens: that is on the device, and would have to arrive first.
    loaded = tl.load(pos + token, mask=token < num_positions, other=-1)
    # The low half of a position beyond int32 would be an ordinary one of another token.
    loaded = tl.where(loaded <= 2147483647, tl.maximum(loaded, -1), -1).to(tl.int32)
    table_ptr = tl.load(block_table_ptrs + group).to(tl.pointer_type(tl.int32))
    # Fewer than 2^31 cells: no position, an int32, reaches further in a row.
    row_stride = tl.load(block_table_strides + group).to(tl.int32)
    block_size = tl.load(kernel_block_sizes + group)
    kv_cache_block_size = tl.load(block_sizes + group)
    request = find_requests(query_start_loc, num_reqs, first_token, TILE_BLOCK_SIZE)

    slots = tl.full((TILE_BLOCK_SIZE,), PAD_ID, slot_type)
    has_slots = (num_reqs > 0) & (row_stride > 0)
    if slot_mapping_enabled is not None:
        has_slots = has_slots & (tl.load(slot_mapping_enabled + group) != 0)
    if has_slots:
        is_local = (request < num_reqs) & (loaded >= 0)
        row = tl.where(request < num_reqs, request, 0)
        if idx_mapping is not None:
            row = tl.load(idx_mapping + row)
            is_local = is_local & (row >= 0)
        position = tl.maximum(loaded, 0)
        if CP_SIZE > 1:
            group_cp_size = CP_SIZE
            group_cp_rank = cp_rank
            if dcp_sharded is not None:
                is_sharded = tl.load(dcp_sharded + group) != 0
                group_cp_size = tl.where(is_sharded, CP_SIZE, 1)
                group_cp_rank = tl.where(is_sharded, cp_rank, 0)
            virtual_block_size = kv_cache_block_size * group_cp_size
            virtual_block = divide_positions(position, virtual_block_size)
            virtual_offset = position - virtual_block * virtual_block_size
            is_own, local_offset = shard_offset(virtual_offset, group_cp_size, group_cp_rank, CP_INTERLEAVE)
            is_local = is_local & is_own
            kernel_block = local_offset // block_size
            block_index = virtual_block * (kv_cache_block_size // block_size) + kernel_block
            offset = local_offset - kernel_block * block_size
        else:
            block_index = divide_positions(position, block_size)
            offset = position - block_index * block_size

        found = is_local & (block_index < row_stride)
        # Ascend's compiler drops the mask of a scattered load and selects afterwards: the address must be good anyway.
        cell = tl.where(found, row.to(tl.int64) * row_stride.to(tl.int64) + block_index, 0)
        block_number = tl.load(table_ptr + cell, mask=found, other=0).to(slot_type)
        slots = tl.where(found, block_number * block_size + offset, slots)

    slot_mapping_ptr = slot_mappings_ptr + group.to(tl.int64) * slot_mappings_stride
    tl.store(slot_mapping_ptr + token, slots, mask=token < max_num_tokens)


def compute_slot_mapping_tiled(
    groups: GroupTables,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    slot_mappings: torch.Tensor,
    *,
    idx_mapping: torch.Tensor | None = None,
    max_num_tokens: int | None = None,
    pad_id: int = -1,
    validate: bool = False,
) -> None:
    """What :func:`kernels.slot_mappings_v2.compute_slot_mappings` does, on the same arguments and with the same
    refusals, in programs that share the output evenly.

    ``idx_mapping`` may be left out: request r then uses row r of every table, which must exist (``row-exists``).
    """
    max_num_tokens = check_launch(
        groups, idx_mapping, query_start_loc, positions, slot_mappings, max_num_tokens, pad_id
    )
    if validate:
        check_batch(groups, idx_mapping, query_start_loc, positions, slot_mappings, max_num_tokens)
    if max_num_tokens == 0:
        return

    with launching(_compute_slot_mapping_tiled_kernel, groups.device):
        _compute_slot_mapping_tiled_kernel[(triton.cdiv(max_num_tokens, TILE_BLOCK_SIZE), len(groups))](
            max_num_tokens,
            query_start_loc.numel() - 1,
            positions.numel(),
            idx_mapping,
            query_start_loc,
            positions,
            groups.addresses,
            groups.strides,
            groups.kv_cache_block_sizes,
            groups.block_sizes,
            slot_mappings,
            slot_mappings.stride(0),
            groups.cp_rank,
            CP_SIZE=groups.cp_size,
            CP_INTERLEAVE=groups.cp_interleave,
            PAD_ID=pad_id,
            TILE_BLOCK_SIZE=TILE_BLOCK_SIZE,
            slot_mapping_enabled=groups.is_enabled,
            dcp_sharded=groups.is_sharded,
        )
