"""From block index to slot: the one look-up in a block table that the Triton kernels share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def look_up_slots(
    row_ptr,
    row_stride,
    position,
    is_local,
    block_size,
    padding,
    BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,
    is_paged=1,
):
    """Slots of a tile of tokens of one request, ``padding`` (and its type) for those that get none.

    ``row_ptr``: the request's row of an int32 block table. ``row_stride`` int32 scalar: cells that may be read.
    ``block_size`` int32 scalar, at least 1. ``is_paged`` int32 scalar: 0 for a ring, whose row is one block to which
    every lap comes back; 1 for a row that grows. Vectors as long as the tile: ``position`` int32, of which
    cell ``position // block_size`` of the row holds the block; ``is_local`` int1, false for a token without a slot.
    Such a token, and a block index at or past ``row_stride``, reads nothing; its position may be any.

    One contiguous read of ``BLOCK_TABLE_WINDOW_SIZE`` cells (a power of two) serves every token whose block lies in
    it. Consecutive positions need one window; what is still pending after it (sparse positions) gets the next, from
    the smallest block left over.

    Vectors are divided only within a window: Ascend has no division of integer vectors but that of float32, which is
    exact up to 2**24. Where a window begins, the scalar unit divides.
    """
    NOTHING_PENDING: tl.constexpr = 2147483647
    EXACT_IN_FLOAT32: tl.constexpr = 16777216
    slots = padding
    # One less than the position, so that the largest int32 is nobody's.
    pending = tl.where(is_local, position - 1, NOTHING_PENDING)
    wide_block_size = tl.cast(block_size, tl.int64)
    row_end = tl.where(is_paged != 0, tl.minimum(wide_block_size * row_stride - 1, NOTHING_PENDING), NOTHING_PENDING)
    reach = tl.minimum(wide_block_size * BLOCK_TABLE_WINDOW_SIZE, tl.maximum(wide_block_size, EXACT_IN_FLOAT32))
    first = tl.min(pending, axis=0)
    while first < row_end:
        base = (first + 1) // block_size
        start = base * block_size - 1
        found = pending < tl.minimum(start + reach, row_end).to(tl.int32)
        distance = tl.where(found, pending - start, 0)
        block = distance // block_size
        cell = base * is_paged + tl.arange(0, BLOCK_TABLE_WINDOW_SIZE)
        window = tl.load(row_ptr + cell, mask=cell < row_stride)
        # Ascend gathers no int32. The bits travel as float32 and come back as they were, at no instruction; converted
        # to float32 instead, block numbers above 2**24 would lose their last bits.
        carried = tl.gather(window.to(tl.float32, bitcast=True), block * is_paged, 0)
        block_number = carried.to(tl.int32, bitcast=True)
        # The block's number less its place in the window, times the block's size: the remainder needs no product.
        slots = tl.where(found, (block_number - block).to(padding.dtype) * block_size + distance, slots)
        pending = tl.where(found, NOTHING_PENDING, pending)
        first = tl.min(pending, axis=0)
    return slots


@triton.jit
def quotient_and_remainder(dividend, DIVISOR: tl.constexpr):
    """``dividend // DIVISOR`` and ``dividend % DIVISOR`` for a vector of int32 that are not negative: by a shift where
    DIVISOR is a power of two, for any of them; else, on Ascend, for those below 2**24.
    """
    if DIVISOR == 1:
        quotient = dividend
        remainder = tl.zeros_like(dividend)
    elif DIVISOR & (DIVISOR - 1) == 0:
        # The exponent of the divisor as a float, which is exact: the bits above the fraction, less their bias.
        quotient = dividend >> ((tl.cast(DIVISOR, tl.float32).to(tl.int32, bitcast=True) >> 23) - 127)
        remainder = dividend & (DIVISOR - 1)
    else:
        quotient = dividend // DIVISOR
        remainder = dividend - quotient * DIVISOR
    return quotient, remainder


def block_table_window_size(tile_block_size: int, block_size: int) -> int:
    """Cells of a row that ``tile_block_size`` consecutive tokens can touch, rounded up to a power of two.

    One more than the blocks they fill, because the first token may stand anywhere in its block.
    """
    return int(triton.next_power_of_2(triton.cdiv(tile_block_size, block_size) + 1))
