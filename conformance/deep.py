"""``python -m conformance.deep --minutes N``: fuzz for hours.

Saved failures are run again first. Then round follows round, each a run of the suite with a new seed that draws what
all rounds before it, those of earlier days included, drew least (:mod:`conformance.explored`). A failure is kept once:
the rounds after it look for others. It stops on time, and ends with the page of all rounds.
Exit status 0: nothing failed; 1: something did; 2: nothing could be run.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conformance.explored import Explored
from conformance.known import KnownFailure, text_of
from conformance.runs import ROOT, ended_by_itself, figures, interruptible, started, tail
from conformance.saved import read as read_case
from reference.fields import CaseError, printable, read_json
from reports.diagnosis import UNKNOWN
from reports.files import ReportError, write_text
from reports.merging import merge

NOTHING_DRAWN = ("test_sweep.py", "test_large.py", "test_compile_keys.py")
"""Tests that are the same in every round, so that one of a campaign is enough."""
_BETWEEN_LINES = 30.0  # seconds
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
_REASON = "found earlier in this campaign"


@dataclass(slots=True)
class Campaign:
    """What a campaign keeps in ``folder``: ``corpus``, the failing cases of all days; ``explored.json``, what was
    drawn; ``rounds``, the reports of its rounds; and at the end the page and the failures of them all.
    """

    folder: Path
    corpus: Path
    arguments: Sequence[str]
    deadline: float
    began: float = field(default_factory=time.monotonic)
    rounds: list[Path] = field(default_factory=list)
    found: set[str] = field(default_factory=set)  # names of the failures' files, which say their cases
    known: dict[tuple[str, str, str, str], KnownFailure] = field(default_factory=dict)

    @property
    def explored(self) -> Path:
        return self.folder / "explored.json"

    def prepare(self) -> None:
        """Forget the rounds of the last campaign; its failures, and those of other runs, go into the corpus."""
        shutil.rmtree(self.folder / "rounds", ignore_errors=True)
        for file in sorted({*self.folder.glob("failure-*.json"), *self.folder.parent.glob("failure-*.json")}):
            kept = self.corpus / file.name
            if not kept.exists():
                write_text(kept, file.read_text(encoding="utf-8"))
        for file in self.folder.glob("failure-*"):
            file.unlink()

    def saved(self) -> None:
        """Run the saved failures again."""
        count = len(list(self.corpus.glob("*.json")))
        if count:
            # None of them may be for what is tested today.
            failed = self._run("saved", ["conformance/test_corpus.py"], pytest.ExitCode.NO_TESTS_COLLECTED)
            print(f"{_count(count, 'saved case')} run again: {_count(failed, 'failure')}", flush=True)

    def draw(self, number: int, seed: int, options: Sequence[str]) -> None:
        """One round. Says what it came to, and how much of the parameter space has been drawn from since ever."""
        ignored = ("test_corpus.py", *(NOTHING_DRAWN if number > 1 else ()))
        words = ["conformance", *(f"--ignore=conformance/{name}" for name in ignored), "--hypothesis-seed", str(seed)]
        failed = self._run(
            f"round-{number}", [*words, "-p", "conformance.exploring", "--explored", str(self.explored), *options]
        )
        cases = figures(self.rounds[-1]).get("cases", 0)
        explored = Explored(self.explored)
        explored.read()
        print(
            f"round {number} (seed {seed}): {cases:,} cases, {_count(failed, 'new failure')}; "
            f"{explored.describe()}{self._left()}",
            flush=True,
        )

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    def finish(self) -> int:
        """Merge the rounds and draw the page. How many failures there are that differ."""
        done = merge(self.folder, [folder for folder in self.rounds if figures(folder)])
        for problem in done.problems:
            print(f"warning: {problem}", file=sys.stderr)
        found = [] if done.summary is None else [Path(file) for file in done.summary.reports]
        for folder in self.rounds:
            if not figures(folder):  # it was killed; what it had found by then is there
                found += [Path(shutil.copy(file, self.folder)) for file in folder.glob("failure-*.json")]
        lines = ["no round came to its end"] if done.summary is None else [done.summary.line(), *done.notes]
        for line in (*lines, *map(printable, found)):
            print(line)
        if done.page is not None:
            print(f"page: {printable(done.page)}")
        return len(found)

    def _run(self, name: str, words: Sequence[str], *allowed: int) -> int:
        """How many failures it found that none before it did. Raises RoundError for a run that could not be."""
        folder = self.folder / "rounds" / name
        self.rounds.append(folder)
        known = ["--known-failures", str(self._write_known())] if self.known else []
        with started([*words, *known, "--corpus", str(self.corpus), *self.arguments], folder) as process:
            by_itself = ended_by_itself(process, self._over_while(name))
        if by_itself and process.returncode not in (*_ENDED, *allowed):
            raise RoundError(f"{tail(folder)}\n{name} ended with status {process.returncode}")
        new = [file for file in sorted(folder.glob("failure-*.json")) if file.name not in self.found]
        for file in new:
            self.found.add(file.name)
            self._remember(file)
        return len(new)

    def _remember(self, file: Path) -> None:
        """A failure of a known cause is not to be found again: the rounds to come look for what is beside it."""
        report: Any = read_json(file)
        diagnosis, kind = report["diagnosis"], report["verdict"]["kind"]
        if diagnosis["cause"] == UNKNOWN or report.get("property"):
            return
        saved = read_case(file)
        key = f"{saved.subject}.{saved.entry_points[0]}", kind, diagnosis["cause"], diagnosis["buffer"]
        self.known.setdefault(key, KnownFailure("", *key[1:], _REASON, report["lane"], saved))

    def _write_known(self) -> Path:
        return write_text(self.folder / "rounds" / "known.toml", text_of(self.known.values()))

    def _over_while(self, name: str) -> Callable[[], bool]:
        """Whether time is up; says now and then that ``name`` is running."""
        said = time.monotonic()

        def is_over() -> bool:
            nonlocal said
            if time.monotonic() - said >= _BETWEEN_LINES:
                said = time.monotonic()
                print(f"{name} is running; {self._left()}", flush=True)
            return self.is_over

        return is_over

    def _left(self) -> str:
        spent, whole = time.monotonic() - self.began, self.deadline - self.began
        return f"{spent / 60:.1f} of {whole / 60:.1f} minutes"


class RoundError(RuntimeError):
    """A run of the suite could not be made. The message is what it printed."""


def run(campaign: Campaign, first_seed: int, options: Sequence[str]) -> int:
    campaign.prepare()
    number = 0
    try:
        with interruptible():
            campaign.saved()
            while not campaign.is_over:
                number += 1
                campaign.draw(number, (first_seed + number - 1) % 2**32, options)
    except KeyboardInterrupt:
        print("stopped")
    return 1 if campaign.finish() else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.deep",
        description="Fuzz for a while, what was drawn least first. "
        "What is not listed here is handed to pytest: --subject, --source, --lane, -k, -n ...",
    )
    parser.add_argument("--minutes", type=_minutes, default=60.0, help="how long (default 60)")
    parser.add_argument("--seed", type=int, help="of the first round, those after it count on (default: a fresh one)")
    parser.add_argument(
        "--hypothesis-profile", dest="profile", metavar="NAME", default="gate", help="of each round (default gate)"
    )
    parser.add_argument(
        "--compile-budget", type=int, default=16, metavar="N", help="specializations a kernel and round (default 16)"
    )
    parser.add_argument(
        "--report-dir",
        type=Path,
        default=ROOT / "reports" / "output" / "deep",
        metavar="DIR",
        help="the page, the failures, what was drawn (default reports/output/deep)",
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="saved failures: run first, and added to (default DIR/corpus)"
    )
    chosen, others = parser.parse_known_args(arguments)
    folder = chosen.report_dir.absolute()
    corpus = (chosen.corpus or folder / "corpus").absolute()
    campaign = Campaign(folder, corpus, others, time.monotonic() + 60 * chosen.minutes)
    seed = random.SystemRandom().randrange(2**32) if chosen.seed is None else chosen.seed
    options = ["--hypothesis-profile", chosen.profile, "--compile-budget", str(chosen.compile_budget)]
    try:
        return run(campaign, seed, options)
    except (CaseError, ReportError, RoundError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _minutes(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time")
    return number


if __name__ == "__main__":
    sys.exit(main())
