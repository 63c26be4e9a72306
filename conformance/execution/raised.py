"""Where an exception came from, in words that tell two statements of the code under test apart.

The innermost frame is often a library's or a helper's, which many statements call: who called it has to be in it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path

_MOST = 12
"""Places that are named, of a chain that is longer the outer and the inner ones: a person reads them."""


def raised_at(error: BaseException, package: Path | None) -> str:
    """The lines of the code under test through which ``error`` came, from the entry point down, each once; those of
    what it was raised from come behind. Files are named from their ``package``, the folder that holds the code.

    Where it came through none of them: the innermost line of all. "" where there is no line.
    """
    frames = list(_frames(error))
    folder = "" if package is None else os.path.join(package, "")
    own = dict.fromkeys(f"{file[len(folder) :]}:{line}" for file, line in frames if folder and file.startswith(folder))
    places = list(own) or [f"{os.path.basename(file)}:{line}" for file, line in frames[-1:]]
    if len(places) > _MOST:
        places[_MOST // 2 : -_MOST // 2] = ["..."]
    return " > ".join(places)


def _frames(error: BaseException | None) -> Iterator[tuple[str, int]]:
    """File and line of every frame, outermost first: of ``error``, then of what it was raised from or while."""
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        for frame, line in traceback.walk_tb(error.__traceback__):
            yield frame.f_code.co_filename, line
        # Also what "from None" hides: it is hidden from people, and tells two statements apart.
        error = error.__cause__ or error.__context__
