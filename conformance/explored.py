"""What earlier runs drew, kept in a file, so that the next one draws from what they drew least.

The parameter space of an entry point is every legal combination of its compile-time parameters; a run compiles a few
dozen of them. How much of it all runs together have drawn from is told in pairs and triples of values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from conformance.subjects.entry import EntryPoint
from reference.case import ContextParallel
from reference.fields import CaseError, read_json
from reports.files import json_lines, write_text
from strategies.specializations import Axes, Pool, Specialization, covered, least_drawn

SCHEMA = 1
STRENGTHS = (2, 3)


@dataclass(frozen=True, slots=True)
class Share:
    """``covered`` of ``total`` combinations of ``strength`` values have been drawn."""

    strength: int
    covered: int
    total: int


@dataclass(slots=True)
class Explored:
    """``drawn``: by entry point, how many cases each specialization was drawn for; ``own``: of these in this run, with
    a place for every entry point that was asked for a pool. ``number`` is the seed by which this run chooses among what
    was drawn equally often.
    """

    file: Path
    number: int = 0
    drawn: dict[str, Counter[Specialization]] = field(default_factory=dict)
    own: dict[str, Counter[Specialization]] = field(default_factory=dict)
    spaces: dict[str, list[Share]] = field(default_factory=dict)
    _axes: dict[str, tuple[EntryPoint, Axes]] = field(default_factory=dict)

    def read(self) -> None:
        """Raises CaseError, one line, for a file that is none of these."""
        if not self.file.exists():
            return
        found = read_json(self.file)
        try:
            if found["schema"] != SCHEMA:  # type: ignore[index]
                raise ValueError
            for name, entry in found["entry_points"].items():  # type: ignore[index]
                self.drawn[name] = Counter({_specialization(each): each["cases"] for each in entry["specializations"]})
                self.spaces[name] = [Share(*each) for each in entry["combinations"]]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise CaseError(
                f"{self.file}: not what runs have drawn (schema {SCHEMA}); remove it to begin anew"
            ) from None

    def pool(self, entry: EntryPoint, axes: Axes, budget: int) -> Pool:
        """At most ``budget`` specializations: what adds most to the triples drawn so far, then what was drawn least."""
        self.add(entry, axes, Counter())
        return least_drawn(entry.declaration, axes, budget, self.drawn.get(entry.id, Counter()), self.number)

    def drew(self, entry: EntryPoint, specialization: Specialization) -> None:
        """A case was drawn for ``specialization``."""
        for counted in (self.drawn, self.own):
            counted.setdefault(entry.id, Counter())[specialization] += 1

    def add(self, entry: EntryPoint, axes: Axes, drawn: Counter[Specialization]) -> None:
        """Cases were drawn for ``drawn`` from the space that ``axes`` are, by a worker of this run."""
        self._axes[entry.id] = entry, axes
        for counted in (self.drawn, self.own):
            counted.setdefault(entry.id, Counter()).update(drawn)

    def write(self) -> None:
        """Raises ReportError."""
        for name, (entry, axes) in self._axes.items():
            drawn = self.drawn.get(name, Counter())
            self.spaces[name] = [
                Share(strength, *covered(entry.declaration, axes, drawn, strength)) for strength in STRENGTHS
            ]
        entries = {
            name: {
                "combinations": [list(asdict(share).values()) for share in shares],
                "specializations": [
                    {**asdict(each), "cases": cases} for each, cases in self.drawn.get(name, {}).items()
                ],
            }
            for name, shares in self.spaces.items()
        }
        write_text(self.file, json_lines({"schema": SCHEMA, "entry_points": entries}))

    def describe(self) -> str:
        """How much of the space has been drawn from, all entry points together; "" where no space is known."""
        if not self.spaces:
            return ""
        parts = []
        for strength, what in zip(STRENGTHS, ("pairs", "triples"), strict=True):
            shares = [share for each in self.spaces.values() for share in each if share.strength == strength]
            parts.append(f"{sum(each.covered for each in shares):,} of {sum(each.total for each in shares):,} {what}")
        return f"drawn so far: {' and '.join(parts)} of parameters; "


def _specialization(found: Mapping[str, object]) -> Specialization:
    cp = found["cp"]
    values = {name: value for name, value in found.items() if name not in ("cp", "cases")}
    return Specialization(cp=ContextParallel(**cp), **values)  # type: ignore[arg-type]
