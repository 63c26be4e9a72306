"""Which step of the slot mapping went wrong, as far as expected and actual output, trace and guards can tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reference import verdict as v
from reference.case import Case, Launch

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``cause`` is one word for the step that went wrong (``unknown`` rather than a guess), ``summary`` one sentence
    for whoever mends the kernel, ``buffer`` the memory that is concerned, without its group ("" where none is).
    """

    cause: str
    summary: str
    buffer: str = ""

    @property
    def key(self) -> str | None:
        """What failures of one cause have in common; None where the cause is not known: nothing is grouped with it."""
        return None if self.cause == UNKNOWN else f"{self.cause} {self.buffer}".rstrip()

    def to_json(self) -> dict[str, str]:
        return {"cause": self.cause, "summary": self.summary, "buffer": self.buffer}


def diagnose(
    case: Case,
    launch: Launch,
    verdict: v.Verdict,
    expected: Sequence[Sequence[int]],
    actual: Sequence[Sequence[int]],
) -> Diagnosis:
    """The cause of ``verdict``; ``expected`` and ``actual`` are one row of elements a group, ``actual`` empty where
    nothing was compared.
    """
    if verdict.guards:
        guard = verdict.guards[0]
        side = "before" if guard.distance < 0 else "past"
        return Diagnosis(f"out of bounds {guard.direction} {side}", guard.message, guard.buffer.partition("[")[0])
    if verdict.kind in (v.HANG, v.COMPILE_ERROR):
        return Diagnosis(verdict.kind, verdict.summary())
    if verdict.kind in (v.CRASH, v.REFUSED):
        message = re.sub(r"0x[0-9a-f]+|-?[0-9]+", "N", verdict.detail)
        return Diagnosis(f"{verdict.kind}: {message}", verdict.summary())
    return Diagnosis(UNKNOWN, verdict.summary())
