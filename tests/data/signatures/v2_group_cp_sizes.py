"""v2 with hybrid blocks and the number of ranks of each group: one means that it is replicated."""

from vllm.triton_utils import tl, triton

from tests.data.signatures.arithmetic import pad, slots_of


@triton.jit
def _compute_slot_mappings_kernel(
    max_num_tokens,
    idx_mapping,
    query_start_loc,
    pos,
    block_table_ptrs,
    block_table_strides,
    block_sizes,
    kernel_block_sizes,
    group_cp_sizes,
    slot_mappings_ptr,
    slot_mappings_stride,
    cp_rank,
    CP_SIZE: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
    PAD_ID: tl.constexpr,
    TRITON_BLOCK_SIZE: tl.constexpr,
):
    group = tl.program_id(0)
    request = tl.program_id(1)
    slot_mapping_ptr = slot_mappings_ptr + group.to(tl.int64) * slot_mappings_stride
    if request == tl.num_programs(1) - 1:
        pad(slot_mapping_ptr, tl.load(query_start_loc + request), max_num_tokens, PAD_ID, TRITON_BLOCK_SIZE)
        return
    cp_size = tl.load(group_cp_sizes + group)
    rank = tl.where(cp_size == 1, 0, cp_rank)
    end = tl.load(query_start_loc + request + 1)
    table_ptr = tl.load(block_table_ptrs + group).to(tl.pointer_type(tl.int32))
    row = tl.load(idx_mapping + request).to(tl.int64)
    row_ptr = table_ptr + row * tl.load(block_table_strides + group)
    for first in range(tl.load(query_start_loc + request), end, TRITON_BLOCK_SIZE):
        token = first + tl.arange(0, TRITON_BLOCK_SIZE)
        position = tl.load(pos + token, mask=token < end, other=0).to(tl.int32)
        slot = slots_of(
            row_ptr,
            position,
            token < end,
            tl.load(kernel_block_sizes + group),
            tl.load(block_sizes + group),
            cp_size,
            rank,
            CP_INTERLEAVE,
            PAD_ID,
        )
        tl.store(slot_mapping_ptr + token, slot, mask=token < end)
