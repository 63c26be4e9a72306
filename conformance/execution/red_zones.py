"""Red zones: on a device no page can be made inaccessible, so poison stands around every buffer and is looked at after
the launch.

All buffers of a launch lie close together, each between two zones, so that one copy takes them to the device and one
takes them back. Whatever is not an output must come back as it went: a write into a zone or into an input is a guard
violation. A read outside a buffer finds poison, which shows in the output if the kernel makes anything of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.execution.array import Array
from conformance.execution.memory import Memory, NoRoom, Placed, violation
from reference.verdict import Guard

CAPACITY = 1 << 28  # bytes that the buffers of one launch and their zones may take
ZONE_BYTES = 1 << 12
# Buffers begin where an allocator of a device would put them: compilers tell an aligned address from one that is not,
# and serving has aligned ones only.
_ALIGNMENT = 256


class RedZones(Memory):
    """The suite's side of memory that :class:`Mirror` copies to a device."""

    def __init__(self) -> None:
        super().__init__(CAPACITY)
        self._as_filled: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def place(self, arrays: Sequence[Array], fence: str, open_buffers: Collection[str] = ()) -> dict[str, Placed]:
        """One buffer behind the other, with at least ``ZONE_BYTES`` on either side of each, whatever the ``fence``."""
        placed: dict[str, Placed] = {}
        begin = 0
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
        self._as_filled = self._bytes[: extent(placed)].copy()

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
    """The launching process's side: the shared memory, and ``memory``, a device tensor of bytes that mirrors it."""

    def __init__(self, fd: int, memory: Any) -> None:
        import torch

        self.memory = memory
        self._host = torch.frombuffer(mmap.mmap(fd, CAPACITY), dtype=torch.uint8)

    def upload(self, nbytes: int) -> None:
        """The first ``nbytes`` bytes, all buffers of a launch and their zones, to the device."""
        self.memory[:nbytes].copy_(self._host[:nbytes])

    def download(self, nbytes: int) -> None:
        """The same back; waits for everything that was launched before."""
        self._host[:nbytes].copy_(self.memory[:nbytes])


def extent(placed: Mapping[str, Placed]) -> int:
    """How many bytes from the beginning the buffers of a launch and their zones take."""
    return max((item.room.stop for item in placed.values()), default=0)
