"""What a lane can say instead of running a kernel."""

from __future__ import annotations

from reference.verdict import Guard


class CompileError(Exception):
    """The kernel does not compile on this lane. The message is the compiler's own, shortened."""


class DeviceError(Exception):
    """The device reported an error, which outlasts its launch: the process has no use for it any more."""


class Unsupported(Exception):
    """The lane cannot do this, and says so rather than guess. It is shown as a skip, never as a pass."""


class OutOfBounds(Exception):
    """The launch touched on-chip memory that it must not touch, or made something of what it had not written there:
    ``guard`` says which. ``stored_at`` is the address in global memory where that showed, if it did.
    """

    def __init__(self, guard: Guard, stored_at: int | None = None) -> None:
        super().__init__(guard.message)
        self.guard, self.stored_at = guard, stored_at
