"""pytest, for as long as the process that started it lives: a worker that is lost leaves nothing running."""

from __future__ import annotations

import sys

import pytest

from conformance.execution.server import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    sys.exit(pytest.main(sys.argv[1:]))
