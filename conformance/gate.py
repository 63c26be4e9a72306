"""Whether a run may be green, and what it says at the end of what is known: green must never mean that nothing was
tested.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from conformance import accepted, options, required
from conformance.accepted import Accepted, Outcome
from conformance.known import KnownFailure, text_of
from conformance.required import Launches
from conformance.stash import ACCEPTED, ENGINE, draws, is_worker, target_of
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.verdicts import Finding, failures_in
from reference.fields import printable
from reports.files import ReportError, write_text

FOUND = pytest.StashKey[list[Finding]]()
"""The failures of the run."""
TESTED = pytest.StashKey[set[str]]()
"""Entry points with a test that ran, and was not skipped."""
CONCERNED = pytest.StashKey[set[str]]()
"""Subjects that the collected tests are about."""
VANISHED = pytest.StashKey[list[str]]()
"""What to say of entry points that should be there and are not."""
LOST = pytest.StashKey[list[str]]()
"""What to say of workers that could not tell what they did."""
_LAUNCHES = pytest.StashKey[dict[str, dict[str, Launches]]]()
"""Of each entry point, what became of the launches of its tests."""
_UNSUPPORTED = pytest.StashKey[int]()
"""How many launches of a test were unsupported."""
_ON_THE_REPORT = "slot_mapping_launches"
"""The attribute of a test's report that brings it to whoever judges the run, from a worker, too."""
_COMPLAINTS = pytest.StashKey[list[str]]()
_WRITTEN = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FOUND], config.stash[VANISHED], config.stash[_COMPLAINTS] = [], [], []
    config.stash[LOST] = []
    config.stash[TESTED], config.stash[CONCERNED] = set(), set()
    config.stash[_LAUNCHES] = {}
    config.pluginmanager.register(_Told(config.stash[_LAUNCHES]), "conformance-launches")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Remember what there was to look at."""
    if ENGINE in session.config.stash:
        session.config.stash[CONCERNED] |= _concerned(session)
        session.config.stash[VANISHED] += _vanished(session)


class _Told:
    """Takes what became of each test's launches from its report. All cases of the corpus are one test of their entry
    point: each might have been drawn, and is one more beside those that were.
    """

    def __init__(self, launches: dict[str, dict[str, Launches]]) -> None:
        self._launches = launches

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for entry_point, test, found in getattr(report, _ON_THE_REPORT, ()):
            one = Launches(**found)
            self._launches.setdefault(entry_point, {}).setdefault(test, Launches(beside=one.beside)).add(one)


@pytest.hookimpl(wrapper=True, trylast=True)  # what others launch for a test before it and after it is not its own
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Count the launches of a test that are unsupported."""
    before = _unsupported_so_far(item)
    try:
        return (yield)
    finally:
        item.stash[_UNSUPPORTED] = _unsupported_so_far(item) - before


def _unsupported_so_far(item: pytest.Item) -> int:
    target = target_of(item)
    tally = None if target is None else target.engine.tallies.get(target.entry.id)
    return 0 if tally is None else tally.unsupported.total()


def _launches(item: pytest.Item, *, skipped: bool) -> Iterator[tuple[str, str, dict[str, object]]]:
    """What became of the launches of a test, as a report can hold it: its entry point, its name, and ``Launches``."""
    target = target_of(item)
    if target is None:
        return
    in_corpus = "corpus_case" in item.fixturenames  # type: ignore[attr-defined]
    name = item.originalname if in_corpus else item.name.removesuffix(f"[{target.entry.id}]")  # type: ignore[attr-defined]
    reason = printable(target.unsupported) if skipped and target.unsupported is not None else ""
    beside = required.BESIDE if draws(item) else 0 if in_corpus else None
    found = Launches(target.compared, item.stash.get(_UNSUPPORTED, 0), reason, beside)
    yield target.entry.id, f"{item.path.name}::{name}", asdict(found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember what was found, whose tests were not all skipped, and what became of a test's launches."""
    report = yield
    target = target_of(item)
    if target is not None and call.when == "call":
        if call.excinfo is not None:
            item.config.stash[FOUND] += [failure.finding for failure in failures_in(call.excinfo.value)]
        if not report.skipped:
            item.config.stash[TESTED].add(target.entry.id)
        setattr(report, _ON_THE_REPORT, list(_launches(item, skipped=report.skipped)))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that has not looked at what it should have looked at fails, whatever else it did."""
    config = session.config
    if ENGINE not in config.stash or config.option.collectonly or is_worker(config):
        return
    done = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.TESTS_FAILED)
    lost, complaints = config.stash[LOST], config.stash[_COMPLAINTS]
    complaints += lost
    if done and not lost:  # what nobody has told of was not left out
        # --require says better what must be there.
        vanished = [] if options.required(config) else config.stash[VANISHED]
        complaints += [
            *_missing(config),
            *vanished,
            *_untested(config),
            *_unsupported(config),
            *_no_longer_known(config),
        ]
    if config.option.write_known_failures is not None:
        try:
            why = "not all that was found is known" if lost else "" if done else "the run did not come to its end"
            config.stash[_WRITTEN] = f"not written: {why}" if why else _write(config)
        except ReportError as error:
            complaints.append(f"--write-known-failures: {error}")
    if complaints and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _missing(config: pytest.Config) -> Iterator[str]:
    """Entry points of ``--require`` of which no output was compared, or not every test could run."""
    wanted, engine = options.required(config), config.stash[ENGINE]
    for each in required.missing(wanted, engine.options.subjects, engine.tallies):
        yield f"{each}, so this run fails"
    tests = config.stash[_LAUNCHES]
    yield from required.could_not_run(wanted, engine.options.subjects, tests)


def _has_run(config: pytest.Config, entry_point: str) -> bool:
    """Whether a case of it left an output: one that does not compile, crashes, hangs or is not supported does not."""
    tally = config.stash[ENGINE].tallies.get(entry_point)
    return tally is not None and tally.compared > 0


def _vanished(session: pytest.Session) -> Iterator[str]:
    """Entry points of selected tests that this version is known to have, and that are not where they should be."""
    targets = filter(None, map(target_of, session.items))
    for entry in {target.entry.id: target.entry for target in targets}.values():
        if entry.status != TESTABLE and entry.expected:
            yield f"{entry.id} was not tested, so this run fails: {_why_expected(entry)}: {printable(entry.status)}"


def _why_expected(entry: EntryPoint) -> str:
    return f"{entry.subject} {entry.version} should have it"


def _concerned(session: pytest.Session) -> set[str]:
    concerned: set[str] = set()
    for item in session.items:
        target = target_of(item)
        if target is not None:
            concerned.add(target.entry.subject)
        elif hasattr(item, "callspec") and "entry_point" in item.callspec.params:
            # A test for which no subject has anything.
            concerned |= set(session.config.stash[ENGINE].options.subjects)
    return concerned


def _untested(config: pytest.Config) -> Iterator[str]:
    """Subjects of which there were tests, every one of them skipped."""
    engine, concerned = config.stash[ENGINE], config.stash[CONCERNED]
    tested = {name.partition(".")[0] for name in config.stash[TESTED]}
    for subject in engine.options.subjects:
        ran = any(_has_run(config, key) for key in engine.tallies if key.partition(".")[0] == subject)
        if subject in concerned - tested and not ran:
            yield f"subject {subject}: every test was skipped, so this run fails (-rs prints the reasons)"


def _unsupported(config: pytest.Config) -> Iterator[str]:
    """Entry points whose kernels the lane cannot run: every test of theirs was skipped, or nothing of them compared.

    Plain torch may miss a package that stands on a device only; the tests of other entry points then say that much.
    """
    engine = config.stash[ENGINE]
    for entry in engine.entries():
        tally = engine.tallies.get(entry.id)
        if tally is None or not tally.unsupported or not entry.launches_kernels:
            continue
        if entry.id not in config.stash[TESTED] or not tally.compared:
            yield f"{entry.id}: the lane could run no test of it to its end, so this run fails"


def _reasons(config: pytest.Config) -> Iterator[str]:
    """Why launches were unsupported, a line an entry point."""
    engine = config.stash[ENGINE]
    for name, tally in engine.tallies.items():
        for reason, number in tally.unsupported.most_common(1):
            more = f" ({len(tally.unsupported) - 1:,} more reasons)" if len(tally.unsupported) > 1 else ""
            yield f"unsupported on lane {engine.lane.name}: {name}, {number:,} of {tally.unsupported.total():,}: " + (
                f"{printable(reason)[:400]}{more}"
            )


def _no_longer_known(config: pytest.Config) -> Iterator[str]:
    """Known failures whose case no longer does what is known of it."""
    known: Accepted = config.stash[ACCEPTED]
    for each, outcome in known.outcomes():
        if outcome.status == accepted.FIXED and config.option.strict_known:
            yield f"--strict-known: {each.describe()}: its case passes now; take the entry out ({each.where})"
        if outcome.status == accepted.FAILS_DIFFERENTLY:
            said = each.difference(outcome.finding) if outcome.finding else ""
            yield f"{each.describe()}: its case fails in another way now: {printable(said)[:400]} ({each.where})"


def _write(config: pytest.Config) -> str:
    """Write the file of known failures; returns what to say about it. Raises ReportError."""
    found = config.stash[FOUND]
    entries = config.stash[ACCEPTED].refreshed(found)
    file = write_text(Path(config.option.write_known_failures), text_of(entries))
    unexplained = sum(not each.reason for each in entries)
    todo = f", {unexplained} without a reason: write it before you use the file" if unexplained else ""
    return f"{len(entries)} known failures: {printable(file)}{todo}"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if ENGINE not in config.stash or config.option.collectonly or is_worker(config):
        return
    for line in _reasons(config):
        terminalreporter.write_line(line)
    known: Accepted = config.stash[ACCEPTED]
    looked_at = {each.where: outcome for each, outcome in known.outcomes()}
    for each in known.known:
        terminalreporter.write_line(_line(each, looked_at.get(each.where), known))
    if _WRITTEN in config.stash:
        terminalreporter.write_line(f"--write-known-failures: {config.stash[_WRITTEN]}")
    for complaint in config.stash[_COMPLAINTS]:
        terminalreporter.write_line(complaint, red=True)


def _line(known: KnownFailure, outcome: Outcome | None, run: Accepted) -> str:
    """What became of one entry."""
    if outcome is None:
        why = run.why_not(known) or f"{known.describe()}: no test of it was selected"
        return f"known failure not run: {printable(why)}"
    if outcome.status == accepted.NOT_RUN:
        return f"known failure not run: {printable(outcome.why)}"
    met = run.met[known.where]
    explained = f" (explains {met:,} of the cases run)" if met else ""
    return f"known failure {outcome.status}: {known.describe()}: {printable(known.reason)}{explained}"
