"""Disks that are full or cannot be written, for a program that runs on them."""

from __future__ import annotations

import functools
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


@functools.cache
def may_mount() -> bool:
    """Whether a program that is started here may have file systems of its own."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


_MADE = {
    "full": (
        "cp -a {0} {0}.kept; mount -t tmpfs -o size=64k none {0}; cp -a {0}.kept/. {0}; cat /dev/zero > {0}/filling"
    ),
    "small": "mount -t tmpfs -o size=12k none {0}",
    "read-only": "mount -t tmpfs -o size=64k,ro none {0}",
}


def on_a_disk(folder: Path, kind: str, command: Sequence[str | Path]) -> list[str]:
    """``command`` where ``folder``, which is there, is a file system of its own that is "full", of what was in it and
    something more, "small" (three pages), or "read-only". Nobody else sees it, and it is gone with the command. Skips
    the test where that is not allowed.
    """
    if not may_mount():
        pytest.skip("mounting a file system is not allowed here")
    made = _MADE[kind].format(shlex.quote(str(folder)))
    script = f"{{ {made}; }} 2>/dev/null; exec {shlex.join(map(str, command))}"
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
