"""What a run is doing while it does it: a live line on a terminal, a plain line every 30 s elsewhere, nothing with
``-q``.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import settings

from conformance.engine import Engine
from conformance.stash import ENGINE, RECORDER, draws, is_worker, target_of
from conformance.ticker import Ticker
from conformance.under_test import UnderTest

_LEAST = 50  # cases that make a pace; the first ones wait for what is still to be imported


@dataclass(slots=True)
class Work:
    """How much there is to do, in cases, and how much is done. ``started`` is when the first test was."""

    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def left(self, current: int, now: float) -> float | None:
        """Seconds until all is done at the pace so far, ``current`` cases of this test included; None: no pace yet."""
        done = self.done + current
        return (now - self.started) * max(self.total - done, 0) / done if done >= _LEAST else None


COMPILING = pytest.StashKey[Callable[[int, int], None]]()
"""What else is told how far compiling is."""
_TICKER = pytest.StashKey[Ticker]()
_WORK = pytest.StashKey[Work]()


@dataclass(frozen=True, slots=True)
class Running:
    """The test that runs. ``weight``: the cases that it is expected to take; ``before``: those that its entry point had
    before it started; ``recorded`` counts the failures of the run.
    """

    name: str
    target: UnderTest
    engine: Engine
    recorded: Callable[[], int]
    work: Work
    weight: int
    before: int
    started: float = field(default_factory=time.monotonic)

    @property
    def cases(self) -> int:
        return cases_of(self.engine, self.target) - self.before

    def line(self) -> str:
        now = time.monotonic()
        specializations = sum(len(tally.specializations) for tally in list(self.engine.tallies.values()))
        shrinking = " and one being shrunk" if self.target.met else ""
        parts = [
            f"{self.cases:,} cases, {self.cases / max(now - self.started, 1e-3):,.0f}/s",
            f"specializations {specializations}",
            f"failures {self.recorded()}{shrinking}",
        ]
        left = self.work.left(min(self.cases, self.weight), now)
        figures = ", ".join([*parts, f"{shown_time(left)} left"] if left is not None else parts)
        return f"{figures}: {self.name}"  # in this order: a narrow terminal cuts the name


def cases_of(engine: Engine, target: UnderTest) -> int:
    tally = engine.tallies.get(target.entry.id)
    return 0 if tally is None else tally.cases


def shown_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """A ticker for as long as tests are compiled and run, where somebody wants to see it."""
    config = session.config
    shown = ENGINE in config.stash and not config.option.collectonly and not is_worker(config)
    file = output(config) if shown else None
    if file is None:
        return (yield)
    terminal = config.get_terminal_writer()
    ticker = Ticker(
        file,
        live=file.isatty(),
        width=terminal.fullwidth,
        current_line=lambda: str(getattr(terminal, "_current_line", "")),
    )
    config.stash[_TICKER] = ticker
    config.stash[_WORK] = Work(sum(weight_of(item) for item in session.items))
    ticker.start()
    try:
        return (yield)
    finally:
        del config.stash[_TICKER]
        ticker.stop()
        with suppress(OSError):
            file.close()


def output(config: pytest.Config) -> io.TextIOWrapper | None:
    """Where pytest writes, not captured while a test runs; None with ``-q`` and where it writes to no file."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or config.get_verbosity() < 0:
        return None
    try:
        descriptor = os.dup(config.get_terminal_writer()._file.fileno())
    except (AttributeError, OSError):  # a file in memory
        return None
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace")


@contextmanager
def compiling(config: pytest.Config, what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields what is told how many specializations of ``what`` are compiled, of how many."""
    state = (0, 0)

    def tell(done: int, total: int) -> None:
        nonlocal state
        state = done, total
        if COMPILING in config.stash:
            config.stash[COMPILING](done, total)

    def line() -> str:
        done, total = state
        filled = 30 * done // max(total, 1)
        return f"compiling {what} [{'#' * filled}{'.' * (30 - filled)}] {done}/{total}"

    ticker = config.stash.get(_TICKER, None)
    if ticker is None:
        yield tell
    else:
        with ticker.showing(line):
            yield tell
    if _WORK in config.stash:
        config.stash[_WORK].started = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    target, ticker = target_of(item), item.config.stash.get(_TICKER, None)
    if target is None or ticker is None:
        return (yield)
    engine, recorder, work = item.config.stash[ENGINE], item.config.stash[RECORDER], item.config.stash[_WORK]
    weight = weight_of(item)
    before = cases_of(engine, target)
    running = Running(item.name, target, engine, lambda: len(recorder.recorded), work, weight, before)
    try:
        with ticker.showing(running.line):
            return (yield)
    finally:
        if running.cases:
            work.done += weight
        else:  # it had nothing to run
            work.total -= weight


def weight_of(item: pytest.Item) -> int:
    """The cases that a test is expected to take."""
    if target_of(item) is None or item.get_closest_marker("skip") is not None:
        return 0
    return settings().max_examples if draws(item) else 1
