"""Slot mapping of one KV-cache group: one Triton program a request, and one that pads the tail."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.arguments import (
    Geometry,
    check_block_table,
    check_capacity,
    check_pad_id,
    check_stored_rows,
    check_vector,
    launching,
    refuse,
)
from kernels.validation import check_contents
from kernels.window import block_table_window_size, look_up_slots, quotient_and_remainder

TILE_BLOCK_SIZE = 1024
"""Tokens a program handles at once."""


# The token counts change with every step. Specialized on (equal to 1, divisible by 16), each new kind of batch would
# compile again, about 5 s on an NPU. The row stride and the block size stay the same while the engine runs.
@triton.jit(do_not_specialize=["num_tokens", "max_num_tokens"])
def _compute_slot_mapping_kernel(
    num_tokens,
    max_num_tokens,
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
    IS_CIRCULAR: tl.constexpr = False,
):
    """Grid (num_reqs + 1,): program r maps the tokens of request r through table row r, the last one pads the tail:
    from ``num_tokens`` on, or from ``query_start_loc[num_reqs]`` where that comes sooner.

    ``query_start_loc`` int32 [num_reqs + 1], ``positions`` int64, ``block_table`` int32 with rows
    ``block_table_stride`` apart, ``slot_mapping`` int32 or int64 [>= max_num_tokens], of which [0, max_num_tokens) is
    written. ``TILE_BLOCK_SIZE`` and ``BLOCK_TABLE_WINDOW_SIZE`` are powers of two and decide how fast it is, never
    what comes out. Negative positions, and block indices at or past ``block_table_stride``, get ``PAD_ID`` and read
    nothing.

    Remainders are ``x - x // n * n``: ``%`` on a vector becomes a scalar loop on Ascend. Dividends are never
    negative, so it does not matter that ``//`` truncates. On Ascend the quotient comes from float32, exact below
    2**24: what is divided is therefore the distance from a multiple of the divisor just below the tile's smallest
    position, which the scalar unit finds. In a ring, and where ranks share a sequence, that is exact as long as a
    tile's positions are less than 2**24 apart; elsewhere always.
    """
    # int64 vectors are scalar loops on Ascend: only an int64 output, whose slots may pass 2**31, pays for them.
    slot_type: tl.constexpr = slot_mapping_ptr.dtype.element_ty
    virtual_block_size: tl.constexpr = KV_CACHE_BLOCK_SIZE * TOTAL_CP_WORLD_SIZE
    # A lane behind the request is as foreign as a negative position, and one test covers both; but where the smallest
    # position is looked for, it must not be that lane's. Nothing is stored for it either way.
    BEHIND: tl.constexpr = 2147483647 if TOTAL_CP_WORLD_SIZE > 1 or IS_CIRCULAR else -1
    request = tl.program_id(0)
    lane = tl.arange(0, TILE_BLOCK_SIZE)
    padding = tl.full((TILE_BLOCK_SIZE,), PAD_ID, slot_type)

    if request == tl.num_programs(0) - 1:
        # Where there are fewer tokens than the host counted, elements between would keep the slots of an older step.
        all_tokens = tl.load(query_start_loc_ptr + request)
        first = tl.where(all_tokens < num_tokens, all_tokens, num_tokens)
        for tile_start in range(first, max_num_tokens, TILE_BLOCK_SIZE):
            token = tile_start + lane
            tl.store(slot_mapping_ptr + token, padding, mask=token < max_num_tokens)
        return

    start = tl.load(query_start_loc_ptr + request)
    end = tl.load(query_start_loc_ptr + request + 1)
    request_row_ptr = block_table_ptr + request.to(tl.int64) * block_table_stride
    for tile_start in range(start, end, TILE_BLOCK_SIZE):
        token = tile_start + lane
        in_request = token < end
        loaded = tl.load(positions_ptr + token, mask=in_request, other=BEHIND).to(tl.int32)
        is_local = loaded >= 0
        position = tl.maximum(loaded, 0)
        row_ptr = request_row_ptr
        row_cells = block_table_stride

        if IS_CIRCULAR:
            # From the beginning of a lap on: the dividends are small.
            position -= tl.maximum(tl.min(loaded, axis=0), 0) // block_size * block_size
            offset = position - position // block_size * block_size
            slot = tl.load(row_ptr).to(slot_type) * block_size + offset
            slots = tl.where(is_local, slot, padding)
        else:
            if TOTAL_CP_WORLD_SIZE > 1:
                # From a virtual block's beginning on: the dividends are small.
                first = tl.maximum(tl.min(loaded, axis=0), 0) // virtual_block_size
                position -= first * virtual_block_size
                row_ptr += first * BLOCKS_PER_KV_BLOCK
                row_cells -= first * BLOCKS_PER_KV_BLOCK
                virtual_block, virtual_offset = quotient_and_remainder(position, virtual_block_size)
                # Runs of interleave tokens are dealt to the ranks in turn: run 0 to rank 0, run W to rank 0 again.
                run, offset_in_run = quotient_and_remainder(virtual_offset, CP_KV_CACHE_INTERLEAVE_SIZE)
                turn, owner = quotient_and_remainder(run, TOTAL_CP_WORLD_SIZE)
                is_local = is_local & (owner == TOTAL_CP_RANK)
                local_offset = turn * CP_KV_CACHE_INTERLEAVE_SIZE + offset_in_run
                # From here on the rank's own tokens are like those of a group that is not shared.
                position = virtual_block * KV_CACHE_BLOCK_SIZE + local_offset

            slots = look_up_slots(row_ptr, row_cells, position, is_local, block_size, padding, BLOCK_TABLE_WINDOW_SIZE)

        tl.store(slot_mapping_ptr + token, slots, mask=in_request)


def compute_slot_mapping(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    num_tokens: int,
    block_size: int,
    max_num_tokens: int | None = None,
    kv_cache_block_size: int | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
    is_circular: bool = False,
    pad_id: int = -1,
    validate: bool = False,
) -> None:
    """Write the slot of every token into ``slot_mapping[:num_tokens]`` and ``pad_id`` into
    ``[num_tokens:max_num_tokens]``. Where ``query_start_loc`` ends sooner, as a captured graph may find it, padding
    begins there.

    All tensors are on one device. ``query_start_loc`` [num_reqs + 1] int32: request r owns tokens
    [query_start_loc[r], query_start_loc[r + 1]) and row r of ``block_table``. ``positions`` [>= num_tokens] int64.
    ``block_table`` [rows, width] int32, a view whose row stride exceeds its width included: the cells between may be
    read, never used. ``slot_mapping`` [>= max_num_tokens] int32 or int64; nothing at or past ``max_num_tokens`` is
    written.

    Sizes count tokens: ``block_size`` (b) of a kernel block, ``kv_cache_block_size`` (B, default b) of an allocated
    one. ``max_num_tokens`` is the padded length a graph is captured at, by default all of ``slot_mapping``.
    ``cp_size`` ranks share each sequence, ``cp_interleave`` consecutive tokens at a time. ``is_circular``: one ring
    block a request.

    Raises ``ValueError`` that starts with the broken clause: ``hybrid-divides``, ``hybrid-width``, ``rank-range``,
    ``interleave-divides``, ``circular-no-cp``, ``circular-one-block``, ``qsl-capacity``, ``row-exists``,
    ``slot-fits`` (of ``pad_id``), or with the argument whose type or shape is wrong. ``validate=True`` also reads the
    tensors, and so waits for the device: ``qsl-monotone``, ``qsl-capacity``, ``pos-int32``, ``row-width`` and
    ``slot-fits`` of every token.
    """
    geometry = Geometry(
        block_size, block_size if kv_cache_block_size is None else kv_cache_block_size, cp_size, cp_rank, cp_interleave
    )
    _check_tensors(query_start_loc, positions, block_table, slot_mapping, geometry)
    max_num_tokens = slot_mapping.numel() if max_num_tokens is None else max_num_tokens
    check_capacity(num_tokens, max_num_tokens, positions.numel(), slot_mapping.numel())
    check_pad_id(pad_id, slot_mapping.dtype)
    rows, width = block_table.shape
    if is_circular and cp_size > 1:
        refuse("circular-no-cp", f"a circular group cannot be shared by cp_size {cp_size} ranks, the limit is 1")
    if is_circular and width != 1:
        refuse("circular-one-block", f"a circular group's row is 1 block wide, this one is {width}")
    num_reqs = query_start_loc.numel() - 1
    if num_reqs > rows:
        refuse("row-exists", f"{num_reqs} requests need as many rows, block_table has {rows}")
    row_stride = block_table.stride(0) if rows > 1 and width else width  # torch gives rows without a column stride 1
    check_stored_rows(block_table, num_reqs, row_stride)
    if validate:
        check_contents(
            query_start_loc,
            positions,
            block_table,
            slot_mapping.dtype,
            num_tokens=num_tokens,
            geometry=geometry,
            is_circular=is_circular,
        )

    with launching(_compute_slot_mapping_kernel, slot_mapping.device):
        _compute_slot_mapping_kernel[(num_reqs + 1,)](
            num_tokens,
            max_num_tokens,
            query_start_loc,
            positions,
            block_table,
            row_stride,
            block_size,
            slot_mapping,
            KV_CACHE_BLOCK_SIZE=geometry.kv_cache_block_size,
            BLOCKS_PER_KV_BLOCK=geometry.blocks_per_kv_block,
            TOTAL_CP_WORLD_SIZE=cp_size,
            TOTAL_CP_RANK=cp_rank,
            CP_KV_CACHE_INTERLEAVE_SIZE=cp_interleave,
            PAD_ID=pad_id,
            TILE_BLOCK_SIZE=TILE_BLOCK_SIZE,
            BLOCK_TABLE_WINDOW_SIZE=block_table_window_size(TILE_BLOCK_SIZE, block_size),
            IS_CIRCULAR=is_circular,
        )


def _check_tensors(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    geometry: Geometry,
) -> None:
    device = check_vector("slot_mapping", slot_mapping, (torch.int32, torch.int64))
    check_vector("query_start_loc", query_start_loc, (torch.int32,), device)
    check_vector("positions", positions, (torch.int64,), device)
    check_block_table(block_table, geometry, device)
    if query_start_loc.numel() == 0:
        refuse("query_start_loc", "holds nothing, expected num_reqs + 1 offsets, the first of them 0")
