"""``--require LIST``: entry points that must have been tested, of one run or of the rounds of a fleet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol


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
        tallies = [ran.get(each) for each in ([name] if "." in name else [f"{each}.{name}" for each in subjects])]
        if not all(tally is not None and tally.compared for tally in tallies):
            launched = all(tally is not None and tally.cases for tally in tallies)
            yield f"--require {name}: {'left no output that could be compared' if launched else 'ran no case'}"
