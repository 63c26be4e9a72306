"""Red zones: on a device no page can be made inaccessible, so poison stands around every buffer and is looked at after
the launch.

All buffers of a launch, or of a batch of launches, lie close together, each between two zones, so that one copy takes
them to the device and one takes them back. Whatever is not an output must come back as it went: a write into a zone or
into an input is a guard violation. A read outside a buffer finds poison, which shows in the output if the kernel makes
anything of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from conformance.execution.array import Array
from conformance.execution.memory import Memory, NoRoom, Placed, violation
from reference.verdict import Guard

if TYPE_CHECKING:
    from conformance.lanes.device import Device

CAPACITY = 1 << 28  # bytes that the buffers of one launch, or of one batch, and their zones may take
ZONE_BYTES = 1 << 12
# Buffers begin where an allocator of a device would put them: compilers tell an aligned address from one that is not,
# and serving has aligned ones only.
_ALIGNMENT = 256
_LEAST_STAGING = 1 << 20


class RedZones(Memory):
    """The suite's side of memory that :class:`Mirror` copies to a device."""

    def __init__(self) -> None:
        super().__init__(CAPACITY)
        self._as_filled = np.empty(CAPACITY, dtype=np.uint8)  # no more of it is touched than launches have taken

    def place(
        self, arrays: Sequence[Array], fence: str, open_buffers: Collection[str] = (), begin: int = 0
    ) -> dict[str, Placed]:
        """One buffer behind the other, with at least ``ZONE_BYTES`` on either side of each, whatever the ``fence``."""
        placed: dict[str, Placed] = {}
        for array in arrays:
            start = begin + ZONE_BYTES
            end = -(-(start + array.nbytes + ZONE_BYTES) // _ALIGNMENT) * _ALIGNMENT
            if end > CAPACITY:
                raise NoRoom(
                    f"buffer {array.name!r} of {array.nbytes} bytes does not fit: all buffers of a launch and their"
                    f" zones may take {CAPACITY} bytes"
                )
            placed[array.name] = Placed(array, start, range(begin, end), self.base + start)
            begin = end
        return placed

    def fill(self, placed: Mapping[str, Placed]) -> None:
        super().fill(placed)
        for item in placed.values():
            self._as_filled[item.room.start : item.room.stop] = self._room(item)

    def writes_outside(self, placed: Mapping[str, Placed]) -> list[Guard]:
        """Beside an output, beside an input, and in one."""
        guards = super().writes_outside(placed)
        for item in placed.values():
            if not item.array.writable:
                changed = np.flatnonzero(self._room(item) != self._as_filled[item.room.start : item.room.stop])
                guards += [
                    violation(item, "write", item.address + item.room.start + int(each) - item.start)
                    for each in dict.fromkeys((*changed[:1], *changed[-1:]))
                ]
        return guards

    def blame(self, placed: Mapping[str, Placed], address: int, direction: str) -> Guard | None:
        """Never anything: a device does not say which address a fault was at, and a host fault is near no buffer."""
        return None


class Mirror:
    """The launching process's side: the shared memory, and ``memory``, a device tensor of bytes that mirrors it.

    Neither way waits: both copies are queued with the launches between them, through memory that the device reads and
    writes by itself.
    """

    def __init__(self, fd: int, device: Device) -> None:
        import torch

        self.memory = device.memory(CAPACITY)
        self._shared = torch.frombuffer(mmap.mmap(fd, CAPACITY), dtype=torch.uint8)
        self._device, self._staging = device, device.staging(_LEAST_STAGING)

    def upload(self, nbytes: int) -> None:
        """The first ``nbytes`` bytes, all buffers of a batch and their zones, to the device."""
        if nbytes > len(self._staging):
            self._staging = self._device.staging(1 << (nbytes - 1).bit_length())
        self._staging[:nbytes].copy_(self._shared[:nbytes])
        self.memory[:nbytes].copy_(self._staging[:nbytes], non_blocking=True)

    def download(self, nbytes: int) -> None:
        """The same back, once everything that was launched before is done."""
        self._staging[:nbytes].copy_(self.memory[:nbytes], non_blocking=True)
        self._device.synchronize()
        self._shared[:nbytes].copy_(self._staging[:nbytes])


def extent(placed: Mapping[str, Placed]) -> int:
    """How many bytes from the beginning the buffers of a launch, their zones and what lies before them take."""
    return max((item.room.stop for item in placed.values()), default=0)
