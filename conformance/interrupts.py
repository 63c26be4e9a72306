"""Ctrl-C that does not get lost, and SIGTERM taken for one, so that a run that is ended still writes what it found.

Python drops an exception that is raised inside a finalizer or a garbage-collection callback, and Hypothesis has such a
callback: about one interrupt in twenty was dropped, and the run went on. What is dropped here is sent again.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LATER = 0.02  # seconds; sooner, and it would be dropped where the first was
_AGAIN = 0.25  # seconds after which what was dropped of a time-out comes again
_ending = False
_raised = False  # by SIGTERM, and not dropped since


def keep_interrupts() -> Callable[[], None]:
    """Send an interrupt that Python drops again, and take SIGTERM for one; returns what undoes this."""
    global _ending, _raised
    _ending = _raised = False
    before = sys.unraisablehook
    # In another thread there is no handler to set, and nobody sends it a signal.
    in_main = threading.current_thread() is threading.main_thread()
    terminate = signal.signal(signal.SIGTERM, terminated) if in_main else None

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            again = threading.Timer(_LATER, _interrupt)
            again.daemon = True
            again.start()
        else:
            before(dropped)

    def undo() -> None:
        sys.unraisablehook = before
        if terminate is not None:
            signal.signal(signal.SIGTERM, terminate)

    sys.unraisablehook = hook
    return undo


def ending() -> None:
    """From here on what was found is written and the run ends: SIGTERM, which asks for nothing else, must not cut that
    short. Who stops a job sends several: to the process and to its group, or some seconds after Ctrl-C. A second Ctrl-C
    is somebody who will not wait.
    """
    global _ending
    _ending = True


def terminated(number: int, frame: object) -> None:
    """A handler: end the run, once. Nothing of ours may run before the next signal is there, so it is noted here."""
    global _raised
    if not (_ending or _raised):
        _raised = True
        raise KeyboardInterrupt(signal.Signals(number).name)


class _TimeIsUp(BaseException):
    """No Exception: what is cut short must not take it for one of its own."""


def within(seconds: float, work: Callable[[], T]) -> T | None:
    """What ``work`` gives; None: it was not done after ``seconds``. Python code only: no call into a library is cut
    short, and nothing is outside the main thread, which signals go to.
    """
    if seconds <= 0:
        return None
    if threading.current_thread() is not threading.main_thread():
        return work()

    def up(number: int, frame: object) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, up)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeIsUp:
        return None
    finally:
        signal.signal(signal.SIGALRM, before)


def _interrupt() -> None:
    global _raised
    _raised = False
    # To that thread: a signal that another one gets does not end the waiting of this one.
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
