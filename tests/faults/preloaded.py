"""Processes of a subject that begin with everything imported: forks of this one, where a run starts an interpreter.

An interpreter that imports torch and triton takes two seconds, which a test that starts dozens of them can do without.
What happens in such a process is the same: it loads the subject and is what ``conformance.execution.server`` serves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import IO

from conformance.execution import server, session
from conformance.lanes.base import INTERPRET

_IMPORTED = (
    "torch",
    "triton",
    "triton.language",
    "conformance.lanes.lowered.launcher",
    "conformance.subjects.own",
)
_STEP = 0.005  # seconds between two looks at a process that is waited for


class Forked:
    """What ``subprocess.Popen`` is to a session: the server ``command`` with ``pass_fds``, in a fork of this process.

    The lane's environment must be this process's own already: modules that are imported have read it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        stderr: IO[bytes],
        **_: object,
    ) -> None:
        assert list(command[:-3]) == [sys.executable, "-m", server.__name__]
        not_interpreted = {INTERPRET: "0"}  # which is what it means that the variable is not there
        assert dict(env) == {**not_interpreted, **os.environ}
        numbers = [int(each) for each in command[-3:]]
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            os.environ.update(env)
            _serve(numbers, set(pass_fds), stderr.fileno())

    def wait(self, timeout: float | None = None) -> int:
        """The status that the process ended with. Raises subprocess.TimeoutExpired when it does not end in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked server", timeout or 0)
            else:
                time.sleep(_STEP)
        return self.returncode


def _serve(numbers: Sequence[int], keep: set[int], stderr: int) -> None:
    """In the fork: what ``python -m conformance.execution.server`` does. Does not return."""
    status = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for standard, fd in enumerate((null, stderr, stderr)):
            os.dup2(fd, standard)
        kept = [0, 1, 2, *sorted(keep - {0, 1, 2})]
        # Whoever else holds an end of a connection keeps it open.
        for fd in sorted({int(each) for each in os.listdir("/proc/self/fd")} - set(kept)):
            with suppress(OSError):
                os.close(fd)
        server.die_with_parent()
        control, memory_fd, record_fd = numbers
        server.serve(Connection(control), memory_fd, record_fd)
        status = 0
    finally:
        os._exit(status)


def fork_servers() -> None:
    """From now on this process starts every server as a fork of itself. For a process that does nothing else."""
    for name in _IMPORTED:
        import_module(name)
    import_module("torch").set_num_threads(1)
    session.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=Forked, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
