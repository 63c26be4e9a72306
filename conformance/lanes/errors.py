"""What a lane can say instead of running a kernel."""


class CompileError(Exception):
    """The kernel does not compile on this lane. The message is the compiler's own, shortened."""


class Unsupported(Exception):
    """The lane cannot do this, and says so rather than guess. It is shown as a skip, never as a pass."""
