"""The block tables of an engine, one a KV-cache group: changed together, and computed together."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import cached_property
from typing import NamedTuple

import torch

from kernels.arguments import naming_group, refuse
from kernels.block_rows import BlockIds
from kernels.fused_groups import compute_slot_mapping_fused_groups
from kernels.group_block_table import BlockTable as BlockTable
from kernels.group_block_table import Indices


class _Fused(NamedTuple):
    """What a launch over all groups reads, one element a group, on their device."""

    tables: tuple[BlockTable, ...]
    block_table_addrs: torch.Tensor
    slot_mapping_addrs: torch.Tensor
    strides: torch.Tensor
    block_sizes: torch.Tensor
    is_circular: torch.Tensor | None


class MultiGroupBlockTable:
    """One :class:`BlockTable` a KV-cache group. Names and parameters are those of vllm-ascend's
    class.

    Rows change on the host and count on the device once they are committed; the slots are in ``slot_mapping`` of each
    group. Two requests of two tokens and one, in a group with blocks of 4 tokens and one with blocks of 8:

    >>> def tables(**ranks):
    ...     made = MultiGroupBlockTable(2, 16, 4, False, "cpu", [4, 8], **ranks)
    ...     made.add_row([[5, 6], [3]], 0)  # the blocks of request 0, one list a group
    ...     made.add_row([[7], [2]], 1)
    ...     made.commit_block_table(2)
    ...     return made
    >>> batch = 2, torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([3, 4, 1])
    >>> alone = tables()
    >>> alone.compute_slot_mapping(*batch)  # W = 1: a Triton launch, here (on "cpu") with TRITON_INTERPRET=1
    >>> [group.slot_mapping.gpu.tolist() for group in alone.block_tables]
    [[23, 24, 29, -1], [27, 28, 17, -1]]

    W = 2 is plain torch (see ``use_cp_kernel``), and draft tokens name their rows. Neither launches anything:

    >>> shared = tables(dcp_world_size=2, dcp_rank=1)
    >>> shared.compute_slot_mapping(*batch)
    >>> shared[0].slot_mapping.gpu.tolist()  # position 4 is rank 0's
    [21, -1, 28, -1]
    >>> alone.compute_slot_mapping_draft(torch.tensor([0, 1]), torch.tensor([5, 2]))
    >>> shared.compute_slot_mapping_draft(torch.tensor([0, 1]), torch.tensor([5, 2]))
    >>> alone[0].slot_mapping.gpu[:2].tolist(), shared[0].slot_mapping.gpu[:2].tolist()
    ([25, 30], [22, -1])
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        pin_memory: bool,
        device: torch.device | str,
        block_sizes: Sequence[int],
        num_speculative_tokens: int = 0,
        max_num_blocks: Sequence[int] | None = None,
        kernel_sizes: Sequence[Sequence[int]] | None = None,
        cp_kv_cache_interleave_size: int = 1,
        kv_cache_groups: Sequence[object] | None = None,
        *,
        dcp_world_size: int = 1,
        dcp_rank: int = 0,
        circular: Sequence[bool] | None = None,
        sharded: Sequence[bool] | None = None,
        pad_id: int = -1,
        use_cp_kernel: bool = False,
    ) -> None:
        """One element a group: ``block_sizes`` (B), ``kernel_sizes`` (a list each; a single list is for all groups),
        ``kv_cache_groups``, ``circular`` (default: none) and ``sharded`` (default: all). A row has
        ``max_num_blocks`` allocated blocks, by default cdiv(``max_model_len``, B*W), one where the group is circular.
        The rest is every group's.

        Raises ``ValueError`` that starts with the argument that is wrong, or what ``BlockTable`` raises, ending with
        the group.
        """
        count = len(block_sizes)
        if not count:
            refuse("block_sizes", "holds nothing, expected the block size of at least 1 group")
        kernel_sizes = [[0]] if kernel_sizes is None else list(kernel_sizes)
        if len(kernel_sizes) == 1:
            kernel_sizes *= count
        circular = [False] * count if circular is None else list(circular)
        sharded = [True] * count if sharded is None else list(sharded)
        kv_cache_groups = [None] * count if kv_cache_groups is None else list(kv_cache_groups)
        for name, given in (
            ("kernel_sizes", kernel_sizes),
            ("circular", circular),
            ("sharded", sharded),
            ("kv_cache_groups", kv_cache_groups),
            ("max_num_blocks", block_sizes if max_num_blocks is None else max_num_blocks),
        ):
            if len(given) != count:
                refuse(name, f"expected one element for each of {count} groups, got {len(given)}")

        self.block_tables: list[BlockTable] = []
        for g, block_size in enumerate(block_sizes):
            with naming_group(g):
                if max_num_blocks is not None:
                    blocks = max_num_blocks[g]
                elif circular[g]:
                    blocks = 1
                else:
                    blocks = _blocks(max_model_len, block_size, dcp_world_size)
                table = BlockTable(
                    block_size,
                    max_num_reqs,
                    blocks,
                    max_num_batched_tokens,
                    pin_memory,
                    device,
                    kernel_sizes[g],
                    cp_kv_cache_interleave_size,
                    num_speculative_tokens,
                    kv_cache_groups[g],
                    dcp_world_size=dcp_world_size,
                    dcp_rank=dcp_rank,
                    is_circular=circular[g],
                    is_sharded=sharded[g],
                    pad_id=pad_id,
                    use_cp_kernel=use_cp_kernel,
                )
            self.block_tables.append(table)

    def __getitem__(self, idx: int) -> BlockTable:
        return self.block_tables[idx]

    # Rows, of all groups at once. What one group refuses is done in none.

    def append_row(self, block_ids: Sequence[BlockIds], row_idx: int) -> None:
        """Add ``block_ids[g]`` to the row of group g. Refuses what ``BlockTable.append_row`` does."""
        self._check_blocks(block_ids, row_idx, after_the_rest=True)
        for table, ids in zip(self.block_tables, block_ids, strict=True):
            table.append_row(ids, row_idx)

    def add_row(self, block_ids: Sequence[BlockIds], row_idx: int) -> None:
        """The row of group g holds ``block_ids[g]`` and nothing else. Refuses what ``BlockTable.add_row`` does."""
        self._check_blocks(block_ids, row_idx, after_the_rest=False)
        for table, ids in zip(self.block_tables, block_ids, strict=True):
            table.add_row(ids, row_idx)

    def clear_row(self, row_idx: int) -> None:
        for table in self.block_tables:
            table.clear_row(row_idx)

    def move_row(self, src: int, tgt: int) -> None:
        for table in self.block_tables:
            table.move_row(src, tgt)

    def swap_row(self, src: int, tgt: int) -> None:
        for table in self.block_tables:
            table.swap_row(src, tgt)

    def clear(self) -> None:
        for table in self.block_tables:
            table.clear()

    def commit_block_table(self, num_reqs: int) -> None:
        for table in self.block_tables:
            table.commit_block_table(num_reqs)

    # Slots.

    def compute_slot_mapping(
        self,
        num_reqs: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        positions_compressed_list: Sequence[Indices] | None = None,
        req_indices_compressed_list: Sequence[Indices] | None = None,
        *,
        validate: bool = False,
    ) -> None:
        """The slots of a batch in every group that has any, as ``BlockTable.compute_slot_mapping`` writes and refuses
        them: in one launch where several groups have slots and ranks share none of them, else group by group.

        Where both lists are given, group g has its own rows and positions there, of compressed tokens, and they are
        mapped as draft tokens are.
        """
        if positions_compressed_list and req_indices_compressed_list:
            self._compute_own(req_indices_compressed_list, positions_compressed_list, validate=validate)
        elif len(self._with_slots) > 1 and not any(table.is_shared for table in self._with_slots):
            self._compute_fused(num_reqs, query_start_loc, positions, validate=validate)
        else:
            for g, table in enumerate(self.block_tables):
                with naming_group(g):
                    table.compute_slot_mapping(num_reqs, query_start_loc, positions, validate=validate)

    def compute_slot_mapping_draft(
        self,
        req_indices: Indices,
        positions: Indices,
        positions_compressed_list: Sequence[Indices] | None = None,
        req_indices_compressed_list: Sequence[Indices] | None = None,
        *,
        validate: bool = False,
    ) -> None:
        """The slots of draft tokens in every group that has any, as ``BlockTable.compute_slot_mapping_draft`` writes
        and refuses them."""
        if not (positions_compressed_list and req_indices_compressed_list):
            count = len(self.block_tables)
            req_indices_compressed_list, positions_compressed_list = [req_indices] * count, [positions] * count
        self._compute_own(req_indices_compressed_list, positions_compressed_list, validate=validate)

    def _compute_own(self, req_indices: Sequence[Indices], positions: Sequence[Indices], *, validate: bool) -> None:
        for name, given in (("req_indices", req_indices), ("positions", positions)):
            if len(given) != len(self.block_tables):
                refuse(name, f"expected one list for each of {len(self.block_tables)} groups, got {len(given)}")
        for g, table in enumerate(self.block_tables):
            with naming_group(g):
                table.compute_slot_mapping_draft(req_indices[g], positions[g], validate=validate)

    def _compute_fused(
        self, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor, *, validate: bool
    ) -> None:
        for g, table in enumerate(self.block_tables):
            if not table.is_mamba_group:
                with naming_group(g):
                    table.check_batch(num_reqs, query_start_loc, positions, validate=validate)
        fused = self._fused
        compute_slot_mapping_fused_groups(
            len(fused.tables),
            num_reqs,
            positions.numel(),
            len(fused.tables[0].slot_mapping.np),
            query_start_loc,
            positions,
            fused.block_table_addrs,
            fused.slot_mapping_addrs,
            fused.strides,
            fused.block_sizes,
            min(table.block_size for table in fused.tables),
            pad_id=fused.tables[0].pad_id,
            is_circular_ptr=fused.is_circular,
        )

    @cached_property
    def _with_slots(self) -> tuple[BlockTable, ...]:
        return tuple(table for table in self.block_tables if not table.is_mamba_group)

    @cached_property
    def _fused(self) -> _Fused:
        """Made once: the buffers of a table stay where they are, and a captured graph stays valid."""
        tables = self._with_slots
        device = tables[0].device
        rings = [table.is_circular for table in tables]
        return _Fused(
            tables,
            torch.tensor([each.block_table.gpu.data_ptr() for each in tables], dtype=torch.uint64, device=device),
            torch.tensor([each.slot_mapping.gpu.data_ptr() for each in tables], dtype=torch.uint64, device=device),
            torch.tensor([each.block_table.gpu.shape[1] for each in tables], dtype=torch.int64, device=device),
            torch.tensor([each.block_size for each in tables], dtype=torch.int32, device=device),
            torch.tensor(rings, dtype=torch.int32, device=device) if any(rings) else None,
        )

    def _check_blocks(self, block_ids: Sequence[BlockIds], row_idx: int, *, after_the_rest: bool) -> None:
        groups = len(self.block_tables)
        if not _is_list(block_ids):
            refuse("block_ids", f"expected one list a group, {groups} lists of block numbers, got {block_ids!r}")
        for g, ids in enumerate(block_ids):
            if not _is_list(ids):
                refuse(f"block_ids[{g}]", f"expected one list a group, {groups} lists of block numbers, got {ids!r}")
        if len(block_ids) != groups:
            refuse("block_ids", f"expected one list for each of {groups} groups, got {len(block_ids)}")
        for g, (table, ids) in enumerate(zip(self.block_tables, block_ids, strict=True)):
            with naming_group(g):
                table.expanded(ids, row_idx, after_the_rest=after_the_rest)


def _is_list(value: object) -> bool:
    """Whether there are elements to look at. A tensor without dimensions has a ``__len__``, which raises."""
    return isinstance(value, Sized) and getattr(value, "ndim", 1) > 0


def _blocks(max_model_len: int, block_size: int, world_size: int) -> int:
    """Allocated blocks that a rank needs for the longest request."""
    for name, value in (("max_model_len", max_model_len), ("block_sizes", block_size), ("dcp_world_size", world_size)):
        if value < 1:
            refuse(name, f"is {value}, must be at least 1")
    return -(-max_model_len // (block_size * world_size))
