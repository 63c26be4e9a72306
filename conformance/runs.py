"""Runs of the suite as processes of their own, for commands that make many of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from reference.fields import read_json

ROOT = Path(__file__).parents[1]
_ENDING = 60.0
"""Seconds in which a run that was told to end writes what it has found; it takes about one."""
_LOOKING = 0.2
"""Seconds between two looks at whether a run is to end."""
_TAIL = 30  # lines


@contextmanager
def started(arguments: Sequence[str | Path], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``pytest conformance ARGUMENTS``, reports and output in ``folder``. Ended when the block is left."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *map(str, arguments), "--report-dir", str(folder)]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**environment, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is this command's to handle
        )
        try:
            yield process
        finally:
            end(process)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is an interrupt while the block lasts: no run outlives the command, and what was found is told."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ended_by_itself(process: subprocess.Popen[bytes], is_over: Callable[[], bool]) -> bool:
    """Wait until a run ends. False: it was told to, because ``is_over``, which is asked now and then, said so."""
    while process.poll() is None:
        if is_over():
            end(process)
            return False
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOKING)
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    """Tell a run to end, which then still writes its reports; not if it has ended."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING)
    if process.poll() is None:
        process.kill()
        process.wait()


def tail(folder: Path) -> str:
    """The end of what a run printed."""
    with suppress(OSError):
        return "\n".join((folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:])
    return ""


def figures(folder: Path) -> dict[str, object]:
    """What ``summary.json`` of a run says; nothing where it wrote none. Raises CaseError for one that is no JSON."""
    file = folder / "summary.json"
    found = read_json(file) if file.exists() else {}
    return found if isinstance(found, dict) else {}
