"""The pytest side of the suite: options, the ``entry_point`` of each test, compiling before testing, reports after
it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

from conformance import options, recording, saved
from conformance.engine import Engine
from conformance.execution.session import SubjectError
from conformance.explained import signature
from conformance.interrupts import keep_interrupts
from conformance.subjects import binding
from conformance.subjects.binding import BindingError
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.under_test import UnderTest
from conformance.verdicts import ConformanceFailure, failures_in
from reference.case import CaseError
from reference.fields import printable
from reference.verdict import UNSUPPORTED

_FOLDER = Path(__file__).parent
_SAVED = _FOLDER / "test_saved.py"
_ENGINE = pytest.StashKey[Engine]()
_PAIRS = pytest.StashKey[list[tuple[EntryPoint, saved.SavedCase]]]()
_RECORDER = pytest.StashKey[recording.Recorder]()

_MOST_FAILURES = 8  # different ones that a test goes on after


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Refuse wrong options before any plugin meets them: Hypothesis's own raises for a profile that does not exist."""
    options.check(config)


@pytest.hookimpl(trylast=True)  # after Hypothesis's own, which loads the profile that its option names
def pytest_configure(config: pytest.Config) -> None:
    config.add_cleanup(keep_interrupts())
    config.addinivalue_line("markers", "entry_points(*names): the entry points that a conformance test is about")
    if config.option.hypothesis_profile is None:
        settings.load_profile(options.DEFAULT_PROFILE)
    if config.option.max_examples is not None:
        settings.register_profile("command line", settings(), max_examples=config.option.max_examples)
        settings.load_profile("command line")
    config.stash[_RECORDER] = recording.Recorder(Path(config.option.report_dir), options.seed(config))


def _start(config: pytest.Config) -> Engine:
    """The run's engine, its subjects loaded. Raises UsageError, one line, when that cannot be."""
    engine = Engine(options.lane(config), options.of_run(config))
    config.add_cleanup(engine.close)
    try:
        for entry in engine.entries():
            if entry.status == TESTABLE:
                binding.check(entry)
    except (SubjectError, BindingError) as error:
        raise pytest.UsageError(str(error)) from error
    return engine


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Load the subjects before anything is collected, unless what is collected is something else than the suite."""
    config = session.config
    folders = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    if not any(path == _FOLDER or path in _FOLDER.parents or _FOLDER in path.parents for path in folders):
        return
    engine = _start(config)
    try:
        read = [saved.read(Path(file)) for file in config.option.replay]
        config.stash[_PAIRS] = saved.pairs(read, engine.entries())
    except CaseError as error:
        raise pytest.UsageError(f"--replay: {error}") from error
    config.stash[_ENGINE] = engine  # not sooner: a run that never was writes no summary


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--replay`` saved cases are all that runs; without it there are none."""
    if collection_path.parent != _FOLDER or not collection_path.name.startswith("test_"):
        return None
    return True if (collection_path == _SAVED) != bool(config.option.replay) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file that ``--replay`` names is run, or the run is refused: never some other test instead of it."""
    if config.option.replay and not any(item.path == _SAVED for item in items):
        raise pytest.UsageError("--replay: no saved case was collected; name the folder conformance and no single test")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry_point" not in metafunc.fixturenames:
        return
    engine = metafunc.config.stash[_ENGINE]
    if "saved_case" in metafunc.fixturenames:
        found = metafunc.config.stash[_PAIRS]
        metafunc.parametrize(("entry_point", "saved_case"), [_saved_case(engine, *each) for each in found])
        return
    marker = metafunc.definition.get_closest_marker("entry_points")
    names = marker.args if marker else ()
    concerned = [entry for entry in engine.entries() if entry.name in names]
    if concerned:
        metafunc.parametrize("entry_point", [_parameter(engine, entry) for entry in concerned])
        return
    reason = f"{', '.join(engine.options.subjects)}: no entry point {' or '.join(names)}"
    metafunc.parametrize("entry_point", [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")])


def _parameter(engine: Engine, entry: EntryPoint) -> ParameterSet:
    marks = [] if entry.status == TESTABLE else [pytest.mark.skip(reason=f"{entry.id}: {entry.status}")]
    return pytest.param(UnderTest(engine, entry), marks=marks, id=entry.id)


def _saved_case(engine: Engine, entry: EntryPoint, case: saved.SavedCase) -> ParameterSet:
    reason = case.why_not(entry)
    marks = [pytest.mark.skip(reason=reason)] if reason is not None else []
    return pytest.param(UnderTest(engine, entry), case, marks=marks, id=f"{case.file.stem}-{entry.id}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Compile what the selected tests draw from, all cores at work, before the first case."""
    if session.config.option.collectonly or _ENGINE not in session.config.stash or session.config.option.replay:
        return
    engine = session.config.stash[_ENGINE]
    targets = [target for target in map(_target, session.items) if target is not None]
    wanted = {target.entry.id: target.entry for target in targets if target.entry.status == TESTABLE}
    for entry in wanted.values():
        pool = engine.pool(entry)
        if pool is None:
            continue
        started = time.monotonic()
        try:
            errors = engine.compile(entry, _progress(session.config, entry.id))
        except SubjectError as error:
            raise pytest.UsageError(str(error)) from error
        lines = [
            f"{entry.id}: {pool.describe()}; ready on lane {engine.lane.name} after {time.monotonic() - started:.1f} s"
        ]
        lines += [
            f"{entry.id}: does not compile: {printable(error.splitlines()[0])}" for error in dict.fromkeys(errors)
        ]
        _say(session.config, lines)


def _target(item: pytest.Item) -> UnderTest | None:
    target = item.callspec.params.get("entry_point") if hasattr(item, "callspec") else None
    return target if isinstance(target, UnderTest) else None


def _say(config: pytest.Config, lines: list[str]) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        for line in lines:
            terminal.ensure_newline()
            terminal.write_line(line)


def _progress(config: pytest.Config, what: str) -> Any:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not terminal.isatty:
        return lambda done, total: None

    def show(done: int, total: int) -> None:
        filled = 30 * done // total
        bar = "#" * filled + "." * (30 - filled)
        terminal.rewrite(f"compiling {what} [{bar}] {done}/{total}", erase=done == total)

    return show


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and _ENGINE in item.config.stash:
        failures = list(failures_in(call.excinfo.value))
        if failures:
            engine, recorder = item.config.stash[_ENGINE], item.config.stash[_RECORDER]
            report.longrepr = "\n\n".join(recorder.record(engine, item.nodeid, failure) for failure in failures)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Run a test again as long as it finds a new failure beside those it has explained."""
    target = _target(item)
    if target is not None:
        target.begin()
    try:
        yield
        if target is not None and target.unsupported is not None:
            pytest.skip(target.unsupported)
        return
    except (ConformanceFailure, BaseExceptionGroup) as error:
        found = list(failures_in(error))
        if target is None or not found or item.path == _SAVED:
            raise
    for _ in range(_MOST_FAILURES):
        new = {signature(failure.finding) for failure in found} - target.explained
        if not new or None in new:
            break
        target.explained |= {each for each in new if each is not None}
        try:
            target.begin()
            item.runtest()
            break
        except (ConformanceFailure, BaseExceptionGroup) as error:
            found += failures_in(error)
    smallest = [target.smallest(failure) for failure in found]
    raise ExceptionGroup(f"{len(found)} failures", smallest) if len(found) > 1 else smallest[0]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Whose code is tested, where it stands, and why some of it is not. This project's own needs no introduction."""
    entries = config.stash[_ENGINE].entries() if _ENGINE in config.stash else []
    return [entry.describe() for entry in entries if entry.subject != "kernels" or entry.status != TESTABLE]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run without a case of a required entry point fails, whatever else it did."""
    config = session.config
    green = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if green and _ENGINE in config.stash and not config.option.collectonly and _missing(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _missing(config: pytest.Config) -> list[str]:
    """Entry points of ``--require`` that have run no case; one that the lane does not support was not run."""
    tallies = config.stash[_ENGINE].tallies
    ran = [key for key, tally in tallies.items() if tally.cases > tally.verdicts[UNSUPPORTED]]
    subjects = config.stash[_ENGINE].options.subjects

    def has_run(name: str) -> bool:
        """A bare name is meant for every subject of the run."""
        return all(key in ran for key in ([name] if "." in name else [f"{subject}.{name}" for subject in subjects]))

    return [name for name in options.required(config) if not has_run(name)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _ENGINE in config.stash and not config.option.collectonly:
        for line in config.stash[_RECORDER].finish(config.stash[_ENGINE]):
            terminalreporter.write_line(line)
        for name in _missing(config):
            terminalreporter.write_line(f"--require {name}: ran no case, so this run fails", red=True)
