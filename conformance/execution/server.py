"""The process that holds a subject: imports it once on one lane, then forks a fresh runner whenever the suite asks
for one.

A runner is a fork that launches and nothing else, so what a kernel destroys is gone with the runner and a new one costs
milliseconds, not imports. Messages are JSON (a hostile child must not be able to make the suite unpickle anything).
Started by :class:`conformance.execution.session.Session`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

from conformance.execution import faults
from conformance.execution.array import THE_DEVICE
from conformance.execution.buffer import Buffer
from conformance.execution.channel import END_TIMEOUT
from conformance.execution.raised import raised_at
from conformance.lanes import Lane, by_name
from conformance.lanes.base import INTERPRET
from conformance.lanes.errors import DeviceError, OutOfBounds, Unsupported
from conformance.subjects import load
from conformance.subjects.entry import LoadedEntry
from conformance.subjects.loading import StandInUsed

_PR_SET_PDEATHSIG = 1
_MEMORY_BYTES = 1 << 30  # what a launch may allocate
_LONGEST = 4000  # characters of what an exception says


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, however that ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _limit_memory() -> None:
    """Let a runner take one GiB and no more: a launch that fills memory must fail itself, not its neighbours."""
    used = int(re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1]) << 10  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_DATA, (used + _MEMORY_BYTES, used + _MEMORY_BYTES))


def _arguments(lane: Lane, entry: LoadedEntry, request: Mapping[str, Any]) -> dict[str, Any]:
    buffer = lane.pointer if entry.is_kernel else lane.tensor

    def seen(value: Any) -> Any:
        if isinstance(value, dict):
            return buffer(Buffer.from_json(value))
        return lane.torch_device if value == THE_DEVICE else value

    return {name: seen(value) for name, value in request["arguments"].items()}


def _failure(lane: Lane, entry: LoadedEntry, error: BaseException) -> dict[str, Any]:
    if isinstance(error, OutOfBounds):
        return {"status": "guard", "message": str(error), "guard": error.guard.to_json(), "stored_at": error.stored_at}
    kind = (
        "compile"
        if lane.is_compile_error(error)
        else "unsupported"
        if isinstance(error, (Unsupported, StandInUsed))
        else "raised"
    )
    if kind != "raised":
        return {"status": kind, "message": _text(error)[:_LONGEST]}
    places = raised_at(error, entry.description.package)
    where = f" ({places})" if places else ""
    said = _named(error)[: max(_LONGEST - len(where), 0)]
    return {"status": kind, "message": f"{said}{where}"}


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text(error)}"


def _text(error: BaseException) -> str:
    """What ``error`` says, which is code under test as well."""
    try:
        return str(error)
    except BaseException as another:
        return f"[its __str__ raises {type(another).__name__}]"


def _launched(lane: Lane, entries: Mapping[str, LoadedEntry], request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What became of the launches of one request: everything there once, all launches, everything back. Raises
    DeviceError.
    """
    replies: list[dict[str, Any]] = []
    seconds = 0.0
    lane.upload(request["extent"])
    for item in request["launches"]:
        entry = entries[item["entry"]]
        try:
            arguments = _arguments(lane, entry, item)
            lane.order(backwards=item["backwards"])
            started = time.perf_counter()
            entry.invoke(tuple(item["grid"]), arguments)
            seconds += time.perf_counter() - started
            replies.append({"status": "ok"})
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: Ctrl-C does not come here
            replies.append(_failure(lane, entry, error))
        replies[-1]["specializations"] = lane.specializations()
    started = time.perf_counter()
    lane.download(request["extent"])
    seconds += time.perf_counter() - started
    return [{**reply, "seconds": seconds / len(replies)} for reply in replies]


def run(connection: Connection, lane: Lane, entries: Mapping[str, LoadedEntry], memory_fd: int) -> None:
    """A runner: a batch of launches a request, until the suite closes the connection or the device is of no use any
    more.
    """

    def announce(event: str) -> None:  # so that the suite does not take a compilation for a hang
        connection.send_bytes(json.dumps({"event": event}).encode())

    try:
        ready = {"base": lane.open_memory(memory_fd), "hardware": dict(lane.hardware())}
    except Exception as error:
        connection.send_bytes(json.dumps({"error": _named(error)}).encode())
        return
    connection.send_bytes(json.dumps(ready).encode())
    lane.on_compile(announce)
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            replies = _launched(lane, entries, request)
        except DeviceError as error:
            connection.send_bytes(json.dumps({"broken": str(error)}).encode())
            return
        connection.send_bytes(json.dumps({"outcomes": replies}).encode())


def _compile(
    control: Connection, lane: Lane, entries: Mapping[str, LoadedEntry], jobs: list[dict[str, Any]], workers: int
) -> None:
    """Compile every job in ``workers`` forks and report each as it is done. A fork that dies takes only the job that it
    has with it.
    """
    waiting = list(enumerate(jobs))[::-1]
    busy: dict[Connection, tuple[int, int, float]] = {}

    def give_work(worker: Connection, pid: int) -> None:
        if not waiting:
            worker.close()
            os.waitpid(pid, 0)
            return
        index, job = waiting.pop()
        with suppress(OSError):  # one that died between two jobs is found out like any other
            worker.send_bytes(json.dumps(job).encode())
        busy[worker] = (pid, index, time.monotonic())

    while waiting or busy:
        while waiting and len(busy) < workers:
            give_work(*_fork_compiler(control, lane, entries, busy))
        for worker in wait(list(busy)):
            assert isinstance(worker, Connection)
            pid, index, started = busy.pop(worker)
            try:
                event = json.loads(worker.recv_bytes())
            except (EOFError, OSError):
                worker.close()
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                event = {"error": f"the compiler ended with status {status}"}
            else:
                give_work(worker, pid)
            event.update(event="compiled", index=index, seconds=time.monotonic() - started)
            control.send_bytes(json.dumps(event).encode())
    control.send_bytes(b'{"event": "done"}')


def _fork_compiler(
    control: Connection, lane: Lane, entries: Mapping[str, LoadedEntry], others: Iterable[Connection]
) -> tuple[Connection, int]:
    """A process that compiles one job after the other until its connection is closed."""
    ours, theirs = Pipe()
    pid = os.fork()
    if pid:
        theirs.close()
        return ours, pid
    status = 1
    try:
        die_with_parent()
        for connection in (control, ours, *others):  # so that each is closed when the server closes it
            connection.close()
        with suppress(EOFError, OSError):
            while True:
                job = json.loads(theirs.recv_bytes())
                theirs.send_bytes(json.dumps(_compiled(lane, entries[job["entry"]], job)).encode())
        status = 0
    finally:
        os._exit(status)


def _compiled(lane: Lane, entry: LoadedEntry, job: dict[str, Any]) -> dict[str, Any]:
    if not entry.is_kernel:  # what a host function will launch is its own affair
        return {"error": None, "fresh": False}
    try:
        return {"error": None, "fresh": entry.precompile(lane, _arguments(lane, entry, job))}
    except BaseException as error:
        failure = _failure(lane, entry, error)
        # What the lane cannot do is said by the launches that need it, and is no failure to compile.
        return {"error": None if failure["status"] == "unsupported" else failure["message"], "fresh": True}


def _fork_runner(
    control: Connection, handler: faults.FaultHandler, lane: Lane, entries: Mapping[str, LoadedEntry], memory_fd: int
) -> None:
    end = recv_handle(control)
    pid = os.fork()
    if pid:
        os.close(end)
        control.send_bytes(json.dumps({"pid": pid}).encode())
        return
    status = 1
    try:
        die_with_parent()
        control.close()
        handler.install()
        if not lane.on_device:  # whose driver reserves more than any launch should
            _limit_memory()
        run(Connection(end), lane, entries, memory_fd)
        status = 0
    except OSError:
        status = 0  # the suite closed the connection in the middle of an answer: nobody is left to tell
    finally:
        os._exit(status)


def _reaped(pid: int) -> dict[str, Any]:
    """The exit status of a runner whose connection is closed, and whether it was ``alive`` and had to be killed."""
    deadline = time.monotonic() + END_TIMEOUT
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return {"status": os.waitstatus_to_exitcode(status), "alive": False}
        if time.monotonic() > deadline:
            break
        time.sleep(0.0005)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"status": status, "alive": status == -signal.SIGKILL}  # one that was about to end keeps its own


def _warm_up_torch() -> None:
    """Import torch before the first fork, so that no runner has to; one thread, because threads do not survive a
    fork.
    """
    import torch

    torch.set_num_threads(1)


def serve(control: Connection, memory_fd: int, record_fd: int) -> None:
    """Answer the suite's requests until it closes the connection."""
    order = json.loads(control.recv_bytes())
    try:
        lane = by_name(order["lane"])
        lane.enter(order["cache"])
        record = mmap.mmap(record_fd, faults.RECORD_BYTES)
        handler = faults.FaultHandler(ctypes.addressof(ctypes.c_char.from_buffer(record)))
        entries = {entry.description.name: entry for entry in load(order["subject"], order["source"], lane)}
        if os.environ.get(INTERPRET, "0") != lane.environment()[INTERPRET]:
            raise RuntimeError(f"it sets {INTERPRET} when it is imported, and its kernels would not run on this lane")
        if any(entry.call is not None for entry in entries.values()):
            _warm_up_torch()
    except BaseException as error:  # a module that is imported may call sys.exit
        control.send_bytes(json.dumps({"error": _named(error)}).encode())
        return
    control.send_bytes(json.dumps({"entries": [entry.description.to_json() for entry in entries.values()]}).encode())
    while True:
        try:
            request = json.loads(control.recv_bytes())
        except EOFError:
            return
        if request["op"] == "fork":
            _fork_runner(control, handler, lane, entries, memory_fd)
        elif request["op"] == "reap":
            control.send_bytes(json.dumps(_reaped(request["pid"])).encode())
        elif request["op"] == "compile":
            _compile(control, lane, entries, request["jobs"], request["workers"])


if __name__ == "__main__":
    die_with_parent()
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
