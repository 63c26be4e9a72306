"""What the rounds of a fleet tell one another. An actor of the cluster holds one of these."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class News:
    """What happened since it was last asked for, in its order: rounds that began, with the process that runs each, and
    cases that are new.
    """

    started: list[tuple[str, str, int]] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)


class Exchange:
    """Every failing case, as the text of its file, and until when the fleet runs, by the clock of the machine that it
    was started on: an exchange that died and began again must not give it more time.
    """

    def __init__(self, cases: Iterable[str], deadline: float) -> None:
        self._cases = dict.fromkeys(cases)
        self._deadline = deadline
        self._news = News()

    def begin(self, name: str, host: str, process: int) -> tuple[list[str], float]:
        """A round begins; returns what it replays, and the seconds that it has."""
        self._news.started.append((name, host, process))
        return list(self._cases), self._left()

    def tell(self, cases: Iterable[str]) -> float:
        """A round has found these; returns the seconds that are left."""
        for text in cases:
            if text not in self._cases:
                self._cases[text] = None
                self._news.cases.append(text)
        return self._left()

    def stop(self) -> None:
        self._deadline = time.time()

    def news(self) -> News:
        told, self._news = self._news, News()
        return told

    def _left(self) -> float:
        return self._deadline - time.time()
