"""What each worker is doing at the moment, for the controller's live line: a small file that a thread writes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from conformance.progress import Work, shown_time

EVERY = 0.5
"""Seconds between two of them."""


@dataclass(slots=True)
class Pulse:
    """``cases`` of the worker so far. ``done`` are those that its tests were expected to take, the running one as far
    as it is, ``left_out`` those of tests that had nothing to run, of the ``expected`` ones of all tests. ``compiled``
    of ``compiling`` specializations are there; ``test`` is the one that runs.
    """

    cases: int = 0
    done: int = 0
    left_out: int = 0
    expected: int = 0
    specializations: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    compiled: int = 0
    compiling: int = 0
    test: str = ""


class Pulses:
    """Writes what ``now`` says into ``file``, from a thread of its own."""

    def __init__(self, file: Path, now: Callable[[], Pulse]) -> None:
        self._file, self._now = file, now
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulses", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        part = self._file.with_suffix(".part")
        while not self._ended.wait(EVERY):
            # RuntimeError: what is counted has grown while it was read. It is read again soon.
            with suppress(OSError, RuntimeError):
                part.write_text(json.dumps(asdict(self._now())), encoding="utf-8")
                part.replace(self._file)


def read(folder: Path) -> dict[str, Pulse]:
    """The last one of each worker, by its name."""
    found = {}
    for file in sorted(folder.glob("*.pulse"), key=lambda path: (len(path.name), path.name)):
        with suppress(OSError, ValueError, TypeError):
            found[file.stem] = Pulse(**json.loads(file.read_text(encoding="utf-8")))
    return found


@dataclass(slots=True)
class Line:
    """The controller's live line. ``started`` is when the first test was; None: all are still compiling."""

    folder: Path
    workers: int
    started: float | None = None

    def __call__(self) -> str:
        pulses = read(self.folder)
        return compiling(list(pulses.values())) if self.started is None else self._testing(pulses, self.started)

    def _testing(self, pulses: dict[str, Pulse], started: float) -> str:
        now = time.monotonic()
        each = list(pulses.values())
        cases = sum(pulse.cases for pulse in each)
        expected = max((pulse.expected for pulse in each), default=0) - sum(pulse.left_out for pulse in each)
        work = Work(expected, 0, started)
        parts = [
            f"{cases:,} cases, {cases / max(now - started, 1e-3):,.0f}/s",
            f"specializations {len({name for pulse in each for name in pulse.specializations})}",
            f"failures {len({name for pulse in each for name in pulse.failures})}",
        ]
        left = work.left(sum(pulse.done for pulse in each), now)
        parts += [f"{shown_time(left)} left"] if left is not None else []
        running = ", ".join(f"{name} {pulse.test}" for name, pulse in pulses.items() if pulse.test)
        return f"{', '.join(parts)}: {running or f'{self.workers} workers'}"


def compiling(pulses: Sequence[Pulse]) -> str:
    """How far all of them are together."""
    done, total = sum(pulse.compiled for pulse in pulses), sum(pulse.compiling for pulse in pulses)
    if not total:
        return f"{len(pulses)} workers begin"
    filled = 30 * done // total
    return f"compiling [{'#' * filled}{'.' * (30 - filled)}] {done}/{total}"
