"""Slot mapping of all KV-cache groups in one launch, paged and circular ones together, without context parallelism."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.arguments import check_capacity, check_pad_id, check_vector, launching, refuse
from kernels.validation import check_row_stride, check_tokens
from kernels.window import block_table_window_size, look_up_slots

TILE_BLOCK_SIZE = 1024
"""Tokens of a long request that a program handles at once."""

SMALLEST_TILE = 16
"""The smallest tile for short requests; the others are the powers of two from here to half of TILE_BLOCK_SIZE."""

PROGRAMS_PER_REQUEST = 4
"""At most this many programs take the tiles of one request in turn."""

# Sharing a request pays as long as programs do not queue up: an NPU runs some dozens at once, a GPU some hundreds.
_PROGRAMS_AT_ONCE = 512

# The token counts change with every step. Specialized on (equal to 1, divisible by 16), each new kind of batch would
# compile again, about 5 s on an NPU. A pointer would compile once for an aligned address and once for any other, and
# no load would be faster for it: a request starts at any token.
_NEW_EVERY_STEP = ["num_tokens", "max_num_tokens"]
_POINTERS = [
    "query_start_loc_ptr",
    "positions_ptr",
    "block_table_addrs_ptr",
    "slot_mapping_addrs_ptr",
    "block_table_strides_ptr",
    "block_sizes_ptr",
    "is_circular_ptr",
]


@triton.jit
def _output_of_group(slot_mapping_addrs_ptr):
    """Pointer to the int32 output of this program's group."""
    return tl.load(slot_mapping_addrs_ptr + tl.program_id(0)).to(tl.pointer_type(tl.int32))


@triton.jit
def _pad_tail(
    slot_mapping_ptr, query_start_loc_ptr, num_tokens, max_num_tokens, PAD_ID: tl.constexpr, TILE: tl.constexpr
):
    """Store ``PAD_ID`` into this program's tiles of [num_tokens, max_num_tokens). Where the last request ends sooner
    than at num_tokens, from its end on: elements between would keep the slots of an older step."""
    all_tokens = tl.load(query_start_loc_ptr + tl.program_id(1))
    first = tl.where(all_tokens < num_tokens, all_tokens, num_tokens)
    lane = tl.arange(0, TILE)
    padding = tl.full((TILE,), PAD_ID, tl.int32)
    for tile_start in range(first + tl.program_id(2) * TILE, max_num_tokens, tl.num_programs(2) * TILE):
        token = tile_start + lane
        tl.store(slot_mapping_ptr + token, padding, mask=token < max_num_tokens)


@triton.jit
def _request_in_group(
    query_start_loc_ptr, block_table_addrs_ptr, block_table_strides_ptr, block_sizes_ptr, is_circular_ptr
):
    """This program's request: first token, token behind its last one; and its row in this program's group: pointer,
    cells that may be read, block size, 1 or 0 (a ring)."""
    group = tl.program_id(0)
    request = tl.program_id(1)
    start = tl.load(query_start_loc_ptr + request)
    end = tl.load(query_start_loc_ptr + request + 1)
    table_ptr = tl.load(block_table_addrs_ptr + group).to(tl.pointer_type(tl.int32))
    stride = tl.load(block_table_strides_ptr + group).to(tl.int64)
    row_ptr = table_ptr + request.to(tl.int64) * stride
    row_stride = tl.minimum(stride, 2147483647).to(tl.int32)
    is_paged = 1
    if is_circular_ptr is not None:
        is_paged = (tl.load(is_circular_ptr + group) == 0).to(tl.int32)
    return start, end, row_ptr, row_stride, tl.load(block_sizes_ptr + group), is_paged


@triton.jit
def _map_tiles(
    start,
    end,
    row_ptr,
    row_stride,
    block_size,
    is_paged,
    positions_ptr,
    slot_mapping_ptr,
    PAD_ID: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Write the slots of this program's tiles of the tokens [start, end)."""
    lane = tl.arange(0, TILE)
    padding = tl.full((TILE,), PAD_ID, tl.int32)
    block_size = tl.maximum(block_size, 1)  # no division by zero, whatever the tables hold
    for tile_start in range(start + tl.program_id(2) * TILE, end, tl.num_programs(2) * TILE):
        token = tile_start + lane
        in_request = token < end
        # -1 behind the request: such a lane is then as foreign as a negative position, and one test covers both.
        loaded = tl.load(positions_ptr + token, mask=in_request, other=-1).to(tl.int32)
        position = tl.maximum(loaded, 0)
        slots = look_up_slots(row_ptr, row_stride, position, loaded >= 0, block_size, padding, WINDOW, is_paged)
        tl.store(slot_mapping_ptr + token, slots, mask=in_request)


@triton.jit(do_not_specialize=_NEW_EVERY_STEP, do_not_specialize_on_alignment=_POINTERS)
def _compute_slot_mapping_fused_groups_kernel(
    num_tokens,
    max_num_tokens,
    query_start_loc_ptr,
    positions_ptr,
    block_table_addrs_ptr,
    slot_mapping_addrs_ptr,
    block_table_strides_ptr,
    block_sizes_ptr,
    is_circular_ptr,
    PAD_ID: tl.constexpr,
    TILE_BLOCK_SIZE: tl.constexpr,
    BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,
):
    """Grid (groups, num_reqs + 1, n): programs (g, r, 0 .. n-1) map request r in group g through row r of its table,
    taking its tiles in turn; programs (g, num_reqs, 0 .. n-1) pad the tail of group g in the same way.

    ``query_start_loc`` int32 [num_reqs + 1], ``positions`` int64. One element a group: ``block_table_addrs`` uint64,
    the address of an int32 table; ``block_table_strides`` int64 or int32, the cells from one row to the next;
    ``block_sizes`` int32; ``is_circular`` int32, not 0 for a ring, or None where no group is one;
    ``slot_mapping_addrs`` uint64, the address of an int32 output [>= max_num_tokens], of which [0, max_num_tokens) is
    written.

    ``TILE_BLOCK_SIZE`` and ``BLOCK_TABLE_WINDOW_SIZE`` are powers of two and decide how fast it is, never what comes
    out. Negative positions, and block indices at or past the stride, get ``PAD_ID`` and read nothing.
    """
    if tl.program_id(1) == tl.num_programs(1) - 1:
        slot_mapping_ptr = _output_of_group(slot_mapping_addrs_ptr)
        _pad_tail(slot_mapping_ptr, query_start_loc_ptr, num_tokens, max_num_tokens, PAD_ID, TILE_BLOCK_SIZE)
        return

    slot_mapping_ptr = _output_of_group(slot_mapping_addrs_ptr)
    start, end, row_ptr, row_stride, block_size, is_paged = _request_in_group(
        query_start_loc_ptr, block_table_addrs_ptr, block_table_strides_ptr, block_sizes_ptr, is_circular_ptr
    )
    _map_tiles(
        start,
        end,
        row_ptr,
        row_stride,
        block_size,
        is_paged,
        positions_ptr,
        slot_mapping_ptr,
        PAD_ID,
        TILE_BLOCK_SIZE,
        BLOCK_TABLE_WINDOW_SIZE,
    )


@triton.jit(do_not_specialize=_NEW_EVERY_STEP, do_not_specialize_on_alignment=_POINTERS)
def _compute_slot_mapping_fused_groups_adaptive_kernel(
    num_tokens,
    max_num_tokens,
    query_start_loc_ptr,
    positions_ptr,
    block_table_addrs_ptr,
    slot_mapping_addrs_ptr,
    block_table_strides_ptr,
    block_sizes_ptr,
    is_circular_ptr,
    PAD_ID: tl.constexpr,
    SMALL_TILE_BLOCK_SIZE: tl.constexpr,
    SMALL_BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,
    TILE_BLOCK_SIZE: tl.constexpr,
    BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,
):
    """Arguments, grid and values of :func:`_compute_slot_mapping_fused_groups_kernel`. A request of at most
    ``SMALL_TILE_BLOCK_SIZE`` tokens is one tile of that size, with a window to match.
    """
    if tl.program_id(1) == tl.num_programs(1) - 1:
        slot_mapping_ptr = _output_of_group(slot_mapping_addrs_ptr)
        _pad_tail(slot_mapping_ptr, query_start_loc_ptr, num_tokens, max_num_tokens, PAD_ID, TILE_BLOCK_SIZE)
        return

    slot_mapping_ptr = _output_of_group(slot_mapping_addrs_ptr)
    start, end, row_ptr, row_stride, block_size, is_paged = _request_in_group(
        query_start_loc_ptr, block_table_addrs_ptr, block_table_strides_ptr, block_sizes_ptr, is_circular_ptr
    )
    if end - start <= SMALL_TILE_BLOCK_SIZE:
        _map_tiles(
            start,
            end,
            row_ptr,
            row_stride,
            block_size,
            is_paged,
            positions_ptr,
            slot_mapping_ptr,
            PAD_ID,
            SMALL_TILE_BLOCK_SIZE,
            SMALL_BLOCK_TABLE_WINDOW_SIZE,
        )
    else:
        _map_tiles(
            start,
            end,
            row_ptr,
            row_stride,
            block_size,
            is_paged,
            positions_ptr,
            slot_mapping_ptr,
            PAD_ID,
            TILE_BLOCK_SIZE,
            BLOCK_TABLE_WINDOW_SIZE,
        )


def compute_slot_mapping_fused_groups(
    group_count: int,
    num_reqs: int,
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    block_table_addrs_ptr: torch.Tensor,
    slot_mapping_addrs_ptr: torch.Tensor,
    block_table_strides_ptr: torch.Tensor,
    block_sizes_ptr: torch.Tensor,
    min_block_size: int,
    *,
    pad_id: int,
    is_circular_ptr: torch.Tensor | None = None,
    validate: bool = False,
) -> None:
    """In every group, write the slot of every token into elements [0, num_tokens) of its output and ``pad_id`` into
    [num_tokens, max_num_tokens). Where ``query_start_loc[num_reqs]`` comes sooner, padding begins there.

    All tensors are on one device. ``query_start_loc_ptr`` [>= num_reqs + 1] int32: request r owns tokens
    [query_start_loc[r], query_start_loc[r + 1]) and row r of every table. ``positions_ptr`` [>= num_tokens] int64;
    a negative one gets ``pad_id`` in every group.

    The other tensors hold one element for each of ``group_count`` groups at least. ``block_table_addrs_ptr`` uint64:
    where its int32 table [>= num_reqs rows] starts, on the same device. ``block_table_strides_ptr`` int64 or int32:
    cells from one row to the next; all of them may be read, and a block index past them gets ``pad_id``.
    ``block_sizes_ptr`` int32: tokens in a block, none fewer than ``min_block_size``. ``is_circular_ptr`` int32: 1 for a
    ring of one block a request, None where there is no ring. ``slot_mapping_addrs_ptr`` uint64: where its output
    starts, int32 [>= max_num_tokens]; nothing at or past ``max_num_tokens`` is written.

    How many requests and tokens there are decides how a batch is launched, out of 7 kernels at most (twice as many
    with and without ``is_circular_ptr``); :func:`prewarm_fused_slot_mapping_kernels` compiles them.

    Raises ``ValueError`` that starts with the broken clause, ``qsl-capacity`` or ``slot-fits`` (of ``pad_id``), or
    with the argument that is wrong. Addresses, and what is behind them, are taken as they are. ``validate=True`` also
    reads the tensors, and so waits for the device: ``qsl-monotone``, ``qsl-capacity``, ``pos-int32``, ``row-width`` (a
    row being as wide as the stride), block sizes, strides, and addresses of 0.
    """
    _check_counts(group_count, num_reqs, min_block_size)
    device = check_vector("query_start_loc_ptr", query_start_loc_ptr, (torch.int32,))
    check_vector("positions_ptr", positions_ptr, (torch.int64,), device)
    _check_per_group("block_table_addrs_ptr", block_table_addrs_ptr, (torch.uint64,), group_count, device)
    _check_per_group("slot_mapping_addrs_ptr", slot_mapping_addrs_ptr, (torch.uint64,), group_count, device)
    strides = (torch.int64, torch.int32)
    _check_per_group("block_table_strides_ptr", block_table_strides_ptr, strides, group_count, device)
    _check_per_group("block_sizes_ptr", block_sizes_ptr, (torch.int32,), group_count, device)
    if is_circular_ptr is not None:
        _check_per_group("is_circular_ptr", is_circular_ptr, (torch.int32,), group_count, device)
    # How long the outputs are is not known here.
    check_capacity(num_tokens, max_num_tokens, positions_ptr.numel(), max_num_tokens)
    if query_start_loc_ptr.numel() <= num_reqs:
        offsets = query_start_loc_ptr.numel()
        refuse("query_start_loc_ptr", f"holds {offsets} offsets, {num_reqs} requests need {num_reqs + 1}")
    check_pad_id(pad_id, torch.int32)
    if validate:
        request, position = check_tokens(query_start_loc_ptr[: num_reqs + 1], positions_ptr, num_tokens=num_tokens)
        _check_addresses("block_table_addrs_ptr", block_table_addrs_ptr[:group_count])
        _check_addresses("slot_mapping_addrs_ptr", slot_mapping_addrs_ptr[:group_count])
        sizes, row_strides = block_sizes_ptr.tolist(), block_table_strides_ptr.tolist()
        rings = [0] * group_count if is_circular_ptr is None else is_circular_ptr.tolist()
        for g in range(group_count):
            _check_group(request, position, min_block_size, g, sizes[g], row_strides[g], rings[g])

    if group_count == 0:
        return
    _launch(
        _tile_block_size(num_reqs, num_tokens),
        (group_count, num_reqs + 1, _programs_per_request(group_count, num_reqs, num_tokens)),
        min_block_size,
        pad_id,
        device=device,
        num_tokens=num_tokens,
        max_num_tokens=max_num_tokens,
        query_start_loc_ptr=query_start_loc_ptr,
        positions_ptr=positions_ptr,
        block_table_addrs_ptr=block_table_addrs_ptr,
        slot_mapping_addrs_ptr=slot_mapping_addrs_ptr,
        block_table_strides_ptr=block_table_strides_ptr,
        block_sizes_ptr=block_sizes_ptr,
        is_circular_ptr=is_circular_ptr,
    )


def prewarm_fused_slot_mapping_kernels(
    min_block_size: int,
    max_num_batched_tokens: int,
    pad_id: int,
    device: torch.device | str,
    is_circular_ptr: torch.Tensor | None = None,
) -> None:
    """Compile, and load onto ``device``, every kernel that :func:`compute_slot_mapping_fused_groups` can choose for a
    batch of up to ``max_num_batched_tokens`` tokens; no such batch compiles anything after that.

    ``min_block_size``, ``pad_id`` and ``is_circular_ptr`` are those of the launches to come, whose strides are int64.
    Each kernel is launched once, over no request and no token: it writes nothing.

    Raises ``ValueError`` that starts with the argument that is wrong, or ``slot-fits`` (of ``pad_id``).
    """
    _check_counts(1, 0, min_block_size)
    check_pad_id(pad_id, torch.int32)
    if max_num_batched_tokens < 0:
        refuse("max_num_batched_tokens", f"is {max_num_batched_tokens}, must not be negative")
    int32, int64, uint64 = (torch.zeros(1, dtype=t).to(device) for t in (torch.int32, torch.int64, torch.uint64))
    if is_circular_ptr is not None:
        _check_per_group("is_circular_ptr", is_circular_ptr, (torch.int32,), 1, int32.device)
    tile, largest = SMALLEST_TILE, _tile_block_size(1, max_num_batched_tokens)
    while tile <= largest:
        _launch(
            tile,
            (1, 1, 1),
            min_block_size,
            pad_id,
            device=int32.device,
            num_tokens=0,
            max_num_tokens=0,
            query_start_loc_ptr=int32,
            positions_ptr=int64,
            block_table_addrs_ptr=uint64,
            slot_mapping_addrs_ptr=uint64,
            block_table_strides_ptr=int64,
            block_sizes_ptr=int32,
            is_circular_ptr=is_circular_ptr,
        )
        tile *= 2


def _tile_block_size(num_reqs: int, num_tokens: int) -> int:
    """Tile for a batch: the mean length of its requests, rounded up to a power of two from SMALLEST_TILE to
    TILE_BLOCK_SIZE. (The longest would tell more, but only the device knows it.)
    """
    mean_length = triton.cdiv(num_tokens, max(num_reqs, 1))
    return int(min(max(triton.next_power_of_2(mean_length), SMALLEST_TILE), TILE_BLOCK_SIZE))


def _programs_per_request(group_count: int, num_reqs: int, num_tokens: int) -> int:
    """Programs that share each request: no more than the whole batch has tiles, or than run at once."""
    at_once = _PROGRAMS_AT_ONCE // (group_count * (num_reqs + 1))
    return int(max(1, min(PROGRAMS_PER_REQUEST, triton.cdiv(num_tokens, TILE_BLOCK_SIZE), at_once)))


def _launch(
    tile: int,
    grid: tuple[int, int, int],
    min_block_size: int,
    pad_id: int,
    *,
    device: torch.device,
    **arguments: int | torch.Tensor | None,
) -> None:
    """Launch the kernel for ``tile``: a small one is for the short requests only, long ones still get large tiles."""
    large = {
        "PAD_ID": pad_id,
        "TILE_BLOCK_SIZE": TILE_BLOCK_SIZE,
        "BLOCK_TABLE_WINDOW_SIZE": block_table_window_size(TILE_BLOCK_SIZE, min_block_size),
    }
    with launching(_compute_slot_mapping_fused_groups_kernel, device):
        if tile == TILE_BLOCK_SIZE:
            _compute_slot_mapping_fused_groups_kernel[grid](**arguments, **large)
        else:
            _compute_slot_mapping_fused_groups_adaptive_kernel[grid](
                **arguments,
                **large,
                SMALL_TILE_BLOCK_SIZE=tile,
                SMALL_BLOCK_TABLE_WINDOW_SIZE=block_table_window_size(tile, min_block_size),
            )


def _check_counts(group_count: int, num_reqs: int, min_block_size: int) -> None:
    if group_count < 0:
        refuse("group_count", f"is {group_count}, must not be negative")
    if num_reqs < 0:
        refuse("num_reqs", f"is {num_reqs}, must not be negative")
    if min_block_size < 1:
        refuse("min_block_size", f"is {min_block_size}, must be at least 1")


def _check_per_group(
    name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], group_count: int, device: torch.device
) -> None:
    check_vector(name, tensor, dtypes, device)
    if tensor.numel() < group_count:
        refuse(name, f"holds {tensor.numel()} elements, {group_count} groups need one each")


def _check_addresses(name: str, addresses: torch.Tensor) -> None:
    if 0 in addresses.tolist():
        refuse(name, f"the address of group {addresses.tolist().index(0)} is 0")


def _check_group(
    request: torch.Tensor,
    position: torch.Tensor,
    min_block_size: int,
    group: int,
    block_size: int,
    row_stride: int,
    is_circular: int,
) -> None:
    """Refuse what the tensors say of one group."""
    if block_size < min_block_size:
        refuse("block_sizes_ptr", f"block size {block_size} of group {group} is below min_block_size {min_block_size}")
    lowest = 1 if is_circular else 0
    if row_stride < lowest:
        refuse("block_table_strides_ptr", f"stride {row_stride} of group {group} is below {lowest}")
    if not is_circular:
        check_row_stride(request, position, block_size=block_size, row_stride=row_stride, group=group)
