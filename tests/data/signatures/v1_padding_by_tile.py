"""An intermediate v1 of vllm-ascend: num_reqs is the third parameter, and a program pads one tile."""

from vllm.triton_utils import tl, triton

from tests.data.signatures.arithmetic import pad, slots_of


@triton.jit
def _compute_slot_mapping_kernel(
    num_tokens,
    max_num_tokens,
    num_reqs,
    query_start_loc_ptr,
    positions_ptr,
    block_table_ptr,
    block_table_stride,
    block_size,
    slot_mapping_ptr,
    KV_CACHE_BLOCK_SIZE: tl.constexpr,
    BLOCKS_PER_KV_BLOCK: tl.constexpr,
    TOTAL_CP_WORLD_SIZE: tl.constexpr,
    TOTAL_CP_RANK: tl.constexpr,
    CP_KV_CACHE_INTERLEAVE_SIZE: tl.constexpr,
    PAD_ID: tl.constexpr,
    TILE_BLOCK_SIZE: tl.constexpr,
    BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,
):
    request = tl.program_id(0)
    if request >= num_reqs:
        start = num_tokens + (request - num_reqs) * TILE_BLOCK_SIZE
        pad(slot_mapping_ptr, start, tl.minimum(start + TILE_BLOCK_SIZE, max_num_tokens), PAD_ID, TILE_BLOCK_SIZE)
        return
    end = tl.load(query_start_loc_ptr + request + 1)
    row_ptr = block_table_ptr + request.to(tl.int64) * block_table_stride
    for first in range(tl.load(query_start_loc_ptr + request), end, TILE_BLOCK_SIZE):
        token = first + tl.arange(0, TILE_BLOCK_SIZE)
        position = tl.load(positions_ptr + token, mask=token < end, other=0).to(tl.int32)
        slot = slots_of(
            row_ptr,
            position,
            token < end,
            block_size,
            BLOCKS_PER_KV_BLOCK * block_size,
            TOTAL_CP_WORLD_SIZE,
            TOTAL_CP_RANK,
            CP_KV_CACHE_INTERLEAVE_SIZE,
            PAD_ID,
        )
        tl.store(slot_mapping_ptr + token, slot, mask=token < end)
