"""What launches of one entry point showed, kept for the diagnosis: a case that has been shrunk to one token can be
explained in several ways, and the launches before it tell which of them is true.
"""

from __future__ import annotations

from collections import deque

from conformance.verdicts import Finding
from reports.diagnosis import Observation

_SMALL = 256
"""Elements of all outputs of a launch that is kept among many."""

_LARGE = 16384
"""Elements of a launch that is kept at all."""


class Evidence:
    """The first launches and the last ones, as far as they left an output; and the first large ones that failed."""

    def __init__(self) -> None:
        self._first: list[Observation] = []
        self._last: deque[Observation] = deque(maxlen=192)
        self._large: list[Observation] = []

    def add(self, finding: Finding) -> None:
        """Remember ``finding``, whether it passed or not."""
        size = sum(map(len, finding.actual))
        if not 0 < size <= _LARGE:
            return
        seen = Observation(finding.case, finding.launch, finding.expected, finding.actual)
        if size > _SMALL:
            if len(self._large) < 4 and finding.verdict.differences:
                self._large.append(seen)
        elif len(self._first) < 64:
            self._first.append(seen)
        else:
            self._last.append(seen)

    def all(self) -> tuple[Observation, ...]:
        """Everything that is kept, oldest first."""
        return (*self._large, *self._first, *self._last)
