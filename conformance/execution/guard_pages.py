"""Guard pages: on a host, an access one element past a buffer faults, and the fault address alone tells which buffer it
belongs to and how far off it was.

The shared memory is cut into slots of a few size classes. The launching process maps each slot on its own, at the
middle of a wide inaccessible gap: *inputs* read-only, *outputs* writable. A buffer touches one end of its slot
(``fence``); what is left of the slot is poison, and poison that changed is a write outside the output that stayed
inside the slot.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from conformance.execution.array import Array
from conformance.execution.memory import Memory, NoRoom, Placed, violation
from reference.verdict import Guard

PAGE = mmap.PAGESIZE
SLOT_BYTES = (4096, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
SLOTS_PER_SIZE = 12
# Room around each slot in the launching process's address space: an int32 index into int64 elements, however wrong,
# still lands in the gap of its own buffer.
GAP_BYTES = 1 << 36
# Where that process maps all of it if it can, so that the addresses in a report are the same in every run.
_WISHED_BASE = 0x2000_0000_0000
# With an open fence, how much readable poison there is on either side: more than a kernel stages of a row at once.
OPEN_BYTES = 1 << 15


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of the memory. ``file_offset`` is its place in the shared file, ``address_offset`` its place from the
    launching process's base.
    """

    writable: bool
    capacity: int
    file_offset: int
    address_offset: int


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


class GuardPages(Memory):
    """The suite's side of memory that :func:`map_guarded` maps in the launching process."""

    def __init__(self) -> None:
        super().__init__(FILE_BYTES)

    def place(
        self, arrays: Sequence[Array], fence: str, open_buffers: Collection[str] = (), begin: int = 0
    ) -> dict[str, Placed]:
        """Put each array into a slot of its own, with the inaccessible gap right ``after`` or right ``before`` it,
        or, when the fence is ``open`` or the array one of ``open_buffers``, ``OPEN_BYTES`` of poison away on either
        side. Slots serve one launch at a time.
        """
        assert not begin, "a batch of several launches has no place here"
        taken: dict[tuple[bool, int], int] = {}
        placed: dict[str, Placed] = {}
        for array in arrays:
            is_open = fence == "open" or array.name.partition("[")[0] in open_buffers
            margin = OPEN_BYTES if is_open else 0
            slot = self._free_slot(array, array.nbytes + 2 * margin, taken)
            start = slot.capacity - array.nbytes if fence == "after" and not is_open else margin
            room = range(slot.file_offset, slot.file_offset + slot.capacity)
            placed[array.name] = Placed(array, room.start + start, room, self.base + slot.address_offset + start)
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
        raise NoRoom(
            f"buffer {array.name!r} of {array.nbytes} bytes finds no slot: the limit is"
            f" {SLOTS_PER_SIZE} buffers of each size up to {SLOT_BYTES[-1]} bytes"
        )

    def blame(self, placed: Mapping[str, Placed], address: int, direction: str) -> Guard | None:
        for item in placed.values():
            begin = item.address - (item.start - item.room.start)
            if begin - GAP_BYTES // 2 <= address < begin + len(item.room) + GAP_BYTES // 2:
                return violation(item, direction, address)
        return None


def map_guarded(fd: int) -> int:
    """Map the memory for a process that launches kernels; returns the base address. Read-only inputs, gaps between all
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
