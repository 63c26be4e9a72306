"""A property that does not hold, as part of the report of the launch that is wrong: every launch that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reference.case import Case, Launch


@dataclass(frozen=True, slots=True)
class PropertyLaunch:
    """One launch: ``what`` it is to the property, what its output ``held`` before (None: nothing) and holds after."""

    what: str
    case: Case
    launch: Launch
    held: Sequence[Sequence[int]] | None
    output: Sequence[Sequence[int]]

    def to_json(self) -> dict[str, object]:
        return {
            "what": self.what,
            "case": self.case.to_json(),
            "launch": self.launch.to_json(),
            "held": None if self.held is None else [list(row) for row in self.held],
            "output": [list(row) for row in self.output],
        }


@dataclass(frozen=True, slots=True)
class BrokenProperty:
    """``name`` and ``statement`` of the property, and in ``message`` what contradicts it. ``case``, ``launch``,
    ``settings`` and ``choice`` are what it was asked of, which is all that asking again needs.
    """

    name: str
    statement: str
    message: str
    choice: int
    case: Case
    launch: Launch
    settings: Mapping[str, int | None]
    launches: Sequence[PropertyLaunch]

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "statement": self.statement,
            "message": self.message,
            "choice": self.choice,
            "case": self.case.to_json(),
            "launch": self.launch.to_json(),
            "settings": dict(self.settings),
            "launches": [each.to_json() for each in self.launches],
        }
