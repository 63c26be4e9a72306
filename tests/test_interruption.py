"""However a run is ended, it ends at once, and nothing that it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.execution.array import Array
from conformance.execution.guard_pages import GuardPages
from reference.verdict import UNWRITTEN
from tests.commands import ROOT, pytest_
from tests.ended_runs import Run
from tests.hostile import tree

_HANGS_NATIVELY = """
i = num_tokens
while i >= 0:
    tl.store(slot_mapping_ptr, i)
    i = tl.load(query_start_loc_ptr)
"""

_DROPS_THE_INTERRUPT = """
import os, signal, time

class Dropping:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # the exception is raised in here, and comes to nothing

def test_it():
    Dropping()
    time.sleep(60)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts a run of ``conformance``; whatever a failing test leaves of it is killed."""
    started: list[Run] = []

    def start(*arguments: str | Path) -> Run:
        started.append(Run(tmp_path, *arguments))
        return started[-1]

    yield start
    for each in started:
        for pid in each.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        each.process.wait()


# Kernels that are compiled before they are launched, so that a process that is busy is launching.
ENDLESS = ("conformance", "-k", "test_plain_slots", "--max-examples", "100000", "--compile-budget", "2")


def test_memory_can_be_closed_while_the_traceback_of_an_interrupted_comparison_looks_at_it() -> None:
    memory = GuardPages()
    placed = memory.place([Array("slot_mapping", "int32", (4,), writable=True)], "after")
    memory.fill(placed)
    seen = memory.output(placed["slot_mapping"])
    memory.close()
    assert seen.tolist() == [UNWRITTEN] * 4
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory.fd)


def test_an_interrupted_run_ends_at_once_and_says_what_it_did(run: Callable[..., Run]) -> None:
    one = run(*ENDLESS)
    one.wait_until_launching()
    one.interrupt()
    assert one.ended() == pytest.ExitCode.INTERRUPTED, one.output
    assert not one.processes()
    assert "KeyboardInterrupt" in one.output
    summary = json.loads((one.reports / "summary.json").read_text())
    assert summary["cases"] > 0
    assert summary["failures"] == 0
    coverage = json.loads((one.reports / "coverage.json").read_text())
    drawn = sum(counts["cases"] for counts in coverage["entry_points"].values())
    assert drawn <= summary["cases"] + 1  # the last launch may have no verdict, and boundary cases are not counted
    assert f"{summary['cases']:,}" in (one.reports / "index.html").read_text(encoding="utf-8")


def test_an_interrupt_that_python_drops_is_raised_again(tmp_path: Path) -> None:
    file = tmp_path / "test_dropped.py"
    file.write_text(_DROPS_THE_INTERRUPT)
    started = time.monotonic()
    done = pytest_("-p", "conformance.plugin", "-c", ROOT / "pyproject.toml", file)
    assert done.status == pytest.ExitCode.INTERRUPTED, done.output
    assert time.monotonic() - started < 30


def test_an_impatient_person_leaves_nothing_behind(run: Callable[..., Run]) -> None:
    one = run(*ENDLESS)
    one.wait_until_launching()
    for _ in range(3):
        one.interrupt()
        time.sleep(0.05)
    assert one.ended() != pytest.ExitCode.OK
    assert one.gone_after(10), one.processes()


def test_interrupted_while_it_compiles(run: Callable[..., Run], tmp_path: Path) -> None:
    source = tree(tmp_path / "source", kernel=f"tl.store(slot_mapping_ptr, {time.time_ns() % 10**9})")  # never compiled
    one = run("conformance/test_plain.py", "--source", source)
    # A compilation is a fork of the subject's process too, or a program that one runs.
    one.wait_until(lambda: bool(one.runners()))
    one.interrupt()
    assert one.ended() == pytest.ExitCode.INTERRUPTED, one.output
    assert one.gone_after(10), one.processes()


def test_a_killed_run_leaves_nothing_behind(run: Callable[..., Run]) -> None:
    one = run(*ENDLESS)
    one.wait_until_launching()
    one.process.kill()
    assert one.ended() == -signal.SIGKILL
    assert one.gone_after(10), one.processes()


def test_a_process_that_does_not_listen_is_killed(run: Callable[..., Run]) -> None:
    one = run("conformance/test_dcp.py", "--max-examples", "100000")
    one.wait_until_launching()
    for pid, command in one.processes().items():
        if "conformance.execution.server" in command:
            os.kill(pid, signal.SIGSTOP)
    one.interrupt()
    assert one.ended() == pytest.ExitCode.INTERRUPTED, one.output
    assert one.gone_after(10), one.processes()


@pytest.mark.parametrize(
    ("bodies", "tests", "ending"),
    [
        ({"host": "while True: pass"}, "conformance/test_dcp.py", signal.SIGINT),
        ({"kernel": _HANGS_NATIVELY}, "conformance/test_plain.py", signal.SIGINT),
        ({"kernel": _HANGS_NATIVELY}, "conformance/test_plain.py", signal.SIGKILL),
    ],
    ids=["python-interrupted", "native-interrupted", "native-killed"],
)
def test_a_kernel_that_hangs_keeps_nothing_alive(
    run: Callable[..., Run], tmp_path: Path, bodies: dict[str, str], tests: str, ending: signal.Signals
) -> None:
    source = tree(tmp_path / "source", **bodies)
    one = run(tests, "-k", "v1 or dcp", "--source", source, "--case-timeout", "600", "--compile-budget", "1")
    one.wait_until_launching(1.0)
    if ending == signal.SIGINT:
        one.interrupt()
        assert one.ended() == pytest.ExitCode.INTERRUPTED, one.output
        assert not one.processes()
        assert (one.reports / "summary.json").exists()
    else:
        one.process.kill()
        one.ended()
        assert one.gone_after(10), one.processes()
