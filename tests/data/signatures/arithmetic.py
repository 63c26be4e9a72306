"""The five steps for the stand-ins beside this file, plainly; trees.py puts this text where they import it."""

from vllm.triton_utils import tl, triton


@triton.jit
def slots_of(
    row_ptr, position, wanted, block_size, kv_cache_block_size, cp_size, cp_rank, interleave, PAD_ID: tl.constexpr
):
    """int64 slots of positions >= 0 where ``wanted``, through one row; ``PAD_ID`` where another rank has the token."""
    virtual_block_size = kv_cache_block_size * cp_size
    virtual_block = position // virtual_block_size
    virtual_offset = position - virtual_block * virtual_block_size
    run = virtual_offset // interleave
    turn = run // cp_size
    wanted = wanted & (run - turn * cp_size == cp_rank)
    own = virtual_block * kv_cache_block_size + turn * interleave + virtual_offset - run * interleave
    block_index = own // block_size
    slot = tl.full(position.shape, PAD_ID, tl.int64)
    if tl.max(wanted.to(tl.int32), axis=0) > 0:  # else the row may have no cell at all
        # Ascend's front end takes a mask for one only where it is a range: what is not wanted reads cell 0.
        number = tl.load(row_ptr + tl.where(wanted, block_index, 0))
        slot = tl.where(wanted, number.to(tl.int64) * block_size + own - block_index * block_size, slot)
    return slot


@triton.jit
def pad(slot_mapping_ptr, start, end, PAD_ID: tl.constexpr, TILE: tl.constexpr):
    """``PAD_ID`` from ``start`` up to ``end``."""
    for first in range(start, end, TILE):
        token = first + tl.arange(0, TILE)
        tl.store(slot_mapping_ptr + token, tl.full((TILE,), PAD_ID, tl.int64), mask=token < end)
