"""``--require LIST``: entry points that must have been tested, of one run or of the rounds of a fleet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from reference.fields import printable

SINGLE = 2
"""Launches of one case: that of a property is launched once more to say what became of it."""
ONE_IN = 100
"""Of so many launches of a test one may be unsupported."""
BESIDE = 10
"""Where a test draws its cases, so many must have been compared beside each that is not supported."""
MOST_TESTS = 8
"""That a complaint names."""


@dataclass(slots=True)
class Launches:
    """Of one test of an entry point: launches that left an output to ``compare``, and those that were ``unsupported``.
    ``reason``: why, if the test was skipped for it. ``beside``: how many must have been compared beside each that is
    unsupported; None: it may not be missed, because the test always launches it.
    """

    compared: int = 0
    unsupported: int = 0
    reason: str = ""
    beside: int | None = None

    def add(self, other: Launches) -> None:
        self.compared += other.compared
        self.unsupported += other.unsupported
        self.reason = self.reason or other.reason

    @property
    def could_not_run(self) -> bool:
        """Whether what the test is about was not tested. A single case out of a lane's reach, among many that were
        drawn, does not make it so.
        """
        if not self.reason or self.beside is None:
            return bool(self.reason)
        few = self.unsupported <= max(SINGLE, (self.compared + self.unsupported) // ONE_IN)
        return not few or self.compared < self.unsupported * self.beside

    def describe(self) -> str:
        return f"{self.unsupported:,} of {self.compared + self.unsupported:,} launches"


class Ran(Protocol):
    """What an entry point went through: ``cases`` launched, ``compared`` of them with an output to compare."""

    @property
    def cases(self) -> int: ...

    @property
    def compared(self) -> int: ...


def names(lists: Iterable[str]) -> list[str]:
    """What the lists name, each separated by commas."""
    return [name.strip() for item in lists for name in item.split(",") if name.strip()]


def unknown(wanted: Iterable[str], there: Collection[str]) -> Iterator[str]:
    """What to say of the names that no ``subject.entry_point`` of those ``there`` has: they could never run."""
    for name in wanted:
        if not any(name in (each, each.partition(".")[2]) for each in there):
            yield f"--require {name}: no such entry point; this run has {', '.join(there)}"


def missing(wanted: Iterable[str], subjects: Sequence[str], ran: Mapping[str, Ran]) -> Iterator[str]:
    """What to say of the names of which no output was compared. A bare one is meant for every subject of the run."""
    for name in wanted:
        tallies = [ran.get(each) for each in _meant(name, subjects)]
        if not all(tally is not None and tally.compared for tally in tallies):
            launched = all(tally is not None and tally.cases for tally in tallies)
            yield f"--require {name}: {'left no output that could be compared' if launched else 'ran no case'}"


def could_not_run(
    wanted: Iterable[str], subjects: Sequence[str], tests: Mapping[str, Mapping[str, Launches]]
) -> Iterator[str]:
    """What to say of the names of which not every test could run; ``tests``: by entry point and name."""
    for name in wanted:
        for entry_point in _meant(name, subjects):
            found = {test: each for test, each in sorted(tests.get(entry_point, {}).items()) if each.could_not_run}
            if not found:
                continue
            reasons = list(dict.fromkeys(each.reason for each in found.values()))
            more = f" ({len(reasons) - 1:,} more reason{'s'[: len(reasons) != 2]})" if len(reasons) > 1 else ""
            named = [f"{test} ({each.describe()})" for test, each in list(found.items())[:MOST_TESTS]]
            left = f" and {len(found) - MOST_TESTS:,} more" if len(found) > MOST_TESTS else ""
            yield (
                f"--require {name}: {len(found):,} test{'s'[: len(found) != 1]} of {entry_point} could not run, so this"
                f" run fails: {printable(reasons[0])[:400]}{more}: {', '.join(named)}{left}"
            )


def _meant(name: str, subjects: Sequence[str]) -> list[str]:
    """The entry points that a name of the list stands for."""
    return [name] if "." in name else [f"{each}.{name}" for each in subjects]
