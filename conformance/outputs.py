"""What a run leaves behind and says at its end: reports, JUnit XML, GitHub's annotations and summary, the last lines.

However many failures there are, the terminal shows them by their causes and in few lines; everything is in the files.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from traceback import walk_tb

import pytest
from _pytest import junitxml
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from conformance.interrupts import ending
from conformance.outside import BoundaryFailure, Outside
from conformance.recording import Recorded, Recorder
from conformance.stash import ACCEPTED, ENGINE, RECORDER, draws, is_worker, target_of
from conformance.verdicts import ConformanceFailure, failures_in
from reference.fields import printable
from reports import github
from reports.markdown import code, prose, table
from reports.summary import of_causes

MOST_LINES = 25
MOST_GROUPS = 4
"""Causes of which the terminal shows a failure, in five lines each."""
MOST_ROWS = 100
"""Causes that GitHub's summary lists."""

_LAST_LINES = pytest.StashKey[list[str]]()
_UNWRITTEN = pytest.StashKey[str]()
"""What to say of a file that a plugin of pytest's could not write at the end."""


class Shown(TerminalRepr):
    """The failures of one test, as pytest and its XML see them: the diagnoses are the message."""

    def __init__(self, recorded: Sequence[Recorded | Outside]) -> None:
        self.recorded = recorded
        first = recorded[0]
        call = first.report.call if isinstance(first, Recorded) else None
        message = "; ".join(dict.fromkeys(each.message for each in recorded))
        self.reprcrash = ReprFileLocation(call.file if call else "", call.line if call else 1, message)

    @property
    def is_written(self) -> bool:
        """Whether all of it is in files, so that nothing is lost if the terminal does not show it."""
        return not any(each.problem for each in self.recorded)

    def toterminal(self, tw: TerminalWriter) -> None:
        for number, each in enumerate(self.recorded):
            if number:
                tw.line()
            for line in each.lines():
                tw.line(_line(line))


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.fulltrace:
        config.pluginmanager.register(LastFrame(), "conformance-last-frame")
    config.pluginmanager.register(LastFiles(), "conformance-last-files")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record what was found, and show that in the place of a traceback, which would lead into the suite."""
    if call.excinfo is not None and ENGINE in item.config.stash:
        recorded = _recorded(item, list(failures_in(call.excinfo.value)))
        if recorded:
            item.repr_failure = lambda *_, **__: Shown(recorded)  # type: ignore[method-assign]
            # pytest's XML takes them from the report of the teardown, which takes them from here.
            item.user_properties += [pair for each in recorded for pair in _properties(each).items()]
        elif isinstance(call.excinfo.value, BoundaryFailure):
            engine, recorder = item.config.stash[ENGINE], item.config.stash[RECORDER]
            found = recorder.record_outside(engine, item.nodeid, call.excinfo.value, drawn=draws(item))
            item.repr_failure = lambda *_, **__: Shown([found])  # type: ignore[method-assign]
            item.user_properties += [("report", printable(found.file)), ("replay", found.replay)]
    return (yield)


def _recorded(item: pytest.Item, failures: Sequence[ConformanceFailure]) -> list[Recorded]:
    """All of them are written, also when the run is interrupted meanwhile."""
    engine, recorder = item.config.stash[ENGINE], item.config.stash[RECORDER]
    try:
        return [recorder.record(engine, item.nodeid, each) for each in failures]
    except KeyboardInterrupt:
        ending()
        recorder.record_in_haste(engine, item.nodeid, failures)
        raise


def _properties(recorded: Recorded) -> Mapping[str, object]:
    return {
        "report": printable(recorded.page),
        "cause": printable(recorded.report.diagnosis.cause),
        "replay": printable(recorded.report.replay_command(recorded.file)),
    }


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A test that is interrupted has perhaps found something already: it is reported as far as it has been shrunk."""
    try:
        return (yield)
    except KeyboardInterrupt:
        ending()
        target = target_of(item)
        if target is not None and ENGINE in item.config.stash:
            recorder = item.config.stash[RECORDER]
            recorder.record_in_haste(item.config.stash[ENGINE], item.nodeid, list(target.met.values()))
        raise


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt() -> None:
    """Before pytest takes the interrupt apart, which a signal must not cut short either."""
    ending()


class LastFrame:
    """Of an interrupt pytest shows the last frame, but parses the source of every one, which takes seconds where the
    machine is busy. Here it gets no other; ``--full-trace`` shows all of them.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        shown = excinfo.traceback.filter(excinfo) or excinfo.traceback
        excinfo.traceback = type(shown)(shown[-1:])
        excinfo.value.__suppress_context__ = True


class LastFiles:
    """Files that others write at the end, such as JUnit XML. One that cannot be written must not keep the terminal from
    saying what was found, which it does after all of them.
    """

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        except OSError as error:
            config = session.config
            if _LAST_LINES not in config.stash:  # no run of the suite, or one of its workers, which cannot say it
                raise
            config.stash[_UNWRITTEN] = _unwritten(config, error)
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return None


def _unwritten(config: pytest.Config, error: OSError) -> str:
    """What to say of it. JUnit's plugin, if it is its file, is not asked again: it would say that the file is there."""
    name, why = error.filename, error.strerror or error
    xml = config.stash.get(junitxml.xml_key, None)
    if xml is not None and any(frame.f_locals.get("self") is xml for frame, _ in walk_tb(error.__traceback__)):
        config.pluginmanager.unregister(xml)
        del config.stash[junitxml.xml_key]
        return f"--junit-xml: cannot write {printable(name or xml.logfile)}: {why}"
    return f"cannot write {printable(name) if name else 'what a plugin writes at the end'}: {why}"


@pytest.hookimpl(tryfirst=True)  # the reports are due before workers and their processes have gone
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what is written at the end, however the run ended, and before pytest says anything about it."""
    config = session.config
    if ENGINE not in config.stash or config.option.collectonly:
        return
    ending()
    if is_worker(config):
        return
    recorder = config.stash[RECORDER]
    known = config.stash[ACCEPTED].told() if ACCEPTED in config.stash else ()
    lines = recorder.finish(config.stash[ENGINE], known)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if _on_github() and summary:
        try:
            with open(summary, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(_step_summary(recorder))
        except OSError as error:
            lines.append(f"cannot write GitHub's summary {printable(summary)}: {error.strerror or error}")
    config.stash[_LAST_LINES] = lines


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """pytest shows the tests that failed otherwise; what the suite found is shown by its causes."""
    if _LAST_LINES not in config.stash:
        return (yield)
    failed = terminalreporter.stats.get("failed", [])
    terminalreporter.stats["failed"] = [each for each in failed if not _is_in_a_file(each)]
    try:
        yield
    finally:
        if failed:
            terminalreporter.stats["failed"] = failed
        else:
            del terminalreporter.stats["failed"]
    recorder = config.stash[RECORDER]
    groups, beside = recorder.groups(), list(recorder.outside.values())
    for each in _only_here(recorder, failed):
        terminalreporter.write_line("\n".join(map(_line, each.lines())))
    if groups or beside:
        terminalreporter.write_sep("=", "conformance", red=True, bold=True)
    tests = sum(isinstance(getattr(each, "longrepr", None), Shown) for each in failed)
    unwritten = [config.stash[_UNWRITTEN]] if _UNWRITTEN in config.stash else []
    for line in _summary(groups, beside, tests, config.stash[_LAST_LINES])[: MOST_LINES - 1 - len(unwritten)]:
        terminalreporter.write_line(_line(line))
    for line in unwritten:
        terminalreporter.write_line(_line(line), red=True)
    if _on_github():
        for group in groups[: github.MOST_ANNOTATIONS]:
            terminalreporter.write_line(_annotation(group))
    return None


def _only_here(recorder: Recorder, failed: Sequence[object]) -> list[Recorded]:
    """What could not be written, but for what pytest has shown: an interrupted test is not among those that failed."""
    shown = [getattr(each, "longrepr", None) for each in failed]
    told = {id(each) for some in shown if isinstance(some, Shown) for each in some.recorded}
    return [each for each in recorder.recorded.values() if each.problem and id(each) not in told]


def _is_in_a_file(report: object) -> bool:
    shown = getattr(report, "longrepr", None)
    return isinstance(shown, Shown) and shown.is_written


def _summary(groups: list[list[Recorded]], beside: list[Outside], tests: int, last: list[str]) -> list[str]:
    """One failure of each of the first causes, the smallest one, how many there are, in how many ``tests``, the first
    of those outside the contract, and the run in figures.
    """
    lines = []
    most = MOST_GROUPS - 1 if beside else MOST_GROUPS
    if groups or beside:
        found = f" (in {tests:,} test{'s'[: tests != 1]})" if tests else ""
        lines.append(f"{_counted(groups, len(beside))}{found}")
    for group in groups[:most]:
        smallest = min(group, key=lambda each: each.report.case.num_tokens)
        head, *rest = smallest.lines()[:5]
        lines += [f"{head} ({len(group) - 1} more of this cause)" if len(group) > 1 else head, *rest]
    left = groups[most:]
    if left:
        lines.append(f"... and {_counted(left)}: see {printable(left[0][0].file.parent)}")
    if beside:
        more = f" ({len(beside) - 1} more outside the contract)" if len(beside) > 1 else ""
        head, *rest = beside[0].lines()[:4]
        lines += [f"{head}{more}", *rest]
    return [*lines, *last]


def _counted(groups: list[list[Recorded]], beside: int = 0) -> str:
    """As the page counts them: by reports, which differ from one another, however many tests have met each."""
    failures = sum(map(len, groups)) + beside
    unexplained = sum(group[0].report.diagnosis.key is None for group in groups)
    return f"{failures:,} failure{'s'[: failures != 1]}{of_causes(len(groups) - unexplained, unexplained, beside)}"


def _annotation(group: list[Recorded]) -> str:
    """An error at the function that is wrong, in the words of the first failure."""
    first = group[0]
    call = first.report.call
    file, line = (call.file, call.line) if call else ("", 1)
    workspace = os.environ.get("GITHUB_WORKSPACE")
    if workspace and Path(file).is_relative_to(workspace):
        file = str(Path(file).relative_to(workspace))
    message = "\n".join(dict.fromkeys([first.message, first.verdict, f"report: {first.page}"]))
    return github.annotation(file, line, f"slot mapping: {first.entry_point}", message)


def _step_summary(recorder: Recorder) -> str:
    """GitHub's summary of the job: the run in figures, and a row a cause."""
    line = recorder.result.line() if recorder.result is not None else ""
    groups = recorder.groups()
    parts = ["## Slot-mapping conformance", prose(line)]
    if groups:
        rows = [
            (
                code(group[0].entry_point),
                code(group[0].report.diagnosis.cause),
                str(len(group)),
                prose(group[0].report.diagnosis.summary or group[0].verdict),
                code(str(group[0].page)),
            )
            for group in groups[:MOST_ROWS]
        ]
        parts.append(table(("entry point", "cause", "failures", "what is wrong", "report"), rows))
    if len(groups) > MOST_ROWS:
        parts.append(f"... and {_counted(groups[MOST_ROWS:])}.")
    return "\n\n".join(parts) + "\n\n"


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _line(text: str) -> str:
    """``text`` as it can be printed: its lines are kept, and nothing in them is obeyed."""
    lines = [printable(line) for line in text.split("\n")]
    return "\n".join(map(github.harmless, lines) if _on_github() else lines)
