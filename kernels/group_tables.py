"""The block tables of all KV-cache groups, and what a launch over all of them refuses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.arguments import (
    Geometry,
    check_block_table,
    check_capacity,
    check_is_tensor,
    check_pad_id,
    check_stored_rows,
    check_vector,
    naming_group,
    refuse,
)
from kernels.validation import check_contents


class GroupTables:
    """The block tables of all groups as the kernels read them: small arrays on the tables' device, one element a group.

    Made once, when the tables are: a launch then copies nothing to the device, and a captured graph stays valid. It
    keeps the tables alive; their contents may change at any time.
    """

    def __init__(
        self,
        block_tables: Sequence[torch.Tensor],
        block_sizes: Sequence[int],
        kv_cache_block_sizes: Sequence[int] | None = None,
        *,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
        sharded: Sequence[bool] | None = None,
        enabled: Sequence[bool] | None = None,
    ) -> None:
        """One element a group: ``block_tables`` int32 [rows, width], views whose row stride exceeds their width
        included; ``block_sizes`` (b) counts the tokens of a kernel block, ``kv_cache_block_sizes`` (B, default b) those
        of an allocated one; ``sharded`` (default: all) says whether ``cp_size`` ranks share the group,
        ``cp_interleave`` consecutive tokens at a time, or each of them has all of it; ``enabled`` (default: all)
        whether it gets slots, which rings and recurrent state do not.

        Raises ``ValueError`` that starts with the broken clause (``hybrid-divides``, ``hybrid-width``, ``rank-range``,
        ``interleave-divides``) or with the argument that is wrong, and ends with the group.
        """
        count = len(block_tables)
        if not count:
            refuse("block_tables", "holds nothing, expected the table of at least 1 group")
        kv_cache_block_sizes = block_sizes if kv_cache_block_sizes is None else kv_cache_block_sizes
        self.sharded = (True,) * count if sharded is None else tuple(map(bool, sharded))
        self.enabled = (True,) * count if enabled is None else tuple(map(bool, enabled))
        _check_length("block_sizes", block_sizes, count)
        _check_length("kv_cache_block_sizes", kv_cache_block_sizes, count)
        _check_length("sharded", self.sharded, count)
        _check_length("enabled", self.enabled, count)

        self.block_tables = tuple(block_tables)
        with naming_group(0):
            check_is_tensor("block_table", block_tables[0], (torch.int32,))
        self.device = block_tables[0].device
        self.cp_size, self.cp_rank, self.cp_interleave = cp_size, cp_rank, cp_interleave
        geometries, strides = [], []
        for group, table in enumerate(block_tables):
            # Checks rank and sizes of replicated groups too; these then are like those of a single rank.
            interleave = cp_interleave if self.sharded[group] else min(cp_interleave, 1)
            with naming_group(group):
                sizes = block_sizes[group], kv_cache_block_sizes[group]
                geometry = Geometry(*sizes, cp_size, cp_rank, interleave)
                if not self.sharded[group]:
                    geometry = Geometry(*sizes)
                check_block_table(table, geometry, self.device)
                rows, width = table.shape
                stride = table.stride(0) if rows > 1 and width else width  # torch gives rows without a column stride 1
                check_stored_rows(table, rows, stride)
            geometries.append(geometry)
            strides.append(stride)
        self.geometries = tuple(geometries)

        self.addresses = self._array([table.data_ptr() for table in block_tables], torch.uint64)
        self.strides = self._array(strides, torch.int64)
        self.block_sizes = self._array(block_sizes, torch.int32)
        self.kv_cache_block_sizes = self._array(kv_cache_block_sizes, torch.int32)
        # None where a flag would say nothing: that is another specialization, without its cost.
        self.is_sharded = None if cp_size == 1 or all(self.sharded) else self._array(self.sharded, torch.bool)
        self.is_enabled = None if all(self.enabled) else self._array(self.enabled, torch.bool)

    def __len__(self) -> int:
        return len(self.block_tables)

    @property
    def rows(self) -> int:
        """Rows that every table has."""
        return min(table.shape[0] for table in self.block_tables)

    def _array(self, values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def check_launch(
    groups: GroupTables,
    idx_mapping: torch.Tensor | None,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    slot_mappings: torch.Tensor,
    max_num_tokens: int | None,
    pad_id: int,
) -> int:
    """Refuse what can be refused without waiting for the device. Without ``idx_mapping`` request r uses row r. Returns
    ``max_num_tokens``, by default the width of the output.
    """
    _check_groups(groups)
    check_vector("query_start_loc", query_start_loc, (torch.int32,), groups.device)
    check_vector("positions", positions, (torch.int64,), groups.device)
    if idx_mapping is not None:
        check_vector("idx_mapping", idx_mapping, (torch.int32,), groups.device)
    offsets = query_start_loc.numel()
    num_reqs = max(offsets - 1, 0) if idx_mapping is None else idx_mapping.numel()
    if offsets != num_reqs + 1:
        refuse("query_start_loc", f"holds {offsets} offsets, {num_reqs} requests need {num_reqs + 1}")
    if idx_mapping is None and num_reqs > groups.rows:
        refuse("row-exists", f"{num_reqs} requests need as many rows, a block table has {groups.rows}")
    _check_outputs(slot_mappings, len(groups), groups.device)
    check_pad_id(pad_id, slot_mappings.dtype)
    length = slot_mappings.shape[1]
    max_num_tokens = length if max_num_tokens is None else max_num_tokens
    check_capacity(0, max_num_tokens, positions.numel(), length)
    return max_num_tokens


def check_batch(
    groups: GroupTables,
    idx_mapping: torch.Tensor | None,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    slot_mappings: torch.Tensor,
    max_num_tokens: int,
) -> None:
    """Refuse what only the contents of the tensors tell, after :func:`check_launch`. Waits for the device."""
    bounds = query_start_loc.tolist()
    num_tokens = bounds[-1]
    check_capacity(num_tokens, max_num_tokens, positions.numel(), slot_mappings.shape[1])
    rows = range(len(bounds) - 1) if idx_mapping is None else idx_mapping.tolist()
    for r, row in enumerate(rows):
        is_empty = bounds[r] == bounds[r + 1]
        if not (0 <= row < groups.rows or (row == -1 and is_empty)):
            limits = f"[0, {groups.rows}), or -1 for a request without tokens"
            refuse("row-exists", f"idx_mapping[{r}] is {row}, must be in {limits}")
    # -1, the row of an empty request, picks the last one here, which nobody looks at.
    chosen = torch.tensor(rows, dtype=torch.int64, device=groups.device)
    for group, table in enumerate(groups.block_tables):
        if groups.enabled[group]:
            with naming_group(group):
                check_contents(
                    query_start_loc,
                    positions,
                    table[chosen],
                    slot_mappings.dtype,
                    num_tokens=num_tokens,
                    geometry=groups.geometries[group],
                    is_circular=False,
                )


def _check_length(name: str, values: Sequence[int], groups: int) -> None:
    if len(values) != groups:
        refuse(name, f"expected one element for each of {groups} groups, got {len(values)}")


def _check_groups(groups: object) -> None:
    if not isinstance(groups, GroupTables):
        refuse("groups", f"expected GroupTables, got {type(groups).__name__}")


def _check_outputs(slot_mappings: torch.Tensor, groups: int, device: torch.device) -> None:
    """Refuse anything but int32 or int64 [groups, length] with adjacent elements and rows that do not overlap."""
    check_is_tensor("slot_mappings", slot_mappings, (torch.int32, torch.int64))
    if slot_mappings.dim() != 2 or slot_mappings.shape[0] != groups:
        refuse("slot_mappings", f"expected one row for each of {groups} groups, got shape {tuple(slot_mappings.shape)}")
    stride, length = slot_mappings.stride(0), slot_mappings.shape[1]
    if groups > 1 and stride < length:
        refuse("slot_mappings", f"row stride {stride} is below the row length {length}: rows overlap")
    check_vector("slot_mappings", slot_mappings[0], (torch.int32, torch.int64), device)
