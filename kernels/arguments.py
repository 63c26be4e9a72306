"""What the host functions refuse before they launch: everything that can be checked without waiting for the device.

A refusal is a ``ValueError`` whose message starts with the id of the broken clause of the contract (or with the name
of the argument, where a tensor has the wrong type or shape) and gives the values and the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch


def refuse(clause: str, what: str) -> NoReturn:
    """Raise the ``ValueError`` of a broken clause."""
    raise ValueError(f"{clause}: {what}")


@contextmanager
def naming_group(group: int) -> Iterator[None]:
    """Add the group to the message of a refusal."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} (group {group})") from None


@contextmanager
def launching(kernel: Any, device: torch.device) -> Iterator[None]:
    """Say what to do where Triton itself cannot launch ``kernel`` on tensors of the host: its own message does not name
    them ("0 active drivers ([]). There should only be one.").

    Raises ``RuntimeError`` instead of that. Whatever an interpreter or a launcher in Triton's place raises stays.
    """
    try:
        yield
    except Exception as error:
        from triton.runtime.jit import JITFunction  # not sooner: what does not launch needs no triton

        own = isinstance(kernel, JITFunction) and JITFunction.run.__module__.startswith("triton.")
        if not own or device.type != "cpu":
            raise
        raise RuntimeError(
            f"{kernel.fn.__name__} is a Triton kernel, and Triton cannot launch it here on tensors of {device} "
            f"({error}). Use tensors of a GPU or NPU, or set TRITON_INTERPRET=1 before triton is imported (in an "
            f"environment with triton: the interpreter of triton-ascend has no tl.gather). Of a block table, the slots "
            f"of a batch need this launch where dcp_world_size is 1; those of draft tokens never do."
        ) from error


@dataclass(frozen=True, slots=True)
class Geometry:
    """How tokens are laid out: blocks and context parallelism. Creating one checks that the sizes are legal together.

    ``block_size`` (b) counts the tokens of a kernel block, ``kv_cache_block_size`` (B) those of an allocated block, B
    = k*b. ``cp_size`` (W) ranks share a sequence, this one is ``cp_rank`` (R), ``cp_interleave`` (I) consecutive
    tokens stay together.

    Raises ``ValueError`` for ``hybrid-divides``, ``rank-range`` and, where W > 1 gives it a meaning,
    ``interleave-divides``.
    """

    block_size: int
    kv_cache_block_size: int
    cp_size: int = 1
    cp_rank: int = 0
    cp_interleave: int = 1

    def __post_init__(self) -> None:
        b, kv = self.block_size, self.kv_cache_block_size
        if b < 1:
            refuse("hybrid-divides", f"block_size is {b}, must be at least 1")
        if kv < b or kv % b:
            refuse("hybrid-divides", f"kv_cache_block_size {kv} is not a positive multiple of block_size {b}")
        if self.cp_size < 1:
            refuse("rank-range", f"cp_size is {self.cp_size}, must be at least 1")
        if not 0 <= self.cp_rank < self.cp_size:
            refuse("rank-range", f"cp_rank is {self.cp_rank}, must be in [0, cp_size = {self.cp_size})")
        if self.cp_interleave < 1:
            refuse("interleave-divides", f"cp_interleave is {self.cp_interleave}, must be at least 1")
        if self.cp_size > 1 and kv % self.cp_interleave:
            refuse("interleave-divides", f"cp_interleave {self.cp_interleave} does not divide kv_cache_block_size {kv}")

    @property
    def blocks_per_kv_block(self) -> int:
        """k: kernel blocks in one allocated block."""
        return self.kv_cache_block_size // self.block_size


def check_is_tensor(name: str, value: object, dtypes: tuple[torch.dtype, ...]) -> None:
    """Refuse what is no tensor, such as a list or an array. ``dtypes`` are those that it should have."""
    if not isinstance(value, torch.Tensor):
        refuse(name, f"expected a tensor of {_any_of(dtypes)}, got {type(value).__name__}")


def check_vector(
    name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], device: torch.device | None = None
) -> torch.device:
    """Refuse anything but a contiguous 1-D tensor of one of ``dtypes`` on ``device`` (None: on any). Returns the device
    that it is on."""
    check_is_tensor(name, tensor, dtypes)
    if tensor.dim() != 1 or not tensor.is_contiguous():
        refuse(name, f"expected a contiguous 1-D tensor, got shape {tuple(tensor.shape)}, strides {tensor.stride()}")
    _check_type(name, tensor, dtypes, tensor.device if device is None else device)
    return tensor.device


def check_block_table(block_table: torch.Tensor, geometry: Geometry, device: torch.device) -> None:
    """Refuse anything but int32 [rows, width]: adjacent cells, rows that do not overlap, whole allocated blocks."""
    check_is_tensor("block_table", block_table, (torch.int32,))
    if block_table.dim() != 2:
        refuse("block_table", f"expected a 2-D tensor, got shape {tuple(block_table.shape)}")
    _check_type("block_table", block_table, (torch.int32,), device)
    rows, width = block_table.shape
    if width > 1 and block_table.stride(1) != 1:
        refuse("block_table", f"cells of a row must be adjacent, got strides {block_table.stride()}")
    if rows > 1 and block_table.stride(0) < width:
        refuse("block_table", f"row stride {block_table.stride(0)} is below the row width {width}: rows overlap")
    k = geometry.blocks_per_kv_block
    if width % k:
        refuse("hybrid-width", f"row width {width} is not a multiple of {k} kernel blocks in an allocated block")


def check_pad_id(pad_id: int, slot_dtype: torch.dtype) -> None:
    """Refuse a padding value that the output type cannot hold."""
    limits = torch.iinfo(slot_dtype)
    if not limits.min <= pad_id <= limits.max:
        refuse("slot-fits", f"pad_id {pad_id} is outside [{limits.min}, {limits.max}] of {_plain(slot_dtype)}")


def check_capacity(num_tokens: int, max_num_tokens: int, positions: int, slots: int) -> None:
    """Refuse a batch of ``num_tokens`` that ``positions`` positions or ``slots`` elements of output cannot hold."""
    if not 0 <= num_tokens <= max_num_tokens:
        refuse("qsl-capacity", f"num_tokens {num_tokens} is outside [0, max_num_tokens = {max_num_tokens}]")
    if num_tokens > positions:
        refuse("qsl-capacity", f"num_tokens {num_tokens} exceeds the {positions} positions given")
    if max_num_tokens > slots:
        refuse("qsl-capacity", f"max_num_tokens {max_num_tokens} exceeds slot_mapping of {slots} elements")


def check_stored_rows(block_table: torch.Tensor, rows: int, row_stride: int) -> None:
    """Refuse a table that ends with its last row's width: a kernel that knows only the stride may read up to there."""
    held = block_table.untyped_storage().nbytes() // block_table.element_size() - block_table.storage_offset()
    if rows * row_stride > held:
        refuse(
            "block_table",
            f"{rows} rows of stride {row_stride} span {rows * row_stride} cells, its storage ends after {held}",
        )


def _check_type(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], device: torch.device) -> None:
    if tensor.dtype not in dtypes:
        refuse(name, f"expected {_any_of(dtypes)}, got {_plain(tensor.dtype)}")
    if tensor.device != device:
        refuse(name, f"is on {tensor.device}, expected {device}")


def _any_of(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(map(_plain, dtypes))


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
