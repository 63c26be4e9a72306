"""One round on one machine of a fleet: a run of pytest in a folder of its own, watched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Protocol

from conformance.corpus import file_name
from conformance.fleet.orders import ROOT, FleetError, Order, Result, is_there, packed, suite_version, unpack
from reports.files import ReportError, write_text

POLL = 1.0  # seconds between two looks at what a run has found
_PREFIX = "slot-mapping-round-"
_ENDING = 60.0  # seconds in which a run that was told to end does so; it takes about one
_MOST_OUTPUT = 200_000  # characters of what it printed; the end says what was found


class Told(Protocol):
    """The exchange, seen from a round. Neither call raises: without the exchange, the round goes on as it was."""

    def begin(self, name: str, host: str, process: int) -> tuple[list[str], float]: ...

    def tell(self, cases: Iterable[str]) -> float: ...


def run(order: Order, exchange: Told) -> Result:
    """Run it until it is over or its time is. Raises FleetError where this machine has another version of the suite."""
    host = socket.gethostname()
    if host != order.host and suite_version() != order.suite:
        raise FleetError(f"{host} has another version of this project than the machine that the fleet was started on")
    cases, left = exchange.begin(order.name, host, os.getpid())
    if left <= 0:
        return Result(order, host)
    _clean_up(Path(gettempdir()))
    with TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as name:
        return _run(order, exchange, host, Path(name), cases, left)


def _clean_up(folder: Path) -> None:
    """Remove what rounds have left that were killed; what they had found, they have told."""
    for left in folder.glob(f"{_PREFIX}*"):
        process = left.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", process).exists():
            shutil.rmtree(left, ignore_errors=True)


def _run(order: Order, exchange: Told, host: str, folder: Path, cases: list[str], left: float) -> Result:
    corpus, reports, output = folder / "corpus", folder / "reports", folder / "output"
    problems = []
    for text in cases:
        try:
            write_text(corpus / file_name(text), text)
        except ReportError as error:  # it is replayed elsewhere
            problems.append(f"corpus: {error}")
    with output.open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "conformance.fleet.child", *_arguments(order, folder, corpus, reports)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            stopped = _watch(process, exchange, corpus, set(cases), left)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    text = output.read_text(encoding="utf-8", errors="replace")[-_MOST_OUTPUT:]
    found = tuple(_texts(corpus))
    exchange.tell(found)
    (reports / "index.html").unlink(missing_ok=True)  # one page is drawn of all
    left_behind = packed(reports) if reports.is_dir() else b""
    return Result(order, host, process.returncode, left_behind, found, "\n".join([*problems, text]), stopped)


def _arguments(order: Order, folder: Path, corpus: Path, reports: Path) -> list[str]:
    words = ["conformance", *order.arguments]
    for each in order.sources:
        path = each.path
        if not is_there(each):
            path = str(folder / "sources" / each.subject)
            unpack(each.packed, Path(path))
        words += ["--source", f"{each.subject}={path}"]
    for number, text in enumerate(order.known_failures):
        words += ["--known-failures", str(write_text(folder / f"known-{number}.toml", text))]
    return [
        *words,
        *("-p", "no:cacheprovider", "--shard", f"{order.shard}/{order.shards}", "--hypothesis-seed", str(order.seed)),
        *("--corpus", str(corpus), "--report-dir", str(reports)),
    ]


def _watch(process: subprocess.Popen[bytes], exchange: Told, corpus: Path, told: set[str], left: float) -> bool:
    """Until the process has ended: tell of each case as it is found, and end it when time is up. True: it was ended."""
    deadline, stopped = time.monotonic() + left, False
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL)
            return stopped
        new = [text for text in _texts(corpus) if text not in told]
        told.update(new)
        now = time.monotonic()
        deadline = deadline if stopped else now + exchange.tell(new)
        if now >= deadline:
            if stopped:
                process.kill()
            else:
                process.terminate()
                stopped, deadline = True, now + _ENDING


def _texts(corpus: Path) -> list[str]:
    """The files of a corpus that only this round writes."""
    found = []
    for path in sorted(corpus.glob("*.json")):
        with suppress(OSError, UnicodeDecodeError):
            found.append(path.read_text(encoding="utf-8"))
    return found
