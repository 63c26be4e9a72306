"""Slot mapping under context parallelism in plain torch: one call a batch, on any device, never waiting for it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.arguments import Geometry, check_block_table, check_pad_id, check_vector, refuse


class Placement(NamedTuple):
    """Where tokens live. ``block_index`` and ``offset`` (both int64) mean something only where ``is_local`` (bool)
    holds."""

    is_local: torch.Tensor
    block_index: torch.Tensor
    offset: torch.Tensor


def place_tokens(positions: torch.Tensor, geometry: Geometry) -> Placement:
    """Steps 1 to 4 of the five: for every position, is it ours, in which cell of its table row and where in that
    block.

    ``positions`` is [n] of any integer type; the arithmetic is int64. A negative position is nobody's. With
    ``cp_size`` 1 the steps reduce to ``divmod(position, block_size)``.
    """
    b, size, interleave = geometry.block_size, geometry.cp_size, geometry.cp_interleave
    position = positions.to(torch.int64)
    # A shard is a share of the *allocated* block: with kernel blocks (b) here, a rank fills the wrong cells as soon
    # as the interleave does not divide b (vllm-ascend PR 10442, vLLM PR 51031).
    virtual_block_size = geometry.kv_cache_block_size * size
    virtual_block = position // virtual_block_size
    virtual_offset = position % virtual_block_size
    owner = virtual_offset // interleave % size
    local_offset = virtual_offset // (interleave * size) * interleave + virtual_offset % interleave
    return Placement(
        is_local=(position >= 0) & (owner == geometry.cp_rank),
        block_index=virtual_block * geometry.blocks_per_kv_block + local_offset // b,
        offset=local_offset % b,
    )


def compute_dcp_slot_mapping(
    req_indices: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    block_size: int,
    kv_cache_block_size: int,
    cp_size: int,
    cp_rank: int,
    cp_interleave: int,
    pad_id: int = -1,
    validate: bool = False,
) -> None:
    """Write the slots of n tokens into ``slot_mapping[:n]``; what lies behind stays as it was.

    ``req_indices`` [n] int32 or int64: the table row of each token. ``positions`` [n] int64 or int32. ``block_table``
    [rows, width] int32, its row stride may exceed the width. ``slot_mapping`` [>= n] int32 or int64. All on one device;
    the values are the same on every device.

    A token of another rank gets ``pad_id`` and its cell is never looked up: in a table as narrow as this rank needs
    it does not exist. So do a negative position, a block index outside its row and a row outside the table: none of
    them reads anything.

    Raises ``ValueError`` naming the clause: ``hybrid-divides``, ``hybrid-width``, ``rank-range``,
    ``interleave-divides``, ``qsl-capacity``, ``slot-fits`` (``pad_id`` only), or the argument whose type or shape is
    wrong. ``validate=True`` also reads the tensors, and so waits for the device: ``row-exists``, ``pos-int32``,
    ``row-width`` and ``slot-fits`` of every token.
    """
    geometry = Geometry(block_size, kv_cache_block_size, cp_size, cp_rank, cp_interleave)
    integers = (torch.int32, torch.int64)
    device = check_vector("slot_mapping", slot_mapping, integers)
    check_vector("req_indices", req_indices, integers, device)
    check_vector("positions", positions, integers, device)
    check_block_table(block_table, geometry, device)
    check_pad_id(pad_id, slot_mapping.dtype)
    num_tokens, (rows, width) = positions.numel(), block_table.shape
    if req_indices.numel() != num_tokens:
        refuse("req_indices", f"{req_indices.numel()} rows for {num_tokens} positions")
    if num_tokens > slot_mapping.numel():
        refuse("qsl-capacity", f"{num_tokens} tokens do not fit slot_mapping of {slot_mapping.numel()}")
    if validate:
        from kernels.validation import check_indexed_contents  # not sooner: it uses place_tokens

        check_indexed_contents(req_indices, positions, block_table, slot_mapping.dtype, geometry)

    output = slot_mapping[:num_tokens]
    if not rows or not width:  # a rank that owns none of the tokens may have no column: even cell 0 cannot be read
        output.fill_(pad_id)
        return
    is_local, block_index, offset = place_tokens(positions, geometry)
    found = is_local & (block_index < width) & (req_indices >= 0) & (req_indices < rows)
    # Two indices, never a flattened table: flattening copies a table whose rows are padded, or mistakes stride for
    # width.
    block_number = block_table[torch.where(found, req_indices, 0), torch.where(found, block_index, 0)]
    output.copy_(torch.where(found, block_number.to(torch.int64) * block_size + offset, pad_id))
