"""A line that says what is going on, shown by a thread of its own: once in a while, or live in one place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from reference.fields import printable

EVERY = 30.0
"""Seconds between the lines where nobody watches."""
LIVE_EVERY = 0.2
_NARROWEST = 20


class Ticker:
    """Shows a line now and then, from a thread of its own, while somebody says what it should be.

    ``file`` is where lines go: not pytest's own, which is captured while a test runs. ``current_line`` is what pytest
    has written of a line so far; a live line stands in its place and gives it back.
    """

    def __init__(
        self, file: TextIO, *, live: bool, width: int = 80, current_line: Callable[[], str] = lambda: ""
    ) -> None:
        self._file, self._live, self._current_line = file, live, current_line
        self._width = max(width, _NARROWEST) - 1
        self._line: Callable[[], str] | None = None
        self._is_shown = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def showing(self, line: Callable[[], str]) -> Iterator[None]:
        """Show ``line()`` until the end of the block, after which pytest may write again."""
        with self._lock:
            self._line = line
        try:
            yield
        finally:
            with self._lock:
                self._line = None
                self._hide()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Somebody else writes while the block lasts: the line is not there, and comes back after it."""
        with self._lock:
            self._hide()
            yield

    def _hide(self) -> None:
        if self._is_shown:
            self._is_shown = False
            self._write(f"\r\x1b[K{self._current_line()}")

    def _run(self) -> None:
        due = time.monotonic() + (LIVE_EVERY if self._live else EVERY)
        while not self._ended.wait(min(LIVE_EVERY, EVERY)):
            if time.monotonic() < due:
                continue
            with self._lock:
                if self._line is not None:
                    self._show(self._line())
                    due = time.monotonic() + (LIVE_EVERY if self._live else EVERY)

    def _show(self, line: str) -> None:
        line = printable(line)
        if self._live:
            self._is_shown = True
            self._write(f"\r{line if len(line) <= self._width else line[: self._width - 3] + '...'}\x1b[K")
        else:
            self._write(f"{chr(10) if self._current_line() else ''}{line}\n")

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except OSError:  # nobody reads it any more
            self._ended.set()
