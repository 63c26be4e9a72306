"""What the rounds of a fleet bring back: kept, counted, and made one report."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from conformance.corpus import Corpus, counted, text_of
from conformance.fleet.orders import Lost, Result, unpack
from reference.fields import CaseError, printable, read_json
from reports.files import ReportError
from reports.merging import merge
from reports.summary import Summary

ROUNDS = "rounds"
"""The folder in the report folder that holds those of the rounds until they are merged."""
_TOLD = 10  # lines that a round says of its corpus
_LAST = 30  # lines of a round that did not end as it should
_STOPPED = (pytest.ExitCode.INTERRUPTED, -signal.SIGTERM)  # by SIGTERM; the second before pytest had begun


class Harvest:
    """Gathers into ``folder`` and into ``corpus``; ``say`` prints a line. Nothing that cannot be written is lost: the
    cases are printed then.
    """

    def __init__(self, folder: Path, corpus: Corpus | None, say: Callable[[str], None]) -> None:
        self.folder, self.corpus, self._say = folder, corpus, say
        self.rounds = self.cases = 0
        self.statuses: set[int] = set()
        self.wrong: list[str] = []  # rounds that did not end as a run of tests does, and those that were given up
        self._done: set[int] = set()  # shards of which there is a round
        self._empty: set[int] = set()  # shards in which there is no test
        self.found: dict[str, None] = {}  # failing cases, those of the start not among them
        self._folders: list[Path] = []
        self._unwritten = False
        self._started_with = set(map(text_of, corpus.cases())) if corpus is not None else set()
        for problem in corpus.problems if corpus is not None else ():
            say(f"warning: corpus: {problem}")

    @property
    def start(self) -> list[str]:
        """The cases that the fleet begins with."""
        return sorted(self._started_with)

    def keep(self, texts: Iterable[str]) -> int:
        """Failing cases, found just now or told again; returns how many are new."""
        new = [text for text in dict.fromkeys(texts) if text not in self.found and text not in self._started_with]
        for text in new:
            self.found[text] = None
            if self.corpus is not None:
                before = len(self.corpus.unkept)
                self.corpus.keep(text)
                for each in self.corpus.unkept[before:]:
                    self._say(f"warning: corpus: {each.problem}; the case: {_line(text)}")
        return len(new)

    def take(self, result: Result) -> None:
        """A round is over."""
        self.keep(result.cases)
        if result.status is None:
            return
        self.rounds += 1
        stopped = result.stopped and result.status in _STOPPED
        empty = result.status == pytest.ExitCode.NO_TESTS_COLLECTED
        good = stopped or empty or result.status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not stopped:
            self.statuses.add(result.status)
        if not good:
            self.wrong.append(f"{result.order.name} on {result.host} ended with {_named(result.status)}")
        if empty:
            self._empty.add(result.order.shard)
        told = [line for line in result.output.splitlines() if line.startswith("corpus: ")]
        for line in told[:_TOLD]:
            self._say(f"{result.order.name} on {result.host}: {line}")
        folder = self.folder / ROUNDS / f"shard-{result.order.shard}-round-{result.order.round}"
        if not result.reports:
            if not stopped:  # before it had started
                self._say(f"{result.order.name} on {result.host} left no report; it ended with status {result.status}:")
                self._say_the_end(result)
            return
        if empty or not good:
            self._say(f"{result.order.name} on {result.host} ended with status {result.status}:")
            self._say_the_end(result)
        try:
            unpack(result.reports, folder)
        except ReportError as error:
            self._unwritten = True
            self._say(f"warning: {error}")
            shutil.rmtree(folder, ignore_errors=True)
            self._say_the_end(result)
            return
        self._folders.append(folder)
        cases = _cases(folder)
        self.cases += cases or 0
        if good and cases is not None:
            self._done.add(result.order.shard)

    def lose(self, lost: Lost) -> None:
        """A round is given up."""
        self.wrong.append(f"{lost.order.name} brought nothing back")

    def unfinished(self, shards: int) -> Iterator[str]:
        """What to say of the shards of which no round has brought a report, though they have tests."""
        for shard in range(1, shards + 1):
            if shard not in self._done | self._empty:
                yield f"shard {shard}/{shards}: there is no report of any round"

    def is_empty(self, shards: int) -> bool:
        """Whether no shard has a test."""
        return len(self._empty) == shards

    def _say_the_end(self, result: Result) -> None:
        for line in result.output.splitlines()[-_LAST:]:
            self._say(f"  {printable(line)}")

    def finish(self) -> Summary | None:
        """Merge what there is, and say it; returns what became of it, None where there is nothing."""
        summary = None
        if self._folders:
            try:
                done = merge(self.folder, self._folders)
                summary = done.summary
                for problem in done.problems:
                    self._say(f"warning: {problem}")
                if done.summary is not None:
                    self._say(done.summary.line())
                for note in done.notes:
                    self._say(note)
                if done.page is not None:
                    self._say(f"page: {printable(done.page)}")
                if not done.problems:
                    shutil.rmtree(self.folder / ROUNDS, ignore_errors=True)
            except ReportError as error:
                self._unwritten = True
                self._say(f"warning: {error}")
        if self._unwritten:
            for text in self.found:
                self._say(f"a failing case: {_line(text)}")
        if self.corpus is not None:
            name, added = printable(self.corpus.folder), self.corpus.added
            self._say(f"corpus {name}: {counted(len(self._started_with), 'case')}, {added:,} added")
        return summary


def _line(text: str) -> str:
    return json.dumps(json.loads(text))


def _named(status: int) -> str:
    """An exit status, and the signal that it means."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"status {status}, {signal.Signals(-status).name}"
    except ValueError:
        return f"status {status}"


def _cases(folder: Path) -> int | None:
    """How many a round has run; None: it does not say."""
    try:
        summary = read_json(folder / "summary.json")
    except CaseError:
        return None
    cases = summary.get("cases") if isinstance(summary, dict) else None
    return cases if isinstance(cases, int) else None
