"""Guarded memory shared by the suite and the child process that launches kernels.

The memory is one file without a name, cut into slots of a few size classes. The suite maps the file as it is and may
write everywhere. The child maps each slot on its own, at the middle of a wide inaccessible gap: *inputs* read-only,
*outputs* writable. So a kernel that reads or writes one element past a buffer, or writes into an input, faults, and
the fault address alone tells which buffer it belongs to and how far off it was. A buffer touches one end of its slot
(``fence``); what is left of the slot is poison, and poison that changed is a write outside the output that stayed
inside the slot.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.execution.array import Array
from reference.verdict import UNWRITTEN, Guard

PAGE = mmap.PAGESIZE
SLOT_BYTES = (4096, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
SLOTS_PER_SIZE = 12
# Room around each slot in the child's address space: an int32 index into int64 elements, however wrong, still lands
# in the gap of its own buffer.
GAP_BYTES = 1 << 36
# Where the child maps all of it if it can, so that the addresses in a report are the same in every run.
_WISHED_BASE = 0x2000_0000_0000
# With an open fence, how much readable poison there is on either side: more than a kernel stages of a row at once.
OPEN_BYTES = 1 << 15

# Readable poison around inputs: as an int32 it is no block number, position or size that a case can hold.
INPUT_POISON = 0x7E


class ArenaError(RuntimeError):
    """A launch needs more or larger buffers than the arena has."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of the arena. ``file_offset`` is its place in the shared file, ``address_offset`` its place from the
    child's base.
    """

    writable: bool
    capacity: int
    file_offset: int
    address_offset: int


@dataclass(frozen=True, slots=True)
class Placed:
    """An array in its slot. ``start`` counts bytes from the slot's beginning; ``address`` is the child's."""

    array: Array
    slot: Slot
    start: int
    address: int

    def describe(self) -> dict[str, object]:
        """What the child needs to see the buffer (JSON)."""
        array = self.array
        return {
            "address": self.address,
            "dtype": array.dtype,
            "shape": array.shape,
            "strides": array.strides,
            "size": array.size,
        }


def _layout() -> tuple[list[Slot], int, int]:
    slots: list[Slot] = []
    file_offset, address = 0, GAP_BYTES
    for writable in (False, True):
        for capacity in SLOT_BYTES:
            capacity = -(-capacity // PAGE) * PAGE
            for _ in range(SLOTS_PER_SIZE):
                slots.append(Slot(writable, capacity, file_offset, address))
                file_offset += capacity
                address += capacity + GAP_BYTES
    return slots, file_offset, address


SLOTS, FILE_BYTES, SPAN_BYTES = _layout()


class Arena:
    """The suite's side: places the buffers of one launch, fills them, and judges what became of them."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("slot-mapping-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, FILE_BYTES)  # sparse: only what is touched takes memory
        self._map = mmap.mmap(self.fd, FILE_BYTES)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        self.base = 0  # where the child mapped it

    def close(self) -> None:
        del self._bytes
        self._map.close()
        os.close(self.fd)

    def place(self, arrays: Sequence[Array], fence: str) -> dict[str, Placed]:
        """Put each array into a slot of its own, with the inaccessible gap right ``after`` or right ``before`` it,
        or, when the fence is ``open``, ``OPEN_BYTES`` of poison away on either side.
        """
        taken: dict[tuple[bool, int], int] = {}
        placed: dict[str, Placed] = {}
        for array in arrays:
            margin = OPEN_BYTES if fence == "open" else 0
            slot = self._free_slot(array, array.nbytes + 2 * margin, taken)
            start = slot.capacity - array.nbytes if fence == "after" else margin
            placed[array.name] = Placed(array, slot, start, self.base + slot.address_offset + start)
        return placed

    @staticmethod
    def _free_slot(array: Array, nbytes: int, taken: dict[tuple[bool, int], int]) -> Slot:
        writable = array.writable
        for index, capacity in enumerate(SLOT_BYTES):
            if capacity < nbytes or taken.get((writable, index), 0) == SLOTS_PER_SIZE:
                continue
            used = taken.get((writable, index), 0)
            taken[writable, index] = used + 1
            return SLOTS[(writable * len(SLOT_BYTES) + index) * SLOTS_PER_SIZE + used]
        raise ArenaError(
            f"buffer {array.name!r} of {array.nbytes} bytes finds no slot: the limit is"
            f" {SLOTS_PER_SIZE} buffers of each size up to {SLOT_BYTES[-1]} bytes"
        )

    def fill(self, placed: Mapping[str, Placed]) -> None:
        """Write the inputs, poison the outputs and everything around both."""
        for item in placed.values():
            array, slot = item.array, item.slot
            whole = self._bytes[slot.file_offset : slot.file_offset + slot.capacity]
            if array.writable:
                whole.view(array.dtype)[:] = UNWRITTEN
            else:
                whole[:] = INPUT_POISON
            data = array.data
            if array.addresses_of:
                data = np.array([placed[other.name].address for other in array.addresses_of], dtype=np.uint64)
            if data is not None and array.nbytes:
                whole[item.start : item.start + array.nbytes] = data.reshape(-1).view(np.uint8)

    def output(self, item: Placed) -> npt.NDArray[np.generic]:
        """What the output holds now, one element a token: a view, valid until the next ``fill``."""
        start = item.slot.file_offset + item.start
        return self._bytes[start : start + item.array.nbytes].view(item.array.dtype)

    def writes_outside(self, placed: Mapping[str, Placed]) -> list[Guard]:
        """Elements beside an output that lost their poison though the slot's fence was never touched."""
        guards = []
        for item in placed.values():
            if not item.array.writable:
                continue
            slot, itemsize = item.slot, item.array.itemsize
            whole = self._bytes[slot.file_offset : slot.file_offset + slot.capacity].view(item.array.dtype)
            first, last = item.start // itemsize, (item.start + item.array.nbytes) // itemsize
            changed = np.flatnonzero(whole[:first] != UNWRITTEN), np.flatnonzero(whole[last:] != UNWRITTEN) + last
            for element in (*changed[0][-1:], *changed[1][:1]):
                address = self.base + slot.address_offset + int(element) * itemsize
                guards.append(self._guard(item, "write", address))
        return guards

    def blame(self, placed: Mapping[str, Placed], address: int, direction: str) -> Guard | None:
        """The guard violation that a fault at ``address`` stands for, or None when it is near no buffer of the
        launch.
        """
        for item in placed.values():
            begin = self.base + item.slot.address_offset
            if begin - GAP_BYTES // 2 <= address < begin + item.slot.capacity + GAP_BYTES // 2:
                return self._guard(item, direction, address)
        return None

    @staticmethod
    def _guard(item: Placed, direction: str, address: int) -> Guard:
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


def map_in_child(fd: int) -> int:
    """Map the arena for a process that launches kernels; returns the base address. Read-only inputs, gaps between all
    slots.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    private, shared, fixed, anonymous, no_reserve = 0x02, 0x01, 0x10, 0x20, 0x4000
    failed = ctypes.c_void_p(-1).value
    base = libc.mmap(_WISHED_BASE, SPAN_BYTES, 0, private | anonymous | no_reserve, -1, 0)
    if base == failed:
        raise OSError(ctypes.get_errno(), f"cannot reserve {SPAN_BYTES >> 30} GiB of address space for guarded buffers")
    for slot in SLOTS:
        protection = 0x1 | 0x2 if slot.writable else 0x1
        address = libc.mmap(base + slot.address_offset, slot.capacity, protection, shared | fixed, fd, slot.file_offset)
        if address == failed:
            raise OSError(ctypes.get_errno(), f"cannot map a guarded buffer of {slot.capacity} bytes")
    return int(base)
