"""Ctrl-C that does not get lost.

Python drops an exception that is raised inside a finalizer or a garbage-collection callback, and Hypothesis has such a
callback: about one interrupt in twenty was dropped, and the run went on. What is dropped here is sent again.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable

_LATER = 0.02  # seconds; sooner, and it would be dropped where the first was


def keep_interrupts() -> Callable[[], None]:
    """Send an interrupt that Python drops again; returns what undoes this."""
    before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            again = threading.Timer(_LATER, _interrupt)
            again.daemon = True
            again.start()
        else:
            before(dropped)

    def undo() -> None:
        sys.unraisablehook = before

    sys.unraisablehook = hook
    return undo


def _interrupt() -> None:
    # To that thread: a signal that another one gets does not end the waiting of this one.
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
