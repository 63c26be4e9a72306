"""What a launching process sees of one guarded buffer."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Buffer:
    """Guarded memory at ``address``: ``size`` elements of ``dtype``, seen as ``shape`` with ``strides`` (elements;
    None: contiguous).

    It answers ``data_ptr()`` and ``dtype`` like a tensor, which is all that a compiled kernel asks of a pointer
    argument.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    size: int

    @classmethod
    def from_json(cls, item: dict[str, Any]) -> Buffer:
        strides = item["strides"]
        return cls(item["address"], item["dtype"], tuple(item["shape"]), strides and tuple(strides), item["size"])

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.size

    def tensor(self) -> torch.Tensor:
        """The same memory as a torch tensor on the host."""
        import torch

        dtype = getattr(torch, self.dtype)
        if not math.prod(self.shape):
            return torch.empty(self.shape, dtype=dtype)
        memory = (ctypes.c_char * (self.size * dtype.itemsize)).from_address(self.address)
        flat = torch.frombuffer(memory, dtype=dtype, count=self.size)
        if self.strides is None:
            return flat.view(self.shape)
        return flat.as_strided(self.shape, self.strides)
