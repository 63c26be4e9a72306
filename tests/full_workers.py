"""A plugin (``-p tests.full_workers``) for runs whose disk is full as soon as tests run: workers can tell no more."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def pytest_configure() -> None:
    from conformance.workers.results import Results  # not sooner: pytest imports it itself

    write = Results.write

    def written(self: Results, file: Path) -> None:
        if self.tests:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, file)

    Results.write = written  # type: ignore[method-assign]
