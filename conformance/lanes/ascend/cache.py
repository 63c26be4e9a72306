"""Compiled code on disk, one file a key, shared by every process. A file is complete or absent: it is written beside
and renamed. What one process compiles, others that need it wait for.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class CodeCache:
    """A folder of object files. ``context`` names everything that any key depends on: versions, passes, machine."""

    def __init__(self, folder: Path, context: str) -> None:
        self.folder, self._context = folder, context
        self._locks: int | None = None

    def key(self, *parts: object) -> str:
        return hashlib.sha256(repr((self._context, *parts)).encode()).hexdigest()

    def load(self, key: str) -> bytes | None:
        try:
            data = (self.folder / key[:2] / key).read_bytes()
        except OSError:
            return None
        digest, code = data[:32], data[32:]
        # A file cut short by a full disk or a power failure would otherwise be executed.
        return code if hashlib.sha256(code).digest() == digest else None

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """While no other process is in such a block for ``key``: ask again in it whether the code is there.

        A lock ends with the process that holds it, and is one byte of a file, at a place that the key says: nothing is
        left over. Where a folder has no locks, two processes may compile the same, which costs time, not results.
        """
        place = int(key[:15], 16)
        held = False
        with contextlib.suppress(OSError):
            if self._locks is None:  # open until the process ends: to close a file ends all locks of a process on it
                self.folder.mkdir(parents=True, exist_ok=True)
                self._locks = os.open(self.folder / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            fcntl.lockf(self._locks, fcntl.LOCK_EX, 1, place)
            held = True
        try:
            yield
        finally:
            if held and self._locks is not None:
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, place)

    def store(self, key: str, code: bytes) -> None:
        """Keep ``code``. A cache that cannot be written to costs time, not results: nothing is raised."""
        folder = self.folder / key[:2]
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                try:
                    file.write(hashlib.sha256(code).digest() + code)
                    file.close()
                    os.replace(file.name, folder / key)
                except OSError:
                    os.unlink(file.name)
                    raise
