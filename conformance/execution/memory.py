"""Memory shared by the suite and the process that launches kernels: where the buffers of a launch lie, what stands
around them, and what became of both.

It is one file without a name, which the suite maps as it is and may write everywhere. How the launching process sees
it, and what becomes of an access outside a buffer there, is the guard's matter: inaccessible pages on a host
(:mod:`conformance.execution.guard_pages`), poison that is looked at afterwards on a device
(:mod:`conformance.execution.red_zones`).
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.execution.array import Array
from reference.verdict import UNWRITTEN, Guard

# Readable poison around inputs: as an int32 it is no block number, position or size that a case can hold.
INPUT_POISON = 0x7E


class NoRoom(RuntimeError):
    """A launch needs more or larger buffers than the memory has room for."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An array in the shared memory. ``start`` is its first byte in the file, ``room`` the bytes that nobody else has,
    the array's own among them; ``address`` is where the launching process sees it.
    """

    array: Array
    start: int
    room: range
    address: int

    def describe(self) -> dict[str, object]:
        """What the launching process needs to see the buffer (JSON)."""
        array = self.array
        return {
            "address": self.address,
            "dtype": array.dtype,
            "shape": array.shape,
            "strides": array.strides,
            "size": array.size,
        }


class Memory(ABC):
    """The suite's side: places the buffers of one launch, fills them, and judges what became of them."""

    def __init__(self, nbytes: int) -> None:
        self.fd = os.memfd_create("slot-mapping-memory", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, nbytes)  # sparse: only what is touched takes memory
        try:
            self._map = mmap.mmap(self.fd, nbytes)
        except OSError as error:
            os.close(self.fd)
            raise NoRoom(f"cannot map {nbytes >> 20} MiB for the buffers of a launch: {error.strerror}") from error
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        self.base = 0  # where the launching process sees it, as far as one figure can tell

    def close(self) -> None:
        """Unmap it, or leave that to the last view: the traceback of an interrupted comparison has one."""
        del self._bytes
        with suppress(BufferError):
            self._map.close()
        os.close(self.fd)

    @abstractmethod
    def place(
        self, arrays: Sequence[Array], fence: str, open_buffers: Collection[str] = (), begin: int = 0
    ) -> dict[str, Placed]:
        """Give each array room of its own, behind the first ``begin`` bytes, which other launches of a batch have.
        Raises NoRoom.
        """

    @abstractmethod
    def blame(self, placed: Mapping[str, Placed], address: int, direction: str) -> Guard | None:
        """The guard violation that a fault at ``address`` stands for, or None when it is near no buffer of the
        launch.
        """

    def fill(self, placed: Mapping[str, Placed]) -> None:
        """Write the inputs, poison the outputs and everything around both."""
        for item in placed.values():
            array, whole = item.array, self._room(item)
            if array.writable:
                whole.view(array.dtype)[:] = UNWRITTEN
            else:
                whole[:] = INPUT_POISON
            data = array.data
            if array.addresses_of:
                data = np.array([placed[other.name].address for other in array.addresses_of], dtype=np.uint64)
            if data is not None and array.nbytes:
                self._bytes[item.start : item.start + array.nbytes] = data.reshape(-1).view(np.uint8)

    def output(self, item: Placed) -> npt.NDArray[np.generic]:
        """What the output holds now, one element a token: a view, valid until the next ``fill``."""
        return self._bytes[item.start : item.start + item.array.nbytes].view(item.array.dtype)

    def writes_outside(self, placed: Mapping[str, Placed]) -> list[Guard]:
        """Elements beside an output that lost their poison, the nearest on either side."""
        guards = []
        for item in placed.values():
            if item.array.writable:
                whole, itemsize = self._room(item).view(item.array.dtype), item.array.itemsize
                first = (item.start - item.room.start) // itemsize
                last = first + item.array.size
                changed = np.flatnonzero(whole[:first] != UNWRITTEN), np.flatnonzero(whole[last:] != UNWRITTEN) + last
                guards += [
                    violation(item, "write", item.address + (int(element) - first) * itemsize)
                    for element in (*changed[0][-1:], *changed[1][:1])
                ]
        return guards

    def _room(self, item: Placed) -> npt.NDArray[np.uint8]:
        return self._bytes[item.room.start : item.room.stop]


def violation(item: Placed, direction: str, address: int) -> Guard:
    """An access at ``address``, which belongs to the surroundings of ``item`` or to an input."""
    array = item.array
    end = item.address + array.nbytes
    if address < item.address:
        distance, where = address - item.address, f"{item.address - address} bytes before its first element"
    elif address >= end:
        distance, where = address - end + array.itemsize, f"{address - end} bytes past its last element"
    else:
        distance, where = 0, f"at its element {(address - item.address) // array.itemsize}, which is an input"
    verb = "wrote to" if direction == "write" else "read" if direction == "read" else "touched"
    message = f"{verb} {array.name} ({array.size} x {array.dtype}) {where}, address {address:#x}"
    return Guard(buffer=array.name, direction=direction, address=address, distance=distance, message=message)
