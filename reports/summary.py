"""``summary.json``: what a run did, in figures, for the machine that reads it later."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from reports.files import json_lines, write_text

SCHEMA = 1
STILL_FAILS = "still fails"
NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Tally:
    """What one entry point went through: cases run, specializations compiled, failures that differ from one another,
    of how many cases there was an output to compare, and launches that the lane could not do, which are no cases.
    """

    cases: int
    specializations: int
    failures: int
    compared: int = 0
    unsupported: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Known:
    """What became of one failure that was known before the run: ``entry_point`` with its subject; ``kind`` of verdict;
    ``cause`` and ``buffer`` as in a diagnosis; ``status`` is ``STILL_FAILS`` or in other words what it does instead;
    ``cases`` of the run that it explained, its own not among them.
    """

    entry_point: str
    kind: str
    cause: str
    buffer: str
    reason: str
    status: str
    cases: int

    def to_json(self) -> dict[str, str | int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Run:
    """One of the runs that were merged, ``folder`` its report folder; the rest as in the summary of a run."""

    folder: str
    lane: str
    cases: int
    failures: int
    seconds: float
    seed: int | None
    shard: str

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Summary:
    """One run, or several merged. ``entry_points`` has a tally for each ``subject.entry_point``; ``reports`` names the
    failure files, ``outside_the_contract`` the files of those outside it, ``known_failures`` are no failures of the
    run. ``shard`` is "I/N", "" for a whole run: with the seed it decides what is drawn. ``compiled`` has for each entry
    point what tells its specializations apart (``specialization_id``). ``runs`` are those that were merged, none where
    it is one run; ``seconds`` is then the longest of them.
    """

    subjects: tuple[str, ...]
    lane: str
    seconds: float
    entry_points: Mapping[str, Tally]
    reports: tuple[str, ...] = ()
    seed: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    known_failures: tuple[Known, ...] = ()
    outside_the_contract: tuple[str, ...] = ()
    shard: str = ""
    compiled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()

    @property
    def cases(self) -> int:
        return sum(tally.cases for tally in self.entry_points.values())

    @property
    def specializations(self) -> int:
        return sum(tally.specializations for tally in self.entry_points.values())

    @property
    def failures(self) -> int:
        return sum(tally.failures for tally in self.entry_points.values())

    @property
    def unsupported(self) -> int:
        return sum(tally.unsupported for tally in self.entry_points.values())

    @property
    def seconds_total(self) -> float:
        """Seconds of all machines together."""
        return sum(run.seconds for run in self.runs) if self.runs else self.seconds

    def line(self) -> str:
        """The run in one line."""
        known = sum(each.status == STILL_FAILS for each in self.known_failures)
        given = sum(bool(tally.cases or not tally.unsupported) for tally in self.entry_points.values())
        return (
            f"{', '.join(self.subjects)} on lane {self.lane}: {_count(self.cases, 'case')} "
            f"of {_count(given, 'entry point')}, {_count(self.specializations, 'specialization')}, "
            f"{_count(self.failures, 'failure')}{f' and {known:,} known' if known else ''}, "
            f"{f'{self.unsupported:,} unsupported, ' if self.unsupported else ''}{self.seconds:.1f} s"
            f"{f' ({len(self.runs):,} runs, {self.seconds_total:.1f} s together)' if self.runs else ''}"
        )

    def to_json(self) -> dict[str, object]:
        """``subject`` is one string, several subjects joined by commas; ``seconds`` is wall time."""
        return {
            "schema": SCHEMA,
            "subject": ",".join(self.subjects),
            "lane": self.lane,
            "cases": self.cases,
            "specializations": self.specializations,
            "failures": self.failures,
            "unsupported": self.unsupported,
            "seconds": round(self.seconds, 3),
            "seconds_total": round(self.seconds_total, 3),
            "entry_points": {name: tally.to_json() for name, tally in self.entry_points.items()},
            "reports": list(self.reports),
            "outside_the_contract": list(self.outside_the_contract),
            "known_failures": [each.to_json() for each in self.known_failures],
            "seed": self.seed,
            "shard": self.shard,
            "compiled": {name: list(ids) for name, ids in self.compiled.items()},
            "runs": [each.to_json() for each in self.runs],
            "environment": dict(self.environment),
        }


def specialization_id(parameters: object) -> str:
    """What tells one specialization of an entry point from the others, in every run the same."""
    return hashlib.sha256(repr(parameters).encode()).hexdigest()[:10]


def write(summary: Summary, folder: str | Path) -> Path:
    """Write ``summary.json`` into ``folder``, over the one of an earlier run. Raises ReportError."""
    return write_text(Path(folder) / "summary.json", json_lines(summary.to_json()))


def of_causes(causes: int, unexplained: int, outside: int = 0) -> str:
    """What follows a number of failures: of how many causes they are, how many of them have no known one, and how many
    are outside the contract, where none is looked for.
    """
    shown = f" of {_count(causes, 'cause')}" if causes else ""
    shown += f", {unexplained:,} unexplained" if unexplained else ""
    return shown + (f", {outside:,} outside the contract" if outside else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
