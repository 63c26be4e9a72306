"""Host functions beside v1 that are given addresses: all groups in one launch, and slots taken back for replay."""

from vllm.triton_utils import tl, triton

from tests.data.signatures.arithmetic import pad, slots_of


@triton.jit
def _fused_kernel(
    num_reqs,
    num_tokens,
    max_num_tokens,
    query_start_loc_ptr,
    positions_ptr,
    block_table_addrs_ptr,
    slot_mapping_addrs_ptr,
    block_table_strides_ptr,
    block_sizes_ptr,
    is_circular_ptr,
    HAS_CIRCULAR: tl.constexpr,
    PAD_ID: tl.constexpr,
    TILE: tl.constexpr,
):
    group = tl.program_id(0)
    request = tl.program_id(1)
    slot_mapping_ptr = tl.load(slot_mapping_addrs_ptr + group).to(tl.pointer_type(tl.int32))
    if request == num_reqs:
        pad(slot_mapping_ptr, num_tokens, max_num_tokens, PAD_ID, TILE)
        return
    block_size = tl.load(block_sizes_ptr + group)
    end = tl.load(query_start_loc_ptr + request + 1)
    table_ptr = tl.load(block_table_addrs_ptr + group).to(tl.pointer_type(tl.int32))
    row_ptr = table_ptr + request.to(tl.int64) * tl.load(block_table_strides_ptr + group)
    for first in range(tl.load(query_start_loc_ptr + request), end, TILE):
        token = first + tl.arange(0, TILE)
        position = tl.load(positions_ptr + token, mask=token < end, other=-1).to(tl.int32)
        wanted = position >= 0
        position = tl.maximum(position, 0)
        if HAS_CIRCULAR:
            in_ring = position - position // block_size * block_size
            position = tl.where(tl.load(is_circular_ptr + group) != 0, in_ring, position)
        slot = slots_of(row_ptr, position, wanted, block_size, block_size, 1, 0, 1, PAD_ID)
        tl.store(slot_mapping_ptr + token, slot.to(tl.int32), mask=token < end)


def compute_slot_mapping_fused_groups(
    group_count,
    num_reqs,
    num_tokens,
    max_num_tokens,
    query_start_loc_ptr,
    positions_ptr,
    block_table_addrs_ptr,
    slot_mapping_addrs_ptr,
    block_table_strides_ptr,
    block_sizes_ptr,
    min_block_size,
    *,
    pad_id,
    is_circular_ptr=None,
):
    _fused_kernel[(group_count, num_reqs + 1)](
        num_reqs,
        num_tokens,
        max_num_tokens,
        query_start_loc_ptr,
        positions_ptr,
        block_table_addrs_ptr,
        slot_mapping_addrs_ptr,
        block_table_strides_ptr,
        block_sizes_ptr,
        is_circular_ptr,
        HAS_CIRCULAR=is_circular_ptr is not None,
        PAD_ID=pad_id,
        TILE=64,
    )


@triton.jit
def _replay_kernel(
    query_start_loc_ptr,
    positions_ptr,
    replay_start_ptr,
    slot_mapping_addrs_ptr,
    cacheable_groups_ptr,
    window,
    PAD_ID: tl.constexpr,
    TILE: tl.constexpr,
):
    group = tl.load(cacheable_groups_ptr + tl.program_id(0))
    request = tl.program_id(1)
    start = tl.load(replay_start_ptr + request)
    slot_mapping_ptr = tl.load(slot_mapping_addrs_ptr + group).to(tl.pointer_type(tl.int32))
    end = tl.load(query_start_loc_ptr + request + 1)
    for first in range(tl.load(query_start_loc_ptr + request), end, TILE):
        token = first + tl.arange(0, TILE)
        position = tl.load(positions_ptr + token, mask=token < end, other=-1).to(tl.int32)
        slot = tl.load(slot_mapping_ptr + token, mask=token < end, other=0)
        is_replayed = (start > 0) & (position >= start) & (position - start < window)
        tl.store(slot_mapping_ptr + token, tl.where(is_replayed, PAD_ID, slot), mask=token < end)


def pad_replayed_slot_mapping(
    num_reqs, query_start_loc, positions, replay_start, slot_mapping_addrs, cacheable_groups, window, *, pad_id
):
    if num_reqs and cacheable_groups.numel():
        _replay_kernel[(cacheable_groups.numel(), num_reqs)](
            query_start_loc,
            positions,
            replay_start,
            slot_mapping_addrs,
            cacheable_groups,
            window,
            PAD_ID=pad_id,
            TILE=64,
        )
