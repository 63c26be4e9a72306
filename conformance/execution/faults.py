"""A native signal handler that tells where a kernel touched memory it must not touch.

Python's own handlers run too late for a segmentation fault: the faulting instruction would repeat for ever. The
handler here is compiled once, notes signal, address and direction in a page that the suite can read, and ends the
process.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import resource
import signal
import struct
from dataclasses import dataclass

EXIT_STATUS = 86  # what a process ends with after its handler noted a fault
_RECORD = struct.Struct("<qQq")  # signal, address, 1 write / 0 read / -1 not known
RECORD_BYTES = mmap.PAGESIZE
_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)

# Where glibc puts the page fault's error code (bit 1: a write) into the ucontext it hands to a handler.
_ERROR_CODE_OFFSET = {"x86_64": 40 + 19 * 8}
_ADDRESS_OFFSET = 16  # siginfo_t.si_addr on every 64-bit Linux

_HANDLER = """
declare void @_exit(i32)
define void @on_fault(i32 %signal, ptr %info, ptr %context) {{
  %record = inttoptr i64 {record} to ptr
  %wide = sext i32 %signal to i64
  %where = getelementptr i8, ptr %info, i64 {address_offset}
  %address = load i64, ptr %where
  %slot1 = getelementptr i64, ptr %record, i64 1
  %slot2 = getelementptr i64, ptr %record, i64 2
  store i64 %address, ptr %slot1
  {direction}
  store i64 %way, ptr %slot2
  store volatile i64 %wide, ptr %record
  call void @_exit(i32 {status})
  unreachable
}}
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """What ended a child: a signal, the address it is about, and ``direction`` "read", "write" or "access" when the
    machine does not say.
    """

    signal: int
    address: int
    direction: str

    @property
    def name(self) -> str:
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


def read_record(page: mmap.mmap) -> Fault | None:
    """The fault noted in ``page``, if any; the page is cleared."""
    number, address, way = _RECORD.unpack_from(page)
    _RECORD.pack_into(page, 0, 0, 0, 0)
    return Fault(number, address, {1: "write", 0: "read"}.get(way, "access")) if number else None


class _SigAction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _SigStack(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class FaultHandler:
    """Compiled before the fork, installed after it. ``record_address`` is this process's address of the shared page."""

    def __init__(self, record_address: int) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        offset = _ERROR_CODE_OFFSET.get(platform.machine())
        direction = "%way = add i64 0, -1"
        if offset is not None:
            direction = f"""%at = getelementptr i8, ptr %context, i64 {offset}
  %code = load i64, ptr %at
  %bit = lshr i64 %code, 1
  %way = and i64 %bit, 1"""
        text = _HANDLER.format(
            record=record_address, address_offset=_ADDRESS_OFFSET, direction=direction, status=EXIT_STATUS
        )
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
        self._engine.finalize_object()
        self._address = self._engine.get_function_address("on_fault")
        self._stack = ctypes.create_string_buffer(1 << 16)  # a kernel may have used up the ordinary one

    def install(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        libc = ctypes.CDLL(None, use_errno=True)
        stack = _SigStack(ctypes.addressof(self._stack), 0, len(self._stack))
        if libc.sigaltstack(ctypes.byref(stack), None):
            raise OSError(ctypes.get_errno(), "sigaltstack")
        sa_siginfo, sa_onstack = 0x4, 0x08000000
        action = _SigAction(self._address, (ctypes.c_ulong * 16)(), sa_siginfo | sa_onstack, None)
        for number in _SIGNALS:
            if libc.sigaction(int(number), ctypes.byref(action), None):
                raise OSError(ctypes.get_errno(), "sigaction")
