"""Where the chip's on-chip buffer (UB) is on this machine, and the page beside it in which native code keeps account.

Both are at addresses that never change, so that a planned address is a constant in the code and a pointer tells its
place in UB. Nothing is mapped on either side of UB.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache

BASE = 0x1000_0000_0000
"""The address of UB's first byte."""

ACCOUNT = BASE + (1 << 30)
"""The address of the account: 64-bit words, ``SITE`` and so on by number."""

SPAN = 1 << 20
"""What is mapped, in bytes: more than any chip has, so that a plan beyond UB's end is reported and no crash."""

MODE, LOG, USED, CAPACITY, FULL, SITE, KIND, WORD, FIRST, LAST, LIMIT = range(11)

UNDEFINED, ODD_SITE, ODD_UNDEFINED = range(11, 14)
"""The account's words for what library functions leave undefined: at all sites, and at one of them otherwise."""
JUMP = 16
"""The account's first word of a jump buffer, by which a violation ends its launch."""

GIVEN, MOST_GIVEN = 100, 8
"""The account's words for the buffers that the library function at work was given."""

_ACCOUNT_BYTES = 4096
_PROT, _FLAGS = 0x1 | 0x2, 0x02 | 0x20 | 0x100000  # read, write; private, anonymous, never in place of another mapping


class NoUb(OSError):
    """The addresses that the lane needs are taken in this process."""


@cache
def mapped() -> ctypes.Array[ctypes.c_int64]:
    """Map both, once in this process; returns the account. Raises NoUb."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    for address, size in ((BASE, SPAN), (ACCOUNT, max(_ACCOUNT_BYTES, mmap.PAGESIZE))):
        if libc.mmap(address, size, _PROT, _FLAGS, -1, 0) != address:
            raise NoUb(ctypes.get_errno(), f"cannot map {size} bytes at {address:#x}, where lane hivm has UB")
    return (ctypes.c_int64 * (_ACCOUNT_BYTES // 8)).from_address(ACCOUNT)


def word(begin: int, end: int, place: int) -> int:
    """What travels in a buffer's descriptor: its planned bytes and its number among the places of a program."""
    return begin | end << 24 | place << 48


def unpacked(word: int) -> tuple[int, int, int]:
    """(begin, end, place) of a ``word``."""
    word &= (1 << 64) - 1
    return word & 0xFFFFFF, word >> 24 & 0xFFFFFF, word >> 48
