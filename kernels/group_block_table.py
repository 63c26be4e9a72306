"""The block table of one KV-cache group as an engine keeps it, and the slots of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kernels.arguments import Geometry, check_pad_id, check_vector, refuse
from kernels.block_rows import BlockRows
from kernels.host_device_buffer import HostDeviceBuffer
from kernels.kv_cache_group import compress_ratio, holds_recurrent_state
from kernels.slot_mapping import compute_slot_mapping
from kernels.torch_dcp import compute_dcp_slot_mapping
from kernels.validation import check_allocated, check_rows_exist, check_tokens

Indices = npt.NDArray[np.integer] | torch.Tensor


class BlockTable(BlockRows):
    """Rows of blocks (:class:`kernels.block_rows.BlockRows`) and an int32 output ``slot_mapping``, both on the host and
    on the device. Names and parameters are those of vllm-ascend's class.

    The output has room for ``max_num_batched_tokens`` and for the draft tokens of speculative decoding,
    max(num_speculative_tokens - 1, 0) a request (vllm-ascend PR 14024). It holds ``pad_id`` until something is
    computed.

    One request of two tokens, in blocks of 4, and a draft token behind them. With W = 1 this is a Triton launch, on
    "cpu" with TRITON_INTERPRET=1 only; :class:`kernels.block_table.MultiGroupBlockTable` has W = 2 too.

    >>> table = BlockTable(4, 2, 4, 3, False, "cpu")
    >>> table.add_row([5, 6], 0)
    >>> table.commit_block_table(1)
    >>> table.compute_slot_mapping(1, torch.tensor([0, 2], dtype=torch.int32), torch.tensor([3, 4]))
    >>> table.slot_mapping.gpu.tolist()
    [23, 24, -1]
    >>> table.compute_slot_mapping_draft(np.array([0]), np.array([5]))
    >>> table.slot_mapping.gpu.tolist()
    [25, 24, -1]
    """

    def __init__(
        self,
        block_size: int,
        max_num_reqs: int,
        max_num_blocks_per_req: int,
        max_num_batched_tokens: int,
        pin_memory: bool,
        device: torch.device | str,
        kernel_sizes: Sequence[int] | None = None,
        cp_kv_cache_interleave_size: int = 1,
        num_speculative_tokens: int = 0,
        kv_cache_group: object = None,
        *,
        dcp_world_size: int = 1,
        dcp_rank: int = 0,
        is_circular: bool = False,
        is_sharded: bool = True,
        pad_id: int = -1,
        use_cp_kernel: bool = False,
    ) -> None:
        """``block_size`` (B) counts the tokens of an allocated block; a kernel block has the first of ``kernel_sizes``
        that divides it (None or [0]: B). ``max_num_blocks_per_req`` counts the allocated blocks that one of
        ``dcp_world_size`` (W) ranks needs for a request when it has 1/W of the tokens.

        ``is_sharded`` false: every rank has all tokens, in rows W times as wide, and context parallelism does not touch
        their slots. A ``kv_cache_group`` of recurrent (Mamba) state is such a group, and gets no slots: its output
        stays ``pad_id``. ``is_circular``: one ring block a request, W == 1 only. With W > 1 there are
        (1 + num_speculative_tokens) * max_num_reqs rows.

        ``use_cp_kernel``: with W > 1 slots come from the Triton kernel, which pads the output behind them too;
        otherwise from torch, as in published engines, which leaves what is behind them.

        Raises ``ValueError`` that starts with the broken clause (``hybrid-divides``, ``rank-range``,
        ``interleave-divides``, ``circular-no-cp``, ``circular-one-block``, ``slot-fits`` of ``pad_id``) or with the
        argument that is below its limit.
        """
        for name, value, least in (
            ("max_num_reqs", max_num_reqs, 1),
            ("max_num_blocks_per_req", max_num_blocks_per_req, 1),
            ("max_num_batched_tokens", max_num_batched_tokens, 0),
            ("num_speculative_tokens", num_speculative_tokens, 0),
        ):
            if value < least:
                refuse(name, f"is {value}, must be at least {least}")
        check_pad_id(pad_id, torch.int32)
        kernel_size = _kernel_size(block_size, kernel_sizes)
        self.is_mamba_group = holds_recurrent_state(kv_cache_group)
        self.is_circular = is_circular
        self.is_sharded = is_sharded and not self.is_mamba_group
        # Checks rank and sizes of replicated groups too; these then are like those of a single rank.
        interleave = cp_kv_cache_interleave_size if self.is_sharded else min(cp_kv_cache_interleave_size, 1)
        self._geometry = Geometry(kernel_size, block_size, dcp_world_size, dcp_rank, interleave)
        if not self.is_sharded:
            self._geometry = Geometry(kernel_size, block_size)
            max_num_blocks_per_req *= dcp_world_size
        max_num_blocks_per_req = -(-max_num_blocks_per_req // compress_ratio(kv_cache_group))
        k = self._geometry.blocks_per_kv_block
        if is_circular:
            if dcp_world_size > 1:
                refuse("circular-no-cp", f"a circular group cannot be shared by {dcp_world_size} ranks, the limit is 1")
            if max_num_blocks_per_req * k != 1:
                refuse(
                    "circular-one-block",
                    f"a circular group's row is 1 kernel block wide, {max_num_blocks_per_req} allocated blocks of {k} "
                    f"were asked for",
                )

        super().__init__(
            max_num_reqs * (1 + num_speculative_tokens if dcp_world_size > 1 else 1),
            max_num_blocks_per_req * k,
            block_size=kernel_size,
            blocks_per_kv_block=k,
            device=device,
            pin_memory=pin_memory,
        )
        self.max_num_reqs = max_num_reqs
        self.max_num_blocks_per_req = max_num_blocks_per_req
        self.max_num_batched_tokens = max_num_batched_tokens
        self.pin_memory, self.device = pin_memory, self.block_table.gpu.device
        self.physical_block_size, self.blocks_per_phys_block = block_size, k
        self.block_size = self.logical_block_size = kernel_size
        self.use_hybrid_blocks = k > 1
        self.kernel_sizes = kernel_sizes
        self.dcp_world_size, self.dcp_rank = dcp_world_size, dcp_rank
        self.cp_kv_cache_interleave_size = cp_kv_cache_interleave_size
        self.pad_id, self.use_cp_kernel = pad_id, use_cp_kernel
        self.slot_mapping = HostDeviceBuffer(
            max_num_batched_tokens + max(num_speculative_tokens - 1, 0) * max_num_reqs,
            dtype=torch.int32,
            device=device,
            pin_memory=pin_memory,
            fill=pad_id,
        )

    @property
    def is_shared(self) -> bool:
        """Whether several ranks share each sequence of this group."""
        return self._geometry.cp_size > 1

    def compute_slot_mapping(
        self, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor, *, validate: bool = False
    ) -> None:
        """Write the slots of a batch into ``slot_mapping.gpu``, and ``pad_id`` behind them: into the whole output from
        ``query_start_loc[num_reqs]`` on, and where the slots come from torch (see ``use_cp_kernel``) as far as
        ``positions`` reaches. No slot of an earlier step is left there, however many positions there are.

        ``query_start_loc`` [>= num_reqs + 1] int32: request r has row r. ``positions`` int64: one a token,
        and any number behind them, which nobody looks at (``validate`` refuses those). Both are on the table's device.
        A negative position gets ``pad_id``; one past the blocks of its row a slot in block 0, which is nobody's; one
        past the row's width ``pad_id``.

        Raises ``ValueError``: ``row-exists``, ``qsl-capacity``, ``block_table`` (a row changed after it was last
        committed), or the argument whose type or shape is wrong. ``validate=True`` also reads the tensors, and so waits
        for the device: ``qsl-monotone``, ``qsl-capacity``, ``pos-int32``, and ``row-width`` for a position past the
        blocks of its row. Raises ``RuntimeError`` where W == 1 or ``use_cp_kernel``, which launch a Triton kernel, and
        Triton cannot launch on the table's device.
        """
        if self.is_mamba_group:
            return
        self.check_batch(num_reqs, query_start_loc, positions, validate=validate)
        if self.dcp_world_size > 1 and not self.use_cp_kernel:
            self._compute_dcp_slot_mapping(*_by_token(num_reqs, query_start_loc, positions))
            return
        geometry = self._geometry
        compute_slot_mapping(
            query_start_loc[: num_reqs + 1],
            positions,
            self.block_table.gpu,
            self.slot_mapping.gpu,
            num_tokens=positions.numel(),
            block_size=geometry.block_size,
            # On one rank an allocated block plays no part, and would only be another kernel to compile.
            kv_cache_block_size=geometry.kv_cache_block_size if self.is_shared else None,
            cp_size=geometry.cp_size,
            cp_rank=geometry.cp_rank,
            cp_interleave=geometry.cp_interleave,
            is_circular=self.is_circular,
            pad_id=self.pad_id,
        )

    def compute_slot_mapping_draft(self, req_indices: Indices, positions: Indices, *, validate: bool = False) -> None:
        """Write the slots of n draft tokens into ``slot_mapping[:n]`` on both sides; what is behind them stays.

        ``req_indices`` [n]: the row of each token; ``positions`` [n]. On one rank, NumPy arrays or host tensors: the
        host's rows are used as they are now. Where ranks share the group, :meth:`_compute_dcp_slot_mapping` does it,
        for tensors of the device too.

        Raises ``ValueError``: ``row-exists``, ``qsl-capacity``, or the argument whose type, shape or place is wrong.
        ``validate=True``: ``pos-int32`` and ``row-width`` too, as :meth:`compute_slot_mapping`.
        """
        if self.is_mamba_group:
            return
        if self.is_shared:
            self._compute_dcp_slot_mapping(
                _tensor("req_indices", req_indices), _tensor("positions", positions), validate=validate
            )
            return
        rows, position = _host_array("req_indices", req_indices), _host_array("positions", positions)
        self._check_count_of_tokens(rows.size, position.size)
        table, (count, width) = self.block_table.np, self.block_table.np.shape
        check_rows_exist(torch.from_numpy(rows), count)
        if validate:
            self._check_allocated(torch.from_numpy(rows), torch.from_numpy(position))
        index = np.zeros_like(position) if self.is_circular else position // self.block_size
        found = (position >= 0) & (index < width)
        number = table[rows, np.where(found, index, 0)].astype(np.int64)
        slots = np.where(found, number * self.block_size + position % self.block_size, self.pad_id)
        self.slot_mapping.np[: slots.size] = slots
        self.slot_mapping.copy_to_gpu(slots.size)

    def _compute_dcp_slot_mapping(
        self, req_indices: torch.Tensor, positions: torch.Tensor, *, validate: bool = False
    ) -> None:
        """Write the slots of n tokens into ``slot_mapping[:n]``; what is behind them stays. Tensors of the host use
        the host's rows, and the slots are copied to the device; those of the device the rows last committed.

        A row that does not exist is refused (``row-exists``) where ``req_indices`` is on the host or ``validate`` is
        true, and otherwise gives its token ``pad_id``.
        """
        integers = (torch.int32, torch.int64)
        check_vector("req_indices", req_indices, integers, check_vector("positions", positions, integers))
        self._check_count_of_tokens(req_indices.numel(), positions.numel())
        on_host = positions.device.type == "cpu"
        if on_host:
            check_rows_exist(req_indices, len(self.block_table.np))
        if validate:
            self._check_allocated(req_indices.cpu().to(torch.int64), positions.cpu().to(torch.int64))
        geometry = self._geometry
        compute_dcp_slot_mapping(
            req_indices,
            positions,
            self.block_table.cpu if on_host else self.block_table.gpu,
            self.slot_mapping.cpu if on_host else self.slot_mapping.gpu,
            block_size=geometry.block_size,
            kv_cache_block_size=geometry.kv_cache_block_size,
            cp_size=geometry.cp_size,
            cp_rank=geometry.cp_rank,
            cp_interleave=geometry.cp_interleave,
            pad_id=self.pad_id,
        )
        if on_host:
            self.slot_mapping.copy_to_gpu(positions.numel())

    def check_batch(
        self, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor, *, validate: bool
    ) -> None:
        """Refuse what :meth:`compute_slot_mapping` refuses."""
        self.check_rows(num_reqs)
        check_vector("query_start_loc", query_start_loc, (torch.int32,), self.device)
        check_vector("positions", positions, (torch.int64,), self.device)
        offsets, num_tokens = query_start_loc.numel(), positions.numel()
        if offsets <= num_reqs:
            refuse("query_start_loc", f"holds {offsets} offsets, {num_reqs} requests need {num_reqs + 1}")
        self._check_count_of_tokens(num_tokens, num_tokens)
        if validate:
            self._check_allocated(*check_tokens(query_start_loc[: num_reqs + 1], positions, num_tokens=num_tokens))

    def _check_count_of_tokens(self, rows: int, positions: int) -> None:
        if rows != positions:
            refuse("req_indices", f"{rows} rows for {positions} positions")
        capacity = len(self.slot_mapping.np)
        if positions > capacity:
            drafts = capacity - self.max_num_batched_tokens
            refuse(
                "qsl-capacity",
                f"{positions} tokens exceed the {capacity} slots of max_num_batched_tokens "
                f"{self.max_num_batched_tokens} and {drafts} draft tokens",
            )

    def _check_allocated(self, row: torch.Tensor, position: torch.Tensor) -> None:
        held = torch.from_numpy(self.num_blocks_per_row)
        check_allocated(row, position, held, self._geometry, is_circular=self.is_circular)


def _kernel_size(block_size: int, kernel_sizes: Sequence[int] | None) -> int:
    """The first of ``kernel_sizes`` that divides ``block_size``, which itself stands for None and [0]."""
    if kernel_sizes is None or list(kernel_sizes) == [0]:
        return block_size
    dividing = [size for size in kernel_sizes if size > 0 and block_size % size == 0]
    if not dividing:
        refuse("hybrid-divides", f"none of the kernel sizes {list(kernel_sizes)} divides block_size {block_size}")
    return dividing[0]


def _by_token(
    num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and position of each token, without waiting for the device to tell how many each request has. A token behind
    the last request has position -1, and no slot."""
    token = torch.arange(positions.numel(), dtype=torch.int32, device=positions.device)
    # The first request that ends behind the token: empty requests before it end at the token or sooner.
    request = torch.searchsorted(query_start_loc[1 : num_reqs + 1], token, right=True)
    return torch.where(request < num_reqs, request, 0), torch.where(request < num_reqs, positions, -1)


def _host_array(name: str, values: Indices) -> npt.NDArray[np.int64]:
    _check_is_array(name, values)
    if isinstance(values, torch.Tensor):
        if values.device.type != "cpu":
            refuse(name, f"is on {values.device}, the draft path of one rank takes arrays of the host")
        if values.is_floating_point():  # of which NumPy does not have every type
            refuse(name, f"expected a 1-D array of integers, got {values.dtype} of shape {tuple(values.shape)}")
        values = values.numpy()
    if values.ndim != 1 or values.dtype.kind not in "iu":
        refuse(name, f"expected a 1-D array of integers, got {values.dtype} of shape {values.shape}")
    if values.size and values.max() > np.iinfo(np.int64).max:  # a uint64 that would come out negative
        refuse(name, f"element {values.argmax()} is {values.max()}, past int64")
    return values.astype(np.int64)


def _tensor(name: str, values: Indices) -> torch.Tensor:
    return values if isinstance(values, torch.Tensor) else torch.from_numpy(_host_array(name, values))


def _check_is_array(name: str, values: object) -> None:
    if not isinstance(values, np.ndarray | torch.Tensor):
        refuse(name, f"expected a 1-D array of integers, got {type(values).__name__}")
