"""vLLM's v1: the tile is BLOCK_SIZE, blocks are not hybrid, there is no window."""

from vllm.triton_utils import tl, triton

from tests.data.signatures.arithmetic import pad, slots_of


@triton.jit
def _compute_slot_mapping_kernel(
    num_tokens,
    max_num_tokens,
    query_start_loc_ptr,
    positions_ptr,
    block_table_ptr,
    block_table_stride,
    block_size,
    slot_mapping_ptr,
    TOTAL_CP_WORLD_SIZE: tl.constexpr,
    TOTAL_CP_RANK: tl.constexpr,
    CP_KV_CACHE_INTERLEAVE_SIZE: tl.constexpr,
    PAD_ID: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    request = tl.program_id(0)
    if request == tl.num_programs(0) - 1:
        pad(slot_mapping_ptr, num_tokens, max_num_tokens, PAD_ID, BLOCK_SIZE)
        return
    end = tl.load(query_start_loc_ptr + request + 1)
    row_ptr = block_table_ptr + request.to(tl.int64) * block_table_stride
    for first in range(tl.load(query_start_loc_ptr + request), end, BLOCK_SIZE):
        token = first + tl.arange(0, BLOCK_SIZE)
        position = tl.load(positions_ptr + token, mask=token < end, other=0).to(tl.int32)
        slot = slots_of(
            row_ptr,
            position,
            token < end,
            block_size,
            block_size,
            TOTAL_CP_WORLD_SIZE,
            TOTAL_CP_RANK,
            CP_KV_CACHE_INTERLEAVE_SIZE,
            PAD_ID,
        )
        tl.store(slot_mapping_ptr + token, slot, mask=token < end)
