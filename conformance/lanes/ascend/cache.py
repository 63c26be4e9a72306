"""Compiled code on disk, one file a key, shared by every process. A file is complete or absent: it is written beside
and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path


class CodeCache:
    """A folder of object files. ``context`` names everything that any key depends on: versions, passes, machine."""

    def __init__(self, folder: Path, context: str) -> None:
        self.folder, self._context = folder, context

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
