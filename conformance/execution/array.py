"""The buffers of a launch as the suite describes them, before they have an address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Contents = npt.NDArray[np.generic]
THE_DEVICE = "<device>"
"""Stands for torch's name of the lane's device, where a parameter is to be given that."""


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """One buffer: its name, element type and contents. ``shape`` and ``strides`` count elements.

    A ``writable`` one is an output, read back after the launch: what ``data`` does not fill is poisoned.
    ``addresses_of`` makes it a table of the addresses of other buffers, one uint64 each, whose contents follow from
    where those are placed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Contents | None = None
    strides: tuple[int, ...] | None = None
    writable: bool = False
    addresses_of: tuple[Array, ...] = ()
    size: int = field(init=False)

    def __post_init__(self) -> None:
        elements = 1
        if self.strides is None:
            for extent in self.shape:
                elements *= extent
        else:
            elements = self.shape[0] * self.strides[0] if self.shape else 1
        object.__setattr__(self, "size", elements)

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def reachable(self) -> Iterator[Array]:
        """This buffer, and those whose addresses it holds."""
        yield self
        for array in self.addresses_of:
            yield from array.reachable()


def of_values(name: str, dtype: str, values: Iterable[int]) -> Array:
    """An input of one dimension."""
    data = np.array(tuple(values), dtype=dtype)
    return Array(name, dtype, data.shape, data)


def of_addresses(name: str, arrays: Iterable[Array]) -> Array:
    """An input that holds where other buffers are."""
    arrays = tuple(arrays)
    return Array(name, "uint64", (len(arrays),), addresses_of=arrays)
