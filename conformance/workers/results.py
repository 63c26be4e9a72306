"""What one worker has to tell the controller, as a file that is written again and again and always whole."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from conformance.accepted import Outcome
from conformance.engine import Tally
from conformance.outside import Outside
from conformance.recording import Recorded
from conformance.subjects.entry import EntryPoint
from conformance.verdicts import Finding
from reports.coverage import Coverage
from strategies.specializations import Specialization


@dataclass(slots=True)
class Results:
    """``tests``: how many of the worker's it holds. ``entries``: what its subjects have, ``said`` what it said of
    compiling them, ``tested`` the entry points whose tests ran, ``concerned`` the subjects of all that it collected,
    ``vanished`` the complaints about entry points that are not there. The rest is as the parts of a run have it;
    ``outcomes`` and ``met`` are of known failures, by their place; ``drawn`` is what ``--explored`` is to count.
    ``ended``: there is nothing more to come.
    """

    pid: int = field(default_factory=os.getpid)
    tests: int = 0
    entries: list[EntryPoint] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    recorded: dict[Path, Recorded] = field(default_factory=dict)
    outside: dict[Path, Outside] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    drawn: dict[str, Counter[Specialization]] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)
    tested: set[str] = field(default_factory=set)
    concerned: set[str] = field(default_factory=set)
    vanished: list[str] = field(default_factory=list)
    ended: bool = False

    def write(self, file: Path) -> None:
        """Over what was there. Raises OSError when that cannot be done."""
        part = file.with_suffix(".part")
        try:
            part.write_bytes(pickle.dumps(self))
            part.replace(file)
        except OSError:
            with suppress(OSError):
                part.unlink()  # half of it would take the room that somebody else needs
            raise


def read(folder: Path) -> list[Results]:
    """What the workers of a run have written, in the order of their numbers.

    The folder is the run's own, and what stands in it comes from its own workers: code under test runs in other
    processes, and what those say reaches a worker as JSON.
    """
    files = sorted(folder.glob("*.results"), key=lambda path: (len(path.name), path.name))
    return [told for told in map(read_one, files) if told is not None]


def read_one(file: Path) -> Results | None:
    """What one worker has written; None: nothing yet."""
    try:
        told = pickle.loads(file.read_bytes())
    except OSError:
        return None
    assert isinstance(told, Results)
    return told


def add(into: Any, other: Any) -> None:
    """Add the counts of ``other`` to those of ``into``, both of one dataclass: numbers, counters, sets."""
    for each in fields(into):
        mine, theirs = getattr(into, each.name), getattr(other, each.name)
        if isinstance(mine, Counter | set):
            mine.update(theirs)
        else:
            setattr(into, each.name, mine + theirs)


def together(results: Iterable[Results]) -> Results:
    """All of them as one. A failure that several have found is one, in a file if any of them could write it; of what
    became of a known failure, that it has changed comes before that it is as it was.
    """
    total = Results()
    for each in results:
        total.entries = total.entries or each.entries
        total.said.update({key: line for key, line in each.said.items() if key not in total.said})
        for name, tally in each.tallies.items():
            add(total.tallies.setdefault(name, Tally()), tally)
        for name, counts in each.coverage.entry_points.items():
            add(total.coverage.of(name), counts)
        for file, recorded in each.recorded.items():
            if file not in total.recorded or total.recorded[file].problem:
                total.recorded[file] = recorded
        for file, beside in each.outside.items():
            if file not in total.outside or total.outside[file].problem:
                total.outside[file] = beside
        for where, outcome in each.outcomes.items():
            if where not in total.outcomes or outcome.weight > total.outcomes[where].weight:
                total.outcomes[where] = outcome
        total.met.update(each.met)
        for name, drawn in each.drawn.items():
            total.drawn.setdefault(name, Counter()).update(drawn)
        total.found += each.found
        total.tested |= each.tested
        total.concerned |= each.concerned
        total.vanished += [line for line in each.vanished if line not in total.vanished]
    return total
