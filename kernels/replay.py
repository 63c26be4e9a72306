"""Taking slots back: tokens computed again after a prefix-cache hit, whose keys and values are cached already."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.arguments import check_pad_id, check_vector, launching, refuse
from kernels.validation import check_tokens

TILE_BLOCK_SIZE = 1024
"""Tokens a program handles at once."""


# One kernel for every batch: a window of 1 or of a multiple of 16, and a pointer to an aligned address, are compiled
# like any other.
@triton.jit(
    do_not_specialize=["window"],
    do_not_specialize_on_alignment=[
        "query_start_loc_ptr",
        "positions_ptr",
        "replay_start_ptr",
        "slot_mapping_addrs_ptr",
        "cacheable_groups_ptr",
    ],
)
def _pad_replayed_slots_kernel(
    query_start_loc_ptr,
    positions_ptr,
    replay_start_ptr,
    slot_mapping_addrs_ptr,
    cacheable_groups_ptr,
    window,
    PAD_ID: tl.constexpr,
    TILE_BLOCK_SIZE: tl.constexpr,
):
    """Grid (cacheable groups, num_reqs): program (c, r) pads what request r replays in group ``cacheable_groups[c]``.

    ``query_start_loc`` int32 [num_reqs + 1], ``positions`` int64, ``replay_start`` int32 [num_reqs],
    ``slot_mapping_addrs`` uint64: the addresses of int32 outputs, one element a group; ``cacheable_groups`` int32.
    ``window`` is an int32 scalar. ``TILE_BLOCK_SIZE``, a power of two, decides how fast it is, never what comes out.
    """
    request = tl.program_id(1)
    replay_start = tl.load(replay_start_ptr + request)
    if replay_start > 0:
        group = tl.load(cacheable_groups_ptr + tl.program_id(0))
        slot_mapping_ptr = tl.load(slot_mapping_addrs_ptr + group).to(tl.pointer_type(tl.int32))
        end = tl.load(query_start_loc_ptr + request + 1)
        for tile_start in range(tl.load(query_start_loc_ptr + request), end, TILE_BLOCK_SIZE):
            token = tile_start + tl.arange(0, TILE_BLOCK_SIZE)
            in_request = token < end
            position = tl.load(positions_ptr + token, mask=in_request, other=-1).to(tl.int32)
            is_replayed = (position >= replay_start) & (position - replay_start < window)
            if tl.max(is_replayed.to(tl.int32), axis=0) > 0:
                # What stays is stored again. A store masked by `is_replayed` would do the same on Ascend, where only a
                # mask that is a range is a mask, but over the whole tile: past the request, and past the output.
                slot = tl.load(slot_mapping_ptr + token, mask=in_request)
                tl.store(slot_mapping_ptr + token, tl.where(is_replayed, PAD_ID, slot), mask=in_request)


def pad_replayed_slot_mapping(
    num_reqs: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    replay_start: torch.Tensor,
    slot_mapping_addrs: torch.Tensor,
    cacheable_groups: torch.Tensor,
    window: int,
    *,
    pad_id: int,
    validate: bool = False,
) -> None:
    """After slot mapping, replace the slot of every replayed token by ``pad_id`` in the cacheable groups: it would be
    written where a cached block, perhaps another request's as well, has it already.

    A token of request r at position p is replayed if ``0 < replay_start[r] <= p < replay_start[r] + window``; a start
    of 0 replays nothing. Nothing is launched when there is no request, no cacheable group or no window.

    All tensors are on one device. ``query_start_loc`` [>= num_reqs + 1] int32: request r owns tokens
    [query_start_loc[r], query_start_loc[r + 1]). ``positions`` int64, one a token. ``replay_start`` [>= num_reqs]
    int32. ``slot_mapping_addrs`` [groups] uint64: where the int32 output of each group starts, on the same device.
    ``cacheable_groups`` int32: indices into it, never those of circular groups.

    Raises ``ValueError`` that starts with the argument that is wrong, or ``slot-fits`` (of ``pad_id``). Addresses, and
    what is behind them, are taken as they are. ``validate=True`` also reads the tensors, and so waits for the device:
    ``qsl-monotone``, ``qsl-capacity``, ``pos-int32``, and groups that do not exist.
    """
    if num_reqs < 0:
        refuse("num_reqs", f"is {num_reqs}, must not be negative")
    if window < 0:
        refuse("window", f"is {window} tokens, must not be negative")
    device = check_vector("query_start_loc", query_start_loc, (torch.int32,))
    check_vector("positions", positions, (torch.int64,), device)
    check_vector("replay_start", replay_start, (torch.int32,), device)
    check_vector("slot_mapping_addrs", slot_mapping_addrs, (torch.uint64,), device)
    check_vector("cacheable_groups", cacheable_groups, (torch.int32,), device)
    check_pad_id(pad_id, torch.int32)
    offsets, starts = query_start_loc.numel(), replay_start.numel()
    if offsets <= num_reqs:
        refuse("query_start_loc", f"holds {offsets} offsets, {num_reqs} requests need {num_reqs + 1}")
    if starts < num_reqs:
        refuse("replay_start", f"holds {starts} positions, {num_reqs} requests need one each")
    if validate:
        num_tokens = int(query_start_loc[num_reqs])
        if num_tokens > positions.numel():
            refuse("qsl-capacity", f"query_start_loc ends at {num_tokens}, {positions.numel()} positions are given")
        check_tokens(query_start_loc[: num_reqs + 1], positions, num_tokens=num_tokens)
        for group in cacheable_groups.tolist():
            if not 0 <= group < slot_mapping_addrs.numel():
                refuse("cacheable_groups", f"there is no group {group}, the last is {slot_mapping_addrs.numel() - 1}")

    group_count = cacheable_groups.numel()
    if num_reqs == 0 or group_count == 0 or window == 0:
        return
    with launching(_pad_replayed_slots_kernel, device):
        _pad_replayed_slots_kernel[(group_count, num_reqs)](
            query_start_loc,
            positions,
            replay_start,
            slot_mapping_addrs,
            cacheable_groups,
            # No two positions are as far apart as this limit, so that the kernel needs no int64.
            min(window, torch.iinfo(torch.int32).max),
            PAD_ID=pad_id,
            TILE_BLOCK_SIZE=TILE_BLOCK_SIZE,
        )
