"""The suite's handle on a subject: launches go out, outcomes come back, and a dead or hanging child is an outcome
like any other.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from conformance.execution import channel, faults
from conformance.execution.array import Array
from conformance.execution.channel import END_TIMEOUT, NoAnswer
from conformance.execution.guard_pages import GuardPages
from conformance.execution.memory import Memory, NoRoom, Placed
from conformance.execution.red_zones import RedZones, extent
from conformance.lanes import Lane
from conformance.subjects.entry import EntryPoint
from reference.case import Launch
from reference.verdict import Guard

Argument = Array | int | bool | str | None
START_TIMEOUT = 120.0  # seconds in which a process has to be ready to launch, its device with it
COMPILE_TIMEOUT = 120.0  # seconds for one compilation, which is no launch and must not count as a hang
COMPILATIONS_TIMEOUT = 1200.0  # seconds for all that launches together wait for
_LAST_BYTES, _LAST_LINES = 2000, 8  # of what a process has printed, where it is quoted


class SubjectError(RuntimeError):
    """The subject could not be loaded, or its process cannot be kept alive."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call as bound: the grid, and every parameter by name with its value or its buffer."""

    entry: str
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]

    def arrays(self) -> list[Array]:
        """Every buffer of the launch once, those behind an address included."""
        passed = (value for value in self.arguments.values() if isinstance(value, Array))
        return list({id(array): array for value in passed for array in value.reachable()}.values())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a launch did. ``status``: ok, raised, compile, unsupported, crash or hang; ``outputs`` by buffer name and
    the ``seconds`` that the call took in its process, only for ok.
    """

    status: str
    outputs: Mapping[str, list[int]] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Placed:
    """A launch whose ``buffers`` are filled, and the ``request`` that tells the launching process of it."""

    buffers: Mapping[str, Placed]
    request: Mapping[str, Any]


class Session:
    """A subject loaded on a lane. Use as a context manager; ``close`` leaves no process behind."""

    def __init__(
        self, lane: Lane, subject: str, source: str | None, *, cache: Path, case_timeout: float = 10.0
    ) -> None:
        self.lane, self.subject, self.source = lane, subject, source
        self.case_timeout = case_timeout
        # Set while a hang is being shrunk: a launch then counts as hung long before the time-out, or it takes minutes.
        self.hurried = False
        self._recent: deque[float] = deque(maxlen=101)
        self.entries: dict[str, EntryPoint] = {}
        self.preparing: dict[str, EntryPoint] = {}  # by the name of the entry point that each compiles for
        # How many specializations the process that launches had loaded after the last launch, if the lane says.
        self.specializations: int | None = None
        self.hardware: dict[str, str] = {}  # device and driver, known from the first launch on
        self._memory: Memory = RedZones() if lane.on_device else GuardPages()
        record_fd = os.memfd_create("slot-mapping-fault", os.MFD_CLOEXEC)
        os.ftruncate(record_fd, faults.RECORD_BYTES)
        self._record = mmap.mmap(record_fd, faults.RECORD_BYTES)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the session)
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "conformance.execution.server",
                    *map(str, (theirs.fileno(), self._memory.fd, record_fd)),
                ],
                env={**os.environ, **lane.environment()},
                cwd=Path(__file__).parents[2],
                pass_fds=(theirs.fileno(), self._memory.fd, record_fd),
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C is the suite's to handle
            )
        os.close(record_fd)
        self._control = Connection(ours.detach())
        self._closed = False
        self._runner: Connection | None = None
        self._runner_pid = 0
        try:
            answer = self._ask({"lane": lane.name, "subject": subject, "source": source, "cache": str(cache)})
            if "error" in answer:
                raise SubjectError(f"subject {subject!r} cannot be loaded on lane {lane.name!r}: {answer['error']}")
        except BaseException:
            self.close()
            raise
        for item in answer["entries"]:
            entry = EntryPoint.from_json(item).needing(lane.clauses)
            if entry.prepares:
                self.preparing[entry.prepares] = entry
            else:
                self.entries[entry.name] = entry

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End runner and server. Safe to call twice."""
        if self._closed:
            return
        if self._runner is not None:
            self._runner.close()
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            try:
                self._server.wait(timeout=1)
            finally:  # however the waiting ended, a second Ctrl-C included
                if self._server.returncode is None:
                    os.killpg(self._server.pid, signal.SIGKILL)  # with a launch that hangs and a compiler that works
                    self._server.wait()
        self._closed = True
        with suppress(ProcessLookupError):  # processes that a launch started and left
            os.killpg(self._server.pid, signal.SIGKILL)
        self._stderr.close()
        self._record.close()
        self._memory.close()

    def compile(
        self,
        invocations: Sequence[Invocation],
        *,
        workers: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[str | None]:
        """Compile what these launches need, ``workers`` at a time; one message a failed one, None a good one."""
        jobs = [
            self._request(item, {name: {**_shape(array), "address": 0} for name, array in _named(item)})
            for item in invocations
        ]
        self._control.send_bytes(json.dumps({"op": "compile", "jobs": jobs, "workers": workers}).encode())
        errors: list[str | None] = [None] * len(jobs)
        done = 0
        while True:
            event = self._answer()
            if event["event"] == "done":
                return errors
            done += 1
            errors[event["index"]] = event["error"]
            progress(done, len(jobs))

    def launch(self, invocation: Invocation, fence: str, open_buffers: Collection[str] = ()) -> Outcome:
        """Run one invocation on guarded buffers whose inaccessible neighbour stands ``after`` or ``before`` them, or
        on neither side of ``open_buffers``.
        """
        self.be_ready()
        try:
            placed = self._place(invocation, fence, open_buffers)
        except NoRoom as error:
            return Outcome("unsupported", message=str(error))
        return self._run([placed])[0]

    def launch_all(self, launches: Sequence[tuple[Invocation, Launch]]) -> list[Outcome]:
        """``launch`` for each, with the fence and the open buffers of its Launch. On a device they share its memory, as
        many at a time as ``lane.batch`` says, and are waited for together.

        Where one of them faults, hangs or writes beside its buffers, who it was shows when each is launched alone.
        """
        if self.lane.batch == 1:
            return [self.launch(invocation, each.fence, each.open_buffers) for invocation, each in launches]
        outcomes: list[Outcome] = []
        while len(outcomes) < len(launches):
            self.be_ready()
            waiting = launches[len(outcomes) : len(outcomes) + self.lane.batch]
            batch: list[_Placed] = []
            with suppress(NoRoom):
                for invocation, each in waiting:
                    batch.append(self._place(invocation, each.fence, each.open_buffers, behind=batch[-1:]))
            found = self._run(batch) if len(batch) > 1 else []
            if not found or any(each.status in ("crash", "hang") or each.guards for each in found):
                found = [
                    self.launch(invocation, each.fence, each.open_buffers)
                    for invocation, each in waiting[: max(len(batch), 1)]
                ]
            outcomes += found
        return outcomes

    def _place(
        self, invocation: Invocation, fence: str, open_buffers: Collection[str], behind: Sequence[_Placed] = ()
    ) -> _Placed:
        """Room and contents for one launch, and what the launching process is told of it. Raises NoRoom."""
        begin = max((extent(each.buffers) for each in behind), default=0)
        placed = self._memory.place(invocation.arrays(), fence, open_buffers, begin)
        self._memory.fill(placed)
        request = self._request(invocation, {name: item.describe() for name, item in placed.items()})
        # Where programs run one after the other, a later one can repair what an earlier one broke: in half of the
        # launches it does not come later.
        return _Placed(placed, {**request, "backwards": fence == "before"})

    def _run(self, batch: Sequence[_Placed]) -> list[Outcome]:
        """Have the process launch them all; an end of the process, or of its device, is the outcome of each."""
        timeout = self._patience()
        try:
            reply = self._answer_to(batch, timeout)
        except TimeoutError:
            self._kill()
            return [Outcome("hang", message=f"no answer within {timeout:.3g} s")] * len(batch)
        except NoAnswer as error:  # whatever else it says is worth no more
            self._kill()
            return [Outcome("crash", message=str(error))] * len(batch)
        except (EOFError, OSError):
            status = self._bury()
            if status is None:
                return [Outcome("crash", message="the process closed its connection to the suite and went on")] * len(
                    batch
                )
            return [self._crash(each.buffers, status) for each in batch]
        if "broken" in reply:  # the device: what is left of the process is of no use
            self._bury()
            return [Outcome("crash", message=reply["broken"])] * len(batch)
        return [self._outcome(each.buffers, said) for each, said in zip(batch, reply["outcomes"], strict=True)]

    def _answer_to(self, batch: Sequence[_Placed], timeout: float) -> dict[str, Any]:
        assert self._runner is not None
        request = {"launches": [each.request for each in batch], "extent": extent(batch[-1].buffers)}
        self._runner.send_bytes(json.dumps(request).encode())
        latest = time.monotonic() + COMPILATIONS_TIMEOUT + timeout
        reply = channel.receive(self._runner, timeout)
        while "event" in reply:
            channel.check_announced(reply)
            patience = COMPILE_TIMEOUT if reply["event"] == "compiling" else timeout
            reply = channel.receive(self._runner, min(patience, latest - time.monotonic()))
        channel.check_launched(reply, len(batch))
        return reply

    def _crash(self, placed: Mapping[str, Placed], status: int) -> Outcome:
        """What a process that ended with ``status`` in a launch has left."""
        fault = faults.read_record(self._record)
        if fault is None:
            return Outcome("crash", message=_ending(status))
        guard = (
            self._memory.blame(placed, fault.address, fault.direction) if fault.name in ("SIGSEGV", "SIGBUS") else None
        )
        if guard is not None:
            return Outcome("crash", guards=(guard,), message=guard.message)
        return Outcome("crash", message=f"{fault.name} at address {fault.address:#x}, near no buffer of the launch")

    def _outcome(self, placed: Mapping[str, Placed], reply: Mapping[str, Any]) -> Outcome:
        """What the process said of one launch, and what it left in its buffers."""
        self.specializations = reply["specializations"]
        if reply["status"] == "guard":
            guard = self._seen(placed, Guard(**reply["guard"]), reply["stored_at"])
            return Outcome("crash", guards=(guard,), message=guard.message)
        if reply["status"] != "ok":
            return Outcome(reply["status"], message=reply["message"])
        self._recent.append(reply["seconds"])
        guards = tuple(self._memory.writes_outside(placed))
        outputs = {name: self._memory.output(item).tolist() for name, item in placed.items() if item.array.writable}
        return Outcome("ok", outputs, guards, seconds=reply["seconds"])

    @staticmethod
    def _seen(placed: Mapping[str, Placed], guard: Guard, stored_at: int | None) -> Guard:
        """``guard``, with the element of an output in which it showed, if it did."""
        for item in placed.values():
            if stored_at is not None and item.address <= stored_at < item.address + item.array.nbytes:
                element = (stored_at - item.address) // item.array.itemsize
                return replace(guard, message=f"{guard.message}: seen at {item.array.name}[{element}]")
        return guard

    def be_ready(self) -> None:
        """Start the process that launches, which is otherwise done when it is first needed. Raises SubjectError."""
        if self._runner is None:
            self._start_runner()

    def restart(self) -> None:
        """Launch from now on in a fresh process, which has loaded nothing."""
        if self._runner is not None:
            self._bury()

    def _patience(self) -> float:
        """Seconds that a launch may take. While a hang is being shrunk that is fifty times the median, and 0.2 at
        least; five times and a second where launches take long, as the first of a process on a device does.
        """
        if not self.hurried:
            return self.case_timeout
        median = statistics.median(self._recent) if self._recent else 0.0
        return min(self.case_timeout, max(0.2, min(50 * median, 1 + 5 * median)))

    @staticmethod
    def _request(invocation: Invocation, buffers: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
        arguments = {
            name: buffers[value.name] if isinstance(value, Array) else value
            for name, value in invocation.arguments.items()
        }
        return {"entry": invocation.entry, "grid": invocation.grid, "arguments": arguments}

    def _start_runner(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._control.send_bytes(b'{"op": "fork"}')
            send_handle(self._control, theirs.fileno(), None)
        self._runner_pid = self._answer()["pid"]
        self._runner = Connection(ours.detach())
        try:
            ready = channel.receive(self._runner, START_TIMEOUT)
            channel.check_ready(ready)
        except NoAnswer as error:
            self._kill()
            ready = {"error": str(error)}
        except (EOFError, OSError) as error:  # TimeoutError is one
            ready = {"error": f"{_ending(self._kill())} while it started ({error!r})"}
        if "error" in ready:
            raise SubjectError(f"no process of subject {self.subject!r} on lane {self.lane.name!r}: {ready['error']}")
        self._memory.base, self.hardware = ready["base"], ready["hardware"]

    def _kill(self) -> int:
        """``_bury`` one that may be alive. One that has ended keeps its status."""
        with suppress(ProcessLookupError):  # its server is gone, which is noticed there
            os.kill(self._runner_pid, signal.SIGKILL)
        return self._bury() or 0

    def _bury(self) -> int | None:
        """Wait for the end of the process that launches: its status, None if it had to be ended."""
        assert self._runner is not None
        self._runner.close()
        self._runner = None
        ended = self._ask({"op": "reap", "pid": self._runner_pid})
        return None if ended["alive"] else int(ended["status"])

    def _ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        with suppress(OSError):  # a server that is gone has nothing to answer, which is noticed there
            self._control.send_bytes(json.dumps(request).encode())
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """The server's next message. Raises SubjectError, with how it ended and the last lines that it printed, when
        none comes.
        """
        try:
            return channel.receive(self._control, COMPILE_TIMEOUT)
        except (NoAnswer, EOFError, OSError) as error:
            failed = self._failed(error)
            last = self._last_lines()  # once it has ended, which it may do with a traceback
            said = f"; the last that it printed:\n{last}" if last else ""
            raise SubjectError(f"the process of subject {self.subject!r} {failed}{said}") from error

    def _failed(self, error: Exception) -> str:
        """What the server did instead of giving an answer."""
        if isinstance(error, TimeoutError):
            return f"gave no answer within {COMPILE_TIMEOUT:.3g} s"
        if isinstance(error, NoAnswer):
            return "wrote something else than an answer"
        with suppress(subprocess.TimeoutExpired):
            return _ended(self._server.wait(timeout=END_TIMEOUT))
        return "closed its connection to the suite and went on"

    def _last_lines(self) -> str:
        """Of what the processes have printed, the last lines, each a whole one."""
        descriptor = self._stderr.fileno()  # whose position is theirs as well
        begin = max(os.fstat(descriptor).st_size - _LAST_BYTES - 1, 0)
        text = os.pread(descriptor, _LAST_BYTES + 1, begin).decode(errors="replace")
        if begin:
            text = text.partition("\n")[2] or text
        lines = [line for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-_LAST_LINES:])


def _named(invocation: Invocation) -> list[tuple[str, Array]]:
    return [(array.name, array) for array in invocation.arrays()]


def _shape(array: Array) -> dict[str, object]:
    return {"dtype": array.dtype, "shape": array.shape, "strides": array.strides, "size": array.size}


def _ending(status: int) -> str:
    return f"the process {_ended(status)}"


def _ended(status: int) -> str:
    if status < 0:
        return f"was ended by {_signal_name(-status)}"
    return f"ended itself with status {status}"


def _signal_name(number: int) -> str:
    with suppress(ValueError):  # the real-time ones have no names but the first and the last
        return signal.Signals(number).name
    return f"signal {number}"
