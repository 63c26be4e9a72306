"""Compiling many kernels at once: a process each, no more of them than asked for, none of which can take the audit with
it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from conformance.audit.bounds import bounds
from conformance.audit.launches import Build
from conformance.audit.measure import NotMeasured, measure, ub
from conformance.audit.rows import FRONT_END, NO_COMPILER, OTHER_VERSION, WORKER_DIED, Row
from conformance.lanes.ascend import compiler as back_end
from conformance.lanes.ascend.compiler import COMPILED, Compiler, Unavailable
from conformance.lanes.errors import CompileError

_FRONT_END_TIMEOUT = 120.0


def audit(
    builds: Sequence[Build], targets: Sequence[str], compiler: Compiler, jobs: int, progress: Callable[[int, int], None]
) -> list[Row]:
    """The rows of every build on every target, in this order. ``progress`` hears how many builds of how many are
    done.
    """
    context = multiprocessing.get_context("fork")
    limit = _FRONT_END_TIMEOUT + len(targets) * compiler.timeout
    found: dict[int, list[Row]] = {}
    waiting = list(enumerate(builds))[::-1]
    busy: dict[Connection, _Worker] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < max(jobs, 1):
                index, build = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, ours, build, targets, compiler), daemon=True)
                process.start()
                theirs.close()
                busy[ours] = _Worker(index, process, time.monotonic() + limit)
            for done in wait(list(busy), timeout=1.0):
                assert isinstance(done, Connection)
                worker = busy.pop(done)
                found[worker.index] = _collect(done, worker, builds[worker.index], targets)
                progress(len(found), len(builds))
            for connection, worker in list(busy.items()):
                if time.monotonic() > worker.deadline:
                    del busy[connection]
                    worker.kill()
                    message = f"not done after {limit:g} s"
                    found[worker.index] = _all(builds[worker.index], targets, back_end.TIMED_OUT, message)
    finally:
        for worker in busy.values():
            worker.kill()
    return [row for index in range(len(builds)) for row in found[index]]


@dataclass(frozen=True, slots=True)
class _Worker:
    index: int
    process: multiprocessing.process.BaseProcess
    deadline: float

    def kill(self) -> None:
        """It, and what the front end has started in it."""
        if self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()


def _collect(connection: Connection, worker: _Worker, build: Build, targets: Sequence[str]) -> list[Row]:
    try:
        rows: list[Row] = connection.recv()
    except EOFError:
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit status {code}"
        return _all(build, targets, WORKER_DIED, f"in triton-ascend's front end, by {how}")
    finally:
        connection.close()
    worker.process.join()
    return rows


def _work(theirs: Connection, ours: Connection, build: Build, targets: Sequence[str], compiler: Compiler) -> None:
    ours.close()
    with suppress(OSError):
        os.setpgid(0, 0)
    # Read by triton-ascend on each compilation: the program shall name lines of source.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "false"
    theirs.send(compiled(build, targets, compiler))
    theirs.close()


def compiled(build: Build, targets: Sequence[str], compiler: Compiler) -> list[Row]:
    """The rows of one build, compiled in this process."""
    from conformance.lanes.ascend import frontend

    started = time.perf_counter()
    try:
        bound = build.bound
        text = frontend.linalg(build.kernel, bound.types, bound.constants, bound.multiples, named_ops=True)
    except CompileError as error:
        return _all(build, targets, FRONT_END, " ".join(str(error).split())[:600])
    seconds = time.perf_counter() - started
    return [_row(build, target, compiler, text, seconds) for target in targets]


def _row(build: Build, target: str, compiler: Compiler, linalg: str, seconds: float) -> Row:
    try:
        done = compiler.compile(linalg, target)
        version = compiler.version
    except (Unavailable, OSError) as error:
        return Row(build.entry, build.function, build.settings, target, NO_COMPILER, str(error))
    row = Row(
        build.entry,
        build.function,
        build.settings,
        target,
        done.status,
        done.message,
        done.line,
        done.notes,
        front_end_seconds=seconds,
        compile_seconds=done.seconds,
        every_step=build.every_step,
    )
    return _measured(row, build, done.program, version) if done.status == COMPILED else row


def _measured(row: Row, build: Build, program: str | None, version: str) -> Row:
    if version not in back_end.KNOWN_VERSIONS:
        known = ", ".join(back_end.KNOWN_VERSIONS)
        return replace(row, not_measured=f"{OTHER_VERSION}: {version}, programs are known of {known}")
    if program is None:
        return replace(row, not_measured="the compiler left no program")
    try:
        row = replace(row, ub=ub(program))
        measures = measure(program, build.function)
    except NotMeasured as reason:
        return replace(row, not_measured=str(reason))
    kinds = frozenset(each.kind for each in measures.float32)
    own, wide = build.entry.subject == "kernels", build.specialization.output_dtype == "int64"
    reach = bounds(build.specialization, build.entry.family, kinds, own=own, wide=wide)
    return replace(row, measures=measures, bounds=reach)


def _all(build: Build, targets: Sequence[str], status: str, message: str) -> list[Row]:
    return [
        Row(build.entry, build.function, build.settings, target, status, message, every_step=build.every_step)
        for target in targets
    ]
