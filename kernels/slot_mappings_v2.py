"""Slot mapping of all KV-cache groups in one launch: one Triton program a request and group, and one a group that pads
the tail."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.arguments import launching
from kernels.group_tables import GroupTables, check_batch, check_launch
from kernels.window import block_table_window_size, look_up_slots, quotient_and_remainder

TILE_BLOCK_SIZE = 1024
"""Tokens a program handles at once."""


@triton.jit
def shard_position(position, kv_cache_block_size, cp_size, cp_rank, CP_INTERLEAVE: tl.constexpr):
    """Steps 1 to 3 of the five, for positions >= 0: is it this rank's, and which position it has among the rank's own.

    From there on a sharded group is like any other: cell ``own // block_size`` of the row, offset ``own % block_size``,
    however many kernel blocks an allocated one holds. The sizes are scalars known at run time, so that the groups of
    one launch may differ; with ``cp_size`` 1 and ``cp_rank`` 0 every position is the rank's own, and stays as it is.
    """
    # A shard is a share of the *allocated* block: with kernel blocks here, a rank fills the wrong cells as soon as the
    # interleave does not divide them (vllm-ascend PR 10442, vLLM PR 51031).
    virtual_block_size = kv_cache_block_size * cp_size
    virtual_block = position // virtual_block_size
    virtual_offset = position - virtual_block * virtual_block_size
    is_own, local_offset = shard_offset(virtual_offset, cp_size, cp_rank, CP_INTERLEAVE)
    return is_own, virtual_block * kv_cache_block_size + local_offset


@triton.jit
def shard_offset(virtual_offset, cp_size, cp_rank, CP_INTERLEAVE: tl.constexpr):
    """Steps 2 and 3, for offsets in a virtual block: is it this rank's, and its offset in the allocated one."""
    # Runs of interleave tokens are dealt to the ranks in turn: run 0 to rank 0, run W to rank 0 again.
    run, offset_in_run = quotient_and_remainder(virtual_offset, CP_INTERLEAVE)
    turn = run // cp_size
    owner = run - turn * cp_size
    local_offset = turn * CP_INTERLEAVE + offset_in_run
    return owner == cp_rank, local_offset


# How long the output is padded may change with every step, and a batch may start anywhere in a buffer. Specialized on
# (equal to 1, divisible by 16), each new kind would compile again, about 5 s on an NPU. The stride and the rank stay
# what they are for as long as the engine runs, and the number of requests is in the grid only.
@triton.jit(
    do_not_specialize=["max_num_tokens"],
    do_not_specialize_on_alignment=["idx_mapping", "query_start_loc", "pos"],
)
def _compute_slot_mappings_kernel(
    max_num_tokens,
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
    TRITON_BLOCK_SIZE: tl.constexpr,
    BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,
    slot_mapping_enabled=None,
    HAS_SLOT_MAPPING_ENABLED: tl.constexpr = False,
    dcp_sharded=None,
):
    """Grid (num_groups, num_reqs + 1): program (g, r) maps the tokens of request r through row ``idx_mapping[r]`` of
    table g; the last program of a group pads it from ``query_start_loc[num_reqs]`` on.

    ``idx_mapping`` int32 [num_reqs], ``query_start_loc`` int32 [num_reqs + 1], ``pos`` int64, ``slot_mappings`` int32
    or int64 [num_groups, >= max_num_tokens] with rows ``slot_mappings_stride`` apart, of which [0, max_num_tokens) is
    written. One element a group: ``block_table_ptrs`` uint64, addresses of int32 tables; ``block_table_strides`` int64
    or int32; ``block_sizes`` (B) and ``kernel_block_sizes`` (b) int32; ``slot_mapping_enabled`` and ``dcp_sharded``
    bool or int32. A group that is not enabled gets no slots, one that is not sharded is the same on every rank. Without
    ``dcp_sharded`` every group is sharded.

    ``TRITON_BLOCK_SIZE`` and ``BLOCK_TABLE_WINDOW_SIZE`` are powers of two and decide how fast it is, never what comes
    out. Negative positions, block indices at or past the stride of their table and requests with a negative row get
    ``PAD_ID`` and read nothing.

    Remainders are ``x - x // n * n``: ``%`` on a vector becomes a scalar loop on Ascend. Dividends are never
    negative, so it does not matter that ``//`` truncates. On Ascend the quotient comes from float32, exact below
    2**24: what is divided is therefore the distance from a multiple of the divisor just below the tile's smallest
    position, which the scalar unit finds. Where ranks share a sequence, that is exact as long as a tile's positions
    are less than 2**24 apart; elsewhere always.
    """
    # int64 vectors are scalar loops on Ascend: only an int64 output, whose slots may pass 2**31, pays for them.
    slot_type: tl.constexpr = slot_mappings_ptr.dtype.element_ty
    # A lane behind the request is as foreign as a negative position, and one test covers both; but where the smallest
    # position is looked for, it must not be that lane's. Nothing is stored for it either way.
    BEHIND: tl.constexpr = 2147483647 if CP_SIZE > 1 else -1
    group = tl.program_id(0)
    request = tl.program_id(1)
    lane = tl.arange(0, TRITON_BLOCK_SIZE)
    padding = tl.full((TRITON_BLOCK_SIZE,), PAD_ID, slot_type)
    slot_mapping_ptr = slot_mappings_ptr + group.to(tl.int64) * slot_mappings_stride
    start = tl.load(query_start_loc + request)

    if request == tl.num_programs(1) - 1:
        for tile_start in range(start, max_num_tokens, TRITON_BLOCK_SIZE):
            token = tile_start + lane
            tl.store(slot_mapping_ptr + token, padding, mask=token < max_num_tokens)
        return

    end = tl.load(query_start_loc + request + 1)
    row = tl.load(idx_mapping + request)
    has_slots = row >= 0
    if HAS_SLOT_MAPPING_ENABLED:
        has_slots = has_slots & (tl.load(slot_mapping_enabled + group) != 0)
    block_size = tl.load(kernel_block_sizes + group)
    row_stride = tl.load(block_table_strides + group)
    row_ptr = tl.load(block_table_ptrs + group).to(tl.pointer_type(tl.int32)) + row.to(tl.int64) * row_stride
    row_cells = tl.minimum(row_stride, 2147483647).to(tl.int32)
    kv_cache_block_size = tl.load(block_sizes + group)
    group_cp_size = CP_SIZE
    group_cp_rank = cp_rank
    if dcp_sharded is not None:
        is_sharded = tl.load(dcp_sharded + group) != 0
        group_cp_size = tl.where(is_sharded, CP_SIZE, 1)
        group_cp_rank = tl.where(is_sharded, cp_rank, 0)

    for tile_start in range(start, end, TRITON_BLOCK_SIZE):
        token = tile_start + lane
        in_request = token < end
        loaded = tl.load(pos + token, mask=in_request, other=BEHIND).to(tl.int32)
        is_local = (loaded >= 0) & has_slots
        position = tl.maximum(loaded, 0)
        tile_row_ptr = row_ptr
        tile_row_cells = row_cells
        if CP_SIZE > 1:
            # From a virtual block's beginning on: the dividends are small.
            virtual_block_size = kv_cache_block_size * group_cp_size
            first = tl.maximum(tl.min(loaded, axis=0), 0) // virtual_block_size
            position -= first * virtual_block_size
            tile_row_ptr += first * (kv_cache_block_size // block_size)
            tile_row_cells -= first * (kv_cache_block_size // block_size)
            is_own, position = shard_position(
                position, kv_cache_block_size, group_cp_size, group_cp_rank, CP_INTERLEAVE
            )
            is_local = is_local & is_own
        slots = look_up_slots(
            tile_row_ptr, tile_row_cells, position, is_local, block_size, padding, BLOCK_TABLE_WINDOW_SIZE
        )
        tl.store(slot_mapping_ptr + token, slots, mask=in_request)


def compute_slot_mappings(
    groups: GroupTables,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    slot_mappings: torch.Tensor,
    *,
    max_num_tokens: int | None = None,
    pad_id: int = -1,
    validate: bool = False,
) -> None:
    """Write the slots of every token in every group into ``slot_mappings[:, :num_tokens]`` and ``pad_id`` into
    ``[:, num_tokens:max_num_tokens]``, where num_tokens is ``query_start_loc[-1]``.

    All tensors are on one device. ``idx_mapping`` [num_reqs] int32: request r uses row ``idx_mapping[r]`` of every
    table, no row where that is negative. ``query_start_loc`` [num_reqs + 1] int32: request r owns tokens
    [query_start_loc[r], query_start_loc[r + 1]). ``positions`` [>= num_tokens] int64. ``slot_mappings`` [groups,
    >= max_num_tokens] int32 or int64, a view whose row stride exceeds its length included; nothing at or past
    ``max_num_tokens`` is written. That is the padded length a graph is captured at, by default all of a row.

    Raises ``ValueError`` that starts with the broken clause (``qsl-capacity``, ``slot-fits`` of ``pad_id``) or with the
    argument whose type or shape is wrong. ``validate=True`` also reads the tensors, and so waits for the device:
    ``qsl-monotone``, ``qsl-capacity``, ``row-exists``, ``pos-int32``, ``row-width`` and ``slot-fits`` of every token.
    """
    max_num_tokens = check_launch(
        groups, idx_mapping, query_start_loc, positions, slot_mappings, max_num_tokens, pad_id
    )
    if validate:
        check_batch(groups, idx_mapping, query_start_loc, positions, slot_mappings, max_num_tokens)

    smallest_block = min(geometry.block_size for geometry in groups.geometries)
    with launching(_compute_slot_mappings_kernel, groups.device):
        _compute_slot_mappings_kernel[(len(groups), idx_mapping.numel() + 1)](
            max_num_tokens,
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
            TRITON_BLOCK_SIZE=TILE_BLOCK_SIZE,
            BLOCK_TABLE_WINDOW_SIZE=block_table_window_size(TILE_BLOCK_SIZE, smallest_block),
            slot_mapping_enabled=groups.is_enabled,
            HAS_SLOT_MAPPING_ENABLED=groups.is_enabled is not None,
            dcp_sharded=groups.is_sharded,
        )
