"""A run of the suite in a process group of its own, that a test ends in some way or another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.commands import ROOT

_MARK = "SLOT_MAPPING_TEST_RUN"  # in the environment of the run, and so of everything that it starts
_TICKS = os.sysconf("SC_CLK_TCK")
_STARTING = 120.0  # seconds until the first launch; compiling comes before
_ENDING = 60.0  # seconds for a run to end by itself: a second where nothing else runs, and this is about for ever


class Run:
    """``pytest`` in a process group of its own, like one that a shell starts."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self.reports = folder / "reports"
        self._mark = f"{_MARK}={uuid.uuid4()}".encode()
        name, _, value = self._mark.decode().partition("=")
        environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "--verbose", *map(str, arguments), "--report-dir", str(self.reports)]
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**environment, name: value},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def interrupt(self) -> None:
        """What Ctrl-C does: the signal goes to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def processes(self) -> dict[int, str]:
        """What is alive of the run, itself included: process -> command line. The dead that nobody has asked for do
        not count.
        """
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                        found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    def runners(self) -> dict[int, float]:
        """Processes that launch kernels, each with the processor time that it took: forks of a subject's process."""
        alive = {pid for pid, command in self.processes().items() if "conformance.execution.server" in command}
        found = {}
        for pid in alive:
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) in alive:
                    found[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
        return found

    def wait_until_launching(self, seconds_of_a_runner: float = 0.2) -> None:
        self.wait_until(lambda: "::test_" in self.output)
        self.wait_until(lambda: any(used >= seconds_of_a_runner for used in self.runners().values()))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _STARTING
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def ended(self, seconds: float = _ENDING) -> int:
        """The exit status. Fails when there is none in time, with where the run was then."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # pytest prints its stacks
            self.process.wait()
            pytest.fail(f"not over after {seconds:g} s\n{self.output}")

    def gone_after(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True
