"""What the rounds of a fleet bring back: kept, counted, and made one report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from conformance.corpus import Corpus, counted, text_of
from conformance.fleet.orders import Result, unpack
from reference.fields import CaseError, printable, read_json
from reports.files import ReportError
from reports.merging import merge

ROUNDS = "rounds"
"""The folder in the report folder that holds those of the rounds until they are merged."""
_TOLD = 10  # lines that a round says of its corpus


class Harvest:
    """Gathers into ``folder`` and into ``corpus``; ``say`` prints a line. Nothing that cannot be written is lost: the
    cases are printed then.
    """

    def __init__(self, folder: Path, corpus: Corpus | None, say: Callable[[str], None]) -> None:
        self.folder, self.corpus, self._say = folder, corpus, say
        self.rounds = self.cases = 0
        self.statuses: set[int] = set()
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
        if not (result.stopped and result.status == pytest.ExitCode.INTERRUPTED):
            self.statuses.add(result.status)
        told = [line for line in result.output.splitlines() if line.startswith("corpus: ")]
        for line in told[:_TOLD]:
            self._say(f"{result.order.name} on {result.host}: {line}")
        folder = self.folder / ROUNDS / f"shard-{result.order.shard}-round-{result.order.round}"
        if not result.reports:
            if result.stopped:  # before it had started
                return
            self._say(f"{result.order.name} on {result.host} left no report; it ended with status {result.status}:")
            for line in result.output.splitlines()[-30:]:
                self._say(f"  {printable(line)}")
            return
        try:
            unpack(result.reports, folder)
        except ReportError as error:
            self._unwritten = True
            self._say(f"warning: {error}")
            shutil.rmtree(folder, ignore_errors=True)
            for line in result.output.splitlines()[-30:]:
                self._say(f"  {printable(line)}")
            return
        self._folders.append(folder)
        self.cases += _cases(folder)

    def finish(self) -> dict[str, Any] | None:
        """Merge what there is, and say it; returns ``summary.json``, None where there is none."""
        summary = None
        if self._folders:
            try:
                done = merge(self.folder, self._folders)
                summary = None if done.summary is None else done.summary.to_json()
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


def _cases(folder: Path) -> int:
    try:
        summary = read_json(folder / "summary.json")
    except CaseError:
        return 0
    cases = summary.get("cases", 0) if isinstance(summary, dict) else 0
    return cases if isinstance(cases, int) else 0
