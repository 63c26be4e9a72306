"""Which commit a file of the subject is from, where it is from a git checkout."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

_SECONDS = 10.0


@cache
def commit_of(file: str) -> str:
    """The commit that ``file`` is checked out from, followed by ``-dirty`` where the file was changed since.

    "" for a file that git does not track, and where there is no git.
    """
    path = Path(file)
    if not os.path.isfile(file) or _git(path, "ls-files", "--error-unmatch", "--", path.name) is None:
        return ""
    commit = _git(path, "rev-parse", "HEAD")
    changed = _git(path, "status", "--porcelain", "--", path.name)
    return f"{commit}-dirty" if commit and changed else commit or ""


def _git(file: Path, *words: str) -> str | None:
    """What git prints in the file's folder, or None when it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(file.parent), *words],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # it only looks
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
