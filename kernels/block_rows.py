"""The rows of a block table as the host keeps them: which blocks each request has, and what the device knows of it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from kernels.arguments import refuse
from kernels.host_device_buffer import HostDeviceBuffer

BlockIds = Sequence[int] | npt.NDArray[np.integer]

NULL_BLOCK = 0
"""What a cell without a block holds. Engines keep this block free for it: a token that has no block of its own then
never gets the slot of another request."""


class BlockRows:
    """int32 [rows, width] kernel blocks, on the host and on the device. A row holds the blocks of one request, in order
    and from its start; all cells behind them hold ``NULL_BLOCK``.

    Rows change on the host; :meth:`commit_block_table` brings them to the device. What changed since is known, so that
    a launch cannot use rows as they were before (:meth:`check_rows`).
    """

    def __init__(
        self,
        rows: int,
        width: int,
        *,
        block_size: int,
        blocks_per_kv_block: int,
        device: torch.device | str,
        pin_memory: bool,
    ) -> None:
        """``width`` counts kernel blocks of ``block_size`` tokens, ``blocks_per_kv_block`` of them in one allocated."""
        self._split = np.arange(blocks_per_kv_block)
        self._most_blocks = (torch.iinfo(torch.int32).max + 1) // (block_size * blocks_per_kv_block)
        self.block_table = HostDeviceBuffer(
            rows, width, dtype=torch.int32, device=device, pin_memory=pin_memory, fill=NULL_BLOCK
        )
        self.num_blocks_per_row = np.zeros(rows, dtype=np.int32)
        self._is_new = np.zeros(rows, dtype=np.bool_)

    # Rows. Every operation refuses before it changes anything.

    def append_row(self, block_ids: BlockIds, row_idx: int) -> None:
        """Add allocated blocks to the end of a row: block P brings the kernel blocks P*k .. P*k + k-1.

        Raises ``ValueError``: ``row-exists``, ``row-width`` (the row overflows), ``slot-fits`` (a slot of a block would
        not fit int32), or ``block_ids`` that are no integers from 0 on.
        """
        row = self._row(row_idx)
        self._put(row, int(self.num_blocks_per_row[row]), self.expanded(block_ids, row, after_the_rest=True))

    def add_row(self, block_ids: BlockIds, row_idx: int) -> None:
        """The row holds these allocated blocks and nothing else. Refuses what :meth:`append_row` does."""
        row = self._row(row_idx)
        kernel_blocks = self.expanded(block_ids, row, after_the_rest=False)
        self._empty(row)
        self._put(row, 0, kernel_blocks)

    def clear_row(self, row_idx: int) -> None:
        """The row holds nothing."""
        self._empty(self._row(row_idx))

    def move_row(self, src: int, tgt: int) -> None:
        """Row ``tgt`` holds what ``src`` held, and ``src`` nothing: no block is in two rows."""
        source, target = self._row(src), self._row(tgt)
        if source != target:
            self._empty(target)
            self.swap_row(source, target)

    def swap_row(self, src: int, tgt: int) -> None:
        """Each row holds what the other held."""
        there, back = [self._row(src), self._row(tgt)], [self._row(tgt), self._row(src)]
        self.block_table.np[there] = self.block_table.np[back]
        self.num_blocks_per_row[there] = self.num_blocks_per_row[back]
        self._is_new[there] = True

    def clear(self) -> None:
        """No row holds anything, on the host and on the device."""
        self.block_table.fill(NULL_BLOCK)
        self.num_blocks_per_row[:] = 0
        self._is_new[:] = False

    # The device.

    def commit_block_table(self, num_reqs: int) -> None:
        """Copy rows [0, num_reqs) to the device. Raises ``ValueError`` (``row-exists``) where there are fewer."""
        self._check_count(num_reqs)
        self.block_table.copy_to_gpu(num_reqs)
        self._is_new[:num_reqs] = False

    def check_rows(self, num_reqs: int) -> None:
        """Raise ``ValueError`` unless rows [0, num_reqs) exist (``row-exists``) and are on the device as they are on
        the host (``block_table``)."""
        self._check_count(num_reqs)
        if self._is_new[:num_reqs].any():
            row = int(self._is_new[:num_reqs].argmax())
            refuse(
                "block_table",
                f"row {row} changed after it was last copied to the device: commit_block_table({num_reqs}) comes first",
            )

    def get_device_tensor(self, num_reqs: int | None = None) -> torch.Tensor:
        """The first ``num_reqs`` rows (None: all) on the device."""
        return self.block_table.gpu if num_reqs is None else self.block_table.gpu[:num_reqs]

    def get_cpu_tensor(self) -> torch.Tensor:
        """All rows on the host."""
        return self.block_table.cpu

    def get_numpy_array(self) -> npt.NDArray[np.int32]:
        """The same memory as :meth:`get_cpu_tensor`."""
        return self.block_table.np

    # What the operations are made of.

    def expanded(self, block_ids: BlockIds, row: int, *, after_the_rest: bool) -> npt.NDArray[np.int64]:
        """The kernel blocks of allocated blocks that are to follow what ``row`` holds, or to replace it. Changes
        nothing; refuses what :meth:`append_row` does."""
        held = int(self.num_blocks_per_row[self._row(row)]) if after_the_rest else 0
        try:
            ids = np.asarray(block_ids)
        except (TypeError, ValueError) as error:  # lists of different lengths, a tensor of the device
            refuse("block_ids", f"expected a list of block numbers, got {type(block_ids).__name__} ({error})")
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            refuse("block_ids", f"expected a list of block numbers, got {ids.dtype} of shape {ids.shape}")
        if not ids.size:
            return np.zeros(0, dtype=np.int64)
        k, width = len(self._split), self.block_table.np.shape[1]
        if held + ids.size * k > width:
            refuse(
                "row-width",
                f"row {row} holds {held} kernel blocks, {ids.size} allocated blocks of {k} more exceed its width "
                f"{width}",
            )
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0:
            refuse("block_ids", f"block {lowest} for row {row} is negative")
        if highest >= self._most_blocks:
            refuse(
                "slot-fits",
                f"block {highest} for row {row} has slots past int32, the last without is {self._most_blocks - 1}",
            )
        return (ids.astype(np.int64)[:, None] * k + self._split).reshape(-1)

    def _put(self, row: int, start: int, kernel_blocks: npt.NDArray[np.int64]) -> None:
        if not kernel_blocks.size:
            return
        end = start + kernel_blocks.size
        self.block_table.np[row, start:end] = kernel_blocks
        self.num_blocks_per_row[row] = end
        self._is_new[row] = True

    def _empty(self, row: int) -> None:
        self.block_table.np[row] = NULL_BLOCK
        self.num_blocks_per_row[row] = 0
        self._is_new[row] = True

    def _row(self, row_idx: SupportsIndex) -> int:
        row, rows = operator.index(row_idx), len(self.num_blocks_per_row)
        if not 0 <= row < rows:
            refuse("row-exists", f"row {row} is outside [0, {rows})")
        return row

    def _check_count(self, num_reqs: int) -> None:
        rows = len(self.num_blocks_per_row)
        if not 0 <= num_reqs <= rows:
            refuse("row-exists", f"num_reqs {num_reqs} is outside [0, {rows}], the rows of the table")
