"""From block index to slot: the one look-up in a block table that the Triton kernels share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def look_up_slots(
    row_ptr,
    row_stride,
    block_index,
    offset,
    is_local,
    block_size,
    padding,
    BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,
):
    """Slots of a tile of tokens of one request, ``padding`` (and its type) for those that get none.

    ``row_ptr``: the request's row of an int32 block table. ``row_stride`` int32 scalar: cells that may be read. Vectors
    as long as the tile: ``block_index`` int32 (not negative) and ``offset`` int32, the token's cell of the row and its
    place in that block; ``is_local`` int1, false for a token without a slot. Such a token, and a block index at or
    past ``row_stride``, reads nothing.

    One contiguous read of ``BLOCK_TABLE_WINDOW_SIZE`` cells (a power of two) serves every token whose block lies in
    it. Consecutive positions need one window; what is still pending after it (sparse positions) gets the next, from
    the smallest block left over.
    """
    NOTHING_PENDING: tl.constexpr = 2147483647
    slots = padding
    pending = tl.where(is_local, block_index, NOTHING_PENDING)
    base = tl.min(pending, axis=0)
    while base < row_stride:
        cell = base + tl.arange(0, BLOCK_TABLE_WINDOW_SIZE)
        window = tl.load(row_ptr + cell, mask=cell < row_stride)
        distance = pending - base
        found = distance < tl.minimum(row_stride - base, BLOCK_TABLE_WINDOW_SIZE)
        # Ascend gathers no int32. The bits travel as float32 and come back as they were, at no instruction; converted
        # to float32 instead, block numbers above 2**24 would lose their last bits.
        carried = tl.gather(window.to(tl.float32, bitcast=True), tl.where(found, distance, 0), 0)
        block_number = carried.to(tl.int32, bitcast=True).to(padding.dtype)
        slots = tl.where(found, block_number * block_size + offset, slots)
        pending = tl.where(found, NOTHING_PENDING, pending)
        base = tl.min(pending, axis=0)
    return slots


def block_table_window_size(tile_block_size: int, block_size: int) -> int:
    """Cells of a row that ``tile_block_size`` consecutive tokens can touch, rounded up to a power of two.

    One more than the blocks they fill, because the first token may stand anywhere in its block.
    """
    return int(triton.next_power_of_2(triton.cdiv(tile_block_size, block_size) + 1))
